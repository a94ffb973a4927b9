//! The scripted server of the test kit, under a URL with a secret in its query.

use postrider_testkit::server::ScriptedServer;
pub use postrider_testkit::server::{Reaction, Received, Traffic};
use url::Url;

pub struct Server(ScriptedServer);

impl Server {
    pub fn start(reaction: Reaction) -> Self {
        Self(ScriptedServer::always(reaction).unwrap())
    }

    pub fn port(&self) -> u16 {
        self.0.port()
    }

    pub fn url(&self) -> Url {
        format!("{}/events?key=hidden-token", self.0.url()).parse().unwrap()
    }

    /// Waits until the client has closed all connections, and returns everything that arrived.
    pub async fn traffic(self) -> Traffic {
        self.0.traffic().await.unwrap()
    }
}

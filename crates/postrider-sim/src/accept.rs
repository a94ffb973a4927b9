//! Accepts the connections of every face until shutdown, then waits for the open ones.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use super::World;

/// Pause after a failed accept, which happens when the process has too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until shutdown, then waits until the open ones have ended.
pub async fn accept<F, Served>(world: &Arc<World>, listener: TcpListener, serve_connection: F)
where
    F: Fn(Arc<World>, TcpStream) -> Served,
    Served: Future<Output = ()> + Send + 'static,
{
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = world.shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(serve_connection(Arc::clone(world), stream));
            }
            Err(error) => {
                tracing::warn!(?error, "the sim could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    connections.close();
    connections.wait().await;
}

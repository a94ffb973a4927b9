//! Functions behind a URL that fail on request: a server that records its requests, and notices when its client hangs up.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use postrider_testkit::server::{Reaction, Received, Script, ScriptedServer, answer_head};
use serde_json::Value;

/// The reaction of a function.
#[derive(Debug, Clone)]
pub enum Does {
    /// Answers with this status, content type and body.
    Answers(u16, &'static str, String),
    /// Answers `{"late": true}` once it is released.
    Holds,
    /// Breaks off in the middle of a good answer.
    BreaksOff,
    /// Says where it has moved.
    Moves(String),
}

/// A request that came in.
#[derive(Debug, Clone)]
pub struct Asked {
    pub headers: HashMap<String, String>,
    pub raw: Vec<u8>,
    pub body: Value,
}

impl Asked {
    pub fn data(&self, member: &str) -> &Value {
        &self.body["data"][member]
    }
}

impl From<Received> for Asked {
    fn from(request: Received) -> Self {
        Self { headers: request.headers(), body: request.json(), raw: request.body }
    }
}

#[derive(Default)]
struct Behavior {
    does: HashMap<String, Does>,
    released: BTreeSet<String>,
}

/// The server. Each path is a function.
pub struct Endpoint {
    server: ScriptedServer,
    behavior: Arc<Mutex<Behavior>>,
}

struct Functions(Arc<Mutex<Behavior>>);

impl Script for Functions {
    fn react(&self, request: &Received) -> Reaction {
        let behavior = lock(&self.0);
        match behavior.does.get(request.path()) {
            Some(Does::Answers(status, content_type, body)) => answer(*status, content_type, body),
            Some(Does::Holds) if !behavior.released.contains(request.path()) => Reaction::Hold,
            Some(Does::Holds) => answer(200, JSON, r#"{"late": true}"#),
            Some(Does::BreaksOff) => {
                let head = answer_head("200 X", &format!("content-type: {JSON}\r\n"), 100);
                Reaction::close_after(head + r#"{"half": "#)
            }
            Some(Does::Moves(to)) => {
                Reaction::close_after(answer_head("307 X", &format!("location: {to}\r\n"), 0))
            }
            None => Reaction::close_after(""),
        }
    }
}

impl Endpoint {
    pub fn start() -> anyhow::Result<Self> {
        let behavior = Arc::<Mutex<Behavior>>::default();
        Ok(Self { server: ScriptedServer::start(Functions(Arc::clone(&behavior)))?, behavior })
    }

    /// From now on this is what the function does. Returns its address.
    pub fn at(&self, name: &str, does: Does) -> String {
        lock(&self.behavior).does.insert(format!("/{name}"), does);
        format!("{}/{name}", self.server.url())
    }

    /// Answers the requests that are held there, and holds no more.
    pub fn release(&self, name: &str) {
        lock(&self.behavior).released.insert(format!("/{name}"));
        self.server.changed();
    }

    /// The requests to a function so far.
    pub fn asked(&self, name: &str) -> Vec<Asked> {
        self.server.requests_to(&format!("/{name}")).into_iter().map(Asked::from).collect()
    }

    /// Waits until a function was asked.
    pub fn wait_for(&self, name: &str) -> anyhow::Result<Asked> {
        Ok(self.server.wait_for(&format!("/{name}"), 1)?.into())
    }

    /// Waits until the client of a held request has hung up.
    pub fn wait_for_hang_up(&self, name: &str) -> anyhow::Result<()> {
        self.server.wait_for_hang_up(&format!("/{name}"))
    }
}

/// The content type of a function's answer.
pub const JSON: &str = "application/json";

fn answer(status: u16, content_type: &str, body: &str) -> Reaction {
    Reaction::answer(&format!("{status} X"), &format!("content-type: {content_type}\r\n"), body)
}

fn lock(behavior: &Mutex<Behavior>) -> MutexGuard<'_, Behavior> {
    behavior.lock().unwrap_or_else(PoisonError::into_inner)
}

//! An agent and a sentinel: a server of their own, which records its requests and behaves as the test says.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use postrider_testkit::server::{Reaction, Received, Script, ScriptedServer};
use serde_json::Value;
use standardwebhooks::Webhook;

use super::vendors::whsec;

/// Under which secret it is asked.
pub const MARK: &str = "agent";

/// A request that came in.
#[derive(Debug, Clone)]
pub struct Asked {
    pub headers: HashMap<String, String>,
    pub body: Value,
}

/// The agent's reaction.
#[derive(Debug, Clone)]
pub enum Does {
    /// Answers with this status, content type and body.
    Answers(u16, &'static str, String),
    /// Answers so once it is released.
    Holds(String),
    /// Says where it has moved.
    Moves,
}

pub fn says(text: &str) -> Does {
    Does::Answers(200, "application/json", serde_json::json!({ "text": text, "model": "n/a" }).to_string())
}

#[derive(Default)]
struct Behavior {
    does: HashMap<String, Does>,
    is_released: bool,
}

pub struct Agent {
    pub url: String,
    server: ScriptedServer,
    behavior: Arc<Mutex<Behavior>>,
}

struct Paths(Arc<Mutex<Behavior>>);

impl Script for Paths {
    fn react(&self, request: &Received) -> Reaction {
        let behavior = lock(&self.0);
        let does = behavior.does.get(request.path()).cloned().unwrap_or_else(|| says("as you wish"));
        match does {
            _ if !verify(&request.headers(), &request.body) => answer(401, "text/plain", "who are you?"),
            Does::Answers(status, content_type, body) => answer(status, content_type, &body),
            Does::Moves => {
                Reaction::answer("307 Said", "content-type: text/plain\r\nlocation: /agent\r\n", "")
            }
            Does::Holds(_) if !behavior.is_released => Reaction::Hold,
            Does::Holds(body) => answer(200, "text/plain", &body),
        }
    }
}

impl Agent {
    pub fn start() -> anyhow::Result<Self> {
        let behavior = Arc::<Mutex<Behavior>>::default();
        let server = ScriptedServer::start(Paths(Arc::clone(&behavior)))?;
        Ok(Self { url: server.url(), server, behavior })
    }

    /// From now on this is what happens at a path.
    pub fn at(&self, path: &str, does: Does) {
        lock(&self.behavior).does.insert(path.to_owned(), does);
    }

    /// Answers the requests that are held, and holds no more.
    pub fn release(&self) {
        lock(&self.behavior).is_released = true;
        self.server.changed();
    }

    /// The requests to a path so far.
    pub fn asked(&self, path: &str) -> Vec<Asked> {
        let requests = self.server.requests_to(path).into_iter();
        requests.map(|request| Asked { headers: request.headers(), body: request.json() }).collect()
    }

    /// Waits until so many requests have come to a path.
    pub fn wait_for(&self, path: &str, count: usize) -> anyhow::Result<()> {
        self.server.wait_for(path, count).map(drop)
    }
}

fn answer(status: u16, content_type: &str, body: &str) -> Reaction {
    Reaction::answer(&format!("{status} Said"), &format!("content-type: {content_type}\r\n"), body)
}

fn lock(behavior: &Mutex<Behavior>) -> MutexGuard<'_, Behavior> {
    behavior.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The specification's own library says whether the request is signed.
fn verify(headers: &HashMap<String, String>, body: &[u8]) -> bool {
    let map: hyper::HeaderMap =
        headers.iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?))).collect();
    Webhook::new(&whsec(MARK)).is_ok_and(|webhook| webhook.verify(body, &map).is_ok())
}

//! An agent and a sentinel: a server of their own, which keeps receipts and behaves as it is told.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use anyhow::Context;
use serde_json::Value;
use standardwebhooks::Webhook;

use super::vendors::whsec;
use crate::world::PATIENCE;

/// Under which secret it is asked.
pub const MARK: &str = "agent";

/// A request that came in.
#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    pub headers: HashMap<String, String>,
    pub body: Value,
}

/// What it does.
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
struct State {
    asked: Vec<Asked>,
    does: HashMap<String, Does>,
    released: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Agent {
    pub url: String,
    shared: Arc<Shared>,
}

impl Agent {
    pub fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared::default());
        let agent = Self { url, shared: Arc::clone(&shared) };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // How a connection ends is its peer's business.
                std::thread::spawn(move || drop(answer(stream, &shared)));
            }
        });
        Ok(agent)
    }

    /// From now on this is what happens at a path.
    pub fn at(&self, path: &str, does: Does) {
        self.shared.state().does.insert(path.to_owned(), does);
    }

    /// Lets everything go that is held, and holds nothing any more.
    pub fn release(&self) {
        self.shared.state().released = true;
        self.shared.changed.notify_all();
    }

    /// What came to a path so far.
    pub fn asked(&self, path: &str) -> Vec<Asked> {
        self.shared.state().asked.iter().filter(|asked| asked.path == path).cloned().collect()
    }

    /// Waits until so many requests have come to a path.
    pub fn wait_for(&self, path: &str, count: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.shared.state();
        while state.asked.iter().filter(|asked| asked.path == path).count() < count {
            let left = deadline.checked_duration_since(Instant::now()).context("the agent was not asked")?;
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8(head)?;
    let path = head.split(' ').nth(1).context("no path")?.to_owned();
    let headers: HashMap<String, String> = head
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers["content-length"].parse()?];
    stream.read_exact(&mut body)?;
    let verified = verify(&headers, &body);
    let mut state = shared.state();
    state.asked.push(Asked { path: path.clone(), headers, body: serde_json::from_slice(&body)? });
    shared.changed.notify_all();
    let does = state.does.get(&path).cloned().unwrap_or_else(|| says("as you wish"));
    let (status, content_type, body, more) = match does {
        // Whoever is not who they say is told nothing.
        _ if !verified => (401, "text/plain", "who are you?".to_owned(), ""),
        Does::Answers(status, content_type, body) => (status, content_type, body, ""),
        Does::Moves => (307, "text/plain", String::new(), "location: /agent\r\n"),
        Does::Holds(body) => {
            while !state.released {
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            (200, "text/plain", body, "")
        }
    };
    drop(state);
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} Said\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\nconnection: close\r\n{more}\r\n{body}"
    )?;
    Ok(())
}

/// The specification's own library says whether the request is signed.
fn verify(headers: &HashMap<String, String>, body: &[u8]) -> bool {
    let map: hyper::HeaderMap =
        headers.iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?))).collect();
    Webhook::new(&whsec(MARK)).is_ok_and(|webhook| webhook.verify(body, &map).is_ok())
}

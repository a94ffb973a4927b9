//! Functions behind a URL that misbehave on request: a server that writes down what it was asked, and notices when its caller hangs up.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use anyhow::Context;
use serde_json::Value;

use crate::world::PATIENCE;

/// What a function does.
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
    pub path: String,
    pub headers: HashMap<String, String>,
    pub raw: Vec<u8>,
    pub body: Value,
}

impl Asked {
    pub fn data(&self, member: &str) -> &Value {
        &self.body["data"][member]
    }
}

#[derive(Default)]
struct State {
    does: HashMap<String, Does>,
    asked: Vec<Asked>,
    hung_up: Vec<String>,
    released: Vec<String>,
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

    fn wait<T>(&self, what: &str, seen: impl Fn(&State) -> Option<T>) -> anyhow::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state();
        loop {
            if let Some(seen) = seen(&state) {
                return Ok(seen);
            }
            let left = deadline.checked_duration_since(Instant::now());
            let left = left.with_context(|| format!("the function has not seen {what}"))?;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The server. Each path is a function.
pub struct Endpoint {
    url: String,
    shared: Arc<Shared>,
}

impl Endpoint {
    pub fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared::default());
        let endpoint = Self { url, shared: Arc::clone(&shared) };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // How a connection ends is its peer's business.
                std::thread::spawn(move || drop(serve(stream, &shared)));
            }
        });
        Ok(endpoint)
    }

    /// From now on this is what the function does. Gives its address.
    pub fn at(&self, name: &str, does: Does) -> String {
        self.shared.state().does.insert(format!("/{name}"), does);
        format!("{}/{name}", self.url)
    }

    /// Answers those that are held there, and holds nobody any more.
    pub fn release(&self, name: &str) {
        self.shared.state().released.push(format!("/{name}"));
        self.shared.changed.notify_all();
    }

    /// What a function was asked so far.
    pub fn asked(&self, name: &str) -> Vec<Asked> {
        let path = format!("/{name}");
        self.shared.state().asked.iter().filter(|asked| asked.path == path).cloned().collect()
    }

    /// Waits until a function was asked.
    pub fn wait_for(&self, name: &str) -> anyhow::Result<Asked> {
        let path = format!("/{name}");
        self.shared.wait("a request", |state| state.asked.iter().find(|asked| asked.path == path).cloned())
    }

    /// Waits until whoever was held there has hung up.
    pub fn wait_for_hang_up(&self, name: &str) -> anyhow::Result<()> {
        let path = format!("/{name}");
        self.shared.wait("a hang-up", |state| state.hung_up.contains(&path).then_some(()))
    }
}

fn serve(mut stream: TcpStream, shared: &Arc<Shared>) -> anyhow::Result<()> {
    let asked = read(&mut stream)?;
    let path = asked.path.clone();
    let does = shared.state().does.get(&path).cloned().context("nobody said what to do")?;
    shared.state().asked.push(asked);
    shared.changed.notify_all();
    match does {
        Does::Answers(status, content_type, body) => answer(&mut stream, status, content_type, &body),
        Does::Holds => {
            let (mut reader, watching, watched) = (stream.try_clone()?, Arc::clone(shared), path.clone());
            let gone = Arc::new(AtomicBool::new(false));
            let is_gone = Arc::clone(&gone);
            reader.set_read_timeout(None)?;
            std::thread::spawn(move || {
                // Nothing more is said on this connection: what comes is its end.
                let _ = reader.read(&mut [0]);
                gone.store(true, Ordering::Relaxed);
                watching.state().hung_up.push(watched);
                watching.changed.notify_all();
            });
            shared.wait("the end", |state| {
                (state.released.contains(&path) || is_gone.load(Ordering::Relaxed)).then_some(())
            })?;
            answer(&mut stream, 200, JSON, r#"{"late": true}"#)
        }
        Does::BreaksOff => {
            let half =
                format!("HTTP/1.1 200 X\r\ncontent-type: {JSON}\r\ncontent-length: 100\r\n\r\n{{\"half\": ");
            Ok(stream.write_all(half.as_bytes())?)
        }
        Does::Moves(to) => {
            let moved = format!("HTTP/1.1 307 X\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
            Ok(stream.write_all(moved.as_bytes())?)
        }
    }
}

/// What functions answer with.
pub const JSON: &str = "application/json";

fn answer(stream: &mut TcpStream, status: u16, content_type: &str, body: &str) -> anyhow::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-type: {content_type}\r\n");
    stream.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes())?;
    Ok(())
}

/// Reads one request.
fn read(stream: &mut TcpStream) -> anyhow::Result<Asked> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8(head)?;
    let mut lines = head.lines();
    let path = lines.next().and_then(|line| line.split(' ').nth(1)).context("no path")?.to_owned();
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let mut raw = vec![0; headers.get("content-length").context("no length")?.parse()?];
    stream.read_exact(&mut raw)?;
    let body = serde_json::from_slice(&raw)?;
    Ok(Asked { path, headers, raw, body })
}

//! Providers that follow a script: one kills its caller at a moment of the call and keeps its own count of what it did,
//! the other answers when the test says so.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context;

use crate::world::PATIENCE;

/// A moment of a call, as the provider sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    Connected,
    HalfOfTheBody,
    AllOfTheBody,
    /// It did what it was asked, and has not answered.
    Acted,
    HeadersOut,
    AnswerOut,
}

pub struct Provider {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whom to kill, as soon as it is known.
    caller: Option<u32>,
    acted: HashMap<String, usize>,
}

impl Provider {
    /// Kills at this moment of the first call, and answers well afterwards.
    pub fn start(moment: Stage) -> anyhow::Result<Self> {
        Self::kills([moment].into_iter())
    }

    /// Kills whoever calls, every time.
    pub fn deadly() -> anyhow::Result<Self> {
        Self::kills(std::iter::repeat(Stage::Acted))
    }

    fn kills(mut moments: impl Iterator<Item = Stage> + Send + 'static) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let script = Arc::clone(&shared);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A caller that is gone breaks its connection.
                let _ = serve(stream, moments.next(), &script);
            }
        });
        Ok(Self { address, shared })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The process that will call. It is killed once.
    pub fn kill_when_it_comes(&self, caller: u32) {
        self.shared.state().caller = Some(caller);
        self.shared.changed.notify_all();
    }

    /// How often it did what this key asked for.
    pub fn acted(&self, key: &str) -> usize {
        self.shared.state().acted.get(key).copied().unwrap_or_default()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, name: &str) {
        let state = self.changed.wait_while(self.state(), |state| state.caller.is_none());
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let caller = if name == "-KILL" { state.caller.take() } else { state.caller };
        let _ = Command::new("kill").args([name, &caller.unwrap_or_default().to_string()]).status();
    }
}

fn serve(mut stream: TcpStream, kill_at: Option<Stage>, shared: &Shared) -> std::io::Result<()> {
    let kills = |moment| {
        if kill_at == Some(moment) {
            shared.signal("-KILL");
        }
        kill_at == Some(moment)
    };
    if kills(Stage::Connected) {
        return Ok(());
    }
    let (key, length) = read_head(&mut stream)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body[..length / 2])?;
    if kills(Stage::HalfOfTheBody) {
        return Ok(());
    }
    stream.read_exact(&mut body[length / 2..])?;
    if kills(Stage::AllOfTheBody) {
        return Ok(());
    }
    *shared.state().acted.entry(key).or_default() += 1;
    if kills(Stage::Acted) {
        return Ok(());
    }
    // A caller that is to die with the answer on its way must not have the time to read it.
    if matches!(kill_at, Some(Stage::HeadersOut | Stage::AnswerOut)) {
        shared.signal("-STOP");
    }
    let answer = r#"{"id": "scripted"}"#;
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        answer.len()
    )?;
    stream.flush()?;
    if kills(Stage::HeadersOut) {
        return Ok(());
    }
    stream.write_all(answer.as_bytes())?;
    kills(Stage::AnswerOut);
    Ok(())
}

/// The key, and how long the body is.
fn read_head(stream: &mut TcpStream) -> std::io::Result<(String, usize)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let length = header("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
    Ok((header("idempotency-key").unwrap_or_default(), length))
}

/// A provider that answers when the test says so.
pub struct Patient {
    listener: TcpListener,
}

/// A call that waits for its answer.
pub struct Call {
    stream: TcpStream,
    pub key: String,
}

impl Patient {
    pub fn start() -> anyhow::Result<Self> {
        Ok(Self { listener: TcpListener::bind("127.0.0.1:0")? })
    }

    pub fn url(&self) -> anyhow::Result<String> {
        Ok(format!("http://{}", self.listener.local_addr()?))
    }

    /// Waits for a call.
    pub async fn receive(&self) -> anyhow::Result<Call> {
        let listener = self.listener.try_clone()?;
        let accepted = tokio::task::spawn_blocking(move || listener.accept());
        let (mut stream, _) =
            tokio::time::timeout(PATIENCE, accepted).await.context("nobody called")???;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (key, length) = read_head(&mut stream)?;
        stream.read_exact(&mut vec![0; length])?;
        Ok(Call { stream, key })
    }

    /// Whether somebody has called who was not received.
    pub fn is_being_called(&self) -> anyhow::Result<bool> {
        self.listener.set_nonblocking(true)?;
        let called = self.listener.accept().is_ok();
        self.listener.set_nonblocking(false)?;
        Ok(called)
    }
}

impl Call {
    pub fn accept(self) -> anyhow::Result<()> {
        self.answer("200 OK", "")
    }

    /// Asks the caller to come again in a second.
    pub fn put_off(self) -> anyhow::Result<()> {
        self.answer("429 Too Many Requests", "retry-after: 1\r\n")
    }

    fn answer(mut self, status: &str, headers: &str) -> anyhow::Result<()> {
        let body = r#"{"id": "patient"}"#;
        let length = body.len();
        write!(
            self.stream,
            "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )?;
        Ok(())
    }
}

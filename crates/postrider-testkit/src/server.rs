//! An HTTP server on a free port of loopback that answers by script and records what it received.
//!
//! It runs on a thread of its own, so a test may block while the server answers.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use anyhow::Context;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::world::PATIENCE;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Received {
    /// Its place among all requests of the server, from 0.
    pub number: usize,
    pub at: Instant,
    /// Request line and headers.
    pub head: String,
    pub body: Vec<u8>,
}

impl Received {
    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// All headers, with names in lower case.
    pub fn headers(&self) -> HashMap<String, String> {
        let headers = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect()
    }

    /// The body, or null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut headers = head.lines().skip(1).filter_map(|line| line.split_once(": "));
    headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// The reaction to a request.
#[derive(Debug, Clone)]
pub enum Reaction {
    /// Takes these steps, and then closes the connection.
    Steps(Vec<Step>),
    /// Waits until the script reacts otherwise: see [`ScriptedServer::changed`] and [`Call`].
    Hold,
}

/// A step of an answer.
#[derive(Debug, Clone)]
pub enum Step {
    Write(Vec<u8>),
    /// Writes this until the client closes the connection.
    Repeat(Vec<u8>),
    /// Keeps the connection open, and waits for its next request.
    Next,
    /// Resets the connection.
    Reset,
    /// Tells the script that the answer came so far. The answer ends there unless the script goes on.
    Reached(&'static str),
}

impl Reaction {
    /// Writes this and closes.
    pub fn close_after(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Steps(vec![Step::Write(bytes.into())])
    }

    /// Writes this, and waits for the next request on the connection.
    pub fn keep_open_after(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Steps(vec![Step::Write(bytes.into()), Step::Next])
    }

    /// Writes the first part once and the second until the client closes the connection.
    pub fn repeat(first: impl Into<Vec<u8>>, rest: impl Into<Vec<u8>>) -> Self {
        Self::Steps(vec![Step::Write(first.into()), Step::Repeat(rest.into())])
    }

    pub fn reset() -> Self {
        Self::Steps(vec![Step::Reset])
    }

    /// A whole answer, after which the connection is closed. Each header ends with a line break.
    pub fn answer(status: &str, headers: &str, body: &str) -> Self {
        let head = answer_head(status, &format!("connection: close\r\n{headers}"), body.len());
        Self::close_after(head + body)
    }

    /// A whole answer in JSON.
    pub fn json(status: &str, body: &str) -> Self {
        Self::answer(status, "content-type: application/json\r\n", body)
    }
}

/// The head of an answer with a body of this length.
pub fn answer_head(status: &str, headers: &str, length: usize) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n")
}

/// Decides what the server does.
pub trait Script: Send + Sync + 'static {
    /// The reaction to a request. A held request is asked about again after each change.
    fn react(&self, request: &Received) -> Reaction;

    /// Whether the server goes on when a connection has come this far: see [`CONNECTED`] and [`HALF_OF_THE_BODY`].
    fn goes_on(&self, _reached: &'static str) -> bool {
        true
    }
}

impl<F: Fn(&Received) -> Reaction + Send + Sync + 'static> Script for F {
    fn react(&self, request: &Received) -> Reaction {
        self(request)
    }
}

/// A connection was accepted, and nothing was read.
pub const CONNECTED: &str = "connected";
/// The head and half of the body were read.
pub const HALF_OF_THE_BODY: &str = "half of the body";

#[derive(Default)]
struct State {
    peers: Vec<SocketAddr>,
    /// Connections of the test itself, by which it knows that all earlier ones were accepted.
    markers: usize,
    open: usize,
    requests: Vec<Received>,
    under_way: usize,
    most_under_way: usize,
    bytes_written: usize,
    /// Numbers of held requests whose client closed the connection.
    hung_up: Vec<usize>,
    /// Answers of the test to single requests.
    answers: BTreeMap<usize, Reaction>,
    /// Number of requests that [`ScriptedServer::receive`] has returned.
    taken: usize,
}

struct Shared {
    script: Arc<dyn Script>,
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changes.send_replace(());
        result
    }
}

/// Everything that arrived at a server.
#[derive(Debug, Default)]
pub struct Traffic {
    pub connections: usize,
    pub requests: Vec<Received>,
    /// Bytes of [`Step::Repeat`] written before the client closed the connection.
    pub bytes_written: usize,
}

/// The server. It ends when this is dropped.
pub struct ScriptedServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    _end: watch::Sender<()>,
}

impl ScriptedServer {
    pub fn start(script: impl Script) -> anyhow::Result<Self> {
        Self::start_with(Arc::new(script), true)
    }

    /// A server whose script the test keeps.
    pub fn start_shared(script: Arc<dyn Script>) -> anyhow::Result<Self> {
        Self::start_with(script, true)
    }

    /// The same, serving one connection at a time.
    pub fn start_serial(script: Arc<dyn Script>) -> anyhow::Result<Self> {
        Self::start_with(script, false)
    }

    /// A server that reacts to each request in the same way.
    pub fn always(reaction: Reaction) -> anyhow::Result<Self> {
        Self::start(move |_: &Received| reaction.clone())
    }

    /// A server that holds each request until the test answers it: see [`Self::receive`].
    pub fn manual() -> anyhow::Result<Self> {
        Self::always(Reaction::Hold)
    }

    fn start_with(script: Arc<dyn Script>, is_concurrent: bool) -> anyhow::Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (changes, _) = watch::channel(());
        let shared = Arc::new(Shared { script, state: Mutex::default(), changes });
        let (end, mut ended) = watch::channel(());
        let serving = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended.changed() => {}
                    _ = accept(listener, &serving, is_concurrent) => {}
                }
            });
        });
        Ok(Self { address, shared, _end: end })
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Asks the script again about the requests that are held.
    pub fn changed(&self) {
        self.shared.change(|_| ());
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Received> {
        self.shared.state().requests.clone()
    }

    /// The requests to a path so far.
    pub fn requests_to(&self, path: &str) -> Vec<Received> {
        self.requests().into_iter().filter(|request| request.path() == path).collect()
    }

    /// The most requests that were under way at a time.
    pub fn most_under_way(&self) -> usize {
        self.shared.state().most_under_way
    }

    /// Waits until so many requests to a path have arrived, and returns the first of them.
    pub fn wait_for(&self, path: &str, count: usize) -> anyhow::Result<Received> {
        self.wait(&format!("{count} requests to {path}"), |state| {
            let mut requests = state.requests.iter().filter(|request| request.path() == path);
            let first = requests.next()?.clone();
            (requests.count() + 1 >= count).then_some(first)
        })
    }

    /// Waits until the client of a held request to this path has closed its connection.
    pub fn wait_for_hang_up(&self, path: &str) -> anyhow::Result<()> {
        self.wait(&format!("the client of {path} to close the connection"), |state| {
            state.hung_up.iter().any(|number| state.requests[*number].path() == path).then_some(())
        })
    }

    fn wait<T>(&self, what: &str, seen: impl Fn(&State) -> Option<T>) -> anyhow::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(seen) = seen(&self.shared.state()) {
                return Ok(seen);
            }
            anyhow::ensure!(Instant::now() < deadline, "the server waited in vain for {what}");
            std::thread::sleep(std::time::Duration::from_millis(5)); // between two observations, never instead of one
        }
    }

    async fn until<T>(&self, what: &str, seen: impl Fn(&mut State) -> Option<T>) -> anyhow::Result<T> {
        let mut changes = self.shared.changes.subscribe();
        let waiting = async {
            loop {
                changes.borrow_and_update();
                if let Some(seen) = seen(&mut self.shared.state()) {
                    return seen;
                }
                // The sender lives as long as this server.
                let _ = changes.changed().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .with_context(|| format!("the server waited in vain for {what}"))
    }

    /// Waits for the next request, and leaves its answer to the test.
    pub async fn receive(&self) -> anyhow::Result<Call> {
        let request = self
            .until("a request", |state| {
                let request = state.requests.get(state.taken)?.clone();
                state.taken += 1;
                Some(request)
            })
            .await?;
        Ok(Call { request, shared: Arc::clone(&self.shared) })
    }

    /// Number of connections so far. A connection of the test waits in the queue behind all others: when the server has accepted it,
    /// it has accepted all earlier ones.
    pub async fn connections(&self) -> anyhow::Result<usize> {
        let marker = TcpStream::connect(self.address).await?;
        let marker = marker.local_addr()?;
        self.until("a connection of the test", |state| {
            let before = state.peers.iter().position(|peer| *peer == marker)?;
            state.markers += 1;
            Some(before + 1 - state.markers)
        })
        .await
    }

    /// Whether a connection came whose request was not received.
    pub async fn has_more_connections(&self) -> anyhow::Result<bool> {
        let taken = self.shared.state().taken;
        Ok(self.connections().await? > taken)
    }

    /// Waits until all connections are closed, and returns everything that arrived.
    pub async fn traffic(self) -> anyhow::Result<Traffic> {
        let connections = self.connections().await?;
        self.until("its connections to be closed", |state| (state.open == 0).then_some(())).await?;
        let mut state = self.shared.state();
        let requests = std::mem::take(&mut state.requests);
        Ok(Traffic { connections, requests, bytes_written: state.bytes_written })
    }
}

/// A request that waits for its answer.
pub struct Call {
    pub request: Received,
    shared: Arc<Shared>,
}

impl Call {
    /// Answers it. It is answered when this returns or a moment later.
    pub fn answer(self, reaction: Reaction) {
        self.shared.change(|state| state.answers.insert(self.request.number, reaction));
    }
}

async fn accept(listener: std::net::TcpListener, shared: &Arc<Shared>, is_concurrent: bool) -> Option<()> {
    let listener = TcpListener::from_std(listener).ok()?;
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = listener.accept().await.ok()?;
        shared.change(|state| {
            state.peers.push(peer);
            state.open += 1;
        });
        let serving = Arc::clone(shared);
        let served = async move {
            // A client that is gone breaks its connection.
            let _ = serve(stream, &serving).await;
            serving.change(|state| state.open -= 1);
        };
        if is_concurrent {
            connections.spawn(served);
        } else {
            served.await;
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Serves the requests of a connection.
async fn serve(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    if !shared.script.goes_on(CONNECTED) {
        return Ok(());
    }
    let mut unread = Vec::new();
    loop {
        let Some((head, body)) = read_request(&mut stream, &mut unread, shared).await? else { return Ok(()) };
        let request = shared.change(|state| {
            let request = Received { number: state.requests.len(), at: Instant::now(), head, body };
            state.requests.push(request.clone());
            state.under_way += 1;
            state.most_under_way = state.most_under_way.max(state.under_way);
            request
        });
        let steps = decide(&mut stream, &request, shared).await;
        shared.change(|state| state.under_way -= 1);
        if !take(&mut stream, steps, shared).await? {
            return Ok(());
        }
    }
}

/// The steps of the answer, as soon as the script or the test knows them.
async fn decide(stream: &mut TcpStream, request: &Received, shared: &Shared) -> Vec<Step> {
    let mut changes = shared.changes.subscribe();
    let (mut is_open, mut byte) = (true, [0]);
    loop {
        changes.borrow_and_update();
        let answered = shared.state().answers.remove(&request.number);
        match answered.unwrap_or_else(|| shared.script.react(request)) {
            Reaction::Steps(steps) => return steps,
            Reaction::Hold => {}
        }
        tokio::select! {
            _ = changes.changed() => {}
            // The client sends nothing more before it has an answer: what comes is the end of the connection.
            _ = stream.read(&mut byte), if is_open => {
                is_open = false;
                shared.change(|state| state.hung_up.push(request.number));
            }
        }
    }
}

/// Takes the steps, and returns whether the next request of the connection is served.
async fn take(stream: &mut TcpStream, steps: Vec<Step>, shared: &Shared) -> std::io::Result<bool> {
    for step in steps {
        match step {
            Step::Write(bytes) => stream.write_all(&bytes).await?,
            Step::Repeat(bytes) => {
                while stream.write_all(&bytes).await.is_ok() {
                    shared.state().bytes_written += bytes.len();
                }
                return Ok(false);
            }
            Step::Next => return Ok(true),
            Step::Reset => {
                stream.set_zero_linger()?;
                return Ok(false);
            }
            Step::Reached(place) => {
                if !shared.script.goes_on(place) {
                    return Ok(false);
                }
            }
        }
    }
    Ok(false)
}

/// The next request, or nothing if the client has closed the connection or the script does not go on.
async fn read_request(
    stream: &mut TcpStream,
    unread: &mut Vec<u8>,
    shared: &Shared,
) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let end = loop {
        if let Some(at) = unread.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(unread).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&unread[..end]).into_owned();
    let length: usize =
        header(&head, "content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
    for (part, reached) in [(length / 2, Some(HALF_OF_THE_BODY)), (length, None)] {
        while unread.len() < end + part {
            if stream.read_buf(unread).await? == 0 {
                return Ok(None);
            }
        }
        if reached.is_some_and(|reached| !shared.script.goes_on(reached)) {
            return Ok(None);
        }
    }
    let rest = unread.split_off(end + length);
    let body = std::mem::replace(unread, rest).split_off(end);
    Ok(Some((head, body)))
}

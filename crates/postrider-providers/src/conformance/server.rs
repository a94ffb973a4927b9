//! The suite's server: HTTP/1.1 directly over TCP, so that every fault is exact and every request is counted at the socket.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use super::http::{Answer, Request};

/// Length of an endless answer, a limit for clients that read all of it.
const ENDLESS_BYTES: usize = 64 << 20;

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Precedes the action and sends no message.
    Preparation,
    /// Looks an action up.
    LookUp,
    /// Sends the message.
    Action,
}

/// The reaction of the server after it has read a request.
#[derive(Debug, Clone)]
pub(super) enum Reaction {
    /// Answers, and waits for the next one.
    Answer(Answer),
    /// Writes this, and closes.
    Close(Vec<u8>),
    /// Resets the connection.
    Reset,
    /// Says nothing until the client gives up.
    Stall,
    /// Writes the first part once and the second until the client closes the connection.
    Endless(Vec<u8>, Vec<u8>),
}

/// The position of a request in a trial.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    /// Number of calls of [`Server::next_stage`] before.
    pub stage: usize,
    /// Number of earlier actions on the same connection.
    pub earlier: usize,
}

/// The reaction to each request.
pub(super) type Script = Arc<dyn Fn(&Request, Position) -> (Kind, Reaction) + Send + Sync>;

/// A request with its kind and stage.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub kind: Kind,
    pub stage: usize,
    pub request: Request,
}

/// All that arrived at a server.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub connections: usize,
    pub requests: Vec<Received>,
    /// Bytes of endless answers that the client took.
    pub bytes_written: usize,
}

impl Traffic {
    pub fn count(&self, kind: Kind) -> usize {
        self.requests.iter().filter(|received| received.kind == kind).count()
    }

    pub fn actions(&self, stage: usize) -> impl Iterator<Item = &Request> {
        let wanted = move |received: &&Received| received.kind == Kind::Action && received.stage == stage;
        self.requests.iter().filter(wanted).map(|received| &received.request)
    }
}

struct Shared {
    script: Script,
    stage: AtomicUsize,
    traffic: Mutex<Traffic>,
    last: Mutex<Option<SocketAddr>>,
}

impl Shared {
    fn record(&self, change: impl FnOnce(&mut Traffic)) {
        change(&mut self.traffic.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// See the [module](self).
pub(super) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Server {
    pub async fn start(script: Script) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script,
            stage: AtomicUsize::new(0),
            traffic: Mutex::default(),
            last: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn next_stage(&self) {
        self.shared.stage.fetch_add(1, Ordering::SeqCst);
    }

    /// Stops the server and returns all that arrived. A last connection waits in the queue behind all others: when the server
    /// accepts it, it has accepted all earlier ones.
    pub async fn traffic(self) -> io::Result<Traffic> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        *self.shared.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket.local_addr()?);
        let _last = socket.connect(self.address).await?;
        self.accepting.await.map_err(io::Error::other)?;
        Ok(std::mem::take(&mut *self.shared.traffic.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let (end, ended) = watch::channel(());
    while let Ok((stream, peer)) = listener.accept().await {
        if *shared.last.lock().unwrap_or_else(PoisonError::into_inner) == Some(peer) {
            break;
        }
        shared.record(|traffic| traffic.connections += 1);
        connections.spawn(serve(stream, Arc::clone(&shared), ended.clone()));
    }
    // A client may keep connections open; requests that have arrived on them are still read.
    drop(end);
    while connections.join_next().await.is_some() {}
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>, mut ended: watch::Receiver<()>) {
    let mut earlier = 0;
    loop {
        let next = tokio::select! {
            biased;
            request = Request::read(&mut stream) => request,
            _ = ended.changed() => None,
        };
        let Some(request) = next else { return };
        let stage = shared.stage.load(Ordering::SeqCst);
        let (kind, reaction) = (shared.script)(&request, Position { stage, earlier });
        shared.record(|traffic| traffic.requests.push(Received { kind, stage, request }));
        earlier += usize::from(kind == Kind::Action);
        match reaction {
            Reaction::Answer(answer) => {
                let (head, body) = answer.wire();
                if stream.write_all(&[head, body].concat()).await.is_err() {
                    return;
                }
            }
            Reaction::Close(bytes) => {
                // The client may be gone already.
                let _ = stream.write_all(&bytes).await;
                let _ = stream.shutdown().await;
                return;
            }
            Reaction::Reset => {
                let _ = stream.set_zero_linger();
                return;
            }
            Reaction::Stall => {}
            Reaction::Endless(head, piece) => {
                tokio::select! {
                    biased;
                    () = write_endlessly(&mut stream, &shared, &head, &piece) => {}
                    _ = ended.changed() => {}
                }
                return;
            }
        }
    }
}

async fn write_endlessly(stream: &mut TcpStream, shared: &Shared, head: &[u8], piece: &[u8]) {
    let mut part = head;
    let mut written = 0;
    while written < ENDLESS_BYTES && stream.write_all(part).await.is_ok() {
        written += part.len();
        shared.record(|traffic| traffic.bytes_written += part.len());
        part = piece;
    }
}

/// An address without a listener. No other process can listen there while this value lives.
pub(super) struct UnusedAddress {
    socket: TcpSocket,
}

impl UnusedAddress {
    pub fn find() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        Ok(Self { socket })
    }

    pub fn url(&self) -> io::Result<String> {
        Ok(format!("http://{}", self.socket.local_addr()?))
    }
}

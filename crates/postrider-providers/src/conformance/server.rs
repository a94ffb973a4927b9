//! The suite's server: plain TCP, HTTP/1.1 by hand, so that every fault is exact and every request is counted where it arrives.

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

/// Where an endless answer ends after all, for a client that would swallow it.
const ENDLESS_BYTES: usize = 64 << 20;

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It comes before the action, and does nothing to anybody.
    Preparation,
    /// It asks what became of an action.
    Question,
    /// It sends.
    Action,
}

/// What the server does with a request that it has read to the end.
#[derive(Debug, Clone)]
pub(super) enum Then {
    /// Answers, and waits for the next one.
    Answer(Answer),
    /// Writes this, and closes.
    Close(Vec<u8>),
    /// Resets the connection.
    Reset,
    /// Says nothing until the client gives up.
    Stall,
    /// Writes the first part once and the second until the client has had enough.
    Endless(Vec<u8>, Vec<u8>),
}

/// When a request came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// How often [`Server::next_stage`] was called.
    pub stage: usize,
    /// How many actions came on the same connection before.
    pub earlier: usize,
}

/// What the server does, request by request.
pub(super) type Script = Arc<dyn Fn(&Request, Moment) -> (Kind, Then) + Send + Sync>;

/// A request with its circumstances.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub kind: Kind,
    pub stage: usize,
    pub request: Request,
}

/// All that a server saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub connections: usize,
    pub requests: Vec<Received>,
    /// How much of endless answers the client took.
    pub bytes_written: usize,
}

impl Seen {
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
    seen: Mutex<Seen>,
    last: Mutex<Option<SocketAddr>>,
}

impl Shared {
    fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
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
            seen: Mutex::default(),
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

    /// Everything that arrived. A last connection of our own stands in the queue behind all others: when the server has come to
    /// it, nothing that was sent before is missing.
    pub async fn seen(self) -> io::Result<Seen> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        *self.shared.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket.local_addr()?);
        let _last = socket.connect(self.address).await?;
        self.accepting.await.map_err(io::Error::other)?;
        Ok(std::mem::take(&mut *self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let (end, ended) = watch::channel(());
    while let Ok((stream, peer)) = listener.accept().await {
        if *shared.last.lock().unwrap_or_else(PoisonError::into_inner) == Some(peer) {
            break;
        }
        shared.note(|seen| seen.connections += 1);
        connections.spawn(serve(stream, Arc::clone(&shared), ended.clone()));
    }
    // A client may keep its connections for later; what is on them by now is still read.
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
        let (kind, then) = (shared.script)(&request, Moment { stage, earlier });
        shared.note(|seen| seen.requests.push(Received { kind, stage, request }));
        earlier += usize::from(kind == Kind::Action);
        match then {
            Then::Answer(answer) => {
                let (head, body) = answer.wire();
                if stream.write_all(&[head, body].concat()).await.is_err() {
                    return;
                }
            }
            Then::Close(bytes) => {
                // The client may be gone already.
                let _ = stream.write_all(&bytes).await;
                let _ = stream.shutdown().await;
                return;
            }
            Then::Reset => {
                let _ = stream.set_zero_linger();
                return;
            }
            Then::Stall => {}
            Then::Endless(head, piece) => {
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
        shared.note(|seen| seen.bytes_written += part.len());
        part = piece;
    }
}

/// An address at which nobody listens, and nobody can for as long as this lives.
pub(super) struct Deserted {
    socket: TcpSocket,
}

impl Deserted {
    pub fn find() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        Ok(Self { socket })
    }

    pub fn url(&self) -> io::Result<String> {
        Ok(format!("http://{}", self.socket.local_addr()?))
    }
}

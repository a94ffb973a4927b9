//! A server that counts what arrives at the socket, and answers as badly as it is told to.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::{JoinHandle, JoinSet},
};
use url::Url;

/// What the server does with a request that it has read to the end.
#[derive(Clone)]
pub enum Then {
    /// Writes this and waits for the next request.
    Answer(Vec<u8>),
    /// Writes this and closes.
    AnswerAndClose(Vec<u8>),
    /// Writes this and says nothing more until the client gives up.
    AnswerAndStall(Vec<u8>),
    /// Resets the connection.
    Reset,
    /// Writes the first part once and the second until the client gives up.
    Forever(Vec<u8>, Vec<u8>),
}

/// A request, as it was on the wire.
#[derive(Debug, Clone)]
pub struct Received {
    /// Request line and headers.
    pub head: String,
    pub body: Vec<u8>,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        headers.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

/// All that a server saw.
#[derive(Debug, Default)]
pub struct Seen {
    pub connections: usize,
    pub requests: Vec<Received>,
    /// How much it could write before the client stopped it.
    pub bytes_written: usize,
}

pub struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    last: Arc<Mutex<Option<SocketAddr>>>,
    accepting: JoinHandle<()>,
}

impl Server {
    pub async fn start(then: Then) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Seen>>::default();
        let last = Arc::<Mutex<Option<SocketAddr>>>::default();
        let accepting = tokio::spawn(accept(listener, then, Arc::clone(&seen), Arc::clone(&last)));
        Self { address, seen, last, accepting }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn url(&self) -> Url {
        format!("http://{}/events?key=hidden-token", self.address).parse().unwrap()
    }

    /// Everything that ever arrived. A last connection of our own is in the queue behind all others, so when the
    /// server has come to it, nothing that was sent before is missing.
    pub async fn seen(self) -> Seen {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        *self.last.lock().unwrap() = Some(socket.local_addr().unwrap());
        let _last = socket.connect(self.address).await.unwrap();
        self.accepting.await.unwrap();
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

async fn accept(
    listener: TcpListener,
    then: Then,
    seen: Arc<Mutex<Seen>>,
    last: Arc<Mutex<Option<SocketAddr>>>,
) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = listener.accept().await.unwrap();
        if *last.lock().unwrap() == Some(peer) {
            break;
        }
        seen.lock().unwrap().connections += 1;
        connections.spawn(serve(stream, then.clone(), Arc::clone(&seen)));
    }
    while let Some(served) = connections.join_next().await {
        served.unwrap();
    }
}

async fn serve(mut stream: TcpStream, then: Then, seen: Arc<Mutex<Seen>>) {
    while let Some(request) = read_request(&mut stream).await {
        seen.lock().unwrap().requests.push(request);
        match &then {
            Then::Answer(bytes) => stream.write_all(bytes).await.unwrap(),
            Then::AnswerAndClose(bytes) => {
                stream.write_all(bytes).await.unwrap();
                return;
            }
            Then::AnswerAndStall(bytes) => stream.write_all(bytes).await.unwrap(),
            Then::Reset => {
                stream.set_zero_linger().unwrap();
                return;
            }
            Then::Forever(first, rest) => {
                let mut part = first;
                while stream.write_all(part).await.is_ok() {
                    seen.lock().unwrap().bytes_written += part.len();
                    part = rest;
                }
                return;
            }
        }
    }
}

/// The next request, or nothing when the client has closed.
async fn read_request(stream: &mut TcpStream) -> Option<Received> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut request = Received { head, body: Vec::new() };
    let length: usize = request.header("content-length").map_or(0, |length| length.parse().unwrap());
    while bytes.len() < end + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    request.body = bytes[end..end + length].to_vec();
    Some(request)
}

//! A scripted HTTP server that records all that arrives at its socket.

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

/// The reaction of the server after it has read a request.
#[derive(Clone)]
pub enum Reaction {
    /// Writes this and waits for the next request.
    Answer(Vec<u8>),
    /// Writes this and closes.
    AnswerAndClose(Vec<u8>),
    /// Writes this and nothing more until the client closes the connection.
    AnswerAndStall(Vec<u8>),
    /// Resets the connection.
    Reset,
    /// Writes the first part once and the second until the client closes the connection.
    Forever(Vec<u8>, Vec<u8>),
}

/// A request as it arrived.
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

/// All that arrived at a server.
#[derive(Debug, Default)]
pub struct Traffic {
    pub connections: usize,
    pub requests: Vec<Received>,
    /// Bytes written before the client closed the connection.
    pub bytes_written: usize,
}

pub struct Server {
    address: SocketAddr,
    traffic: Arc<Mutex<Traffic>>,
    last: Arc<Mutex<Option<SocketAddr>>>,
    accepting: JoinHandle<()>,
}

impl Server {
    pub async fn start(reaction: Reaction) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let traffic = Arc::<Mutex<Traffic>>::default();
        let last = Arc::<Mutex<Option<SocketAddr>>>::default();
        let accepting = tokio::spawn(accept(listener, reaction, Arc::clone(&traffic), Arc::clone(&last)));
        Self { address, traffic, last, accepting }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn url(&self) -> Url {
        format!("http://{}/events?key=hidden-token", self.address).parse().unwrap()
    }

    /// Stops the server and returns all that arrived. A last connection waits in the queue behind all others: when the
    /// server accepts it, it has accepted all earlier ones.
    pub async fn traffic(self) -> Traffic {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        *self.last.lock().unwrap() = Some(socket.local_addr().unwrap());
        let _last = socket.connect(self.address).await.unwrap();
        self.accepting.await.unwrap();
        std::mem::take(&mut *self.traffic.lock().unwrap())
    }
}

async fn accept(
    listener: TcpListener,
    reaction: Reaction,
    traffic: Arc<Mutex<Traffic>>,
    last: Arc<Mutex<Option<SocketAddr>>>,
) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = listener.accept().await.unwrap();
        if *last.lock().unwrap() == Some(peer) {
            break;
        }
        traffic.lock().unwrap().connections += 1;
        connections.spawn(serve(stream, reaction.clone(), Arc::clone(&traffic)));
    }
    while let Some(served) = connections.join_next().await {
        served.unwrap();
    }
}

async fn serve(mut stream: TcpStream, reaction: Reaction, traffic: Arc<Mutex<Traffic>>) {
    while let Some(request) = read_request(&mut stream).await {
        traffic.lock().unwrap().requests.push(request);
        match &reaction {
            Reaction::Answer(bytes) => stream.write_all(bytes).await.unwrap(),
            Reaction::AnswerAndClose(bytes) => {
                stream.write_all(bytes).await.unwrap();
                return;
            }
            Reaction::AnswerAndStall(bytes) => stream.write_all(bytes).await.unwrap(),
            Reaction::Reset => {
                stream.set_zero_linger().unwrap();
                return;
            }
            Reaction::Forever(first, rest) => {
                let mut part = first;
                while stream.write_all(part).await.is_ok() {
                    traffic.lock().unwrap().bytes_written += part.len();
                    part = rest;
                }
                return;
            }
        }
    }
}

/// The next request, or `None` when the client closed the connection.
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

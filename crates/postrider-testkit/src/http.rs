//! Just enough HTTP/1.1 to see what a server really sends, and to keep a client waiting.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
};

use anyhow::Context;
use serde_json::Value;

use crate::world::PATIENCE;

/// What a server answered.
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("not JSON: {}", self.body))
    }
}

/// `GET` without a key.
pub fn get(http_url: &str, path: &str) -> anyhow::Result<Answer> {
    request(http_url, "GET", path, &[])
}

/// `GET` with an API key.
pub fn get_with_key(http_url: &str, path: &str, key: &str) -> anyhow::Result<Answer> {
    request(http_url, "GET", path, &[("authorization", &format!("Bearer {key}"))])
}

/// One request on a connection of its own.
pub fn request(http_url: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<Answer> {
    let (mut stream, address) = connect(http_url)?;
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("half an answer: {answer}"))?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status")?.parse()?;
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    Ok(Answer { status, headers, body: body.to_owned() })
}

/// A connection to a server, on which nothing was said yet.
pub fn connect(http_url: &str) -> anyhow::Result<(TcpStream, SocketAddr)> {
    let address = http_url.trim_start_matches("http://").parse()?;
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok((stream, address))
}

/// The same from another of this machine's addresses.
pub async fn connect_from(http_url: &str, from: IpAddr) -> anyhow::Result<(TcpStream, SocketAddr)> {
    let address = http_url.trim_start_matches("http://").parse()?;
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    let stream = socket.connect(address).await?.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok((stream, address))
}

/// A receiver of webhooks that answers when the test says so.
pub struct Receiver {
    listener: TcpListener,
}

impl Receiver {
    pub fn start() -> anyhow::Result<Self> {
        Ok(Self { listener: TcpListener::bind("127.0.0.1:0")? })
    }

    /// Part of a relay's configuration that sends everything here.
    pub fn sink(&self, secret: &str) -> anyhow::Result<String> {
        let address = self.listener.local_addr()?;
        Ok(format!(
            "[outbound]\nallow_private = true\n[relay.sinks.held]\nkind = 'http'\nurl = 'http://{address}/'\nsecrets = ['{secret}']\n"
        ))
    }

    /// Waits for a delivery, and lets it wait.
    pub async fn receive(&self) -> anyhow::Result<Delivery> {
        let listener = self.listener.try_clone()?;
        let accepted = tokio::task::spawn_blocking(move || listener.accept());
        let (mut stream, _) =
            tokio::time::timeout(PATIENCE, accepted).await.context("nothing was delivered")???;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.extend(byte);
        }
        // All of it, because closing a connection with something unread resets it.
        let head = String::from_utf8(head)?.to_lowercase();
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")).context("no length")?;
        stream.read_exact(&mut vec![0; length.parse()?])?;
        Ok(Delivery { stream })
    }
}

/// A delivery that nobody has answered yet.
pub struct Delivery {
    stream: TcpStream,
}

impl Delivery {
    /// Takes it.
    pub fn accept(mut self) -> anyhow::Result<()> {
        self.stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")?;
        Ok(())
    }
}

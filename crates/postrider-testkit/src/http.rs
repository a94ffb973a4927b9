//! Just enough HTTP/1.1 to see what a server really sends, and to keep a client waiting.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
};

use anyhow::Context;
use serde_json::Value;

use crate::{
    server::{Call, Reaction, ScriptedServer},
    world::PATIENCE,
};

/// A response.
pub struct Answer {
    pub status: u16,
    headers: Headers,
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
    let answer = exchange(http_url, method, path, headers, None)?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("half an answer: {answer}"))?;
    let (status, headers) = parse_head(head.lines())?;
    Ok(Answer { status, headers, body: body.to_owned() })
}

/// One request with a body, and the text of the answer. An answer that breaks off is returned as far as it came.
pub fn send(
    http_url: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> anyhow::Result<String> {
    exchange(http_url, method, path, headers, Some(body))
}

/// A reset ends an answer like a close.
fn exchange(
    http_url: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&str>,
) -> anyhow::Result<String> {
    let (mut stream, address) = connect(http_url)?;
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(body) = body {
        request.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    request.push_str("\r\n");
    request.push_str(body.unwrap_or_default());
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The headers of an answer, with names in lower case.
pub type Headers = Vec<(String, String)>;

/// The status and the headers in the head of an answer.
pub fn parse_head<'a>(mut lines: impl Iterator<Item = &'a str>) -> anyhow::Result<(u16, Headers)> {
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status")?.parse()?;
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    Ok((status, headers))
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
    server: ScriptedServer,
}

impl Receiver {
    pub fn start() -> anyhow::Result<Self> {
        Ok(Self { server: ScriptedServer::manual()? })
    }

    /// Part of a relay's configuration that sends everything here.
    pub fn sink(&self, secret: &str) -> anyhow::Result<String> {
        let url = self.server.url();
        Ok(format!(
            "[outbound]\nallow_private = true\n[relay.sinks.held]\nkind = 'http'\nurl = '{url}/'\nsecrets = ['{secret}']\n"
        ))
    }

    /// Waits for a delivery, and leaves its answer to the test.
    pub async fn receive(&self) -> anyhow::Result<Delivery> {
        Ok(Delivery { call: self.server.receive().await? })
    }
}

/// A delivery without an answer.
pub struct Delivery {
    call: Call,
}

impl Delivery {
    /// Answers 204.
    pub fn accept(self) {
        self.call.answer(Reaction::close_after("HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"));
    }
}

//! A client that says exactly what it is told to say.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
};

use anyhow::Context;
use serde_json::Value;

use crate::http;

/// A request that is being put together.
pub struct Call {
    http_url: String,
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Call {
    pub fn new(http_url: &str, method: &str, path: &str) -> Self {
        Self {
            http_url: http_url.to_owned(),
            line: format!("{method} {path} HTTP/1.1"),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn key(self, key: &str) -> Self {
        self.header("authorization", &format!("Bearer {key}"))
    }

    pub fn idempotency_key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    pub fn json(self, body: &Value) -> Self {
        self.bytes("application/json", body.to_string().as_bytes())
    }

    /// A body of this type, whatever it is.
    pub fn bytes(self, content_type: &str, body: &[u8]) -> Self {
        let mut call = self.header("content-type", content_type);
        call.body = body.to_owned();
        call
    }

    /// A body of no type.
    pub fn untyped(mut self, body: &[u8]) -> Self {
        self.body = body.to_owned();
        self
    }

    /// Sends it on a connection of its own, and reads the answer to its end.
    pub fn send(&self) -> anyhow::Result<Reply> {
        let (stream, address) = http::connect(&self.http_url)?;
        self.send_on(stream, address)
    }

    /// The same from another of this machine's addresses, such as `127.0.0.2`.
    pub async fn send_from(&self, from: IpAddr) -> anyhow::Result<Reply> {
        let (stream, address) = http::connect_from(&self.http_url, from).await?;
        self.send_on(stream, address)
    }

    fn send_on(&self, mut stream: TcpStream, address: SocketAddr) -> anyhow::Result<Reply> {
        let length = self.body.len();
        let mut head =
            format!("{}\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n", self.line);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        // A server that has seen enough may close before it has read all.
        let _ = stream.write_all(&self.body);
        let mut bytes = Vec::new();
        let ended = stream.read_to_end(&mut bytes);
        Reply::parse(&bytes).with_context(|| format!("{}: {ended:?}", self.line))
    }
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").context("half an answer")?;
        let head = std::str::from_utf8(&bytes[..end])?;
        let (status, headers) = http::parse_head(head.lines())?;
        Ok(Self { status, headers, body: bytes[end + 4..].to_owned() })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("{}: not JSON: {}", self.status, self.text()))
    }

    /// The body of an answer that must have this status.
    pub fn expect(&self, status: u16) -> anyhow::Result<Value> {
        anyhow::ensure!(self.status == status, "{} instead of {status}: {}", self.status, self.text());
        if self.body.is_empty() { Ok(Value::Null) } else { self.json() }
    }

    /// A problem that must have this status, and the shape that all problems have.
    pub fn problem(&self, status: u16) -> anyhow::Result<Value> {
        let problem = self.expect(status)?;
        anyhow::ensure!(
            self.header("content-type") == Some("application/problem+json"),
            "not a problem: {:?}",
            self.headers
        );
        for member in ["type", "title", "detail"] {
            anyhow::ensure!(problem[member].is_string(), "no {member}: {problem}");
        }
        anyhow::ensure!(problem["status"] == status, "{problem}");
        anyhow::ensure!(
            problem["request_id"].as_str() == self.header("x-request-id"),
            "{problem}: {:?}",
            self.headers
        );
        Ok(problem)
    }

    /// The field that a problem of this status names first.
    pub fn field(&self, status: u16) -> anyhow::Result<String> {
        let problem = self.problem(status)?;
        Ok(problem["errors"][0]["field"].as_str().with_context(|| problem.to_string())?.to_owned())
    }
}

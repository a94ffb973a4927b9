//! A reader that sees every byte: HTTP/1.1 and server-sent events, nothing kept from the test.

use std::net::SocketAddr;

use anyhow::Context;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::{http::parse_head, world::PATIENCE};

/// An answer that comes piece by piece.
pub struct Reading {
    stream: BufReader<TcpStream>,
    pub status: u16,
    headers: Vec<(String, String)>,
    is_chunked: bool,
    is_over: bool,
    /// Received bytes of an incomplete message.
    text: Vec<u8>,
}

/// One message, or a comment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: String,
    pub retry: Option<u64>,
    pub is_comment: bool,
}

impl Message {
    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.data).with_context(|| format!("{self:?}"))
    }
}

impl Reading {
    /// Asks with a key and waits for the head of the answer.
    pub async fn open(
        http_url: &str,
        path: &str,
        key: &str,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let stream = ask(http_url, path, key, headers, None).await?;
        timeout(PATIENCE, Self::of(stream)).await.context("no answer came")?
    }

    /// The head of an answer to what was asked on this connection.
    pub async fn of(stream: TcpStream) -> anyhow::Result<Self> {
        let mut stream = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            anyhow::ensure!(stream.read_line(&mut line).await? > 0, "half an answer: {lines:?}");
            if line == "\r\n" {
                break;
            }
            lines.push(line.trim_end().to_owned());
        }
        let (status, headers) = parse_head(lines.iter().map(String::as_str))?;
        let is_chunked =
            headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        Ok(Self { stream, status, headers, is_chunked, is_over: false, text: Vec::new() })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The next message or comment; nothing when the server has closed.
    pub async fn next(&mut self) -> anyhow::Result<Option<Message>> {
        timeout(PATIENCE, self.next_piece()).await.context("nothing came")?
    }

    /// The next event of the history: comments and hints to come back are passed over.
    pub async fn event(&mut self) -> anyhow::Result<Message> {
        loop {
            let message = self.next().await?.context("the stream has ended")?;
            if message.id.is_some() {
                return Ok(message);
            }
            anyhow::ensure!(message.event.is_none(), "not an event: {message:?}");
        }
    }

    /// Everything up to the end.
    pub async fn rest(&mut self) -> anyhow::Result<Vec<Message>> {
        let mut messages = Vec::new();
        let reading = async {
            while let Some(message) = self.next().await? {
                messages.push(message);
            }
            anyhow::Ok(())
        };
        // As a whole, because comments may come for ever; and longer, because a small window is emptied slowly.
        timeout(3 * PATIENCE, reading).await.context("the stream does not end")??;
        Ok(messages)
    }

    async fn next_piece(&mut self) -> anyhow::Result<Option<Message>> {
        loop {
            if let Some(end) = self.text.windows(2).position(|pair| pair == b"\n\n") {
                let piece: Vec<u8> = self.text.drain(..end + 2).collect();
                return parse(&String::from_utf8(piece)?).map(Some);
            }
            if self.is_over {
                anyhow::ensure!(
                    self.text.is_empty(),
                    "half a message: {:?}",
                    String::from_utf8_lossy(&self.text)
                );
                return Ok(None);
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        if !self.is_chunked {
            self.is_over = self.stream.read_buf(&mut self.text).await? == 0;
            return Ok(());
        }
        let mut size = String::new();
        anyhow::ensure!(
            self.stream.read_line(&mut size).await? > 0,
            "the connection ended within the answer"
        );
        let mut chunk = vec![0; usize::from_str_radix(size.trim(), 16)? + 2];
        self.stream.read_exact(&mut chunk).await?;
        chunk.truncate(chunk.len() - 2);
        self.is_over = chunk.is_empty();
        self.text.extend(chunk);
        Ok(())
    }
}

/// Asks, and does not read. With a window, the system takes no more than about so much on our behalf.
pub async fn ask(
    http_url: &str,
    path: &str,
    key: &str,
    headers: &[(&str, &str)],
    window: Option<u32>,
) -> anyhow::Result<TcpStream> {
    let address: SocketAddr = http_url.trim_start_matches("http://").parse()?;
    let socket = TcpSocket::new_v4()?;
    if let Some(window) = window {
        socket.set_recv_buffer_size(window)?;
    }
    let mut stream = socket.connect(address).await?;
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    // With a session there is no key.
    let authorization =
        if key.is_empty() { String::new() } else { format!("authorization: Bearer {key}\r\n") };
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{authorization}{headers}\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

fn parse(piece: &str) -> anyhow::Result<Message> {
    let mut message = Message::default();
    for line in piece.lines().filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').with_context(|| format!("no field: {line}"))?;
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "" => message.is_comment = true,
            "id" => message.id = Some(value.to_owned()),
            "event" => message.event = Some(value.to_owned()),
            "retry" => message.retry = Some(value.parse()?),
            "data" if message.data.is_empty() => value.clone_into(&mut message.data),
            _ => anyhow::bail!("an unexpected line: {line}"),
        }
    }
    Ok(message)
}

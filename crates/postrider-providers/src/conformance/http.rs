//! Requests as they arrived, and answers as a vendor sends them.

use serde::Serialize;
use tokio::{io::AsyncReadExt, net::TcpStream};

/// A request that reached the suite's server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// Everything after the host: path and query.
    pub path: String,
    /// Names in lower case, in the order of the wire.
    pub headers: Vec<(String, String)>,
    /// The body, without the chunks that it may have come in.
    pub body: Vec<u8>,
}

impl Request {
    /// The first header of this name, whatever its case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The body as JSON; `null` when it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Reads the next request of a connection; `None` when the client closed it, or does not speak HTTP.
    pub(super) async fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            more(stream, &mut bytes).await?;
        };
        let mut body = bytes.split_off(end + 4);
        let mut request = Self::from_head(&String::from_utf8_lossy(&bytes))?;
        if request.header("transfer-encoding").is_some_and(|how| how.eq_ignore_ascii_case("chunked")) {
            request.body = read_chunks(stream, body).await?;
        } else {
            let length = request.header("content-length").map_or(Some(0), |length| length.parse().ok())?;
            while body.len() < length {
                more(stream, &mut body).await?;
            }
            body.truncate(length);
            request.body = body;
        }
        Some(request)
    }

    fn from_head(head: &str) -> Option<Self> {
        let mut lines = head.lines();
        let mut first = lines.next()?.split(' ');
        let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Some(Self { method, path, headers, body: Vec::new() })
    }
}

async fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<()> {
    (stream.read_buf(bytes).await.ok()? > 0).then_some(())
}

/// A body in chunks, of which the beginning was read already.
async fn read_chunks(stream: &mut TcpStream, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = bytes.windows(2).position(|two| two == b"\r\n") {
                break at;
            }
            more(stream, &mut bytes).await?;
        };
        let size = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        let chunk = end + 2;
        while bytes.len() < chunk + size + 2 {
            more(stream, &mut bytes).await?;
        }
        body.extend_from_slice(&bytes[chunk..chunk + size]);
        bytes.drain(..chunk + size + 2);
        if size == 0 {
            return Some(body);
        }
    }
}

/// An answer of a vendor.
#[derive(Debug, Clone)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    pub(super) message_id: Option<String>,
}

impl Answer {
    /// An answer with this status and nothing else.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), message_id: None }
    }

    /// An answer in JSON.
    #[must_use]
    pub fn json(status: u16, body: &impl Serialize) -> Self {
        // A value that cannot be written as JSON is a mistake of the test, and becomes an empty body.
        Self::text(status, "application/json", &serde_json::to_string(body).unwrap_or_default())
    }

    /// An answer of any other kind.
    #[must_use]
    pub fn text(status: u16, content_type: &str, body: &str) -> Self {
        Self { body: body.as_bytes().to_vec(), ..Self::status(status) }.header("content-type", content_type)
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the vendor's id of the message, which the adapter must report.
    #[must_use]
    pub fn with_message_id(mut self, id: &str) -> Self {
        self.message_id = Some(id.to_owned());
        self
    }

    /// The bytes of head and body.
    pub(super) fn wire(&self) -> (Vec<u8>, Vec<u8>) {
        (self.head(self.body.len()), self.body.clone())
    }

    /// The head of an answer whose body has this length.
    pub(super) fn head(&self, length: usize) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} Whatever\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        // A 204 has no body and no length.
        if self.status != 204 {
            head.push_str(&format!("content-length: {length}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}

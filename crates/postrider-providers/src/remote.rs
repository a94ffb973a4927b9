//! A client of the HTTP API of another Postrider, for CLI commands.

use std::time::Duration;

use reqwest::{
    Client, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, HeaderValue},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use url::Url;

use crate::tls;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Several times the keep-alive interval of a stream.
const SILENT_MAX: Duration = Duration::from_secs(60);
/// Longest line of a stream, and longest JSON answer.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The URL, the key or the answer is not valid.
    #[error("{0}")]
    Unfit(String),
    /// The server refused the request and would refuse it again.
    #[error("{url} answered {status}: {detail}")]
    Refused {
        /// The server.
        url: String,
        /// The status.
        status: u16,
        /// The detail of the problem.
        detail: String,
    },
    /// The server was not reached, or the connection broke. A retry may succeed.
    #[error("{url} does not answer: {reason}")]
    Away {
        /// The server.
        url: String,
        /// The reason.
        reason: String,
    },
}

/// The URL of a server and an API key.
#[derive(Clone)]
pub struct Remote {
    client: Client,
    url: Url,
    authorization: HeaderValue,
}

impl Remote {
    /// Checks the URL and the key. Sends nothing.
    pub fn new(url: &Url, key: &SecretString) -> Result<Self, RemoteError> {
        if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
            return Err(RemoteError::Unfit(format!(
                "`{url}` is not the URL of a server; write it like https://postrider.example"
            )));
        }
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()))
            .map_err(|_| RemoteError::Unfit("the API key contains invalid characters".to_owned()))?;
        authorization.set_sensitive(true);
        tls::choose_provider();
        let client = Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            .read_timeout(SILENT_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("postrider/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| RemoteError::Unfit(format!("no HTTP client could be made: {error}")))?;
        Ok(Self { client, url: url.clone(), authorization })
    }

    /// A JSON answer.
    pub async fn get(&self, path: &str) -> Result<Value, RemoteError> {
        let mut response = self.ask(path, "application/json").await?;
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| self.away(&error))? {
            body.extend_from_slice(&piece);
            if body.len() > BYTES_MAX {
                return Err(self.unexpected("its answer is too long"));
            }
        }
        serde_json::from_slice(&body).map_err(|_| self.unexpected("its answer is not JSON"))
    }

    /// A stream of server-sent events.
    pub async fn stream(&self, path: &str) -> Result<EventStream, RemoteError> {
        let response = self.ask(path, "text/event-stream").await?;
        Ok(EventStream { remote: self.clone(), response, parser: Parser::default() })
    }

    async fn ask(&self, path: &str, accept: &'static str) -> Result<Response, RemoteError> {
        let url = self.url.join(path).map_err(|_| self.unexpected("there is no such path"))?;
        let request = self.client.get(url).header(AUTHORIZATION, &self.authorization).header(ACCEPT, accept);
        let response = request.send().await.map_err(|error| self.away(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let problem: Value =
            serde_json::from_slice(&response.bytes().await.unwrap_or_default()).unwrap_or_default();
        let detail = problem["detail"].as_str().unwrap_or("no reason is given").to_owned();
        let passes = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        let url = self.url.to_string();
        Err(if passes {
            RemoteError::Away { url, reason: format!("{status}: {detail}") }
        } else {
            RemoteError::Refused { url, status: status.as_u16(), detail }
        })
    }

    fn away(&self, error: &reqwest::Error) -> RemoteError {
        let mut reason = error.to_string();
        let mut cause: &dyn std::error::Error = error;
        while let Some(deeper) = cause.source() {
            reason = deeper.to_string();
            cause = deeper;
        }
        RemoteError::Away { url: self.url.to_string(), reason }
    }

    fn unexpected(&self, what: &str) -> RemoteError {
        RemoteError::Unfit(format!("{}: {what}; check that this is the URL of a Postrider server", self.url))
    }
}

/// An open stream. Dropping the future of [`EventStream::next`] loses no event.
pub struct EventStream {
    remote: Remote,
    response: Response,
    parser: Parser,
}

impl EventStream {
    /// The next event; `None` when the server closed the stream.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>, RemoteError> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            if self.parser.bytes.len() > BYTES_MAX {
                return Err(self.remote.unexpected("an event is too long"));
            }
            match self.response.chunk().await.map_err(|error| self.remote.away(&error))? {
                Some(piece) => self.parser.bytes.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }
}

/// One server-sent event, or only a time to wait before reconnecting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamEvent {
    /// Its name, if it has one.
    pub event: Option<String>,
    /// Its content.
    pub data: String,
    /// Time to wait before reconnecting when the stream ends.
    pub retry: Option<Duration>,
}

/// Parses events. An incomplete event is not returned.
#[derive(Default)]
struct Parser {
    bytes: Vec<u8>,
    read: usize,
    event: StreamEvent,
    is_begun: bool,
}

impl Parser {
    fn next(&mut self) -> Option<StreamEvent> {
        while let Some(line) = self.line() {
            if line.is_empty() {
                let event = std::mem::take(&mut self.event);
                if std::mem::take(&mut self.is_begun) {
                    return Some(event);
                }
                continue;
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match name {
                "event" => self.event.event = Some(value.to_owned()),
                "retry" => self.event.retry = value.parse().ok().map(Duration::from_millis),
                "data" => {
                    if !self.event.data.is_empty() {
                        self.event.data.push('\n');
                    }
                    self.event.data.push_str(value);
                }
                // Comments, ids and unknown fields.
                _ => continue,
            }
            self.is_begun = true;
        }
        None
    }

    /// The next whole line.
    fn line(&mut self) -> Option<String> {
        let rest = self.bytes.get(self.read..)?;
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            self.bytes.drain(..self.read);
            self.read = 0;
            return None;
        };
        let line = rest.get(..end)?;
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
        self.read += end + 1;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of a text that arrives in pieces of this size.
    fn events(text: &str, step: usize) -> Vec<StreamEvent> {
        let (mut parser, mut events) = (Parser::default(), Vec::new());
        for piece in text.as_bytes().chunks(step) {
            parser.bytes.extend_from_slice(piece);
            while let Some(event) = parser.next() {
                events.push(event);
            }
        }
        events
    }

    #[test]
    fn events_are_complete_for_every_size_of_pieces() {
        let text = "retry: 1500\n\n:\n\nid: 1\r\ndata: {\"é\": 1}\r\n\r\nevent: bye\nretry: 7\ndata: a\ndata: b\n\ndata: half";
        let event = |event: Option<&str>, data: &str, retry: Option<u64>| StreamEvent {
            event: event.map(str::to_owned),
            data: data.to_owned(),
            retry: retry.map(Duration::from_millis),
        };
        let expected = [
            event(None, "", Some(1500)),
            event(None, "{\"é\": 1}", None),
            event(Some("bye"), "a\nb", Some(7)),
        ];
        for step in 1..text.len() {
            assert_eq!(events(text, step), expected, "in steps of {step}");
        }
    }

    #[test]
    fn a_url_that_is_not_http_is_refused() {
        for wrong in ["ftp://x", "mailto:a@b", "file:///x"] {
            let url = wrong.parse().unwrap();
            assert!(Remote::new(&url, &"pr_x".into()).is_err(), "{wrong}");
        }
    }
}

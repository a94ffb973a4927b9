//! Outbound access to hosts that tenants or vendors name: an HTTP client, and checked addresses for other protocols.
//!
//! ```text
//! Request ──check_url──▶ resolve once, check all ──▶ connect to these ──▶ one request ──▶ Answer (64 KiB at most)
//! ```
//!
//! The client calls https on public addresses only, follows no redirect, uses no proxy, and never resends a request.
//! Errors quote only the beginning of an answer.
//!
//! An address of a NAT64 gateway (64:ff9b::/96) is refused like every address that contains another one, so hosts
//! on an IPv6-only network need a dual-stack resolver (no DNS64) for Postrider.

mod address;
mod resolve;
mod url;

use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

use ::url::{Host, Url};
use bytes::{Bytes, BytesMut};
use jiff::{Timestamp, fmt::rfc2822};
pub use reqwest::dns::Resolve;
use reqwest::{
    Client, Request, Response, StatusCode,
    header::{HeaderMap, RETRY_AFTER},
};

pub use self::url::{Policy, URL_BYTES_MAX, UrlRefused, check_url, read_url};
use crate::{text, tls};

/// Maximum bytes of an answer's body that are read.
pub const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Time limits of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Name, TCP and TLS together.
    pub connect: Duration,
    /// The whole call, to the last byte of the answer. A request may set less, not more.
    pub total: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), total: Duration::from_secs(20) }
    }
}

/// Whether a call may use a connection that served another call before.
///
/// An HTTP/1.1 server may close an idle connection at the moment when a request is sent on it. The HTTP library then sends
/// the request on a new connection if it assumes that the server did not read it. That assumption may be wrong, so calls
/// that must not be repeated use [`Reuse::Never`]. If the receiver recognises a repeat, reuse is harmless and saves a
/// handshake per event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// A connection for this call alone.
    Never,
    /// A repeat is harmless by contract.
    Allowed,
}

/// The response of a host.
#[derive(Debug)]
pub struct Answer {
    /// The status line.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, or its first [`ANSWER_BYTES_MAX`] bytes.
    pub body: Bytes,
    /// Whether `body` is all of it.
    pub ending: Ending,
}

/// How the body of an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// As announced.
    Whole,
    /// It was longer than [`ANSWER_BYTES_MAX`]; the rest was not read.
    TooLong,
    /// The connection broke or the time was up.
    Broken,
}

impl Answer {
    /// The beginning of the body, for messages: at most 200 characters, none of them a control character.
    #[must_use]
    pub fn excerpt(&self) -> String {
        text::excerpt_of_bytes(&self.body)
    }

    /// The time that the host asks to wait: `Retry-After`, in seconds or as a date.
    #[must_use]
    pub fn retry_after(&self, now: Timestamp) -> Option<Duration> {
        let value = self.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
        if let Ok(seconds) = value.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let at = rfc2822::parse(value).ok()?.timestamp();
        Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
    }
}

/// A call without an answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The guard refused the URL. Nothing was sent.
    #[error(transparent)]
    Refused(#[from] UrlRefused),
    /// Name, connection or TLS failed. Nothing was sent, so a retry is safe.
    #[error("could not reach {host}")]
    Unreachable {
        /// The host.
        host: String,
        /// The cause, without the URL: its path may hold a token.
        #[source]
        source: reqwest::Error,
    },
    /// The request was sent, at least in part, and no answer came.
    #[error("{host} did not answer; the request may have arrived")]
    Unanswered {
        /// The host.
        host: String,
        /// The cause, without the URL.
        #[source]
        source: reqwest::Error,
    },
}

impl CallError {
    /// The message with its causes, in one line of at most 200 characters.
    #[must_use]
    pub fn reason(&self) -> String {
        text::causes(self)
    }
}

/// A host without an address that may be called.
#[derive(Debug, thiserror::Error)]
pub enum NoAddress {
    /// The guard refused the host.
    #[error(transparent)]
    Refused(#[from] UrlRefused),
    /// The name could not be resolved.
    #[error("could not find `{host}`")]
    NotFound {
        /// The host.
        host: String,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The client cannot be built: a setting of this machine is missing.
#[derive(Debug, thiserror::Error)]
#[error("no HTTPS client could be built; install root certificates (`apt-get install ca-certificates`)")]
pub struct NoClient(#[source] reqwest::Error);

/// See the [module](self). Cloning shares the connections.
#[derive(Debug, Clone)]
pub struct GuardedClient {
    fresh: Client,
    pooled: Client,
    dns: Arc<resolve::GuardedDns>,
    policy: Policy,
    limits: Limits,
}

impl GuardedClient {
    /// A client that asks the operating system for addresses.
    pub fn new(policy: Policy, limits: Limits) -> Result<Self, NoClient> {
        Self::with_resolver(policy, limits, Arc::new(resolve::SystemDns))
    }

    /// A client with another resolver. Its addresses are checked, too.
    pub fn with_resolver(policy: Policy, limits: Limits, inner: Arc<dyn Resolve>) -> Result<Self, NoClient> {
        tls::choose_provider();
        let dns = Arc::new(resolve::GuardedDns { inner, policy });
        let client = |idle_max: usize| {
            Client::builder()
                .dns_resolver(Arc::clone(&dns))
                .connect_timeout(limits.connect)
                .timeout(limits.total)
                .pool_max_idle_per_host(idle_max)
                .http1_only()
                .retry(reqwest::retry::never())
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                // Off even if another crate enables the features: a small answer must not unpack into a large one.
                .no_gzip()
                .no_brotli()
                .no_zstd()
                .no_deflate()
                .referer(false)
                .user_agent(concat!("postrider/", env!("CARGO_PKG_VERSION")))
                .build()
                .map_err(NoClient)
        };
        Ok(Self { fresh: client(0)?, pooled: client(64)?, dns, policy, limits })
    }

    /// The hosts that this client may reach.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The time limits of its calls.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Checks a host by its name alone.
    pub fn check_host(&self, host: &Host) -> Result<(), UrlRefused> {
        url::check_host(host, &self.policy)
    }

    /// The checked addresses of a host, for protocols other than HTTP. The caller must connect to these, because another
    /// resolution may return other addresses.
    pub async fn resolve(&self, host: &Host, port: u16) -> Result<Vec<SocketAddr>, NoAddress> {
        self.check_host(host)?;
        let name = match host {
            Host::Ipv4(address) => return Ok(vec![SocketAddr::from((*address, port))]),
            Host::Ipv6(address) => return Ok(vec![SocketAddr::from((*address, port))]),
            Host::Domain(name) => name,
        };
        let not_found = |source| NoAddress::NotFound { host: name.clone(), source };
        let question = name.parse().map_err(|error| not_found(Box::new(error)))?;
        match self.dns.resolve(question).await {
            Ok(found) => Ok(found.map(|address| SocketAddr::new(address.ip(), port)).collect()),
            Err(error) => match error.downcast::<UrlRefused>() {
                Ok(refused) => Err(NoAddress::Refused(*refused)),
                Err(error) => Err(not_found(error)),
            },
        }
    }

    /// Sends a request once. An answer of any status is `Ok`.
    pub async fn send(&self, mut request: Request, reuse: Reuse) -> Result<Answer, CallError> {
        // An address in the URL never reaches the resolver, so the URL is checked here, for every call.
        check_url(request.url(), &self.policy)?;
        let host = host_of(request.url());
        let total = request.timeout().map_or(self.limits.total, |asked| self.limits.total.min(*asked));
        *request.timeout_mut() = Some(total);
        let client = match reuse {
            Reuse::Never => &self.fresh,
            Reuse::Allowed => &self.pooled,
        };
        match client.execute(request).await {
            Ok(response) => Ok(read(response).await),
            Err(error) => Err(classify(host, error)),
        }
    }
}

/// Reads the body up to the limit. Dropping the rest closes the connection.
async fn read(mut response: Response) -> Answer {
    let mut body = BytesMut::new();
    let ending = loop {
        match response.chunk().await {
            Ok(None) => break Ending::Whole,
            Ok(Some(chunk)) if body.len() + chunk.len() > ANSWER_BYTES_MAX => {
                body.extend_from_slice(&chunk[..ANSWER_BYTES_MAX - body.len()]);
                break Ending::TooLong;
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Err(_) => break Ending::Broken,
        }
    };
    let headers = std::mem::take(response.headers_mut());
    Answer { status: response.status(), headers, body: body.freeze(), ending }
}

/// Unreachable only if the connection was never made: in every other case the request may have arrived.
fn classify(host: String, error: reqwest::Error) -> CallError {
    let source = error.without_url();
    if let Some(refused) = refusal_in(&source) {
        return CallError::Refused(refused);
    }
    if source.is_connect() || source.is_builder() {
        CallError::Unreachable { host, source }
    } else {
        CallError::Unanswered { host, source }
    }
}

/// The refusal of the guarded resolver, if it is the cause of the error.
fn refusal_in(error: &reqwest::Error) -> Option<UrlRefused> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref::<UrlRefused>() {
            return Some(refused.clone());
        }
        cause = error.source();
    }
    None
}

fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

//! Checks of a URL by its text alone. The addresses of its host are checked on connecting.

use std::{fmt, net::IpAddr};

use url::{Host, Url};

use super::address::{NotPublic, not_public};

/// Maximum bytes of a URL that a tenant sets.
pub const URL_BYTES_MAX: usize = 2048;

/// The hosts that outbound calls may reach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// Permits plain http, loopback and private networks, for development (`outbound.allow_private`).
    /// Link-local addresses (a cloud's metadata service), multicast and reserved ones stay closed.
    pub allow_private: bool,
}

/// A URL that must not be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlRefused {
    /// The text is not a URL.
    #[error("this is not a URL ({why}); write it like https://example.com/events")]
    NotAUrl {
        /// Message of the parser.
        why: String,
    },
    /// The URL is too long.
    #[error("the URL is longer than {URL_BYTES_MAX} bytes")]
    TooLong,
    /// The URL holds a control character. The parser drops line breaks and tabs, so the called URL would differ from the shown one.
    #[error("the URL holds a space, a line break or another control character; remove it")]
    ControlCharacter,
    /// Neither https nor http.
    #[error("`{scheme}:` URLs are not called; use an https:// URL")]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// Plain http, which is not encrypted.
    #[error(
        "plain http is not encrypted; use https://, or set `outbound.allow_private = true` for development"
    )]
    PlainHttp,
    /// A user name or password, which may also hide the real host.
    #[error("the URL has a user name or password before the `@`; remove that part")]
    UserInfo,
    /// The URL has no host.
    #[error("the URL has no host; write it like https://example.com/events")]
    NoHost,
    /// The host of the URL is a private address.
    #[error("`{host}` is {what}{}", advice(*.development))]
    NotPublic {
        /// The host, normalised.
        host: String,
        /// The kind of address.
        what: &'static str,
        /// Whether `outbound.allow_private` would permit it.
        development: bool,
    },
    /// The name resolves to a private address, which the message does not show.
    #[error("`{host}` resolves to {what}{}", advice(*.development))]
    ResolvesToNotPublic {
        /// The name.
        host: String,
        /// The kind of address.
        what: &'static str,
        /// Whether `outbound.allow_private` would permit it.
        development: bool,
    },
}

fn advice(development: bool) -> &'static str {
    if development {
        ", and only public addresses are called; use a public host, or set `outbound.allow_private = true` for development"
    } else {
        ", and only public addresses are called; use a public host"
    }
}

/// Checks a URL when it is configured and again before every call. Any port is allowed.
///
/// Numbers in other notations (`0x7f.1`, `2130706433`, `①②⑦.0.0.1`) need no extra rules: [`Url`] has already parsed
/// them as addresses.
pub fn check_url(url: &Url, policy: &Policy) -> Result<(), UrlRefused> {
    match url.scheme() {
        "https" => {}
        "http" if policy.allow_private => {}
        "http" => return Err(UrlRefused::PlainHttp),
        scheme => return Err(UrlRefused::Scheme { scheme: scheme.to_owned() }),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(UrlRefused::UserInfo);
    }
    check_host(&url.host().ok_or(UrlRefused::NoHost)?, policy)
}

/// Checks the text of a URL before it is parsed: its length, and characters that the parser would drop.
fn check_url_text(text: &str) -> Result<(), UrlRefused> {
    if text.len() > URL_BYTES_MAX {
        return Err(UrlRefused::TooLong);
    }
    if text.contains(|letter: char| letter.is_control() || letter.is_whitespace()) {
        return Err(UrlRefused::ControlCharacter);
    }
    Ok(())
}

/// Parses and checks a URL.
pub fn read_url(text: &str, policy: &Policy) -> Result<Url, UrlRefused> {
    check_url_text(text)?;
    let url = Url::parse(text).map_err(|error| UrlRefused::NotAUrl { why: error.to_string() })?;
    check_url(&url, policy)?;
    Ok(url)
}

/// Checks a host by its name alone.
pub(super) fn check_host(
    host: &Host<impl AsRef<str> + fmt::Display>,
    policy: &Policy,
) -> Result<(), UrlRefused> {
    let found = match host {
        Host::Ipv4(address) => refused(IpAddr::V4(*address), policy),
        Host::Ipv6(address) => refused(IpAddr::V6(*address), policy),
        Host::Domain(name) if is_localhost(name.as_ref()) && !policy.allow_private => {
            Some(NotPublic { what: "this machine", development: true })
        }
        Host::Domain(_) => None,
    };
    match found {
        None => Ok(()),
        Some(NotPublic { what, development }) => {
            Err(UrlRefused::NotPublic { host: host.to_string(), what, development })
        }
    }
}

/// The reason why an address must not be called; `None` if it may.
pub(super) fn refused(address: IpAddr, policy: &Policy) -> Option<NotPublic> {
    not_public(address).filter(|why| !(policy.allow_private && why.development))
}

/// RFC 6761: `localhost` and everything below it is this machine, even if a resolver returns another address.
fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name == "localhost" || name.ends_with(".localhost")
}

//! Which URLs may be called, as far as the URL alone can tell. What its name resolves to is checked on connecting.

use std::{fmt, net::IpAddr};

use url::{Host, Url};

use super::address::{NotPublic, not_public};

/// Maximum bytes of a URL that a tenant sets.
pub const URL_BYTES_MAX: usize = 2048;

/// What outbound calls may reach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// Lets plain http, loopback and private networks through, for development (`outbound.allow_private`).
    /// Link-local addresses (a cloud's metadata service), multicast and reserved ones stay closed.
    pub allow_private: bool,
}

/// Why a URL is not called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlRefused {
    /// No URL at all.
    #[error("this is not a URL ({why}); write it like https://example.com/events")]
    NotAUrl {
        /// In the words of the parser.
        why: String,
    },
    /// More than a URL needs.
    #[error("the URL is longer than {URL_BYTES_MAX} bytes")]
    TooLong,
    /// The parser drops line breaks and tabs, so another URL would be called than the one that is shown.
    #[error("the URL holds a space, a line break or another control character; remove it")]
    ControlCharacter,
    /// Neither https nor http.
    #[error("`{scheme}:` URLs are not called; use an https:// URL")]
    Scheme {
        /// What it is instead.
        scheme: String,
    },
    /// Readable on its way.
    #[error(
        "plain http is not encrypted; use https://, or set `outbound.allow_private = true` for development"
    )]
    PlainHttp,
    /// A password, or a trick to show one host and call another.
    #[error("the URL has a user name or password before the `@`; remove that part")]
    UserInfo,
    /// Nowhere to go.
    #[error("the URL has no host; write it like https://example.com/events")]
    NoHost,
    /// The URL leads into a private network by itself.
    #[error("`{host}` is {what}{}", advice(*.development))]
    NotPublic {
        /// As the URL has it, normalised.
        host: String,
        /// Which kind of address.
        what: &'static str,
        /// Whether `outbound.allow_private` would let it through.
        development: bool,
    },
    /// The name leads into a private network. The address is left out: it is nobody else's business.
    #[error("`{host}` resolves to {what}{}", advice(*.development))]
    ResolvesToNotPublic {
        /// The name.
        host: String,
        /// Which kind of address.
        what: &'static str,
        /// Whether `outbound.allow_private` would let it through.
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

/// Checks a URL when it is configured and again before every call. The port is free: receivers choose theirs.
///
/// Numbers in other bases and shapes (`0x7f.1`, `2130706433`, `①②⑦.0.0.1`) need no rules of their own: [`Url`] has turned
/// them into addresses already.
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

/// The same for a text that may be no URL.
pub fn read_url(text: &str, policy: &Policy) -> Result<Url, UrlRefused> {
    check_url_text(text)?;
    let url = Url::parse(text).map_err(|error| UrlRefused::NotAUrl { why: error.to_string() })?;
    check_url(&url, policy)?;
    Ok(url)
}

/// Checks a host as far as its name alone can tell.
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

/// Says why an address must not be called; `None` if it may.
pub(super) fn refused(address: IpAddr, policy: &Policy) -> Option<NotPublic> {
    not_public(address).filter(|why| !(policy.allow_private && why.development))
}

/// RFC 6761: `localhost` and everything below it is this machine, whatever a resolver says.
fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name == "localhost" || name.ends_with(".localhost")
}

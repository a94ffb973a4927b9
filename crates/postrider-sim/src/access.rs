//! Authentication: one token for all faces. Each face reads it from its own header or path.

use base64::{Engine, engine::general_purpose::STANDARD};
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

/// The token that callers must send, if one is set.
pub struct Access {
    token: Option<SecretString>,
}

impl Access {
    /// Without a token every caller is accepted.
    pub fn new(token: Option<SecretString>) -> Self {
        Self { token }
    }

    /// Whether this is the token; `None` if no token is set.
    pub fn admits(&self, shown: Option<&str>) -> Option<bool> {
        self.token.as_ref().map(|token| shown == Some(token.expose_secret()))
    }
}

/// The token after `Bearer`.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let shown = headers.get(AUTHORIZATION)?.to_str().ok()?;
    shown.strip_prefix("Bearer ").map(str::trim).filter(|token| !token.is_empty())
}

/// User and password.
pub fn basic(headers: &HeaderMap) -> Option<(String, SecretString)> {
    let shown = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let decoded = STANDARD.decode(shown.strip_prefix("Basic ")?.trim()).ok()?;
    let (user, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((user.to_owned(), SecretString::from(password)))
}

/// The idempotency key in a name that carries one: 64 hex digits, alone or after a prefix such as `msg_`.
pub fn key_in(name: &str) -> Option<&str> {
    let (prefix, key) = name.split_at_checked(name.len().checked_sub(64)?)?;
    let is_key = key.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_key && (prefix.is_empty() || prefix.ends_with(['_', '-', '.', ':', '~']))).then_some(key)
}

/// A number derived from a name; the same name gives the same number.
pub fn number_of(name: &str) -> u64 {
    let digest = Sha256::digest(name.as_bytes());
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_a_name_that_contains_one() {
        let key = "0123456789abcdef".repeat(4);
        assert_eq!(key_in(&key), Some(key.as_str()));
        assert_eq!(key_in(&format!("msg_{key}")), Some(key.as_str()));
        for other in ["", "evt_1", "3jzfcijpj2z2a", &key[1..], &format!("a{key}"), &key.to_uppercase()] {
            assert_eq!(key_in(other), None, "{other}");
        }
        assert_eq!(key_in(&"é".repeat(40)), None);
    }
}

//! What the webhooks of all chat vendors have in common. They are hostile until their signature holds, and what people write
//! is hostile after that.
//!
//! | in a webhook | what becomes of it |
//! |---|---|
//! | a text longer than [`TEXT_BYTES_MAX`] | it is cut there and ends with `…`: refused, it would come again and again, and others with it |
//! | NUL in a text | left out: the database cannot hold it |
//! | a text of nothing but space | nothing was said |
//! | a name that is empty, too long, or holds control characters | malformed |
//! | no JSON, JSON of another shape, a field twice | malformed |

use std::fmt::Display;

use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use postrider_model::chat::{InboundMessage, TEXT_BYTES_MAX};
use secrecy::{ExposeSecret, SecretString};
use serde::de::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::provider::{CallbackRefused, InvalidAccount, Received};

/// How far the time of a signature may be from ours, either way.
const TOLERANCE_SECONDS: u64 = 5 * 60;
/// Longest name of a sender or a conversation, as the database has it.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest name of a message.
pub const MESSAGE_NAME_BYTES_MAX: usize = 512;
/// Longest question whether an address is ours.
const CHALLENGE_BYTES_MAX: usize = 1024;

/// What signs for a secret. Every secret is a key.
pub fn signature(secret: &SecretString) -> Result<Hmac<Sha256>, InvalidAccount> {
    Hmac::new_from_slice(secret.expose_secret().as_bytes())
        .map_err(|_| InvalidAccount("the secret is not usable as a key".to_owned()))
}

/// Checks an HMAC-SHA256 in hex over these parts, in constant time.
pub fn verify_hex(
    signature: &Hmac<Sha256>,
    parts: &[&[u8]],
    given: &str,
    vendor: &str,
) -> Result<(), CallbackRefused> {
    let given = hex::decode(given).map_err(|_| forged("the signature is not hex"))?;
    let mut signature = signature.clone();
    for part in parts {
        signature.update(part);
    }
    signature.verify_slice(&given).map_err(|_| {
        forged(format!("the signature is not {vendor}'s for this account; is its secret the right one?"))
    })
}

/// Whether two secrets are the same, in constant time whatever their lengths.
pub fn is_same(given: &str, expected: &SecretString) -> bool {
    Sha256::digest(given).ct_eq(&Sha256::digest(expected.expose_secret())).into()
}

/// Refuses the time of a signature that is too far from now: somebody may have kept it.
pub fn check_time(header: &str, given: &str, now: Timestamp) -> Result<(), CallbackRefused> {
    let seconds = given.parse().ok().filter(|_| given.bytes().all(|byte| byte.is_ascii_digit()));
    let seconds: i64 =
        seconds.ok_or_else(|| forged(format!("the header `{header}` is not a time in seconds")))?;
    if now.as_second().abs_diff(seconds) > TOLERANCE_SECONDS {
        let which = if seconds < now.as_second() { "old" } else { "early" };
        return Err(forged(format!("the header `{header}` is more than five minutes too {which}")));
    }
    Ok(())
}

/// The body, or a part of it, as the vendor writes it. What it holds is not part of the error.
pub fn read<'a, T: Deserialize<'a>>(json: &'a [u8], vendor: &str) -> Result<T, CallbackRefused> {
    serde_json::from_slice(json).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        malformed(format!(
            "this is not what {vendor} sends: it cannot be read at line {line}, column {column}"
        ))
    })
}

/// What somebody wrote, fit to be kept; nothing if there is nothing to read.
pub fn words(text: &str) -> Option<String> {
    let mut words: String = text.chars().filter(|c| *c != '\0').collect();
    if words.len() > TEXT_BYTES_MAX {
        words.truncate(words.floor_char_boundary(TEXT_BYTES_MAX - '…'.len_utf8()));
        words.push('…');
    }
    (!words.trim().is_empty()).then_some(words)
}

/// A name that the vendor gives to something.
pub fn name(field: &str, given: &str, bytes_max: usize) -> Result<String, CallbackRefused> {
    if given.trim().is_empty() || given.len() > bytes_max || given.chars().any(char::is_control) {
        return Err(malformed(format!(
            "`{field}` is empty, longer than {bytes_max} bytes, or holds control characters"
        )));
    }
    Ok(given.to_owned())
}

/// The answer to the question whether an address is ours.
pub fn challenge(given: &str) -> Result<Received, CallbackRefused> {
    if given.is_empty()
        || given.len() > CHALLENGE_BYTES_MAX
        || !given.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(malformed("the challenge is empty, too long, or not plain text"));
    }
    Ok(Received::Challenge(given.to_owned()))
}

/// One message, or none.
pub fn said(message: Option<InboundMessage>) -> Received {
    Received::Happened { messages: message.into_iter().collect(), reports: Vec::new() }
}

pub fn forged(reason: impl Display) -> CallbackRefused {
    CallbackRefused::Forged(reason.to_string())
}

pub fn malformed(reason: impl Display) -> CallbackRefused {
    CallbackRefused::Malformed(reason.to_string())
}

#[cfg(test)]
pub mod tests;

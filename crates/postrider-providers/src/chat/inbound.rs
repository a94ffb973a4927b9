//! Code that the webhooks of all chat vendors share. A webhook is untrusted until its signature is verified, and its text is
//! untrusted after that.
//!
//! | in a webhook | handling |
//! |---|---|
//! | a text longer than [`TEXT_BYTES_MAX`] | it is cut there and ends with `…`; a refusal would make the vendor deliver it again and again |
//! | NUL in a text | removed: the database cannot store it |
//! | a text of white space only | ignored |
//! | a name that is empty, too long, or holds control characters | malformed |
//! | no JSON, JSON of another shape, a field twice | malformed |

use std::fmt::Display;

use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use postrider_model::channels::{InboundMessage, TEXT_BYTES_MAX};
use secrecy::{ExposeSecret, SecretString};
use serde::de::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::provider::{CallbackRefused, InvalidAccount, Received};

/// Maximum difference between the time of a signature and the clock of this machine.
const TOLERANCE_SECONDS: u64 = 5 * 60;
/// Longest name of a sender or a conversation. The database has the same limit.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest name of a message.
pub const MESSAGE_NAME_BYTES_MAX: usize = 512;
/// Longest challenge by which a vendor verifies the webhook address.
const CHALLENGE_BYTES_MAX: usize = 1024;

/// The HMAC that is keyed with a secret.
pub fn signature(secret: &SecretString) -> Result<Hmac<Sha256>, InvalidAccount> {
    Hmac::new_from_slice(secret.expose_secret().as_bytes())
        .map_err(|_| InvalidAccount("the secret is not usable as a key".to_owned()))
}

/// Checks an HMAC-SHA256 in hex over these parts, in constant time.
pub fn verify_hex(
    signature: &Hmac<Sha256>,
    parts: &[&[u8]],
    input: &str,
    vendor: &str,
) -> Result<(), CallbackRefused> {
    let input = hex::decode(input).map_err(|_| forged("the signature is not hex"))?;
    let mut signature = signature.clone();
    for part in parts {
        signature.update(part);
    }
    signature.verify_slice(&input).map_err(|_| {
        forged(format!("the signature is not {vendor}'s for this account; check the account's secret"))
    })
}

/// Whether two secrets are equal, in constant time for all lengths.
pub fn is_same(input: &str, expected: &SecretString) -> bool {
    Sha256::digest(input).ct_eq(&Sha256::digest(expected.expose_secret())).into()
}

/// Refuses a signature whose time is too far from now: it may be a replay.
pub fn check_time(header: &str, input: &str, now: Timestamp) -> Result<(), CallbackRefused> {
    let seconds = input.parse().ok().filter(|_| input.bytes().all(|byte| byte.is_ascii_digit()));
    let seconds: i64 =
        seconds.ok_or_else(|| forged(format!("the header `{header}` is not a time in seconds")))?;
    if now.as_second().abs_diff(seconds) > TOLERANCE_SECONDS {
        let which = if seconds < now.as_second() { "old" } else { "early" };
        return Err(forged(format!("the header `{header}` is more than five minutes too {which}")));
    }
    Ok(())
}

/// Parses the body, or a part of it. The error does not contain its content.
pub fn read<'a, T: Deserialize<'a>>(json: &'a [u8], vendor: &str) -> Result<T, CallbackRefused> {
    serde_json::from_slice(json).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        malformed(format!(
            "this is not what {vendor} sends: it cannot be read at line {line}, column {column}"
        ))
    })
}

/// The text of a message, in a form that the database can store; `None` if it is blank.
pub fn clean_text(text: &str) -> Option<String> {
    let mut clean: String = text.chars().filter(|c| *c != '\0').collect();
    if clean.len() > TEXT_BYTES_MAX {
        clean.truncate(clean.floor_char_boundary(TEXT_BYTES_MAX - '…'.len_utf8()));
        clean.push('…');
    }
    (!clean.trim().is_empty()).then_some(clean)
}

/// Checks an id or name from the vendor.
pub fn name(field: &str, input: &str, bytes_max: usize) -> Result<String, CallbackRefused> {
    if input.trim().is_empty() || input.len() > bytes_max || input.chars().any(char::is_control) {
        return Err(malformed(format!(
            "`{field}` is empty, longer than {bytes_max} bytes, or holds control characters"
        )));
    }
    Ok(input.to_owned())
}

/// The response to a challenge.
pub fn challenge(input: &str) -> Result<Received, CallbackRefused> {
    if input.is_empty()
        || input.len() > CHALLENGE_BYTES_MAX
        || !input.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(malformed("the challenge is empty, too long, or not plain text"));
    }
    Ok(Received::Challenge(input.to_owned()))
}

/// A webhook with one message, or with none.
pub fn received(message: Option<InboundMessage>) -> Received {
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

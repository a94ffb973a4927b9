//! Idempotency keys: equal intentions have equal keys, and different intentions have different keys.
//!
//! | channel | parts |
//! |---|---|
//! | e-mail | run, lead, asset, scheduled time |
//! | voice | run, lead, script version, scheduled time |
//! | social | run, post, the word `social`, scheduled time |
//! | single message | the word `message`, the message |
//! | chat | the word `reply`, the reply |
//! | notification of an alert | the word `notification`, the notification |
//!
//! The parts are joined by `|` and hashed. `execution.outbox_key` computes the same in SQL, and a test compares them.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::ids::{AssetId, OutboxId, RunId, SingleMessageId};

/// The key of one item: SHA-256 in hex.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdempotencyKey(String);

/// The part of a key that depends on the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPart {
    /// E-mail: the version of the content.
    Asset(AssetId),
    /// Voice: the version of the script.
    ScriptVersion(i32),
    /// Social: the channel.
    Social,
}

impl IdempotencyKey {
    /// The key of one item of a run.
    #[must_use]
    pub fn new(run: RunId, item: Uuid, part: KeyPart, scheduled_for: Option<Timestamp>) -> Self {
        let part = match part {
            KeyPart::Asset(asset) => asset.0.to_string(),
            KeyPart::ScriptVersion(version) => version.to_string(),
            KeyPart::Social => "social".to_owned(),
        };
        let time = scheduled_for.map_or_else(|| "-".to_owned(), |time| format!("{time:.6}"));
        Self(hex::encode(Sha256::digest(format!("{}|{item}|{part}|{time}", run.0))))
    }

    /// The key of a single message, the same in whatever run it is.
    #[must_use]
    pub fn of_message(message: SingleMessageId) -> Self {
        Self(hex::encode(Sha256::digest(format!("message|{}", message.0))))
    }

    /// The key of a reply, the same for every attempt.
    #[must_use]
    pub fn of_reply(reply: OutboxId) -> Self {
        Self(hex::encode(Sha256::digest(format!("reply|{}", reply.0))))
    }

    /// The key of a notification, the same for every attempt.
    #[must_use]
    pub fn of_notification(notification: OutboxId) -> Self {
        Self(hex::encode(Sha256::digest(format!("notification|{}", notification.0))))
    }

    /// A key that the database returned.
    #[must_use]
    pub fn from_row(key: String) -> Self {
        Self(key)
    }

    /// The 64 hex digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_hash_of_its_parts() {
        let run = RunId(Uuid::from_u128(1));
        let lead = Uuid::from_u128(2);
        let asset = KeyPart::Asset(AssetId(Uuid::from_u128(3)));
        let at = Timestamp::constant(1_770_000_000, 120_000_000);
        let parts = "00000000-0000-0000-0000-000000000001|00000000-0000-0000-0000-000000000002|\
                     00000000-0000-0000-0000-000000000003|2026-02-02T02:40:00.120000Z";
        assert_eq!(
            IdempotencyKey::new(run, lead, asset, Some(at)).as_str(),
            hex::encode(Sha256::digest(parts))
        );
        let parts = "00000000-0000-0000-0000-000000000001|00000000-0000-0000-0000-000000000002|7|-";
        assert_eq!(
            IdempotencyKey::new(run, lead, KeyPart::ScriptVersion(7), None).as_str(),
            hex::encode(Sha256::digest(parts))
        );
    }
}

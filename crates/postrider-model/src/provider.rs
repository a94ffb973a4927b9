//! Manifests of adapters, outcomes of calls, and findings about items in doubt.

use std::time::Duration;

use serde::Serialize;

use crate::campaigns::{Channel, ItemStatus};

/// The outcome of a call. An adapter must choose one of the four.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider accepted the message.
    Delivered {
        /// The provider's id of the message.
        message_id: String,
    },
    /// The provider refused the message, and would refuse it again.
    Rejected {
        /// The provider's reason, shortened.
        reason: String,
    },
    /// Provably nothing was sent: the worker may repeat the call under the same reservation.
    NotSent {
        /// The reason.
        reason: String,
        /// Time that the provider asked to wait.
        retry_after: Option<Duration>,
    },
    /// The request may have arrived. The item is in doubt and is not called again.
    Unknown {
        /// The event instead of a response.
        reason: String,
    },
}

impl Outcome {
    /// Every result of [`kind`](Self::kind).
    pub const KINDS: [&'static str; 4] = ["delivered", "rejected", "not_sent", "unknown"];

    /// Label for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Delivered { .. } => "delivered",
            Self::Rejected { .. } => "rejected",
            Self::NotSent { .. } => "not_sent",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// Final state of an item with this outcome. `None`: the item stays reserved and is in doubt.
    #[must_use]
    pub const fn ends_as(&self, channel: Channel) -> Option<ItemStatus> {
        match self {
            Self::Delivered { .. } => Some(channel.success()),
            Self::Rejected { .. } | Self::NotSent { .. } => Some(ItemStatus::Failed),
            Self::Unknown { .. } => None,
        }
    }
}

/// Maximum bytes of a [`ResponseExcerpt`], as JSON.
pub const RESPONSE_BYTES_MAX: usize = 1_000;

/// The beginning of a provider's response, as the item keeps it: a JSON object with its status and its words. It never has headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseExcerpt(String);

impl ResponseExcerpt {
    /// Keeps as much of the words as fits. Control characters are left out.
    #[must_use]
    pub fn new(status: u16, words: &str) -> Self {
        // A character of the words takes at least a byte.
        let words: String = words.chars().take(RESPONSE_BYTES_MAX).filter(|c| !c.is_control()).collect();
        let mut words = words.as_str();
        loop {
            let json = serde_json::json!({ "status": status, "body": words }).to_string();
            let excess = json.len().saturating_sub(RESPONSE_BYTES_MAX);
            if excess == 0 {
                return Self(json);
            }
            // An escaped character takes two bytes.
            let keep = words.floor_char_boundary(words.len().saturating_sub(excess.div_ceil(2)));
            words = &words[..keep];
        }
    }

    /// The excerpt as JSON.
    #[must_use]
    pub fn as_json(&self) -> &str {
        &self.0
    }
}

/// How an item in doubt can be settled at this provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DoubtClass {
    /// The provider deduplicates on the idempotency key for a documented time.
    Key,
    /// The call is a put under an id that Postrider chooses.
    Natural,
    /// The provider offers a lookup.
    Lookup,
    /// The provider's status callback carries the idempotency key.
    Echo,
    /// Only a person can find out.
    Person,
}

/// The result of a lookup or a repeat about an item in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The provider acted: this settles the item at any time.
    Done {
        /// The provider's id of the message.
        message_id: String,
        /// The evidence, for the audit log.
        evidence: String,
    },
    /// A lookup found nothing: this settles the item only after the quiet time. Or the provider refused a repeat, perhaps because
    /// it already has the message.
    Absent {
        /// The evidence.
        evidence: String,
    },
    /// The provider gave no usable answer; the resolver asks again later.
    Unclear {
        /// The reason.
        reason: String,
    },
    /// The provider cannot give evidence about this item.
    CannotTell {
        /// The reason.
        reason: String,
    },
}

/// A number of calls per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rate {
    /// Number of calls.
    pub calls: u32,
    /// Length of the period.
    pub per: Duration,
}

/// The description of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Manifest {
    /// Name in `provider_accounts.provider`.
    pub name: &'static str,
    /// Channels that the adapter serves.
    pub channels: &'static [Channel],
    /// How the resolver settles items in doubt.
    pub doubt: DoubtClass,
    /// Time for which the provider deduplicates on a key, if it does.
    pub key_lifetime: Option<Duration>,
    /// Documented rate limit of an account at the provider. The account's own limits take precedence.
    pub rate: Option<Rate>,
    /// Documented limit of concurrent calls of an account at the provider.
    pub concurrency: Option<u32>,
}

impl Manifest {
    /// The default manifest: a person settles items in doubt, and there are no limits. Complete it with `..`.
    #[must_use]
    pub const fn new(name: &'static str, channels: &'static [Channel]) -> Self {
        Self { name, channels, doubt: DoubtClass::Person, key_lifetime: None, rate: None, concurrency: None }
    }

    /// Time after the first call in which a repeat under the same key is harmless: the key's lifetime minus a tenth of it, or
    /// minus five minutes if that is more.
    #[must_use]
    pub fn repeat_within(&self) -> Option<Duration> {
        let margin = |life: Duration| (life / 10).max(Duration::from_secs(300));
        self.key_lifetime.map(|life| life.saturating_sub(margin(life)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_of_a_response_is_bounded_and_is_json_without_control_characters() {
        let short = ResponseExcerpt::new(202, r#"{"id": "m-1"}"#);
        assert_eq!(short.as_json(), r#"{"body":"{\"id\": \"m-1\"}","status":202}"#);
        for words in
            ["\0\u{1b}[31m".repeat(2_000), "\"".repeat(5_000), "\u{1f4e8}".repeat(2_000), "\\é".repeat(900)]
        {
            let excerpt = ResponseExcerpt::new(599, &words);
            let json: serde_json::Value = serde_json::from_str(excerpt.as_json()).unwrap();
            assert!(excerpt.as_json().len() <= RESPONSE_BYTES_MAX, "{} bytes", excerpt.as_json().len());
            let body = json["body"].as_str().unwrap();
            assert!(body.len() > 400 && !body.contains(char::is_control), "{body}");
        }
    }
}

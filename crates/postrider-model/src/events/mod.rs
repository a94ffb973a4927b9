//! Domain events: their fields, states and backoff.

pub mod pattern;
pub mod sink;
pub mod sink_set;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ids::EventId;

/// Longest event type, aggregate type and aggregate id, in bytes. The database holds the same limit.
pub const NAME_BYTES_MAX: usize = 255;

/// Largest payload, in bytes of its JSONB form. The database holds the same limit.
pub const PAYLOAD_BYTES_MAX: usize = 256 * 1024;

/// An event as sinks receive it. Every delivery of an event has the same `id`.
#[derive(Debug, Serialize)]
pub struct Event {
    /// The id by which a consumer recognises a repeat.
    pub id: EventId,
    /// The kind of thing the event is about.
    pub aggregate_type: String,
    /// The id of that thing.
    pub aggregate_id: String,
    /// The event type, such as `order.placed`.
    pub event_type: String,
    /// The payload, as the publisher wrote it.
    pub payload: Box<RawValue>,
    /// Number of failed deliveries.
    pub retry_count: i32,
    /// When it was published.
    pub created_at: Timestamp,
}

/// An event that is about to be published.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewEvent {
    /// The kind of thing the event is about.
    pub aggregate_type: String,
    /// The id of that thing.
    pub aggregate_id: String,
    /// The event type, such as `order.placed`.
    pub event_type: String,
    /// The payload, unchanged: numbers keep all their digits.
    pub payload: Box<RawValue>,
}

/// Why an event cannot be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEvent {
    /// A name is missing.
    #[error("{field} is empty; give it a value such as `{example}`")]
    Empty {
        /// Name of the field.
        field: &'static str,
        /// A valid value.
        example: &'static str,
    },
    /// A name is too long.
    #[error("{field} has {bytes} bytes; the limit is {NAME_BYTES_MAX}")]
    TooLong {
        /// Name of the field.
        field: &'static str,
        /// Length of the value.
        bytes: usize,
    },
    /// Postgres cannot store the character with the number zero.
    #[error("the payload holds the character \\u0000, which Postgres cannot store; remove it")]
    NulInPayload,
    /// A control character would not survive headers and subjects.
    #[error("{field} contains a control character; use printable text")]
    ControlCharacter {
        /// Name of the field.
        field: &'static str,
    },
}

impl NewEvent {
    /// Makes an event with this payload. Fails if the payload cannot be written as JSON.
    pub fn new(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
        payload: &impl Serialize,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self {
            aggregate_type: aggregate_type.into(),
            aggregate_id: aggregate_id.into(),
            event_type: event_type.into(),
            payload: serde_json::value::to_raw_value(payload)?,
        })
    }

    /// Checks the limits that the database enforces, too.
    pub fn check(&self) -> Result<(), InvalidEvent> {
        let fields = [
            ("aggregate_type", &self.aggregate_type, "order"),
            ("aggregate_id", &self.aggregate_id, "42"),
            ("event_type", &self.event_type, "order.placed"),
        ];
        for (field, value, example) in fields {
            if value.trim().is_empty() {
                return Err(InvalidEvent::Empty { field, example });
            }
            if value.len() > NAME_BYTES_MAX {
                return Err(InvalidEvent::TooLong { field, bytes: value.len() });
            }
            if value.chars().any(char::is_control) {
                return Err(InvalidEvent::ControlCharacter { field });
            }
        }
        // Only a text with `\u0000` is parsed, because the same letters after another backslash are not the character.
        let suspicious = self.payload.get().contains("\\u0000");
        if suspicious && serde_json::from_str(self.payload.get()).is_ok_and(|value| holds_nul(&value)) {
            return Err(InvalidEvent::NulInPayload);
        }
        Ok(())
    }
}

/// Whether a text or a key in it holds the character with the number zero, which Postgres cannot store.
#[must_use]
pub fn holds_nul(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => text.contains('\0'),
        serde_json::Value::Array(items) => items.iter().any(holds_nul),
        serde_json::Value::Object(fields) => {
            fields.iter().any(|(key, value)| key.contains('\0') || holds_nul(value))
        }
        _ => false,
    }
}

/// The state of an event. The table has no status column: the state follows from the times of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventState {
    /// No processor claimed the event; it is delivered after `process_after`.
    Pending,
    /// A processor claimed the event, for five minutes at most.
    Claimed,
    /// The event is processed and never changes again.
    Processed,
}

use EventState::{Claimed, Pending, Processed};

/// A step that moves an event from one state to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventStep {
    /// `claim_outbox_events`, also of an event whose claim is stale.
    Claim,
    /// `complete_outbox_event` with success.
    Succeed,
    /// `complete_outbox_event` without success: the event waits for its backoff.
    Fail,
    /// A person asks for a delivery now.
    RetryNow,
    /// A person ends it without delivery.
    Close,
}

/// Every legal transition of an event. All others are rejected, here and by the database.
pub const TRANSITIONS: &[(EventState, EventStep, EventState)] = &[
    (Pending, EventStep::Claim, Claimed),
    (Claimed, EventStep::Claim, Claimed),
    (Claimed, EventStep::Succeed, Processed),
    (Claimed, EventStep::Fail, Pending),
    (Pending, EventStep::RetryNow, Pending),
    (Pending, EventStep::Close, Processed),
    (Claimed, EventStep::Close, Processed),
];

impl EventState {
    /// All of them.
    pub const ALL: [Self; 3] = [Pending, Claimed, Processed];

    /// Whether any step leads from here to there.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        TRANSITIONS.iter().any(|(from, _, to)| (*from, *to) == (self, next))
    }
}

/// Backoff of an event by the number of failures before: 2^n seconds, at most 1024.
#[must_use]
pub fn backoff(retry_count: u32) -> Duration {
    Duration::from_secs(1 << retry_count.min(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_and_stops_at_seventeen_minutes() {
        let waits: Vec<u64> = (0..=12).map(|n| backoff(n).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
    }

    #[test]
    fn no_transition_leaves_processed() {
        for next in EventState::ALL {
            assert!(!Processed.may_become(next));
        }
    }

    #[test]
    fn an_event_that_cannot_be_published_says_which_field_is_wrong() {
        let event = |aggregate_type: &str, event_type: &str| NewEvent {
            aggregate_type: aggregate_type.to_owned(),
            aggregate_id: "42".to_owned(),
            event_type: event_type.to_owned(),
            payload: serde_json::value::to_raw_value(&serde_json::json!({})).unwrap(),
        };
        assert_eq!(event("order", "order.placed").check(), Ok(()));
        let mut nul = event("order", "order.placed");
        nul.payload =
            serde_json::value::to_raw_value(&serde_json::json!({ "deep": [{ "text": "a\u{0}b" }] })).unwrap();
        let cases = [
            (nul, "the payload holds the character \\u0000"),
            (event("order", " "), "event_type is empty"),
            (event("", "order.placed"), "aggregate_type is empty"),
            (event("order", &"x".repeat(256)), "event_type has 256 bytes"),
            (event("order", "order\r\nplaced"), "event_type contains a control character"),
        ];
        for (event, expected) in cases {
            let message = event.check().unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }
}

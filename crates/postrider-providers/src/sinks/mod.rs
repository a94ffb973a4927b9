//! Destinations of events.

mod http;
#[cfg(feature = "nats")]
mod nats;

use bytes::Bytes;
use jiff::Timestamp;
use postrider_model::{Event, ids::EventId};
use serde::Serialize;
use serde_json::value::RawValue;

pub use self::http::{HttpSink, HttpSinkConfig};
#[cfg(feature = "nats")]
pub use self::nats::{NatsCredentials, NatsSink, NatsSinkConfig};
use crate::guard::UrlRefused;

/// An invalid configuration of a sink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSink {
    /// The URL of a webhook.
    #[error("the webhook's URL is not allowed: {0}")]
    Url(#[from] UrlRefused),
    /// There is no secret to sign with.
    #[error(
        "the webhook has no secret to sign with; make one with `echo \"whsec_$(openssl rand -base64 32)\"` and give it \
         to the receiver"
    )]
    NoSecret,
    /// An invalid secret. It is not shown.
    #[error("secret {position} {problem}; make one with `echo \"whsec_$(openssl rand -base64 32)\"`")]
    Secret {
        /// Position of the secret, counted from 1.
        position: usize,
        /// The problem.
        problem: &'static str,
    },
    /// A NATS server.
    #[error("a NATS server is not usable: {problem}; write it like nats://nats.example.com:4222 or tls://…")]
    NatsServer {
        /// The problem.
        problem: &'static str,
    },
    /// The beginning of NATS subjects.
    #[error("the NATS subject `{subject}` {problem}; use words joined by dots, like `postrider.events`")]
    NatsSubject {
        /// As configured.
        subject: String,
        /// The problem.
        problem: &'static str,
    },
    /// Invalid credentials. They are not shown.
    #[error("the NATS credentials are not usable; give the whole content of a `.creds` file")]
    NatsCredentials,
}

/// The body of an event for every destination. The bytes depend only on the event, so each attempt sends the
/// same. `id` is also the value of the header `webhook-id` (or `Nats-Msg-Id`).
#[must_use]
pub fn body(event: &Event) -> Bytes {
    #[derive(Serialize)]
    struct Body<'a> {
        r#type: &'a str,
        timestamp: Timestamp,
        data: &'a RawValue,
        id: EventId,
        aggregate_type: &'a str,
        aggregate_id: &'a str,
    }
    let body = Body {
        r#type: &event.event_type,
        timestamp: event.created_at,
        data: &event.payload,
        id: event.id,
        aggregate_type: &event.aggregate_type,
        aggregate_id: &event.aggregate_id,
    };
    #[expect(
        clippy::expect_used,
        reason = "strings, a time, a number and valid JSON always have a JSON form"
    )]
    let bytes = serde_json::to_vec(&body).expect("an event has a JSON form");
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_holds_the_payload_as_it_was_given() -> anyhow::Result<()> {
        let event = Event {
            id: EventId(9_007_199_254_740_993),
            aggregate_type: "order".to_owned(),
            aggregate_id: "a \"quoted\" id".to_owned(),
            event_type: "order.placed".to_owned(),
            payload: RawValue::from_string(r#"{"b":1.10, "a":[1e2,"é"],"b":2}"#.to_owned())?,
            retry_count: 3,
            created_at: "2026-02-03T04:05:06.000700Z".parse()?,
        };
        let expected = concat!(
            r#"{"type":"order.placed","timestamp":"2026-02-03T04:05:06.0007Z","data":{"b":1.10, "a":[1e2,"é"],"b":2},"#,
            r#""id":9007199254740993,"aggregate_type":"order","aggregate_id":"a \"quoted\" id"}"#
        );
        assert_eq!(std::str::from_utf8(&body(&event))?, expected);
        Ok(())
    }
}

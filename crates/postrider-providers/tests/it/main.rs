//! Integration tests with scripted servers, a hostile name server, other webhook libraries and a real NATS server.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod certificate;
mod child;
mod dns;
mod environment;
mod faults;
mod functions;
mod inbound;
#[cfg(feature = "nats")]
mod nats;
mod server;
mod signatures;
mod urls;
mod webhooks;

use std::{sync::Arc, time::Duration};

use postrider_model::{Event, ids::EventId};
use postrider_providers::guard::{GuardedClient, Limits, Policy, Resolve};
use serde_json::value::RawValue;

/// Permits the servers of these tests, which are on loopback without TLS.
const DEVELOPMENT: Policy = Policy { allow_private: true };

/// Long enough for a busy machine.
const PATIENT: Limits = Limits { connect: Duration::from_secs(10), total: Duration::from_secs(30) };

/// Short enough for tests of a timeout; long enough for a request to arrive before it.
const HASTY: Limits = Limits { connect: Duration::from_secs(10), total: Duration::from_secs(6) };

fn client(limits: Limits) -> GuardedClient {
    GuardedClient::new(DEVELOPMENT, limits).unwrap()
}

fn client_that_asks(dns: Arc<dyn Resolve>, policy: Policy, limits: Limits) -> GuardedClient {
    GuardedClient::with_resolver(policy, limits, dns).unwrap()
}

fn event(id: i64) -> Event {
    Event {
        id: EventId(id),
        aggregate_type: "order".to_owned(),
        aggregate_id: "42".to_owned(),
        event_type: "order.placed".to_owned(),
        payload: RawValue::from_string(r#"{"total": 12.50, "note": "crème brûlée"}"#.to_owned()).unwrap(),
        retry_count: 0,
        created_at: "2026-02-03T04:05:06Z".parse().unwrap(),
    }
}

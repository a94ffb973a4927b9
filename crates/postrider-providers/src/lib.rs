//! How Postrider speaks to the outside world.
//!
//! | module | what it does |
//! |---|---|
//! | [`guard`] | the one HTTP client for every URL that somebody else sets |
//! | [`sinks`] | destinations of events: signed webhooks, NATS JetStream |

pub mod guard;
pub mod sinks;
mod text;
mod tls;

pub use guard::{GuardedClient, Limits, Policy, Reuse, UrlRefused, check_url};
pub use sinks::{HttpSink, HttpSinkConfig, InvalidSink};
#[cfg(feature = "nats")]
pub use sinks::{NatsCredentials, NatsSink, NatsSinkConfig};

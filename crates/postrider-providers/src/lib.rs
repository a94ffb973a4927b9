//! How Postrider speaks to the outside world.
//!
//! | module | what it does |
//! |---|---|
//! | [`guard`] | the way out to every host that somebody else names |
//! | [`provider`] | what can be called, and only with a reservation |
//! | [`email`] | e-mail: SMTP |
//! | [`sim`] | every channel, to `postrider sim` |
//! | [`sinks`] | destinations of events: signed webhooks, NATS JetStream |

pub mod email;
pub mod guard;
pub mod provider;
pub mod sim;
pub mod sinks;
mod text;
mod tls;

pub use guard::{GuardedClient, Limits, Policy, Reuse, UrlRefused, check_url};
pub use provider::{Account, Adapter, Adapters, Callback, CallbackRefused, Echo, InvalidAccount, Provider};
pub use sinks::{HttpSink, HttpSinkConfig, InvalidSink};
#[cfg(feature = "nats")]
pub use sinks::{NatsCredentials, NatsSink, NatsSinkConfig};

//! How Postrider speaks to the outside world.
//!
//! | module | what it does |
//! |---|---|
//! | [`guard`] | the way out to every host that somebody else names |
//! | [`provider`] | what can be called, and only with a reservation |
//! | `http` | what the vendors that speak HTTP have in common: what each answer means |
//! | [`email`] | e-mail: SMTP, Resend |
//! | [`voice`] | calls: Twilio |
//! | [`social`] | posts: Mastodon, Bluesky |
//! | [`chat`] | answers in conversations, and what people write: Slack, Telegram, WhatsApp |
//! | [`agent`] | what executes messages, and who is asked whether it should |
//! | [`function`] | calls functions of tenants, for jobs |
//! | `endpoint` | what agents, sentinels and functions have in common |
//! | [`webhook`] | every channel, to a URL of the tenant |
//! | [`sim`] | every channel, to `postrider sim` |
//! | `conformance` | the suite that every adapter passes, behind a feature of this name |
//! | [`remote`] | another Postrider, for commands that ask it |
//! | [`sinks`] | destinations of events: signed webhooks, NATS JetStream |

pub mod agent;
pub mod chat;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod email;
mod endpoint;
pub mod function;
pub mod guard;
mod http;
pub mod provider;
pub mod remote;
mod signing;
pub mod sim;
pub mod sinks;
pub mod social;
mod text;
mod tls;
pub mod voice;
pub mod webhook;

pub use guard::{GuardedClient, Limits, Policy, Reuse, UrlRefused, check_url, read_url};
pub use provider::{
    Account, AccountRefused, Adapter, Adapters, Callback, CallbackRefused, Echo, InboundWebhook,
    InvalidAccount, Provider, Received, SECRET_BYTES_MAX,
};
pub use signing::check_secret;
pub use sinks::{HttpSink, HttpSinkConfig, InvalidSink};
#[cfg(feature = "nats")]
pub use sinks::{NatsCredentials, NatsSink, NatsSinkConfig};

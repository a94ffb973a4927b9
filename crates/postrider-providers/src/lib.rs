//! Outbound calls of Postrider.
//!
//! | module | content |
//! |---|---|
//! | [`guard`] | the client for all hosts that tenants or vendors name |
//! | [`provider`] | the traits of adapters and providers; a call takes a reservation |
//! | [`description`] | vendors in words, and the forms of their accounts |
//! | [`response`] | the provider's response to a call, as the item keeps it |
//! | `http` | code that the vendors with an HTTP API share, such as the classification of answers |
//! | [`email`] | e-mail: SMTP, Resend |
//! | [`voice`] | calls: Twilio |
//! | [`social`] | posts: Mastodon, Bluesky |
//! | [`chat`] | replies in conversations, and inbound messages: Slack, Telegram, WhatsApp |
//! | [`agent`] | agents, which execute messages, and sentinels, which permit or refuse them |
//! | [`function`] | calls of tenants' functions, for job runs |
//! | `endpoint` | code that agents, sentinels and functions share |
//! | [`webhook`] | every channel, to a URL of the tenant |
//! | [`sim`] | every channel, to `postrider sim` |
//! | `conformance` | the suite that every adapter passes, behind a feature of this name |
//! | [`remote`] | a client of the HTTP API of another Postrider, for CLI commands |
//! | [`sinks`] | destinations of events: signed webhooks, NATS JetStream |

pub mod agent;
pub mod chat;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod description;
pub mod email;
mod endpoint;
pub mod function;
pub mod guard;
mod http;
pub mod provider;
pub mod remote;
pub mod response;
mod signing;
pub mod sim;
pub mod sinks;
pub mod social;
mod text;
mod tls;
pub mod voice;
pub mod webhook;

pub use description::Description;
pub use guard::{GuardedClient, Limits, Policy, Reuse, UrlRefused, check_url, read_url};
pub use provider::{
    Account, AccountRefused, Adapter, Adapters, Callback, CallbackRefused, Echo, InboundWebhook,
    InvalidAccount, Provider, Received, SECRET_BYTES_MAX,
};
pub use signing::check_secret;
pub use sinks::{HttpSink, HttpSinkConfig, InvalidSink};
#[cfg(feature = "nats")]
pub use sinks::{NatsCredentials, NatsSink, NatsSinkConfig};

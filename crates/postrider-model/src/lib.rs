//! Domain types and rules of Postrider. This crate performs no IO: its functions compute results from their arguments.
//!
//! | module | content |
//! |---|---|
//! | [`ids`] | one type per kind of id, so that a tenant is never taken for a workspace |
//! | [`error`] | errors as one line of text |
//! | [`event`] | domain events: their states, backoff and limits |
//! | [`pattern`] | which event types a sink wants |
//! | [`sink`] | the trait of a destination of events |
//! | [`sink_set`] | the sinks of a relay, by which relays recognise that they deliver to the same destinations |
//! | [`campaign`] | channels, and the states of phases, runs, jobs and items |
//! | [`contract`] | the frozen contracts: tables, columns, functions and words that other programs rely on |
//! | [`chat`] | inbound messages, the replies to them, their states and backoff |
//! | [`job`] | functions, their job runs, and retries |
//! | [`audience`] | leads: reading the lines of a file and validating them |
//! | [`key`] | idempotency keys |
//! | [`lock_key`] | grains, lock keys of scheduled jobs, hashes of their entities |
//! | [`message`] | rendered messages |
//! | [`limits`] | rate limits, daily limits and sending hours of accounts, and the reasons for waiting |
//! | [`provider`] | the manifest of an adapter, outcomes of calls, findings about items in doubt |
//! | [`schedule`] | the firings of a schedule, and the policy for firings that are late |
//! | [`span`] | durations for people |
//! | [`tenancy`] | roles, API keys |
//! | [`words`] | closed sets of words, such as the states of a table |
//! | [`seal`] | secrets encrypted under the master key, bound to the row they belong to |

pub mod audience;
pub mod campaign;
pub mod chat;
pub mod contract;
pub mod error;
pub mod event;
pub mod ids;
pub mod job;
pub mod key;
pub mod limits;
pub mod lock_key;
pub mod message;
pub mod pattern;
pub mod provider;
pub mod schedule;
pub mod seal;
pub mod sink;
pub mod sink_set;
pub mod span;
pub mod tenancy;
pub mod words;

pub use campaign::Channel;
pub use error::error_chain;
pub use event::{Event, NewEvent};
pub use key::IdempotencyKey;
pub use limits::{Limits, Why};
pub use message::Message;
pub use pattern::Pattern;
pub use provider::{DoubtClass, Finding, Manifest, Outcome, Rate};
pub use sink::{Destination, EventSink, SinkError};
pub use sink_set::{RegisteredSink, SinkSet};
pub use span::Span;

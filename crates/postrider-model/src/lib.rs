//! Domain types and rules of Postrider. This crate performs no IO: its functions compute results from their arguments.
//!
//! | module | content |
//! |---|---|
//! | [`tenancy`] | roles, API keys |
//! | [`events`] | domain events, which event types a sink wants, and the trait of a sink |
//! | [`campaigns`] | channels, the states of phases, runs, send jobs and items, leads, limits, rendered messages |
//! | [`channels`] | messages of chat users, the replies to them, their states and backoff |
//! | [`jobs`] | functions, their job runs and retries, schedules, lock keys |
//! | [`provider`] | the manifest of an adapter, outcomes of calls, findings about items in doubt |
//! | [`contract`] | the frozen contracts: tables, columns, functions and words that other programs rely on |
//! | [`ids`] | one type per kind of id, so that a tenant is never taken for a workspace |
//! | [`key`] | idempotency keys |
//! | [`seal`] | secrets encrypted under the master key, bound to the row they belong to |
//! | [`words`] | closed sets of words, such as the states of a table |
//! | [`span`] | durations for people |
//! | [`error`] | errors as one line of text |

pub mod campaigns;
pub mod channels;
pub mod contract;
pub mod error;
pub mod events;
pub mod ids;
pub mod jobs;
pub mod key;
pub mod provider;
pub mod seal;
pub mod span;
pub mod tenancy;
pub mod words;

pub use campaigns::Channel;
pub use campaigns::limits::{Limits, Why};
pub use campaigns::message::Message;
pub use error::error_chain;
pub use events::pattern::Pattern;
pub use events::sink::{Destination, EventSink, SinkError};
pub use events::sink_set::{RegisteredSink, SinkSet};
pub use events::{Event, NewEvent};
pub use key::IdempotencyKey;
pub use provider::{DoubtClass, Finding, Manifest, Outcome, RESPONSE_BYTES_MAX, Rate, ResponseExcerpt};
pub use span::Span;

//! Postrider's words and rules. Nothing here performs IO: what is known goes in, what follows comes out.
//!
//! | module | what it says |
//! |---|---|
//! | [`ids`] | one type per kind of id, so that a tenant is never taken for a workspace |
//! | [`error`] | errors as one line of text |
//! | [`event`] | a domain event, its states, its backoff, what may be published |
//! | [`pattern`] | which event types a sink wants |
//! | [`sink`] | what a destination of events must be able to do |
//! | [`sink_set`] | the sinks of a relay, by which relays recognise that they deliver to the same destinations |
//! | [`campaign`] | channels, and the states of phases, runs, jobs and items |
//! | [`contract`] | the frozen contracts: tables, columns, functions and words that other programs rely on |
//! | [`chat`] | messages that come in, the replies to them, their states and retries |
//! | [`job`] | functions, their runs, and what is tried again when |
//! | [`audience`] | leads: what a line of a file says about a person, and whether that can be so |
//! | [`key`] | idempotency keys |
//! | [`lock_key`] | grains, lock keys of scheduled jobs, hashes of what they are about |
//! | [`message`] | what is sent, once it is rendered |
//! | [`limits`] | what an account may be asked, and why something waits |
//! | [`provider`] | what an adapter says about itself and about a call |
//! | [`schedule`] | when a schedule fires, and what becomes of firings that nobody was there for |
//! | [`span`] | durations as people read them |
//! | [`tenancy`] | roles, API keys |
//! | [`words`] | what the closed sets of words have in common |
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

//! Postrider's words and rules. Nothing here performs IO: what is known goes in, what follows comes out.
//!
//! | module | what it says |
//! |---|---|
//! | [`ids`] | one type per kind of id, so that a tenant is never taken for a workspace |
//! | [`event`] | a domain event, its states, its backoff, what may be published |
//! | [`pattern`] | which event types a sink wants |
//! | [`sink`] | what a destination of events must be able to do |
//! | [`tenancy`] | roles, API keys |
//! | [`seal`] | secrets encrypted under the master key, bound to the row they belong to |

pub mod event;
pub mod ids;
pub mod pattern;
pub mod seal;
pub mod sink;
pub mod tenancy;

pub use event::{Event, NewEvent};
pub use pattern::Pattern;
pub use sink::{EventSink, SinkError};

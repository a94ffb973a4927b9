//! Postrider's loops. Deciding is pure and stands in a table; doing is small.
//!
//! | module | what it does |
//! |---|---|
//! | [`relay`] | empties the event outbox into its sinks, at least once |
//! | [`retention`] | removes old processed events in small steps |

pub mod relay;
pub mod retention;

pub use relay::{Relay, RelaySettings, Route};
pub use retention::Retention;

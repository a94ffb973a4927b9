//! Domain events: the contract in raw SQL, the relay, and its sinks.

mod contract;
mod crash;
mod jetstream;
pub mod relay;
mod sinks;

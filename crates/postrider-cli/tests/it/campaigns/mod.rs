//! Campaigns end to end: real workers, the sim's own receipts.

pub mod adapters;
pub mod crash;
pub mod execution;
mod life;
mod limits;
mod messages;
mod phases;
mod points;
mod recovery;
mod resolver;
mod scripted;
pub mod stage;
mod stopping;
pub mod stream;
mod together;

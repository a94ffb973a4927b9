//! Campaigns end to end: real workers, the sim's own receipts.

pub mod stage;

pub mod crash;
mod life;
mod points;
mod recovery;
mod scripted;
mod stopping;
mod together;

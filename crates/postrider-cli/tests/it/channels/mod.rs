//! Chat: what the database promises, in raw SQL, and what processes make of it.
//!
//! Time is set, never waited for: rows get the times that a test needs.

pub mod bots;
mod claiming;
pub mod crash;
mod deliveries;
mod dispatch;
mod ending;
mod facts;
mod ingress;
mod isolation;
mod look_ups;
mod measuring;
mod outage;
mod plans;
pub mod points;
mod pruning;
mod receiving;
mod requeueing;
mod rows;
mod settling;
mod states;
mod together;
mod turns;

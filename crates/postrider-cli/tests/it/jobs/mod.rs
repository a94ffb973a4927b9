//! Scheduled jobs: what the database promises, in raw SQL, and what processes make of it.
//!
//! Time is set, never waited for: rows get the times that a test needs.

mod acquiring;
mod chain;
mod claiming;
mod crash;
mod depending;
mod ending;
mod endpoint;
mod entities;
mod firing;
mod functions;
mod invoking;
mod isolation;
mod keys;
mod monitoring;
mod notifying;
mod one_alert;
mod operating;
mod operators;
mod plans;
mod points;
mod processes;
mod pruning;
mod rules;
mod running;
mod schedulers;
mod stage;
mod states;
mod together;
mod wakeups;

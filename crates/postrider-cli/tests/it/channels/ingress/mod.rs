//! Messages come in, are executed, and have their replies in the outbox: through a server as vendors meet it, with an agent that keeps its
//! own receipts.

mod agent;
mod enqueueing;
mod executing;
mod signatures;
mod stage;
mod stopping;
pub mod vendors;

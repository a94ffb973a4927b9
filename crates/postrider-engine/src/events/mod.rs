//! Domain events.

pub mod relay;

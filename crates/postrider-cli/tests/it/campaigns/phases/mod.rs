//! Phases with real workers and a provider that keeps its own receipts.

mod going_on;
mod pause;
mod reducer;

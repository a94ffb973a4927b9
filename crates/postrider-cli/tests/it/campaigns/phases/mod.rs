//! Phases with real workers and a provider that keeps its own receipts.

mod cancel;
mod pause;
mod progress;
mod reducer;

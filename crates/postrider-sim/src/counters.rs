//! Counters since the start, for events without a receipt.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

/// Counters of replays, look-ups and callbacks.
#[derive(Default)]
pub struct Counters {
    replays: AtomicU64,
    lookups: AtomicU64,
    callbacks_taken: AtomicU64,
    callbacks_given_up: AtomicU64,
}

impl Counters {
    /// Counts a request that was answered from memory.
    pub fn count_replay(&self) {
        self.replays.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a look-up.
    pub fn count_lookup(&self) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a callback that was answered with 2xx, or dropped after its last attempt.
    pub fn count_callback(&self, accepted: bool) {
        let count = if accepted { &self.callbacks_taken } else { &self.callbacks_given_up };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters as `GET /receipts` returns them.
    pub fn counts(&self) -> Value {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        json!({
            "replays": read(&self.replays),
            "lookups": read(&self.lookups),
            "callbacks_taken": read(&self.callbacks_taken),
            "callbacks_given_up": read(&self.callbacks_given_up),
        })
    }
}

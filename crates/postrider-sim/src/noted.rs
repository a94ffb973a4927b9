//! What happened and is no receipt, because nothing was done: counted since the start.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

/// The counts.
#[derive(Default)]
pub struct Noted {
    replays: AtomicU64,
    lookups: AtomicU64,
    callbacks_taken: AtomicU64,
    callbacks_given_up: AtomicU64,
}

impl Noted {
    /// A request was answered from memory.
    pub fn count_replay(&self) {
        self.replays.fetch_add(1, Ordering::Relaxed);
    }

    /// A question was asked.
    pub fn count_lookup(&self) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// A callback was answered with 2xx, or was given up.
    pub fn count_callback(&self, taken: bool) {
        let count = if taken { &self.callbacks_taken } else { &self.callbacks_given_up };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// What `GET /receipts` adds to its counts.
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

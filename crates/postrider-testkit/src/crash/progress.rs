//! Waits that end when nothing changes any more.

use std::time::{Duration, Instant};

use crate::world::PATIENCE;

/// Sees whether something still changes.
pub struct Progress<T> {
    seen: Option<T>,
    changed_at: Instant,
}

impl<T> Default for Progress<T> {
    fn default() -> Self {
        Self { seen: None, changed_at: Instant::now() }
    }
}

impl<T: PartialEq> Progress<T> {
    /// Whether the observed value has changed lately.
    pub fn goes_on(&mut self, now: T) -> bool {
        if self.seen.as_ref() != Some(&now) {
            (self.seen, self.changed_at) = (Some(now), Instant::now());
        }
        self.changed_at.elapsed() < PATIENCE
    }
}

/// The time between two observations.
pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(20)).await; // between two observations, never instead of one
}

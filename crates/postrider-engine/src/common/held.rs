//! What a process holds: send jobs, and runs of functions. Heartbeats renew it, and its task learns when it is lost.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// The work that this process holds, each under its newest claim.
pub(crate) struct Held<K, C>(Mutex<HashMap<K, (C, CancellationToken)>>);

impl<K, C> Default for Held<K, C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash, C: Copy + PartialEq> Held<K, C> {
    /// Remembers a claim. The token is cancelled when the claim is lost.
    pub(crate) fn take(&self, key: K, claim: C) -> CancellationToken {
        let lost = CancellationToken::new();
        if let Some((_, older)) = self.lock().insert(key, (claim, lost.clone())) {
            // This process was unavailable for so long that it took over from itself: two tasks must not go on side by side.
            older.cancel();
        }
        lost
    }

    /// Forgets a claim, unless a newer one has replaced it. A claim that no task works under must not be renewed.
    pub(crate) fn release(&self, key: K, claim: C) {
        let mut held = self.lock();
        if held.get(&key).is_some_and(|(known, _)| *known == claim) {
            held.remove(&key);
        }
    }

    /// Cancels the task of a lost claim and forgets it. Returns whether it was still held.
    pub(crate) fn lose(&self, key: K, claim: C) -> bool {
        let mut held = self.lock();
        let is_held = held.get(&key).is_some_and(|(known, _)| *known == claim);
        if is_held && let Some((_, lost)) = held.remove(&key) {
            lost.cancel();
        }
        is_held
    }

    /// All claims, for a heartbeat.
    pub(crate) fn all(&self) -> Vec<(K, C)> {
        self.lock().iter().map(|(key, (claim, _))| (*key, *claim)).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, (C, CancellationToken)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_claim_counts() {
        let held: Held<&str, i32> = Held::default();
        let first = held.take("a", 1);
        let second = held.take("a", 2);
        assert!(first.is_cancelled() && !second.is_cancelled());
        held.release("a", 1);
        assert_eq!(held.all(), [("a", 2)], "the older task has ended, and the newer one goes on");
        assert!(!held.lose("a", 1) && !second.is_cancelled());
        assert!(held.lose("a", 2) && second.is_cancelled());
        assert_eq!(held.len(), 0);
    }
}

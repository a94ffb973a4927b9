//! The send jobs or job runs that a process holds. Heartbeats renew their claims; the task of a lost claim is cancelled.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// The newest claim of each key that this process holds.
pub(crate) struct Held<K, C>(Mutex<HashMap<K, (C, CancellationToken)>>);

impl<K, C> Default for Held<K, C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash, C: Copy + PartialEq> Held<K, C> {
    /// Adds a claim. The returned token is cancelled when the claim is lost.
    pub(crate) fn take(&self, key: K, claim: C) -> CancellationToken {
        let lost = CancellationToken::new();
        if let Some((_, older)) = self.lock().insert(key, (claim, lost.clone())) {
            // This process was stopped for so long that its claim expired and it claimed the key again. Only the newer task may continue.
            older.cancel();
        }
        lost
    }

    /// Removes a claim, unless a newer one has replaced it. Heartbeats must not renew a claim whose task has ended.
    pub(crate) fn release(&self, key: K, claim: C) {
        let mut held = self.lock();
        if held.get(&key).is_some_and(|(known, _)| *known == claim) {
            held.remove(&key);
        }
    }

    /// Removes a lost claim and cancels its task. Returns whether the claim was still held.
    pub(crate) fn lose(&self, key: K, claim: C) -> bool {
        let mut held = self.lock();
        let is_held = held.get(&key).is_some_and(|(known, _)| *known == claim);
        if is_held && let Some((_, lost)) = held.remove(&key) {
            lost.cancel();
        }
        is_held
    }

    /// All claims, for heartbeats.
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
    fn a_newer_claim_replaces_the_older_one() {
        let held: Held<&str, i32> = Held::default();
        let first = held.take("a", 1);
        let second = held.take("a", 2);
        assert!(first.is_cancelled() && !second.is_cancelled());
        held.release("a", 1);
        assert_eq!(held.all(), [("a", 2)], "the older task has ended, and the newer claim remains");
        assert!(!held.lose("a", 1) && !second.is_cancelled());
        assert!(held.lose("a", 2) && second.is_cancelled());
        assert_eq!(held.len(), 0);
    }
}

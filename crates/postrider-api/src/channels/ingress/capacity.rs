//! Capacity for executions, bounded in total and for each account, so that one slow agent does not use up all of it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use postrider_model::ids::ProviderAccountId;

/// Maximum number of concurrent executions of a process.
const ALL_MAX: usize = 256;
/// Maximum number of them for one account.
const ACCOUNT_MAX: usize = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct Capacity(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of_accounts: HashMap<ProviderAccountId, usize>,
}

/// Reserved executions. Dropping the permits frees them.
#[derive(Debug)]
pub(super) struct Permits {
    capacity: Capacity,
    account: ProviderAccountId,
    count: usize,
}

impl Capacity {
    /// Reserves this number of executions, or none.
    pub(super) fn take(&self, account: ProviderAccountId, count: usize) -> Option<Permits> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_account = taken.of_accounts.get(&account).copied().unwrap_or_default();
        if taken.all + count > ALL_MAX || of_account + count > ACCOUNT_MAX {
            return None;
        }
        taken.all += count;
        taken.of_accounts.insert(account, of_account + count);
        drop(taken);
        Some(Permits { capacity: self.clone(), account, count })
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        let mut taken = self.capacity.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all = taken.all.saturating_sub(self.count);
        if let Some(of_account) = taken.of_accounts.get_mut(&self.account) {
            *of_account = of_account.saturating_sub(self.count);
            if *of_account == 0 {
                taken.of_accounts.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_account_cannot_take_everything_and_dropped_permits_are_free() {
        let capacity = Capacity::default();
        let (busy, other) = (ProviderAccountId::new(), ProviderAccountId::new());
        let mut taken: Vec<Permits> = (0..8).map(|_| capacity.take(busy, 8).unwrap()).collect();
        assert!(capacity.take(busy, 1).is_none());
        assert!(capacity.take(other, 1).is_some());
        taken.pop();
        assert!(capacity.take(busy, 9).is_none());
        assert!(capacity.take(busy, 8).is_some());
        drop(taken);
        assert_eq!(capacity.0.lock().unwrap().all, 0);
        assert!(capacity.0.lock().unwrap().of_accounts.is_empty());
    }

    #[test]
    fn all_accounts_together_are_bounded() {
        let capacity = Capacity::default();
        let taken: Vec<Option<Permits>> =
            (0..5).map(|_| capacity.take(ProviderAccountId::new(), 64)).collect();
        assert_eq!(taken.iter().flatten().count(), 4);
    }
}

//! Room for executions: bounded in all, and for each account, so that one slow agent does not take it from everybody.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use postrider_model::ids::ProviderAccountId;

/// Most executions of a process at a time.
const ALL_MAX: usize = 256;
/// Most of them for one account.
const ACCOUNT_MAX: usize = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct Room(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of_accounts: HashMap<ProviderAccountId, usize>,
}

/// Places that were taken. They are free again when this is dropped.
#[derive(Debug)]
pub(super) struct Places {
    room: Room,
    account: ProviderAccountId,
    count: usize,
}

impl Room {
    /// So many places, or none.
    pub(super) fn take(&self, account: ProviderAccountId, count: usize) -> Option<Places> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_account = taken.of_accounts.get(&account).copied().unwrap_or_default();
        if taken.all + count > ALL_MAX || of_account + count > ACCOUNT_MAX {
            return None;
        }
        taken.all += count;
        taken.of_accounts.insert(account, of_account + count);
        drop(taken);
        Some(Places { room: self.clone(), account, count })
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let mut taken = self.room.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn one_account_cannot_take_everything_and_places_come_back() {
        let (room, busy, other) = (Room::default(), ProviderAccountId::new(), ProviderAccountId::new());
        let mut taken: Vec<Places> = (0..8).map(|_| room.take(busy, 8).unwrap()).collect();
        assert!(room.take(busy, 1).is_none());
        assert!(room.take(other, 1).is_some());
        taken.pop();
        assert!(room.take(busy, 9).is_none());
        assert!(room.take(busy, 8).is_some());
        drop(taken);
        assert_eq!(room.0.lock().unwrap().all, 0);
        assert!(room.0.lock().unwrap().of_accounts.is_empty());
    }

    #[test]
    fn all_accounts_together_are_bounded() {
        let room = Room::default();
        let taken: Vec<Option<Places>> = (0..5).map(|_| room.take(ProviderAccountId::new(), 64)).collect();
        assert_eq!(taken.iter().flatten().count(), 4);
    }
}

//! Actions that can be looked up later. Look-ups find each from a set time on; full lists drop the oldest.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Maximum number of entries of each list.
const LISTED_MAX: usize = 100_000;

/// Entries by name.
pub struct Index<T>(Mutex<Named<T>>);

struct Named<T> {
    things: HashMap<String, (Instant, T)>,
    order: VecDeque<String>,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self(Mutex::new(Named { things: HashMap::new(), order: VecDeque::new() }))
    }
}

impl<T: Clone> Index<T> {
    /// Adds an entry under a name that has none yet. Look-ups find it from `findable_at` on.
    pub fn add(&self, name: &str, findable_at: Instant, thing: T) {
        let mut named = lock(&self.0);
        if named.things.contains_key(name) {
            return;
        }
        named.things.insert(name.to_owned(), (findable_at, thing));
        named.order.push_back(name.to_owned());
        if named.order.len() > LISTED_MAX
            && let Some(oldest) = named.order.pop_front()
        {
            named.things.remove(&oldest);
        }
    }

    /// Replaces the entry of a name.
    pub fn replace(&self, name: &str, thing: T) {
        if let Some((_, kept)) = lock(&self.0).things.get_mut(name) {
            *kept = thing;
        }
    }

    /// The entry of a name, if look-ups find it now.
    pub fn find(&self, name: &str) -> Option<T> {
        let named = lock(&self.0);
        let (findable_at, thing) = named.things.get(name)?;
        (*findable_at <= Instant::now()).then(|| thing.clone())
    }

    /// The entry of a name, even if look-ups do not find it yet.
    pub fn get(&self, name: &str) -> Option<T> {
        lock(&self.0).things.get(name).map(|(_, thing)| thing.clone())
    }
}

/// Entries in the order of their actions.
pub struct RecentList<T>(Mutex<VecDeque<(Instant, T)>>);

impl<T> Default for RecentList<T> {
    fn default() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }
}

impl<T> RecentList<T> {
    /// Adds the newest entry. Look-ups find it from `findable_at` on.
    pub fn add(&self, findable_at: Instant, thing: T) {
        let mut things = lock(&self.0);
        things.push_back((findable_at, thing));
        if things.len() > LISTED_MAX {
            things.pop_front();
        }
    }

    /// The values that `pick` returns for the entries that look-ups find now, newest first.
    pub fn newest<R>(&self, skip: usize, limit: usize, mut pick: impl FnMut(&T) -> Option<R>) -> Vec<R> {
        let now = Instant::now();
        let things = lock(&self.0);
        let found = things.iter().rev().filter(|(findable_at, _)| *findable_at <= now);
        found.filter_map(|(_, thing)| pick(thing)).skip(skip).take(limit).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entries_are_dropped_when_a_list_is_full() {
        let (index, recent) = (Index::default(), RecentList::default());
        let now = Instant::now();
        for n in 0..=LISTED_MAX {
            index.add(&n.to_string(), now, n);
            recent.add(now, n);
        }
        assert_eq!((index.find("0"), index.find("1")), (None, Some(1)));
        assert_eq!(recent.newest(0, usize::MAX, |n| Some(*n)).len(), LISTED_MAX);
        assert_eq!(recent.newest(1, 2, |n| Some(*n)), [LISTED_MAX - 1, LISTED_MAX - 2]);
    }
}

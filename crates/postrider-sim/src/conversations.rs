//! The posts in the channels of a workspace, read in pages, by time.
//!
//! The sim only knows posts that it received. It does not receive the messages of people, so a thread begins with an
//! invented message.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use serde_json::Value;

/// Maximum number of stored posts, over all channels.
const POSTS_MAX: usize = 100_000;

/// The time of a post, which is also its id: `1512085950.000216`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ts(u64);

const MICROS: u64 = 1_000_000;

impl Ts {
    /// In microseconds.
    pub fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// In microseconds.
    pub fn as_micros(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Ts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / MICROS, self.0 % MICROS)
    }
}

/// The text is not the id of a post.
#[derive(Debug)]
pub struct NoTs;

impl FromStr for Ts {
    type Err = NoTs;

    fn from_str(text: &str) -> Result<Self, NoTs> {
        let (seconds, micros) = text.split_once('.').unwrap_or((text, "0"));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(seconds) || !is_digits(micros) || seconds.len() > 12 || micros.len() > 6 {
            return Err(NoTs);
        }
        let number = |text: &str| text.parse::<u64>().map_err(|_| NoTs);
        Ok(Self(number(seconds)? * MICROS + number(&format!("{micros:0<6}"))?))
    }
}

/// A posted message.
pub struct Post {
    /// Id of the channel.
    pub channel: String,
    /// Id of the post.
    pub ts: Ts,
    /// The first message of its thread.
    pub thread: Option<Ts>,
    /// The message as JSON.
    pub message: Value,
}

/// The requested part of a conversation.
pub struct Window {
    /// Start of the period.
    pub oldest: Option<Ts>,
    /// End of the period.
    pub latest: Option<Ts>,
    /// Whether the period includes its start and end.
    pub inclusive: bool,
    /// First post of this page.
    pub from: Option<Ts>,
    /// Maximum number of posts on a page.
    pub limit: usize,
}

/// One page of a conversation.
pub struct Page {
    /// The messages as JSON.
    pub messages: Vec<Value>,
    /// The first of the next page.
    pub next: Option<Ts>,
}

/// See the [module](self).
#[derive(Default)]
pub struct Conversations(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    last: u64,
    channels: HashMap<String, BTreeMap<Ts, StoredPost>>,
    /// Oldest first.
    order: VecDeque<(String, Ts)>,
}

struct StoredPost {
    findable_at: Instant,
    thread: Option<Ts>,
    message: Value,
}

impl Conversations {
    /// Returns the id of the next post: the current time, changed if necessary so that every id is unique.
    pub fn next_ts(&self) -> Ts {
        let now = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default();
        let mut inner = self.lock();
        inner.last = now.max(inner.last + 1);
        Ts(inner.last)
    }

    /// Adds a post. Readers find it from `findable_at` on.
    pub fn add(&self, findable_at: Instant, post: Post) {
        let Post { channel, ts, thread, message } = post;
        let mut inner = self.lock();
        inner.order.push_back((channel.clone(), ts));
        inner.channels.entry(channel).or_default().insert(ts, StoredPost { findable_at, thread, message });
        if inner.order.len() > POSTS_MAX
            && let Some((channel, oldest)) = inner.order.pop_front()
            && let Some(posts) = inner.channels.get_mut(&channel)
        {
            posts.remove(&oldest);
        }
    }

    /// The posts of the channel without those in threads, newest first.
    pub fn history(&self, channel: &str, window: &Window) -> Page {
        let fits = |ts: Ts, kept: &StoredPost| {
            kept.thread.is_none_or(|thread| thread == ts) && window.from.is_none_or(|from| ts <= from)
        };
        let inner = self.lock();
        let Some(posts) = inner.channels.get(channel) else { return Page::of(&[], window.limit) };
        let found = window.of(posts).rev().filter(|(ts, kept)| fits(**ts, kept));
        Page::of(&found.take(window.limit.saturating_add(1)).collect::<Vec<_>>(), window.limit)
    }

    /// The posts of a thread, oldest first.
    pub fn replies(&self, channel: &str, thread: Ts, window: &Window) -> Page {
        let fits = |ts: Ts, kept: &StoredPost| {
            kept.thread == Some(thread) && ts != thread && window.from.is_none_or(|from| ts >= from)
        };
        let inner = self.lock();
        let Some(posts) = inner.channels.get(channel) else { return Page::of(&[], window.limit) };
        let found = window.of(posts).filter(|(ts, kept)| fits(**ts, kept));
        Page::of(&found.take(window.limit.saturating_add(1)).collect::<Vec<_>>(), window.limit)
    }

    /// One post.
    pub fn post(&self, channel: &str, ts: Ts) -> Option<Value> {
        let inner = self.lock();
        let kept = inner.channels.get(channel)?.get(&ts)?;
        (kept.findable_at <= Instant::now()).then(|| kept.message.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Window {
    /// The posts of the period that readers find now.
    fn of<'a>(
        &'a self,
        posts: &'a BTreeMap<Ts, StoredPost>,
    ) -> impl DoubleEndedIterator<Item = (&'a Ts, &'a StoredPost)> {
        let now = Instant::now();
        let start = match self.oldest {
            None => Bound::Unbounded,
            Some(oldest) if self.inclusive => Bound::Included(oldest),
            Some(oldest) => Bound::Excluded(oldest),
        };
        posts.range((start, Bound::Unbounded)).filter(move |(ts, kept)| {
            let is_before = |latest| **ts < latest || (self.inclusive && **ts == latest);
            self.latest.is_none_or(is_before) && kept.findable_at <= now
        })
    }
}

impl Page {
    fn of(found: &[(&Ts, &StoredPost)], limit: usize) -> Self {
        let next = found.get(limit).map(|(ts, _)| **ts);
        Self { messages: found.iter().take(limit).map(|(_, kept)| kept.message.clone()).collect(), next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_time_and_parses_back() {
        for (text, micros) in [("1512085950.000216", 1512085950000216), ("1512085950", 1512085950000000)] {
            assert_eq!(text.parse::<Ts>().unwrap().as_micros(), micros);
        }
        assert_eq!(Ts::from_micros(1512085950000216).to_string(), "1512085950.000216");
        for bad in ["", ".", "now", "1.", ".5", "-1.000000", "1.0000001", "99999999999999999999.0"] {
            assert!(bad.parse::<Ts>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_oldest_posts_are_dropped_when_the_list_is_full() {
        let conversations = Conversations::default();
        let post = |_| {
            let ts = conversations.next_ts();
            let post = Post { channel: "C1".to_owned(), ts, thread: None, message: Value::Null };
            conversations.add(Instant::now(), post);
            ts
        };
        let names: Vec<_> = (0..=POSTS_MAX).map(post).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "every id is unique");
        assert_eq!(conversations.post("C1", names[0]), None);
        assert_eq!(conversations.post("C1", names[1]), Some(Value::Null));
    }
}

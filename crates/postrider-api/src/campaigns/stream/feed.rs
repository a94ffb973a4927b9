//! The newest events of one campaign, for all who read it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use axum::body::Bytes;

/// Maximum number of events in the feed. A reader that is further behind is too slow.
pub(crate) const EVENTS_MAX: usize = 256;
/// Time for which the feed keeps an event. Longer than a reader may lag, so that a quiet campaign costs nothing.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// A stretch of the history without gaps, up to the newest event that this process knows of.
#[derive(Debug)]
pub(crate) struct Feed {
    /// The number of the first event in the feed, or of the next one that will be.
    from: i64,
    frames: VecDeque<(Instant, Bytes)>,
    is_broken: bool,
}

/// The result of a look-up in the feed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The event.
    Frame(Bytes),
    /// The event has not happened, as far as this process knows.
    NotYet,
    /// The event has happened and is not in the feed any more. The database has it.
    Gone,
    /// The history was replaced by another one; the reader must begin again.
    Broken,
}

impl Feed {
    /// An empty feed whose next event follows this number.
    pub(crate) fn after(newest: i64) -> Self {
        Self { from: newest + 1, frames: VecDeque::new(), is_broken: false }
    }

    /// The newest event that this process knows of.
    pub(crate) fn newest(&self) -> i64 {
        self.from + self.frames.len() as i64 - 1
    }

    /// The event with this number.
    pub(crate) fn get(&self, sequence: i64) -> Lookup {
        if self.is_broken {
            return Lookup::Broken;
        }
        let Ok(at) = usize::try_from(sequence - self.from) else { return Lookup::Gone };
        self.frames.get(at).map_or(Lookup::NotYet, |(_, frame)| Lookup::Frame(frame.clone()))
    }

    /// Appends the next event. If it does not follow the newest one, the events in between are gone.
    pub(crate) fn push(&mut self, sequence: i64, frame: Bytes, now: Instant) {
        if sequence != self.newest() + 1 {
            *self = Self::after(sequence - 1);
        }
        if self.frames.len() == EVENTS_MAX {
            self.clear();
        }
        self.frames.push_back((now, frame));
    }

    /// Removes old events.
    pub(crate) fn forget(&mut self, now: Instant) {
        while self.frames.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > KEPT_FOR) {
            self.clear();
        }
        if self.frames.is_empty() {
            self.frames.shrink_to_fit();
        }
    }

    /// Empties the feed. All events up to this number have happened.
    pub(crate) fn skip_to(&mut self, newest: i64) {
        *self = Self::after(newest);
    }

    /// Makes every reader begin again.
    pub(crate) fn break_off(&mut self) {
        self.is_broken = true;
        self.frames = VecDeque::new();
    }

    fn clear(&mut self) {
        if self.frames.pop_front().is_some() {
            self.from += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(n: i64) -> Bytes {
        Bytes::from(n.to_string())
    }

    #[test]
    fn every_number_is_gone_here_or_not_yet() {
        let (mut feed, now) = (Feed::after(7), Instant::now());
        assert_eq!((feed.newest(), feed.get(7), feed.get(8)), (7, Lookup::Gone, Lookup::NotYet));
        for sequence in 8..1000 {
            feed.push(sequence, frame(sequence), now);
            assert_eq!(feed.newest(), sequence);
        }
        for sequence in 0..1100 {
            let expected = match sequence {
                ..744 => Lookup::Gone,
                744..1000 => Lookup::Frame(frame(sequence)),
                _ => Lookup::NotYet,
            };
            assert_eq!(feed.get(sequence), expected, "{sequence}");
        }
    }

    #[test]
    fn old_events_and_events_before_a_gap_are_removed() {
        let (mut feed, start) = (Feed::after(0), Instant::now());
        feed.push(1, frame(1), start);
        feed.push(2, frame(2), start + Duration::from_secs(20));
        feed.forget(start + Duration::from_secs(31));
        assert_eq!((feed.get(1), feed.get(2)), (Lookup::Gone, Lookup::Frame(frame(2))));
        feed.push(5, frame(5), start);
        assert_eq!(
            (feed.get(2), feed.get(4), feed.get(5)),
            (Lookup::Gone, Lookup::Gone, Lookup::Frame(frame(5)))
        );
        feed.skip_to(9);
        assert_eq!((feed.get(9), feed.get(10)), (Lookup::Gone, Lookup::NotYet));
        feed.break_off();
        assert_eq!(feed.get(10), Lookup::Broken);
    }
}

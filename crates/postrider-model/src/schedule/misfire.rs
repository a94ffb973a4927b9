//! What becomes of firings that nobody was there for.

use std::{fmt, iter::once};

use jiff::{SignedDuration, Timestamp};

use super::Timing;
use crate::words::words;

words! {
    /// What becomes of firings that are later than the grace allows.
    Misfire, "misfire policy" {
        /// They do not run.
        Skip => "skip",
        /// The last of them runs, for all.
        Once => "once",
        /// Every one of them runs, in order.
        All => "all",
    }
}

/// How late firings are dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// What becomes of those that are too late.
    pub misfire: Misfire,
    /// A firing that is late by no more than this is not late.
    pub grace: SignedDuration,
    /// Most firings of one plan. The others stay due.
    pub limit: usize,
}

/// What is to be done about a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The firings that run now, in order.
    pub run: Vec<Timestamp>,
    /// The firings that were too late.
    pub skipped: Option<Skipped>,
    /// When the schedule is due next: not after now, if there is more to run than one plan allows.
    pub next: Option<Timestamp>,
}

/// A series of firings that do not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// The first of them.
    pub first: Timestamp,
    /// The last of them.
    pub last: Timestamp,
    /// How many they are, if they are not too many to count.
    pub count: Option<usize>,
}

/// What is to be done about a schedule that is due at `due`, at the moment `now`.
#[must_use]
pub fn plan(timing: &Timing, policy: &Policy, due: Timestamp, now: Timestamp) -> Plan {
    let (skipped, first) = match (policy.misfire, last_too_late(timing, policy.grace, due, now)) {
        (_, None) | (Misfire::All, _) => (None, Some(due)),
        (Misfire::Skip, Some(last)) => (Some(Skipped::between(timing, due, last)), timing.next_after(last)),
        (Misfire::Once, Some(last)) if last == due => (None, Some(due)),
        (Misfire::Once, Some(last)) => {
            let others = timing.latest_until(due, just_before(last)).unwrap_or(due);
            (Some(Skipped::between(timing, due, others)), Some(last))
        }
    };

    let mut firings = first.into_iter().flat_map(|first| once(first).chain(timing.firings_after(first)));
    let mut run = Vec::new();
    // A plan that ran nothing would be made again and again.
    let limit = policy.limit.max(1);
    let next = loop {
        match firings.next() {
            Some(firing) if firing <= now && run.len() < limit => run.push(firing),
            next => break next,
        }
    };
    Plan { run, skipped, next }
}

/// The last firing that is later than the grace allows.
fn last_too_late(
    timing: &Timing,
    grace: SignedDuration,
    due: Timestamp,
    now: Timestamp,
) -> Option<Timestamp> {
    let in_time_from = now.checked_sub(grace.max(SignedDuration::ZERO)).unwrap_or(Timestamp::MIN);
    (due < in_time_from).then(|| timing.latest_until(due, just_before(in_time_from)).unwrap_or(due))
}

fn just_before(moment: Timestamp) -> Timestamp {
    moment.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(Timestamp::MIN)
}

impl Skipped {
    /// More than so many are not counted.
    const COUNTED_MAX: usize = 1000;

    fn between(timing: &Timing, first: Timestamp, last: Timestamp) -> Self {
        let others = timing.firings_after(first).take(Self::COUNTED_MAX);
        let count = 1 + others.take_while(|firing| *firing <= last).count();
        Self { first, last, count: (count <= Self::COUNTED_MAX).then_some(count) }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, count } = self;
        match count {
            Some(1) => write!(f, "the firing at {first}"),
            Some(count) => write!(f, "{count} firings from {first} to {last}"),
            None => write!(f, "more than {} firings from {first} to {last}", Self::COUNTED_MAX),
        }
    }
}

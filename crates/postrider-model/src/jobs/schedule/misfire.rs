//! The policy for firings that are late, because no scheduler ran or the schedule was paused.

use std::{fmt, iter::once};

use jiff::{SignedDuration, Timestamp};

use super::Timing;
use crate::words::words;

words! {
    /// The policy for firings that are later than the grace period.
    Misfire, "misfire policy" {
        /// None of them runs.
        Skip => "skip",
        /// Only the last of them runs.
        Once => "once",
        /// Every one of them runs, in order.
        All => "all",
    }
}

/// The policy for late firings with its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The policy for firings that are too late.
    pub misfire: Misfire,
    /// Grace period: a firing runs normally if it is late by at most this.
    pub grace: SignedDuration,
    /// Maximum firings of one plan. The others stay due.
    pub limit: usize,
}

/// The plan for a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The firings that run now, in order.
    pub run: Vec<Timestamp>,
    /// The firings that were too late.
    pub skipped: Option<Skipped>,
    /// Time at which the schedule is due next. It is in the past if one plan could not run all due firings.
    pub next: Option<Timestamp>,
}

/// A series of firings that do not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// The first of them.
    pub first: Timestamp,
    /// The last of them.
    pub last: Timestamp,
    /// Their number, if it is at most `COUNTED_MAX`.
    pub count: Option<usize>,
}

/// Plans a schedule that is due at `due`, at the time `now`.
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
    // A plan without a firing would make no progress.
    let limit = policy.limit.max(1);
    let next = loop {
        match firings.next() {
            Some(firing) if firing <= now && run.len() < limit => run.push(firing),
            next => break next,
        }
    };
    Plan { run, skipped, next }
}

/// The last firing that is later than the grace period.
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
    /// Firings are counted up to this number.
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

//! Firings that would share a lock key.

use jiff::{SignedDuration, Timestamp};

use super::Timing;
use crate::jobs::lock_key::Grain;

/// Maximum number of consecutive firings that are compared.
const FIRINGS_MAX: usize = 2_000;

/// Period before and after a change of the clocks in which firings may share a grain because of it.
const AROUND_A_CHANGE: SignedDuration = SignedDuration::from_hours(26);

/// The first two firings after `from`, within `horizon`, that fall into the same grain. Only the first of the two
/// runs. Evenly spaced firings can share a grain when the clock of their zone changes.
#[must_use]
pub fn shared_grains(
    timing: &Timing,
    grain: Grain,
    from: Timestamp,
    horizon: SignedDuration,
) -> Option<(Timestamp, Timestamp)> {
    let until = from.checked_add(horizon).unwrap_or(Timestamp::MAX);
    // Frequent firings reach the maximum before the horizon, so the firings around each change of the clocks are compared, too.
    let changes = timing.zone.time_zone().following(from);
    let changes = changes.map(|change| change.timestamp()).take_while(|change| *change <= until);
    let starts = changes.map(|change| change.checked_sub(AROUND_A_CHANGE).unwrap_or(from).max(from));

    let mut at_changes = starts.filter_map(|start| {
        let end = start.checked_add(AROUND_A_CHANGE * 2).unwrap_or(until).min(until);
        first_pair(timing, grain, start, end)
    });
    first_pair(timing, grain, from, until).or_else(|| at_changes.next())
}

fn first_pair(
    timing: &Timing,
    grain: Grain,
    from: Timestamp,
    until: Timestamp,
) -> Option<(Timestamp, Timestamp)> {
    let mut firings = timing.firings_after(from).take_while(|firing| *firing <= until).take(FIRINGS_MAX);
    let mut last: Option<Timestamp> = None;
    firings.find_map(|firing| {
        let neighbour = last.replace(firing)?;
        (grain.start(neighbour) == grain.start(firing)).then_some((neighbour, firing))
    })
}

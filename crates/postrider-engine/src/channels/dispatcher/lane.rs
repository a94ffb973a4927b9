//! One account's share of a dispatcher: how many of its replies may be tried at a time.
//!
//! | how its attempts go | room |
//! |---|---|
//! | well | as much as is configured, less what is under way |
//! | the provider asks for patience | none until then, and then half of what there was |
//! | three failures in a row | one attempt at a time, a second apart, until one goes well |
//! | well again | twice as much with each that goes well |
//!
//! So an outage costs a few replies an attempt, and not all of them all of theirs; and what waits for its end does not come all
//! at once while it lasts.

use std::time::Duration;

use tokio::time::Instant;

/// So many failures in a row are trouble.
const TROUBLE: u32 = 3;
/// How far apart attempts are in times of trouble.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// The longest patience that a provider can ask for.
const PATIENCE_MAX: Duration = Duration::from_secs(300);
/// An account that was not tried for so long is like any other.
const FORGET_AFTER: Duration = Duration::from_secs(300);

/// How an attempt went, as far as the account is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Went {
    /// The provider answers, be it with a no.
    Well,
    /// It wants to be left alone for so long.
    Patience(Duration),
    /// It does not answer, or not as it should.
    Badly,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    in_flight: usize,
    /// Most attempts at a time; as many as is configured without.
    width: Option<usize>,
    failures: u32,
    closed_until: Option<Instant>,
    ended_at: Option<Instant>,
}

impl Lane {
    /// How many more attempts may begin.
    pub(super) fn room(&self, most: usize, now: Instant) -> usize {
        if self.closed_until.is_some_and(|until| now < until) {
            return 0;
        }
        self.width.map_or(most, |width| width.min(most)).saturating_sub(self.in_flight)
    }

    /// When it opens, if it is closed.
    pub(super) fn opens_at(&self) -> Option<Instant> {
        self.closed_until
    }

    /// Whether it is as good as new, and can be forgotten.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        let is_healthy = self.failures == 0 && self.width.is_none();
        let is_old = self.ended_at.is_none_or(|at| now.saturating_duration_since(at) > FORGET_AFTER);
        self.in_flight == 0 && (is_healthy || is_old) && self.closed_until.is_none_or(|until| until <= now)
    }

    pub(super) fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// `most` is what is configured.
    pub(super) fn end(&mut self, went: Went, most: usize, now: Instant) {
        let was_under_way = self.in_flight;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.ended_at = Some(now);
        match went {
            // One that went well does not shorten the patience that another was asked for.
            Went::Well => {
                self.failures = 0;
                self.width = self.width.map(|width| width * 2).filter(|width| *width < most);
            }
            Went::Patience(patience) => {
                self.width = Some((self.width.unwrap_or(most).min(was_under_way.max(1)) / 2).max(1));
                self.close_until(now + patience.min(PATIENCE_MAX));
            }
            Went::Badly => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= TROUBLE {
                    self.width = Some(1);
                    self.close_until(now + PROBE_EVERY);
                }
            }
        }
    }

    fn close_until(&mut self, until: Instant) {
        self.closed_until = self.closed_until.max(Some(until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn with(in_flight: usize) -> (Lane, Instant) {
        (Lane { in_flight, ..Lane::default() }, Instant::now())
    }

    #[test]
    fn an_account_that_works_has_the_room_that_is_configured() {
        let (mut lane, now) = with(0);
        assert_eq!(lane.room(3, now), 3);
        lane.begin();
        lane.begin();
        assert_eq!(lane.room(3, now), 1);
        lane.end(Went::Well, 3, now);
        assert_eq!(lane.room(3, now), 2);
        assert!(!lane.is_idle(now));
        lane.end(Went::Well, 3, now);
        assert!(lane.is_idle(now));
    }

    #[test]
    fn trouble_leaves_one_attempt_a_second_and_ends_step_by_step() {
        let (mut lane, now) = with(5);
        for (failed, room) in [(1, 28), (2, 29), (3, 0)] {
            lane.end(Went::Badly, 32, now);
            assert_eq!(lane.room(32, now), room, "after {failed}");
        }
        // Two are still under way when the second is over.
        assert_eq!(lane.room(32, now + seconds(1)), 0);
        lane.end(Went::Badly, 32, now);
        lane.end(Went::Badly, 32, now);
        assert_eq!(lane.room(32, now + seconds(1)), 1);
        lane.begin();
        assert_eq!(lane.room(32, now + seconds(1)), 0);
        for width in [2, 4, 8, 16, 32] {
            lane.end(Went::Well, 32, now + seconds(1));
            assert_eq!(lane.room(32, now + seconds(1)), width);
            lane.begin();
        }
    }

    #[test]
    fn patience_is_kept_whatever_goes_well_meanwhile_and_not_for_ever() {
        let (mut lane, now) = with(4);
        lane.end(Went::Patience(seconds(7)), 4, now);
        lane.end(Went::Well, 4, now);
        assert_eq!(lane.room(4, now + seconds(6)), 0);
        assert_eq!(lane.room(4, now + seconds(7)), 2);
        lane.end(Went::Patience(seconds(86_400)), 4, now);
        assert_eq!(lane.opens_at(), Some(now + seconds(300)));
    }

    #[test]
    fn an_account_that_nobody_uses_any_more_is_forgotten() {
        let (mut lane, now) = with(1);
        lane.end(Went::Badly, 32, now);
        assert!(!lane.is_idle(now + seconds(299)));
        assert!(lane.is_idle(now + seconds(301)));
    }
}

//! One account's share of a dispatcher: how many of its replies may be tried at a time.
//!
//! | how its attempts go | room |
//! |---|---|
//! | well | as much as is configured, less what is under way |
//! | the provider asked for patience | none until then |
//! | three failures in a row | one attempt at a time, a second apart, until one goes well |
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

/// How an attempt went, as far as the account is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Went {
    /// The provider answers, be it with a no.
    Well,
    /// It does not, or it does not want to.
    Badly {
        /// How long it wants to be left alone.
        patience: Option<Duration>,
    },
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    in_flight: usize,
    failures: u32,
    closed_until: Option<Instant>,
}

impl Lane {
    /// How many more attempts may begin.
    pub(super) fn room(&self, most: usize, now: Instant) -> usize {
        if self.closed_until.is_some_and(|until| now < until) {
            return 0;
        }
        let most = if self.failures >= TROUBLE { 1 } else { most };
        most.saturating_sub(self.in_flight)
    }

    /// When it opens, if it is closed.
    pub(super) fn opens_at(&self) -> Option<Instant> {
        self.closed_until
    }

    /// Whether it is as good as new, and can be forgotten.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.in_flight == 0 && self.failures == 0 && self.closed_until.is_none_or(|until| until <= now)
    }

    pub(super) fn begin(&mut self) {
        self.in_flight += 1;
    }

    pub(super) fn end(&mut self, went: Went, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match went {
            Went::Well => (self.failures, self.closed_until) = (0, None),
            Went::Badly { patience } => {
                self.failures = self.failures.saturating_add(1);
                let probe = (self.failures >= TROUBLE).then_some(PROBE_EVERY);
                let closed = patience.map(|patience| patience.min(PATIENCE_MAX)).max(probe);
                self.closed_until = self.closed_until.max(closed.map(|closed| now + closed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BADLY: Went = Went::Badly { patience: None };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_account_that_works_has_the_room_that_is_configured() {
        let (mut lane, now) = (Lane::default(), Instant::now());
        assert_eq!(lane.room(3, now), 3);
        lane.begin();
        lane.begin();
        assert_eq!(lane.room(3, now), 1);
        lane.end(Went::Well, now);
        assert_eq!(lane.room(3, now), 2);
        assert!(!lane.is_idle(now));
        lane.end(Went::Well, now);
        assert!(lane.is_idle(now));
    }

    #[test]
    fn trouble_leaves_one_attempt_a_second() {
        let (mut lane, now) = (Lane::default(), Instant::now());
        for _ in 0..5 {
            lane.begin();
        }
        for (failed, room) in [(1, 28), (2, 29), (3, 0)] {
            lane.end(BADLY, now);
            assert_eq!(lane.room(32, now), room, "after {failed}");
        }
        // Two are still under way when the second is over.
        assert_eq!(lane.room(32, now + seconds(1)), 0);
        lane.end(BADLY, now);
        lane.end(BADLY, now);
        assert_eq!(lane.room(32, now + seconds(1)), 1);
        lane.begin();
        assert_eq!(lane.room(32, now + seconds(1)), 0);
        lane.end(Went::Well, now + seconds(1));
        assert_eq!(lane.room(32, now + seconds(1)), 32);
    }

    #[test]
    fn patience_is_kept_for_as_long_as_it_is_asked_for_and_not_for_ever() {
        let (mut lane, now) = (Lane::default(), Instant::now());
        lane.begin();
        lane.end(Went::Badly { patience: Some(seconds(7)) }, now);
        assert_eq!((lane.room(4, now + seconds(6)), lane.room(4, now + seconds(7))), (0, 4));
        lane.begin();
        lane.end(Went::Badly { patience: Some(seconds(86_400)) }, now);
        assert_eq!(lane.opens_at(), Some(now + seconds(300)));
    }
}

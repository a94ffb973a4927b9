//! The concurrency limit of one account in a dispatcher (docs/decisions/0015-a-message-is-leased-and-its-reply-is-claimed.md).
//!
//! | signal of the attempts | capacity |
//! |---|---|
//! | healthy | the configured maximum, less the running attempts |
//! | retry after | none until then; afterwards half of the former limit |
//! | three failures in a row | one attempt at a time, a second apart, until one succeeds |
//! | healthy again | the limit doubles with each success, up to the configured maximum |
//!
//! So an outage costs a few replies one attempt each, instead of all replies all of their attempts, and the waiting replies are not all
//! attempted at once while it lasts.

use std::time::Duration;

use tokio::time::Instant;

/// The lane is restricted after this many failures in a row.
const FAILURES_MAX: u32 = 3;
/// Time between the attempts of a restricted lane.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Maximum time for which a provider's `retry_after` closes the lane.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// A lane without attempts for this long is removed, and its restrictions with it.
const FORGET_AFTER: Duration = Duration::from_secs(300);

/// The meaning of an attempt's result for the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccountSignal {
    /// The provider answered, even if it rejected the reply; or the result does not concern the provider.
    Healthy,
    /// The provider asked for no further call within this time.
    RetryAfter(Duration),
    /// The provider did not answer, or its answer was not usable.
    Failing,
    /// The result says nothing about further calls.
    Neutral,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    in_flight: usize,
    /// Maximum concurrent attempts; the configured maximum without a value.
    limit: Option<usize>,
    failures: u32,
    closed_until: Option<Instant>,
    ended_at: Option<Instant>,
}

impl Lane {
    /// Number of further attempts that may begin.
    pub(super) fn capacity(&self, configured: usize, now: Instant) -> usize {
        if self.closed_until.is_some_and(|until| now < until) {
            return 0;
        }
        self.limit.map_or(configured, |limit| limit.min(configured)).saturating_sub(self.in_flight)
    }

    /// The time at which a closed lane opens.
    pub(super) fn opens_at(&self) -> Option<Instant> {
        self.closed_until
    }

    /// Whether the lane can be removed: it is in its initial state, or it was not used for a while.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        let is_healthy = self.failures == 0 && self.limit.is_none();
        let is_old = self.ended_at.is_none_or(|at| now.saturating_duration_since(at) > FORGET_AFTER);
        self.in_flight == 0 && (is_healthy || is_old) && self.closed_until.is_none_or(|until| until <= now)
    }

    pub(super) fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// Records the end of an attempt. `configured` is the configured maximum of concurrent attempts.
    pub(super) fn end(&mut self, signal: AccountSignal, configured: usize, now: Instant) {
        let was_in_flight = self.in_flight;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.ended_at = Some(now);
        match signal {
            // A success does not shorten a `retry_after` that another attempt received.
            AccountSignal::Healthy => {
                self.failures = 0;
                self.limit = self.limit.map(|limit| limit * 2).filter(|limit| *limit < configured);
            }
            AccountSignal::RetryAfter(wait) => {
                self.limit = Some((self.limit.unwrap_or(configured).min(was_in_flight.max(1)) / 2).max(1));
                self.close_until(now + wait.min(RETRY_AFTER_MAX));
            }
            AccountSignal::Neutral => {}
            AccountSignal::Failing => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= FAILURES_MAX {
                    self.limit = Some(1);
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
    fn a_healthy_account_has_the_configured_capacity() {
        let (mut lane, now) = with(0);
        assert_eq!(lane.capacity(3, now), 3);
        lane.begin();
        lane.begin();
        assert_eq!(lane.capacity(3, now), 1);
        lane.end(AccountSignal::Healthy, 3, now);
        assert_eq!(lane.capacity(3, now), 2);
        assert!(!lane.is_idle(now));
        lane.end(AccountSignal::Healthy, 3, now);
        assert!(lane.is_idle(now));
    }

    #[test]
    fn failures_restrict_an_account_to_one_attempt_a_second_and_each_success_doubles_its_limit() {
        let (mut lane, now) = with(5);
        for (failed, capacity) in [(1, 28), (2, 29), (3, 0)] {
            lane.end(AccountSignal::Failing, 32, now);
            assert_eq!(lane.capacity(32, now), capacity, "after {failed}");
        }
        // Two attempts are still running after the second.
        assert_eq!(lane.capacity(32, now + seconds(1)), 0);
        lane.end(AccountSignal::Failing, 32, now);
        lane.end(AccountSignal::Failing, 32, now);
        assert_eq!(lane.capacity(32, now + seconds(1)), 1);
        lane.begin();
        assert_eq!(lane.capacity(32, now + seconds(1)), 0);
        for limit in [2, 4, 8, 16, 32] {
            lane.end(AccountSignal::Healthy, 32, now + seconds(1));
            assert_eq!(lane.capacity(32, now + seconds(1)), limit);
            lane.begin();
        }
    }

    #[test]
    fn retry_after_closes_an_account_despite_successes_and_for_five_minutes_at_most() {
        let (mut lane, now) = with(4);
        lane.end(AccountSignal::RetryAfter(seconds(7)), 4, now);
        lane.end(AccountSignal::Healthy, 4, now);
        assert_eq!(lane.capacity(4, now + seconds(6)), 0);
        assert_eq!(lane.capacity(4, now + seconds(7)), 2);
        lane.end(AccountSignal::RetryAfter(seconds(86_400)), 4, now);
        assert_eq!(lane.opens_at(), Some(now + seconds(300)));
    }

    #[test]
    fn a_look_up_changes_nothing_for_the_calls_of_the_account() {
        let (mut lane, now) = with(3);
        for _ in 0..2 {
            lane.end(AccountSignal::Failing, 32, now);
        }
        lane.end(AccountSignal::Neutral, 32, now);
        lane.begin();
        lane.end(AccountSignal::Failing, 32, now);
        assert_eq!(lane.capacity(32, now), 0, "three failures in a row");
    }

    #[test]
    fn the_lane_of_an_unused_account_is_removed() {
        let (mut lane, now) = with(1);
        lane.end(AccountSignal::Failing, 32, now);
        assert!(!lane.is_idle(now + seconds(299)));
        assert!(lane.is_idle(now + seconds(301)));
    }
}

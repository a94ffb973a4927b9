//! Decides the verdict on an attempt. Replies are sent at least once: the dispatcher retries a reply that may have arrived, after a
//! look-up where the provider supports one (docs/decisions/0015-a-message-is-leased-and-its-reply-is-claimed.md).
//!
//! | outcome | verdict | signal for the account |
//! |---|---|---|
//! | delivered | sent | healthy |
//! | rejected | dead | healthy |
//! | not sent | retry after the backoff | failing |
//! | not sent, and the provider names a time for the next call | release until then, without counting a failure | retry after |
//! | unknown | retry after the backoff, in doubt; after at least a minute where the provider calls back | failing |
//!
//! | finding of a look-up | verdict |
//! |---|---|
//! | done | sent, without a call |
//! | absent, or the provider cannot tell | call |
//! | unclear | retry after the backoff, in doubt; call after several unclear look-ups |

use std::time::Duration;

use postrider_model::{DoubtClass, Finding, Outcome, channels::RetrySchedule};
use postrider_store::channels::replies::Verdict;

use super::lane::AccountSignal;

/// Maximum time in which a provider's callback is expected.
pub(super) const CALLBACK_WITHIN: Duration = Duration::from_secs(60);
/// Maximum pause of a reply whose provider named a time for the next call.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// After this many failures the dispatcher calls instead of looking up again.
const UNCLEAR_MAX: i32 = 2;

/// Backoff after a number of failures.
pub(super) struct Backoff<'a> {
    pub schedule: &'a RetrySchedule,
    /// Number of failed attempts before this one.
    pub attempt_count: i32,
    /// Between 0 and 1, for jitter.
    pub random: f64,
}

impl Backoff<'_> {
    fn pause(&self) -> Duration {
        let failures = u32::try_from(self.attempt_count).unwrap_or_default().saturating_add(1);
        self.schedule.pause(failures, self.random)
    }
}

/// Decides on the outcome of a call.
pub(super) fn after_call(
    outcome: Outcome,
    class: DoubtClass,
    backoff: &Backoff<'_>,
) -> (Verdict, AccountSignal) {
    match outcome {
        Outcome::Delivered { message_id } => (Verdict::Sent { message_id }, AccountSignal::Healthy),
        Outcome::Rejected { reason } => (Verdict::Dead { error: reason }, AccountSignal::Healthy),
        Outcome::NotSent { reason, retry_after } => {
            match retry_after {
                Some(wait) => {
                    // With jitter: replies that the provider refused together must not return together.
                    let jitter = backoff.schedule.base.mul_f64(backoff.random);
                    let pause = wait.min(RETRY_AFTER_MAX) + jitter;
                    (Verdict::Release { pause, reason: Some(reason) }, AccountSignal::RetryAfter(wait))
                }
                None => {
                    let pause = backoff.pause();
                    (Verdict::Retry { error: reason, pause, in_doubt: false }, AccountSignal::Failing)
                }
            }
        }
        Outcome::Unknown { reason } => {
            let least = if class == DoubtClass::Echo { CALLBACK_WITHIN } else { Duration::ZERO };
            let pause = backoff.pause().max(least);
            (Verdict::Retry { error: reason, pause, in_doubt: true }, AccountSignal::Failing)
        }
    }
}

/// Decides on the finding of a look-up. `None`: the dispatcher calls the provider.
pub(super) fn after_look_up(finding: Finding, backoff: &Backoff<'_>) -> Option<(Verdict, AccountSignal)> {
    match finding {
        Finding::Done { message_id, .. } => Some((Verdict::Sent { message_id }, AccountSignal::Healthy)),
        Finding::Absent { .. } | Finding::CannotTell { .. } => None,
        // At least once: unclear look-ups must not withhold the reply from its reader for ever.
        Finding::Unclear { .. } if backoff.attempt_count >= UNCLEAR_MAX => None,
        Finding::Unclear { reason } => {
            let error = format!("the look-up did not show whether the reply arrived: {reason}");
            let pause = backoff.pause();
            Some((Verdict::Retry { error, pause, in_doubt: true }, AccountSignal::Failing))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: RetrySchedule = RetrySchedule {
        base: Duration::from_secs(10),
        jitter_min: 1.0,
        jitter_max: 1.0,
        pause_max: Duration::from_secs(900),
    };

    fn after(attempts: i32) -> Backoff<'static> {
        Backoff { schedule: &SCHEDULE, attempt_count: attempts, random: 0.5 }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn every_outcome_has_its_verdict() {
        use AccountSignal::{Failing, Healthy, RetryAfter};
        use DoubtClass::{Echo, Key, Lookup, Person};
        let not_sent = |wait| Outcome::NotSent { reason: "no".to_owned(), retry_after: wait };
        let unknown = || Outcome::Unknown { reason: "no".to_owned() };
        let again =
            |pause, in_doubt| Verdict::Retry { error: "no".to_owned(), pause: seconds(pause), in_doubt };
        let later = |pause| Verdict::Release { pause: seconds(pause), reason: Some("no".to_owned()) };
        let sent = Outcome::Delivered { message_id: "m".to_owned() };
        let table = [
            (sent, Person, 0, Verdict::Sent { message_id: "m".to_owned() }, Healthy),
            (
                Outcome::Rejected { reason: "no".to_owned() },
                Person,
                0,
                Verdict::Dead { error: "no".to_owned() },
                Healthy,
            ),
            (not_sent(None), Person, 0, again(10, false), Failing),
            (not_sent(None), Person, 2, again(40, false), Failing),
            (not_sent(Some(seconds(5))), Person, 4, later(10), RetryAfter(seconds(5))),
            (not_sent(Some(seconds(60))), Person, 0, later(65), RetryAfter(seconds(60))),
            (not_sent(Some(seconds(9999))), Person, 0, later(3605), RetryAfter(seconds(9999))),
            (unknown(), Person, 0, again(10, true), Failing),
            (unknown(), Key, 1, again(20, true), Failing),
            (unknown(), Lookup, 0, again(10, true), Failing),
            (unknown(), Echo, 0, again(60, true), Failing),
            (unknown(), Echo, 4, again(160, true), Failing),
        ];
        for (outcome, class, attempts, verdict, signal) in table {
            let row = format!("{outcome:?} {class:?} {attempts}");
            assert_eq!(after_call(outcome, class, &after(attempts)), (verdict, signal), "{row}");
        }
    }

    #[test]
    fn a_reply_is_called_after_a_look_up_unless_it_was_found_or_may_still_be_found() {
        let evidence = || "e".to_owned();
        let done = Finding::Done { message_id: "m".to_owned(), evidence: evidence() };
        let sent = Verdict::Sent { message_id: "m".to_owned() };
        assert_eq!(after_look_up(done, &after(0)), Some((sent, AccountSignal::Healthy)));
        assert_eq!(after_look_up(Finding::Absent { evidence: evidence() }, &after(0)), None);
        assert_eq!(after_look_up(Finding::CannotTell { reason: evidence() }, &after(0)), None);
        let unclear = |attempts| after_look_up(Finding::Unclear { reason: evidence() }, &after(attempts));
        for attempts in [0, 1] {
            let decided = unclear(attempts);
            assert!(matches!(decided, Some((Verdict::Retry { in_doubt: true, .. }, AccountSignal::Failing))));
        }
        assert_eq!(unclear(2), None);
    }
}

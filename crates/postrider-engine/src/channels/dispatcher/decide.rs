//! Decides the verdict on an attempt. Replies are sent at least once: the dispatcher retries a reply that may have arrived, after a
//! look-up where the provider supports one (docs/decisions/0015-a-message-is-leased-and-its-reply-is-claimed.md).
//!
//! | outcome | verdict | signal for the account |
//! |---|---|---|
//! | delivered | sent | healthy |
//! | rejected | dead | healthy |
//! | not sent | retry after the backoff | failing |
//! | not sent because of a rate limit | release until its end, without counting a failure; the account waits in all processes | retry after |
//! | account refused | release, without counting a failure; the circuit of the account opens in all processes | neutral |
//! | unknown | retry after the backoff, in doubt; after at least a minute where the provider calls back | failing |
//!
//! | finding of a look-up | verdict |
//! |---|---|
//! | done | sent, without a call |
//! | absent, or the provider cannot tell | call |
//! | later, or no look-up is left at the moment | release until then, without counting a failure |
//! | unclear | release, without counting a failure; look up again later |
//! | later or unclear for a day | dead and in doubt: an operator decides. A requeue looks up once more, and calls if that is unclear too |

use std::time::Duration;

use postrider_model::{DoubtClass, Finding, Outcome, channels::RetrySchedule};
use postrider_store::channels::replies::{AccountNote, Verdict};

use super::lane::AccountSignal;

/// Maximum time in which a provider's callback is expected.
pub(super) const CALLBACK_WITHIN: Duration = Duration::from_secs(60);
/// Maximum pause of a reply whose provider named a time for the next call.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A reply whose look-ups have decided nothing for this long is left to an operator.
pub(super) const LOOK_UPS_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum pause between two look-ups of a reply.
const LOOK_UP_PAUSE_MAX: Duration = Duration::from_secs(300);
/// Replies that wait for the same look-up return within this time, so that they do not return together.
const SPREAD_MAX: Duration = Duration::from_secs(30);

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

/// The consequences of an attempt: for the reply, for this process, and for all processes.
pub(super) type Decision = (Verdict, AccountSignal, Option<AccountNote>);

/// Decides on the outcome of a call.
pub(super) fn after_call(outcome: Outcome, class: DoubtClass, backoff: &Backoff<'_>) -> Decision {
    match outcome {
        Outcome::Delivered { message_id } => (Verdict::Sent { message_id }, AccountSignal::Healthy, None),
        Outcome::Rejected { reason } => (Verdict::Dead { error: reason }, AccountSignal::Healthy, None),
        Outcome::AccountRefused { reason, is_login } => {
            let pause = backoff.schedule.base.mul_f64(backoff.random);
            let note = if is_login { AccountNote::LoginRefused } else { AccountNote::Refused };
            (Verdict::Release { pause, reason: Some(reason) }, AccountSignal::Neutral, Some(note))
        }
        Outcome::NotSent { reason, retry_after } => {
            match retry_after {
                Some(wait) => {
                    // With jitter: replies that the provider refused together must not return together.
                    let jitter = backoff.schedule.base.mul_f64(backoff.random);
                    let pause = wait.min(RETRY_AFTER_MAX) + jitter;
                    let release = Verdict::Release { pause, reason: Some(reason) };
                    (release, AccountSignal::RetryAfter(wait), Some(AccountNote::Waits))
                }
                None => {
                    let pause = backoff.pause();
                    (Verdict::Retry { error: reason, pause, in_doubt: false }, AccountSignal::Failing, None)
                }
            }
        }
        Outcome::Unknown { reason } => {
            let least = if class == DoubtClass::Echo { CALLBACK_WITHIN } else { Duration::ZERO };
            let pause = backoff.pause().max(least);
            (Verdict::Retry { error: reason, pause, in_doubt: true }, AccountSignal::Failing, None)
        }
    }
}

/// A reply in doubt before a look-up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doubted {
    /// Time since the call whose outcome is unknown.
    pub age: Duration,
    /// Whether an operator has sent it again since.
    pub is_requeued: bool,
    /// Time between two look-ups of the account.
    pub every: Duration,
    /// Minimum pause after an unclear look-up.
    pub pause_min: Duration,
    /// Between 0 and 1, for jitter.
    pub random: f64,
}

impl Doubted {
    /// When a reply returns that has to wait so long for a look-up.
    fn after(&self, wait: Duration) -> Duration {
        wait + (self.every * 20).min(SPREAD_MAX).mul_f64(self.random)
    }

    /// Whether an operator must decide now.
    fn is_old(&self) -> bool {
        self.age >= LOOK_UPS_WITHIN && !self.is_requeued
    }
}

/// Decides on a reply that must wait so long for its look-up.
pub(super) fn without_look_up(wait: Duration, doubted: Doubted) -> Decision {
    let reason = "it waits for a look-up, whose number the provider limits".to_owned();
    let verdict = if doubted.is_old() {
        left_to_operator(&reason)
    } else {
        Verdict::Release { pause: doubted.after(wait), reason: Some(reason) }
    };
    (verdict, AccountSignal::Neutral, None)
}

/// Decides on the finding of a look-up. `None`: the dispatcher calls the provider.
pub(super) fn after_look_up(finding: Finding, doubted: Doubted) -> Option<Decision> {
    let (reason, pause, note) = match finding {
        Finding::Done { message_id, .. } => {
            return Some((Verdict::Sent { message_id }, AccountSignal::Healthy, None));
        }
        Finding::Absent { .. } | Finding::CannotTell { .. } => return None,
        // The operator who sent it again has decided what no look-up could.
        Finding::Unclear { .. } if doubted.is_requeued => return None,
        Finding::Unclear { reason } => {
            let pause = (doubted.age / 2).min(LOOK_UP_PAUSE_MAX).max(doubted.pause_min);
            (reason, pause, None)
        }
        Finding::Later { reason, retry_after } => {
            let note = (!retry_after.is_zero()).then_some(AccountNote::LookUpsWait);
            (reason, doubted.after(retry_after.min(RETRY_AFTER_MAX)), note)
        }
    };
    let reason = format!("the look-up did not show whether the reply arrived: {reason}");
    let verdict = if doubted.is_old() {
        left_to_operator(&reason)
    } else {
        Verdict::Release { pause, reason: Some(reason) }
    };
    Some((verdict, AccountSignal::Neutral, note))
}

/// The reply stays in doubt, and is tried no more before an operator has decided.
fn left_to_operator(reason: &str) -> Verdict {
    Verdict::Dead {
        error: format!("it may have arrived; check the conversation, and requeue it if it did not: {reason}"),
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
        use AccountSignal::{Failing, Healthy, Neutral, RetryAfter};
        use DoubtClass::{Echo, Key, Lookup, Person};
        let not_sent = |wait| Outcome::NotSent { reason: "no".to_owned(), retry_after: wait };
        let unknown = || Outcome::Unknown { reason: "no".to_owned() };
        let again =
            |pause, in_doubt| Verdict::Retry { error: "no".to_owned(), pause: seconds(pause), in_doubt };
        let later = |pause| Verdict::Release { pause: seconds(pause), reason: Some("no".to_owned()) };
        let sent = Outcome::Delivered { message_id: "m".to_owned() };
        let refused = |is_login| Outcome::AccountRefused { reason: "no".to_owned(), is_login };
        let table = [
            (refused(false), Person, 4, later(5), Neutral),
            (refused(true), Person, 0, later(5), Neutral),
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
            (not_sent(Some(seconds(99_999))), Person, 0, later(86_405), RetryAfter(seconds(99_999))),
            (unknown(), Person, 0, again(10, true), Failing),
            (unknown(), Key, 1, again(20, true), Failing),
            (unknown(), Lookup, 0, again(10, true), Failing),
            (unknown(), Echo, 0, again(60, true), Failing),
            (unknown(), Echo, 4, again(160, true), Failing),
        ];
        for (outcome, class, attempts, verdict, signal) in table {
            let row = format!("{outcome:?} {class:?} {attempts}");
            let note = match &outcome {
                Outcome::AccountRefused { is_login: true, .. } => Some(AccountNote::LoginRefused),
                Outcome::AccountRefused { .. } => Some(AccountNote::Refused),
                Outcome::NotSent { retry_after: Some(_), .. } => Some(AccountNote::Waits),
                _ => None,
            };
            assert_eq!(after_call(outcome, class, &after(attempts)), (verdict, signal, note), "{row}");
        }
    }

    fn doubted(age: u64, is_requeued: bool) -> Doubted {
        Doubted { age: seconds(age), is_requeued, every: seconds(60), pause_min: seconds(5), random: 0.5 }
    }

    const DAY: u64 = 24 * 60 * 60;

    #[test]
    fn only_a_look_up_that_found_nothing_leads_to_another_call() {
        let evidence = || "e".to_owned();
        let done = Finding::Done { message_id: "m".to_owned(), evidence: evidence() };
        let sent = Verdict::Sent { message_id: "m".to_owned() };
        assert_eq!(after_look_up(done, doubted(9 * DAY, false)), Some((sent, AccountSignal::Healthy, None)));
        assert_eq!(after_look_up(Finding::Absent { evidence: evidence() }, doubted(0, false)), None);
        assert_eq!(after_look_up(Finding::CannotTell { reason: evidence() }, doubted(0, false)), None);
        let unclear = || Finding::Unclear { reason: evidence() };
        let later = |wait| Finding::Later { reason: evidence(), retry_after: seconds(wait) };
        for (age, finding, waits, note) in [
            (0, unclear(), 5, None),
            (60, unclear(), 30, None),
            (DAY - 1, unclear(), 300, None),
            (0, later(0), 15, None),
            (DAY - 1, later(60), 75, Some(AccountNote::LookUpsWait)),
        ] {
            let decided = after_look_up(finding.clone(), doubted(age, false));
            let Some((Verdict::Release { pause, .. }, AccountSignal::Neutral, about)) = decided else {
                panic!("{finding:?} after {age}: {decided:?}")
            };
            assert_eq!((pause, about), (seconds(waits), note), "{finding:?} after {age}");
        }
        // An operator decides, and after that the reply is called if the look-up is unclear again.
        for finding in [unclear(), later(0)] {
            let decided = after_look_up(finding, doubted(DAY, false));
            assert!(matches!(decided, Some((Verdict::Dead { .. }, ..))), "{decided:?}");
        }
        assert_eq!(after_look_up(unclear(), doubted(DAY, true)), None);
        assert!(matches!(after_look_up(later(60), doubted(DAY, true)), Some((Verdict::Release { .. }, ..))));
    }

    #[test]
    fn a_reply_waits_for_its_look_up_for_a_day() {
        let (verdict, signal, note) = without_look_up(seconds(60), doubted(0, false));
        assert!(matches!(verdict, Verdict::Release { pause, .. } if pause == seconds(75)), "{verdict:?}");
        assert_eq!((signal, note), (AccountSignal::Neutral, None));
        assert!(matches!(without_look_up(seconds(60), doubted(DAY, false)).0, Verdict::Dead { .. }));
    }
}

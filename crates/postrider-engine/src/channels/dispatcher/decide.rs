//! What follows from an attempt. Replies are at least once: what may have arrived is tried again, after the provider was asked where
//! that is possible.
//!
//! | outcome | verdict | for the account |
//! |---|---|---|
//! | delivered | sent | well |
//! | rejected | dead | well |
//! | not sent | again after the pause | badly |
//! | not sent, and the provider says when to come again | then, and it counts as no failure | patience |
//! | unknown | again after the pause, in doubt; after a minute at least where the provider calls back | badly |
//!
//! | what a look-up found | verdict |
//! |---|---|
//! | done | sent, without a call |
//! | absent, or the provider cannot tell | called |
//! | unclear | again after the pause, in doubt; called when it stays so |

use std::time::Duration;

use postrider_model::{DoubtClass, Finding, Outcome, chat::RetrySchedule};
use postrider_store::replies::Verdict;

use super::lane::Went;

/// How long a provider that calls back is given for it.
pub(super) const CALLBACK_WITHIN: Duration = Duration::from_secs(60);
/// The longest that one reply waits because its provider asked for it.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);

/// After so many failures nothing more is expected of look-ups.
const UNCLEAR_MAX: i32 = 2;

/// How long to wait after so many failures.
pub(super) struct Pausing<'a> {
    pub schedule: &'a RetrySchedule,
    /// How many attempts had failed before this one.
    pub attempt_count: i32,
    /// Between 0 and 1.
    pub random: f64,
}

impl Pausing<'_> {
    fn pause(&self) -> Duration {
        let failures = u32::try_from(self.attempt_count).unwrap_or_default().saturating_add(1);
        self.schedule.pause(failures, self.random)
    }
}

/// What follows from a call.
pub(super) fn after_call(outcome: Outcome, class: DoubtClass, pausing: &Pausing<'_>) -> (Verdict, Went) {
    match outcome {
        Outcome::Delivered { message_id } => (Verdict::Sent { message_id }, Went::Well),
        Outcome::Rejected { reason } => (Verdict::Dead { error: reason }, Went::Well),
        Outcome::NotSent { reason, retry_after } => {
            match retry_after {
                Some(patience) => {
                    // Those that it turned away together must not come again together.
                    let spread = pausing.schedule.base.mul_f64(pausing.random);
                    let pause = patience.min(PATIENCE_MAX) + spread;
                    (Verdict::Release { pause, reason: Some(reason) }, Went::Patience(patience))
                }
                None => {
                    let pause = pausing.pause();
                    (Verdict::Retry { error: reason, pause, in_doubt: false }, Went::Badly)
                }
            }
        }
        Outcome::Unknown { reason } => {
            let least = if class == DoubtClass::Echo { CALLBACK_WITHIN } else { Duration::ZERO };
            let pause = pausing.pause().max(least);
            (Verdict::Retry { error: reason, pause, in_doubt: true }, Went::Badly)
        }
    }
}

/// What follows from a look-up. `None`: the reply is called.
pub(super) fn after_look_up(finding: Finding, pausing: &Pausing<'_>) -> Option<(Verdict, Went)> {
    match finding {
        Finding::Done { message_id, .. } => Some((Verdict::Sent { message_id }, Went::Well)),
        Finding::Absent { .. } | Finding::CannotTell { .. } => None,
        // At least once: an answer that does not come must not keep the reply from its reader.
        Finding::Unclear { .. } if pausing.attempt_count >= UNCLEAR_MAX => None,
        Finding::Unclear { reason } => {
            let error = format!("whether it arrived cannot be found out yet: {reason}");
            let pause = pausing.pause();
            Some((Verdict::Retry { error, pause, in_doubt: true }, Went::Badly))
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

    fn after(attempts: i32) -> Pausing<'static> {
        Pausing { schedule: &SCHEDULE, attempt_count: attempts, random: 0.5 }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn every_outcome_has_its_verdict() {
        use DoubtClass::{Echo, Key, Lookup, Person};
        let not_sent = |wait| Outcome::NotSent { reason: "no".to_owned(), retry_after: wait };
        let unknown = || Outcome::Unknown { reason: "no".to_owned() };
        let again =
            |pause, in_doubt| Verdict::Retry { error: "no".to_owned(), pause: seconds(pause), in_doubt };
        let later = |pause| Verdict::Release { pause: seconds(pause), reason: Some("no".to_owned()) };
        let sent = Outcome::Delivered { message_id: "m".to_owned() };
        let table = [
            (sent, Person, 0, Verdict::Sent { message_id: "m".to_owned() }, Went::Well),
            (
                Outcome::Rejected { reason: "no".to_owned() },
                Person,
                0,
                Verdict::Dead { error: "no".to_owned() },
                Went::Well,
            ),
            (not_sent(None), Person, 0, again(10, false), Went::Badly),
            (not_sent(None), Person, 2, again(40, false), Went::Badly),
            (not_sent(Some(seconds(5))), Person, 4, later(10), Went::Patience(seconds(5))),
            (not_sent(Some(seconds(60))), Person, 0, later(65), Went::Patience(seconds(60))),
            (not_sent(Some(seconds(9999))), Person, 0, later(3605), Went::Patience(seconds(9999))),
            (unknown(), Person, 0, again(10, true), Went::Badly),
            (unknown(), Key, 1, again(20, true), Went::Badly),
            (unknown(), Lookup, 0, again(10, true), Went::Badly),
            (unknown(), Echo, 0, again(60, true), Went::Badly),
            (unknown(), Echo, 4, again(160, true), Went::Badly),
        ];
        for (outcome, class, attempts, verdict, went) in table {
            let said = format!("{outcome:?} {class:?} {attempts}");
            assert_eq!(after_call(outcome, class, &after(attempts)), (verdict, went), "{said}");
        }
    }

    #[test]
    fn a_look_up_calls_only_what_was_not_found() {
        let evidence = || "e".to_owned();
        let done = Finding::Done { message_id: "m".to_owned(), evidence: evidence() };
        let sent = Verdict::Sent { message_id: "m".to_owned() };
        assert_eq!(after_look_up(done, &after(0)), Some((sent, Went::Well)));
        assert_eq!(after_look_up(Finding::Absent { evidence: evidence() }, &after(0)), None);
        assert_eq!(after_look_up(Finding::CannotTell { reason: evidence() }, &after(0)), None);
        let unclear = |attempts| after_look_up(Finding::Unclear { reason: evidence() }, &after(attempts));
        for attempts in [0, 1] {
            assert!(matches!(unclear(attempts), Some((Verdict::Retry { in_doubt: true, .. }, Went::Badly))));
        }
        assert_eq!(unclear(2), None);
    }
}

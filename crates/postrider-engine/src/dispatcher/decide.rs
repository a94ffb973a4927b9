//! What follows from an attempt. Replies are at least once: what may have arrived is tried again, after the provider was asked where
//! that is possible.
//!
//! | outcome | verdict | for the account |
//! |---|---|---|
//! | delivered | sent | well |
//! | rejected | dead | well |
//! | not sent | again after the pause, or after the provider's own if that is longer | badly |
//! | unknown | again after the pause, in doubt; after a minute at least where the provider calls back | badly |
//!
//! | what a look-up found | verdict |
//! |---|---|
//! | done | sent, without a call |
//! | absent, or the provider cannot tell | called |
//! | unclear | again after the pause, in doubt |

use std::time::Duration;

use postrider_model::{DoubtClass, Finding, Outcome, chat::RetrySchedule};
use postrider_store::replies::Verdict;

use super::lane::Went;

/// How long a provider that calls back is given for it.
const CALLBACK_WITHIN: Duration = Duration::from_secs(60);
/// The longest that one reply waits because its provider asked for it.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);

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
            let patience = retry_after.unwrap_or_default().min(PATIENCE_MAX);
            let pause = pausing.pause().max(patience);
            (Verdict::Retry { error: reason, pause, in_doubt: false }, Went::Badly { patience: retry_after })
        }
        Outcome::Unknown { reason } => {
            let least = if class == DoubtClass::Echo { CALLBACK_WITHIN } else { Duration::ZERO };
            let pause = pausing.pause().max(least);
            (Verdict::Retry { error: reason, pause, in_doubt: true }, Went::Badly { patience: None })
        }
    }
}

/// What follows from a look-up. `None`: the reply is called.
pub(super) fn after_look_up(finding: Finding, pausing: &Pausing<'_>) -> Option<(Verdict, Went)> {
    match finding {
        Finding::Done { message_id, .. } => Some((Verdict::Sent { message_id }, Went::Well)),
        Finding::Absent { .. } | Finding::CannotTell { .. } => None,
        Finding::Unclear { reason } => {
            let error = format!("whether it arrived cannot be found out yet: {reason}");
            let pause = pausing.pause();
            Some((Verdict::Retry { error, pause, in_doubt: true }, Went::Badly { patience: None }))
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
        let badly = |wait| Went::Badly { patience: wait };
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
            (not_sent(None), Person, 0, again(10, false), badly(None)),
            (not_sent(None), Person, 2, again(40, false), badly(None)),
            (not_sent(Some(seconds(5))), Person, 0, again(10, false), badly(Some(seconds(5)))),
            (not_sent(Some(seconds(60))), Person, 0, again(60, false), badly(Some(seconds(60)))),
            (not_sent(Some(seconds(9999))), Person, 0, again(3600, false), badly(Some(seconds(9999)))),
            (unknown(), Person, 0, again(10, true), badly(None)),
            (unknown(), Key, 1, again(20, true), badly(None)),
            (unknown(), Lookup, 0, again(10, true), badly(None)),
            (unknown(), Echo, 0, again(60, true), badly(None)),
            (unknown(), Echo, 4, again(160, true), badly(None)),
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
        let unclear = after_look_up(Finding::Unclear { reason: evidence() }, &after(0));
        assert!(matches!(unclear, Some((Verdict::Retry { in_doubt: true, .. }, Went::Badly { .. }))));
    }
}

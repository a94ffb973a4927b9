//! Decides the next step for an item in doubt, and the verdict on a finding (docs/decisions/0013-what-settles-a-doubt.md). Pure functions;
//! their tests are tables.
//!
//! | class | during the quiet time | after the quiet time | last resort |
//! |---|---|---|---|
//! | key | wait: the provider may store the key late | repeat while the key is valid, a quiet time apart | look up, then a person |
//! | natural | repeat | repeat | – |
//! | lookup | look up; only "done" counts | look up; "not done" counts | – |
//! | echo | look up; wait for the callback | look up | a person |
//! | person | – | – | a person |
//!
//! The resolver does not repeat a message that it cannot render as it was, or whose reader has unsubscribed. It looks such an item up, or
//! leaves it to a person. A provider may refuse a repeat because it has the message, so the resolver looks up refused repeats, too.
//! If the account's secret was changed since the call, the provider may now answer for another account, so a person decides.

use std::time::Duration;

use jiff::Timestamp;
use postrider_model::{DoubtClass, Finding};

/// A doubt without any finding for this long is left to a person.
const GIVE_UP_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The facts known before the provider is asked. Times are those of the database's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) class: DoubtClass,
    pub(super) now: Timestamp,
    pub(super) quiet_until: Timestamp,
    /// Earliest time of a repeat: the quiet time after the last call, because the provider may store its key late.
    pub(super) repeat_from: Timestamp,
    /// Time until which the provider recognises the key, with a margin; `None`: the provider knows no keys.
    pub(super) repeat_until: Option<Timestamp>,
    /// Whether the message is the reserved one, and its reader has not unsubscribed.
    pub(super) may_repeat: bool,
    /// Whether the account's secret was changed since the call.
    pub(super) secret_is_newer: bool,
    /// Time for which the item has been in doubt.
    pub(super) age: Duration,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Repeat,
    LookUp,
    Wait(Timestamp),
    Person(&'static str),
}

const OTHER_SECRET: &str =
    "the account's secret was changed since the call, so the provider may not recognise the account";
const PERSON_ONLY: &str = "this provider cannot be queried, so a person must decide";

pub(super) fn step(facts: &Facts) -> Step {
    match facts.class {
        DoubtClass::Key | DoubtClass::Lookup if facts.secret_is_newer => Step::Person(OTHER_SECRET),
        DoubtClass::Key if facts.now < facts.repeat_from => Step::Wait(facts.repeat_from),
        DoubtClass::Key if facts.may_repeat && facts.repeat_until.is_some_and(|until| facts.now < until) => {
            Step::Repeat
        }
        DoubtClass::Natural if facts.may_repeat => Step::Repeat,
        DoubtClass::Key | DoubtClass::Natural | DoubtClass::Lookup | DoubtClass::Echo => Step::LookUp,
        DoubtClass::Person => Step::Person(PERSON_ONLY),
    }
}

/// The result of an attempt to settle a doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Sent { message_id: String, evidence: String },
    Failed { evidence: String },
    RetryAt { at: Timestamp, note: String },
    Person { note: String },
}

/// Decides on the finding of a repeat. `Err`: the provider refused the repeat, and the item must be looked up.
pub(super) fn conclude_repeat(facts: &Facts, finding: Finding, pause: &Pause) -> Result<Verdict, String> {
    match finding {
        Finding::Absent { evidence } => Err(evidence),
        finding => Ok(conclude(facts, finding, pause)),
    }
}

/// Decides on the finding of a look-up.
pub(super) fn conclude(facts: &Facts, finding: Finding, pause: &Pause) -> Verdict {
    let is_quiet = facts.now >= facts.quiet_until;
    let retry_or_person = |at: Timestamp, note: String| match facts.class {
        _ if !is_quiet && at > facts.now => Verdict::RetryAt { at, note },
        _ => Verdict::Person { note },
    };
    match finding {
        Finding::Done { message_id, evidence } => Verdict::Sent { message_id, evidence },
        // An absent message is a failure only after the quiet time, and only where the provider's record is the proof.
        Finding::Absent { evidence } => match facts.class {
            DoubtClass::Lookup | DoubtClass::Natural if is_quiet => Verdict::Failed { evidence },
            _ => retry_or_person(facts.quiet_until, evidence),
        },
        Finding::Unclear { reason } => match facts.class {
            // No callback can be expected any more.
            DoubtClass::Echo if is_quiet => {
                Verdict::Person { note: format!("no callback arrived in the quiet time; {reason}") }
            }
            DoubtClass::Echo => Verdict::RetryAt { at: facts.quiet_until, note: reason },
            _ if facts.age >= GIVE_UP_AFTER => Verdict::Person { note: reason },
            _ => Verdict::RetryAt { at: facts.now + pause.after(facts.age), note: reason },
        },
        Finding::Later { reason, .. } if facts.age >= GIVE_UP_AFTER => Verdict::Person { note: reason },
        Finding::Later { reason, retry_after } => {
            Verdict::RetryAt { at: facts.now + pause.after(facts.age).max(retry_after), note: reason }
        }
        Finding::CannotTell { reason } => match facts.class {
            // The callback may still come.
            DoubtClass::Echo => retry_or_person(facts.quiet_until, reason),
            _ => Verdict::Person { note: reason },
        },
    }
}

/// Backoff of the attempts to settle a doubt: half of the time that the item has been in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// Minimum backoff.
    pub min: Duration,
    /// Maximum backoff.
    pub max: Duration,
}

impl Pause {
    fn after(&self, age: Duration) -> Duration {
        (age / 2).min(self.max).max(self.min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Pause = Pause { min: Duration::from_secs(2), max: Duration::from_secs(300) };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    /// The quiet time ends at 100, and the key is valid until 1000.
    fn facts(class: DoubtClass, now: i64) -> Facts {
        Facts {
            class,
            now: at(now),
            quiet_until: at(100),
            repeat_from: at(100),
            repeat_until: (class == DoubtClass::Key).then(|| at(1000)),
            may_repeat: true,
            secret_is_newer: false,
            age: Duration::from_secs(16),
        }
    }

    #[test]
    fn the_resolver_repeats_only_where_a_repeat_is_harmless() {
        use DoubtClass::{Echo, Key, Lookup, Natural, Person};
        use Step::{LookUp, Repeat, Wait};
        let person = Step::Person(PERSON_ONLY);
        let other = Step::Person(OTHER_SECRET);
        #[rustfmt::skip]
        let table = [
            // class   now   may repeat, newer secret   step
            (Key,      0,    true,       false,         Wait(at(100))),
            (Key,      99,   true,       false,         Wait(at(100))),
            (Key,      100,  true,       false,         Repeat),
            (Key,      999,  true,       false,         Repeat),
            (Key,      100,  false,      false,         LookUp),
            (Key,      1000, true,       false,         LookUp),
            (Key,      100,  true,       true,          other),
            (Natural,  0,    true,       false,         Repeat),
            (Natural,  9999, true,       false,         Repeat),
            (Natural,  0,    false,      false,         LookUp),
            // A put addresses the same resource under any secret.
            (Natural,  0,    true,       true,          Repeat),
            (Lookup,   0,    true,       false,         LookUp),
            (Lookup,   100,  false,      false,         LookUp),
            (Lookup,   100,  false,      true,          other),
            (Echo,     0,    true,       false,         LookUp),
            (Echo,     100,  true,       true,          LookUp),
            (Person,   0,    true,       false,         person),
        ];
        for (class, now, may_repeat, secret_is_newer, expected) in table {
            let facts = Facts { may_repeat, secret_is_newer, ..facts(class, now) };
            assert_eq!(step(&facts), expected, "{facts:?}");
        }
        let repeated = |now| Facts { repeat_from: at(300), ..facts(Key, now) };
        assert_eq!(step(&repeated(299)), Wait(at(300)), "the provider may not know the key yet");
        assert_eq!(step(&repeated(300)), Repeat);
        let without_validity = Facts { repeat_until: None, ..facts(Key, 100) };
        assert_eq!(step(&without_validity), LookUp, "a key of unknown validity proves nothing");
    }

    #[test]
    fn every_finding_has_its_verdict() {
        use DoubtClass::{Echo, Key, Lookup, Natural};
        let done = || Finding::Done { message_id: "m".to_owned(), evidence: "e".to_owned() };
        let absent = || Finding::Absent { evidence: "e".to_owned() };
        let unclear = || Finding::Unclear { reason: "e".to_owned() };
        let later = || Finding::Later { reason: "e".to_owned(), retry_after: Duration::from_secs(60) };
        let never = || Finding::CannotTell { reason: "e".to_owned() };
        let sent = || Verdict::Sent { message_id: "m".to_owned(), evidence: "e".to_owned() };
        let failed = || Verdict::Failed { evidence: "e".to_owned() };
        let person = || Verdict::Person { note: "e".to_owned() };
        let again = |second| Verdict::RetryAt { at: at(second), note: "e".to_owned() };
        let silent = || Verdict::Person { note: "no callback arrived in the quiet time; e".to_owned() };
        #[rustfmt::skip]
        let table = [
            // class   now   finding     verdict
            (Key,      100,  done(),     sent()),
            (Natural,  0,    done(),     sent()),
            (Lookup,   0,    done(),     sent()),
            (Echo,     0,    done(),     sent()),
            (Lookup,   0,    absent(),   again(100)),
            (Lookup,   99,   absent(),   again(100)),
            (Lookup,   100,  absent(),   failed()),
            (Natural,  99,   absent(),   again(100)),
            (Natural,  100,  absent(),   failed()),
            (Key,      1000, absent(),   person()),
            (Echo,     0,    absent(),   again(100)),
            (Echo,     100,  absent(),   person()),
            (Key,      1000, unclear(),  again(1008)),
            (Natural,  0,    unclear(),  again(8)),
            (Lookup,   500,  unclear(),  again(508)),
            (Lookup,   500,  later(),    again(560)),
            (Echo,     0,    unclear(),  again(100)),
            (Echo,     100,  unclear(),  silent()),
            (Key,      1000, never(),    person()),
            (Natural,  0,    never(),    person()),
            (Lookup,   0,    never(),    person()),
            (Echo,     0,    never(),    again(100)),
            (Echo,     100,  never(),    person()),
        ];
        for (class, now, finding, expected) in table {
            let shown = format!("{class:?} at {now}: {finding:?}");
            assert_eq!(conclude(&facts(class, now), finding, &PAUSE), expected, "{shown}");
        }
        let old = |class| Facts { age: GIVE_UP_AFTER, ..facts(class, 500) };
        for class in [Key, Natural, Lookup] {
            assert_eq!(
                conclude(&old(class), unclear(), &PAUSE),
                person(),
                "{class:?}: look-ups end after a day"
            );
        }
    }

    #[test]
    fn a_refused_repeat_proves_nothing_by_itself() {
        let refused = Finding::Absent { evidence: "processed already".to_owned() };
        for class in [DoubtClass::Key, DoubtClass::Natural] {
            let decided = conclude_repeat(&facts(class, 500), refused.clone(), &PAUSE);
            assert_eq!(decided, Err("processed already".to_owned()));
        }
        let done = Finding::Done { message_id: "m".to_owned(), evidence: "e".to_owned() };
        assert!(matches!(
            conclude_repeat(&facts(DoubtClass::Key, 500), done, &PAUSE),
            Ok(Verdict::Sent { .. })
        ));
    }

    #[test]
    fn the_backoff_grows_with_the_age_of_the_doubt_up_to_a_limit() {
        let after = |seconds| PAUSE.after(Duration::from_secs(seconds)).as_secs();
        assert_eq!([0, 4, 6, 60, 600, 6000].map(after), [2, 2, 3, 30, 300, 300]);
    }
}

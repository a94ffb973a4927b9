//! What to do about an item in doubt, and what follows from what was found. Pure: it stands in a table.
//!
//! | class | before the quiet time is over | afterwards | at the end |
//! |---|---|---|---|
//! | key | waits: the vendor may store the key late | repeats, inside the key's life, a quiet time apart | past it: looks up, then a person |
//! | natural | repeats | repeats | – |
//! | lookup | looks up; only "done" counts | looks up; "not done" counts | – |
//! | echo | looks up; waits for the callback | looks up | a person |
//! | person | – | – | a person |
//!
//! What cannot be rendered as it was, and what is addressed to somebody who unsubscribed since, is never sent again: it is looked
//! up, or left to a person. A vendor that refuses a repeat may do so because it has the message: it is looked up, too.
//! If the account's secret was changed since the call, whoever is asked now may not be who was called then: a person.

use std::time::Duration;

use jiff::Timestamp;
use postrider_model::{DoubtClass, Finding};

/// A doubt about which nothing was learned for so long is for a person.
const GIVE_UP_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// What is known before anybody is asked. Times are the database's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) class: DoubtClass,
    pub(super) now: Timestamp,
    pub(super) quiet_until: Timestamp,
    /// From when on a vendor that stores keys late knows the key of every call so far: the quiet time after the last of them.
    pub(super) repeat_from: Timestamp,
    /// Until when the vendor recognises the key, with a margin; `None`: it has no key.
    pub(super) repeat_until: Option<Timestamp>,
    /// Whether the message is the one that was reserved, and its reader still wants it.
    pub(super) may_repeat: bool,
    /// Whether the account's secret was changed since the call.
    pub(super) secret_is_newer: bool,
    /// How long it has been in doubt.
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
    "the account's secret was changed since the call, so its provider may not know who asks";
const NO_ONE_TELLS: &str = "this provider can tell nobody but a person";

pub(super) fn step(facts: &Facts) -> Step {
    match facts.class {
        DoubtClass::Key | DoubtClass::Lookup if facts.secret_is_newer => Step::Person(OTHER_SECRET),
        DoubtClass::Key if facts.now < facts.repeat_from => Step::Wait(facts.repeat_from),
        DoubtClass::Key if facts.may_repeat && facts.repeat_until.is_some_and(|until| facts.now < until) => {
            Step::Repeat
        }
        DoubtClass::Natural if facts.may_repeat => Step::Repeat,
        DoubtClass::Key | DoubtClass::Natural | DoubtClass::Lookup | DoubtClass::Echo => Step::LookUp,
        DoubtClass::Person => Step::Person(NO_ONE_TELLS),
    }
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Sent { message_id: String, evidence: String },
    Failed { evidence: String },
    LookAgain { at: Timestamp, note: String },
    Person { note: String },
}

/// What follows from a repeat, unless it was refused: then it is looked up.
pub(super) fn conclude_repeat(facts: &Facts, finding: Finding, pause: &Pause) -> Result<Verdict, String> {
    match finding {
        Finding::Absent { evidence } => Err(evidence),
        found => Ok(conclude(facts, found, pause)),
    }
}

/// What follows from a look-up.
pub(super) fn conclude(facts: &Facts, finding: Finding, pause: &Pause) -> Verdict {
    let is_quiet = facts.now >= facts.quiet_until;
    let at_the_end = |at: Timestamp, note: String| match facts.class {
        _ if !is_quiet && at > facts.now => Verdict::LookAgain { at, note },
        _ => Verdict::Person { note },
    };
    match finding {
        Finding::Done { message_id, evidence } => Verdict::Sent { message_id, evidence },
        // The vendor's silence counts when nothing can arrive any more, and where its memory is the proof.
        Finding::Absent { evidence } => match facts.class {
            DoubtClass::Lookup | DoubtClass::Natural if is_quiet => Verdict::Failed { evidence },
            _ => at_the_end(facts.quiet_until, evidence),
        },
        Finding::Unclear { reason } => match facts.class {
            // There is nothing further to wait for.
            DoubtClass::Echo if is_quiet => {
                Verdict::Person { note: format!("no callback came in the quiet time; {reason}") }
            }
            DoubtClass::Echo => Verdict::LookAgain { at: facts.quiet_until, note: reason },
            _ if facts.age >= GIVE_UP_AFTER => Verdict::Person { note: reason },
            _ => Verdict::LookAgain { at: facts.now + pause.after(facts.age), note: reason },
        },
        Finding::CannotTell { reason } => match facts.class {
            // The callback may still come.
            DoubtClass::Echo => at_the_end(facts.quiet_until, reason),
            _ => Verdict::Person { note: reason },
        },
    }
}

/// How long to wait before the next look: half as long as it has been in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// At least so long.
    pub min: Duration,
    /// At most so long.
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

    /// Quiet from 100 on, and the key lives until 1000.
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
    fn a_repeat_is_asked_for_only_where_it_is_harmless() {
        use DoubtClass::{Echo, Key, Lookup, Natural, Person};
        use Step::{LookUp, Repeat, Wait};
        let told = Step::Person(NO_ONE_TELLS);
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
            // A put goes where it went, whoever signs.
            (Natural,  0,    true,       true,          Repeat),
            (Lookup,   0,    true,       false,         LookUp),
            (Lookup,   100,  false,      false,         LookUp),
            (Lookup,   100,  false,      true,          other),
            (Echo,     0,    true,       false,         LookUp),
            (Echo,     100,  true,       true,          LookUp),
            (Person,   0,    true,       false,         told),
        ];
        for (class, now, may_repeat, secret_is_newer, expected) in table {
            let facts = Facts { may_repeat, secret_is_newer, ..facts(class, now) };
            assert_eq!(step(&facts), expected, "{facts:?}");
        }
        let repeated = |now| Facts { repeat_from: at(300), ..facts(Key, now) };
        assert_eq!(step(&repeated(299)), Wait(at(300)), "its key may not be known yet");
        assert_eq!(step(&repeated(300)), Repeat);
        let without_a_life = Facts { repeat_until: None, ..facts(Key, 100) };
        assert_eq!(step(&without_a_life), LookUp, "a key of unknown life is not relied upon");
    }

    #[test]
    fn what_is_found_counts_when_it_may() {
        use DoubtClass::{Echo, Key, Lookup, Natural};
        let done = || Finding::Done { message_id: "m".to_owned(), evidence: "e".to_owned() };
        let absent = || Finding::Absent { evidence: "e".to_owned() };
        let unclear = || Finding::Unclear { reason: "e".to_owned() };
        let never = || Finding::CannotTell { reason: "e".to_owned() };
        let sent = || Verdict::Sent { message_id: "m".to_owned(), evidence: "e".to_owned() };
        let failed = || Verdict::Failed { evidence: "e".to_owned() };
        let person = || Verdict::Person { note: "e".to_owned() };
        let again = |second| Verdict::LookAgain { at: at(second), note: "e".to_owned() };
        let silent = || Verdict::Person { note: "no callback came in the quiet time; e".to_owned() };
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
                "{class:?}: nobody looks for ever"
            );
        }
    }

    #[test]
    fn a_refused_repeat_proves_nothing_by_itself() {
        let refused = Finding::Absent { evidence: "processed already".to_owned() };
        for class in [DoubtClass::Key, DoubtClass::Natural] {
            let found = conclude_repeat(&facts(class, 500), refused.clone(), &PAUSE);
            assert_eq!(found, Err("processed already".to_owned()));
        }
        let done = Finding::Done { message_id: "m".to_owned(), evidence: "e".to_owned() };
        assert!(matches!(
            conclude_repeat(&facts(DoubtClass::Key, 500), done, &PAUSE),
            Ok(Verdict::Sent { .. })
        ));
    }

    #[test]
    fn the_pauses_grow_with_the_doubt_up_to_a_limit() {
        let after = |seconds| PAUSE.after(Duration::from_secs(seconds)).as_secs();
        assert_eq!([0, 4, 6, 60, 600, 6000].map(after), [2, 2, 3, 30, 300, 300]);
    }
}

//! What to do about an item in doubt, and what follows from what was found. Pure: it stands in a table.
//!
//! | class | before the quiet time is over | afterwards | at the end |
//! |---|---|---|---|
//! | key | waits: the vendor may store the key late | repeats, inside the key's life | past it: looks up, then a person |
//! | natural | repeats | repeats | – |
//! | lookup | looks up; only "done" counts | looks up; "not done" counts | – |
//! | echo | looks up; waits for the callback | looks up | a person |
//! | person | – | – | a person |
//!
//! A message that cannot be rendered as it was is never sent again: where a repeat would settle it, a person does.

use std::time::Duration;

use jiff::Timestamp;
use postrider_model::{DoubtClass, Finding};

/// What is known before anybody is asked. Times are the database's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) class: DoubtClass,
    pub(super) now: Timestamp,
    pub(super) quiet_until: Timestamp,
    /// Until when the vendor recognises the key, with a margin; `None`: it has no key.
    pub(super) repeat_until: Option<Timestamp>,
    /// Whether the message is the one that was reserved.
    pub(super) is_same_message: bool,
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

const NOT_THE_SAME: &str = "the message cannot be rendered as it was, so it must not be sent again";

pub(super) fn step(facts: &Facts) -> Step {
    let is_quiet = facts.now >= facts.quiet_until;
    match facts.class {
        DoubtClass::Key if !is_quiet => Step::Wait(facts.quiet_until),
        DoubtClass::Key if facts.repeat_until.is_some_and(|until| facts.now < until) => {
            if facts.is_same_message { Step::Repeat } else { Step::Person(NOT_THE_SAME) }
        }
        DoubtClass::Natural if facts.is_same_message => Step::Repeat,
        DoubtClass::Key | DoubtClass::Natural | DoubtClass::Lookup | DoubtClass::Echo => Step::LookUp,
        DoubtClass::Person => Step::Person("this provider can tell nobody but a person"),
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

pub(super) fn conclude(facts: &Facts, asked: Step, finding: Finding, pause: &Pause) -> Verdict {
    let is_quiet = facts.now >= facts.quiet_until;
    match finding {
        Finding::Done { message_id, evidence } => Verdict::Sent { message_id, evidence },
        // The vendor's silence counts when nothing can arrive any more, and where its memory is the proof.
        Finding::Absent { evidence } if !is_quiet => {
            Verdict::LookAgain { at: facts.quiet_until, note: evidence }
        }
        Finding::Absent { evidence } => match (facts.class, asked) {
            (DoubtClass::Key, Step::LookUp) | (DoubtClass::Echo | DoubtClass::Person, _) => {
                Verdict::Person { note: evidence }
            }
            _ => Verdict::Failed { evidence },
        },
        Finding::Unclear { reason } => match (facts.class, asked) {
            // There is nothing further to wait for.
            (DoubtClass::Echo, _) if is_quiet => {
                Verdict::Person { note: format!("no callback came in the quiet time; {reason}") }
            }
            (DoubtClass::Echo, _) => Verdict::LookAgain { at: facts.quiet_until, note: reason },
            (DoubtClass::Key, Step::LookUp) => Verdict::Person { note: reason },
            (DoubtClass::Person, _) => Verdict::Person { note: reason },
            _ => Verdict::LookAgain { at: facts.now + pause.after(facts.age), note: reason },
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
    fn facts(class: DoubtClass, now: i64, is_same_message: bool) -> Facts {
        Facts {
            class,
            now: at(now),
            quiet_until: at(100),
            repeat_until: (class == DoubtClass::Key).then(|| at(1000)),
            is_same_message,
            age: Duration::from_secs(16),
        }
    }

    #[test]
    fn a_repeat_is_asked_for_only_where_it_is_harmless() {
        use DoubtClass::{Echo, Key, Lookup, Natural, Person};
        use Step::{LookUp, Repeat, Wait};
        let told = Step::Person("this provider can tell nobody but a person");
        let differs = Step::Person(NOT_THE_SAME);
        #[rustfmt::skip]
        let table = [
            // class   now   same    step
            (Key,      0,    true,   Wait(at(100))),
            (Key,      99,   true,   Wait(at(100))),
            (Key,      100,  true,   Repeat),
            (Key,      999,  true,   Repeat),
            (Key,      100,  false,  differs),
            (Key,      1000, true,   LookUp),
            (Key,      1000, false,  LookUp),
            (Natural,  0,    true,   Repeat),
            (Natural,  9999, true,   Repeat),
            (Natural,  0,    false,  LookUp),
            (Lookup,   0,    true,   LookUp),
            (Lookup,   100,  false,  LookUp),
            (Echo,     0,    true,   LookUp),
            (Echo,     100,  true,   LookUp),
            (Person,   0,    true,   told),
            (Person,   9999, true,   told),
        ];
        for (class, now, same, expected) in table {
            assert_eq!(step(&facts(class, now, same)), expected, "{class:?} at {now}, same message: {same}");
        }
        let without_a_life = Facts { repeat_until: None, ..facts(Key, 100, true) };
        assert_eq!(step(&without_a_life), LookUp, "a key of unknown life is not relied upon");
    }

    #[test]
    fn what_is_found_counts_when_it_may() {
        use DoubtClass::{Echo, Key, Lookup, Natural};
        use Step::{LookUp, Repeat};
        let done = || Finding::Done { message_id: "m".to_owned(), evidence: "e".to_owned() };
        let absent = || Finding::Absent { evidence: "e".to_owned() };
        let unclear = || Finding::Unclear { reason: "e".to_owned() };
        let sent = || Verdict::Sent { message_id: "m".to_owned(), evidence: "e".to_owned() };
        let failed = || Verdict::Failed { evidence: "e".to_owned() };
        let person = || Verdict::Person { note: "e".to_owned() };
        let again = |second| Verdict::LookAgain { at: at(second), note: "e".to_owned() };
        let silent = || Verdict::Person { note: "no callback came in the quiet time; e".to_owned() };
        #[rustfmt::skip]
        let table = [
            // class   now   asked   finding     verdict
            (Key,      100,  Repeat, done(),     sent()),
            (Natural,  0,    Repeat, done(),     sent()),
            (Lookup,   0,    LookUp, done(),     sent()),
            (Echo,     0,    LookUp, done(),     sent()),
            (Lookup,   0,    LookUp, absent(),   again(100)),
            (Lookup,   99,   LookUp, absent(),   again(100)),
            (Lookup,   100,  LookUp, absent(),   failed()),
            (Natural,  99,   LookUp, absent(),   again(100)),
            (Natural,  100,  LookUp, absent(),   failed()),
            (Natural,  100,  Repeat, absent(),   failed()),
            (Key,      100,  Repeat, absent(),   failed()),
            (Key,      1000, LookUp, absent(),   person()),
            (Echo,     0,    LookUp, absent(),   again(100)),
            (Echo,     100,  LookUp, absent(),   person()),
            (Key,      100,  Repeat, unclear(),  again(108)),
            (Natural,  0,    Repeat, unclear(),  again(8)),
            (Lookup,   500,  LookUp, unclear(),  again(508)),
            (Key,      1000, LookUp, unclear(),  person()),
            (Echo,     0,    LookUp, unclear(),  again(100)),
            (Echo,     100,  LookUp, unclear(),  silent()),
        ];
        for (class, now, asked, finding, expected) in table {
            let shown = format!("{class:?} at {now}: {asked:?} found {finding:?}");
            assert_eq!(conclude(&facts(class, now, true), asked, finding, &PAUSE), expected, "{shown}");
        }
    }

    #[test]
    fn the_pauses_grow_with_the_doubt_up_to_a_limit() {
        let after = |seconds| PAUSE.after(Duration::from_secs(seconds)).as_secs();
        assert_eq!([0, 4, 6, 60, 600, 6000].map(after), [2, 2, 3, 30, 300, 300]);
    }
}

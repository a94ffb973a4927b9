//! The auditor finds what it is there to find: each fact is broken once.

use postrider_testkit::crash::Findings as _;
use serde_json::json;
use uuid::Uuid;

use super::{
    audit::{WENT_AWAY, audit},
    report::{Change, Effect, Facts, Firing, Function, Letter, Receipt, Report, Run, Schedule},
};

const MINUTE: i64 = 60_000_000;
const LEASE: i64 = 2_000_000;

/// The runs of a good day, by their place: one behind a URL that was tried twice, one in the database whose process died once, one of a
/// schedule, and one that failed for good.
const WEB: usize = 0;
const SQL: usize = 1;
const DEAD: usize = 3;

fn id(n: usize) -> Uuid {
    Uuid::from_u128(n as u128 + 1)
}

fn good() -> Facts {
    let mut facts = Facts { lease: LEASE, allowance: 10 * LEASE, ..Facts::default() };
    for (n, (kind, status, retries)) in [
        ("http", "completed", 1),
        ("sql", "completed", 1),
        ("builtin", "completed", 0),
        ("http", "failed", 1),
    ]
    .into_iter()
    .enumerate()
    {
        facts.functions.push(Function {
            name: format!("f{n}"),
            kind: kind.to_owned(),
            max_retries: 1,
            initial_delay_ms: 20,
            backoff_multiplier: 2.0,
            max_delay_ms: 250,
        });
        facts.runs.push(Run {
            id: id(n),
            function_name: format!("f{n}"),
            lock_key: format!("key {n}"),
            status: status.to_owned(),
            waits_for_retry: false,
            retry_count: retries,
            claims: retries + 1,
            is_forced: false,
            input_params: Some(json!({ "n": n })),
            result: (status == "completed")
                .then(|| json!({ "ok": true, "job_id": id(n), "attempt": retries + 1 })),
            error_message: (status == "failed").then(|| "it failed".to_owned()),
            schedule_id: (n == 2).then(|| id(9)),
            scheduled_for: (n == 2).then_some(0),
            grain_start: 0,
            created_at: 10,
        });
        story(&mut facts, n, status, retries);
        if kind == "http" {
            facts.receipts.push(receipt(n, 1, None));
            facts.receipts.push(receipt(n, 2, (status == "completed").then_some(200)));
        }
    }
    facts.acquired = [WEB, SQL, DEAD].map(id).into();
    facts.effects.push(Effect { xid: xid(SQL, 1), input: Some(json!({ "n": SQL })) });
    facts.letters.push(Letter {
        run: id(DEAD),
        is_resolved: false,
        error_code: "MAX_RETRIES_EXCEEDED".to_owned(),
        error_message: "it failed".to_owned(),
        error_details: json!({ "function_name": "f3", "lock_key": "key 3", "input_params": { "n": 3 }, "retry_count": 1,
                               "last_attempt_at": "2026-11-16T02:00:00.000Z" }),
    });
    facts.schedules.push(Schedule { id: id(9), first: 0, next: 2 * MINUTE, step: MINUTE, grain: 5 * MINUTE });
    for (fire_at, outcome, reason) in
        [(0, "started", None), (MINUTE, "skipped", Some("completed before in this grain"))]
    {
        facts.firings.push(Firing {
            schedule_id: id(9),
            fire_at,
            outcome: outcome.to_owned(),
            job_run_id: Some(id(2)),
            reason: reason.map(str::to_owned),
        });
    }
    facts
}

/// Made, claimed, failed as often as it was retried, and ended.
fn story(facts: &mut Facts, n: usize, status: &str, retries: i32) {
    let is_sql = n == SQL;
    let mut at = 10;
    let made = Change {
        run: id(n),
        status_before: None,
        status: "running".to_owned(),
        claims_before: None,
        claims: 0,
        retry_count: 0,
        retry_at_before: None,
        retry_at: None,
        heartbeat_before: None,
        error_message: None,
        at,
        xid: xid(n, 9),
    };
    facts.changes.push(made.clone());
    let mut before = made;
    for attempt in 0..=retries {
        at += 20_000;
        let claimed = Change {
            status_before: Some(before.status.clone()),
            status: "running".to_owned(),
            claims_before: Some(attempt),
            claims: attempt + 1,
            retry_count: attempt,
            retry_at_before: before.retry_at,
            retry_at: None,
            at,
            ..before.clone()
        };
        let is_last = attempt == retries;
        at += LEASE + 1;
        let ended = Change {
            status_before: Some("running".to_owned()),
            status: if is_last { status } else { "failed" }.to_owned(),
            claims_before: Some(attempt + 1),
            retry_at_before: None,
            retry_at: (!is_last).then_some(at + 20_000),
            heartbeat_before: Some(claimed.at),
            error_message: (!is_last).then(|| if is_sql { WENT_AWAY } else { "it failed" }.to_owned()),
            at,
            xid: xid(n, attempt),
            ..claimed.clone()
        };
        before = ended.clone();
        facts.changes.extend([claimed, ended]);
    }
}

fn xid(n: usize, attempt: i32) -> i64 {
    n as i64 * 100 + i64::from(attempt)
}

fn receipt(n: usize, attempt: i32, answered: Option<i64>) -> Receipt {
    Receipt { run: id(n).to_string(), attempt, acted: answered.is_some(), answered, verified: true }
}

/// The auditor's report when a fact is broken. It must not say that all is well.
fn broken(breaks: impl FnOnce(&mut Facts)) -> Report {
    let mut facts = good();
    breaks(&mut facts);
    let report = audit(&facts);
    assert!(!report.is_clean(), "{report:?}");
    report
}

/// The changes of a run, in order.
fn changes(facts: &mut Facts, n: usize) -> Vec<&mut Change> {
    facts.changes.iter_mut().filter(|change| change.run == id(n)).collect()
}

#[test]
fn a_good_day_is_clean_and_counted() {
    let report = audit(&good());
    assert!(report.is_clean(), "{report:?}");
    let counted = (report.retries, report.recovered, report.dead_letters);
    assert_eq!((counted, report.statuses["completed"], report.statuses["failed"]), ((3, 1, 1), 3, 1));
}

#[test]
fn a_run_must_have_ended_and_must_be_there() {
    for status in ["running", "cancelled"] {
        let report = broken(|facts| facts.runs[WEB].status = status.to_owned());
        assert_eq!(report.unfinished, [format!("{} is {status}", id(WEB))]);
    }
    let waits = broken(|facts| facts.runs[DEAD].waits_for_retry = true);
    assert_eq!(waits.unfinished.len(), 1);
    let gone = broken(|facts| facts.acquired.extend([id(77)]));
    assert_eq!(gone.lost, [id(77).to_string()]);
}

#[test]
fn a_final_failure_has_one_complete_dead_letter_and_no_other_job_run_has_one() {
    let none = broken(|facts| facts.letters.clear());
    assert_eq!(none.letters, [format!("{} is failed, with 0 letters", id(DEAD))]);
    let resolved = broken(|facts| facts.letters[0].is_resolved = true);
    assert_eq!(resolved.letters.len(), 1);
    let two = broken(|facts| facts.letters.push(facts.letters[0].clone()));
    assert_eq!(two.letters.len(), 1);
    let of_another = broken(|facts| {
        let letter = Letter { run: id(WEB), ..facts.letters[0].clone() };
        facts.letters.push(letter);
    });
    assert_eq!(of_another.letters.len(), 2);
    let of_nobody = broken(|facts| {
        let letter = Letter { run: id(77), ..facts.letters[0].clone() };
        facts.letters.push(letter);
    });
    assert_eq!(of_nobody.letters.len(), 1);
    for detail in ["function_name", "lock_key", "input_params", "retry_count", "last_attempt_at"] {
        let half = broken(|facts| facts.letters[0].error_details[detail] = json!(null));
        assert_eq!(half.letters.len(), 1, "{detail}");
    }
    let silent = broken(|facts| facts.letters[0].error_message = String::new());
    assert_eq!(silent.letters.len(), 1);
}

#[test]
fn retries_are_counted_as_they_were() {
    let invented = broken(|facts| facts.runs[SQL].retry_count = 2);
    assert_eq!(invented.miscounted.len(), 1);
    let unclaimed = broken(|facts| facts.runs[SQL].claims = 1);
    assert_eq!(unclaimed.miscounted.len(), 1);
    // The row kept its number while it was tried again.
    let forgotten = broken(|facts| changes(facts, SQL)[3].retry_count = 0);
    assert_eq!(forgotten.miscounted.len(), 1);
}

#[test]
fn a_retry_comes_at_its_step_and_no_earlier() {
    let soon = broken(|facts| changes(facts, WEB)[2].retry_at = Some(0));
    assert_eq!(soon.misstepped.len(), 1);
    // The step of another count.
    let wrong = broken(|facts| {
        let mut story = changes(facts, WEB);
        story[2].retry_at = Some(story[2].at + 40_000);
    });
    assert_eq!(wrong.misstepped.len(), 1);
    let early = broken(|facts| {
        let mut story = changes(facts, WEB);
        story[3].at = story[3].retry_at_before.unwrap() - 1;
    });
    assert_eq!(early.misstepped.len(), 1);
    let given_up = broken(|facts| facts.functions[DEAD].max_retries = 2);
    assert_eq!(given_up.misstepped.len(), 1);
    let on_and_on = broken(|facts| facts.functions[WEB].max_retries = 0);
    assert_eq!(on_and_on.misstepped.len(), 1);
}

#[test]
fn each_attempt_is_called_at_most_once_and_was_claimed() {
    for (attempt, why) in [(1, "twice"), (2, "twice"), (3, "nobody claimed it")] {
        let report = broken(|facts| facts.receipts.push(receipt(WEB, attempt, None)));
        assert_eq!(report.uncalled_for.len(), 1, "{why}");
    }
    let of_nobody = broken(|facts| facts.receipts.push(receipt(77, 1, Some(200))));
    assert_eq!(of_nobody.uncalled_for.len(), 1);
    let unsigned = broken(|facts| facts.receipts[0].verified = false);
    assert_eq!(unsigned.uncalled_for.len(), 1);
}

#[test]
fn a_completed_job_run_was_called_in_its_last_attempt() {
    let never = broken(|facts| drop(facts.receipts.remove(1)));
    assert_eq!(never.never_called.len(), 1);
    let badly = broken(|facts| facts.receipts[1].answered = Some(500));
    assert_eq!(badly.never_called.len(), 1);
    let of_another =
        broken(|facts| facts.runs[WEB].result = Some(json!({ "ok": true, "job_id": id(SQL), "attempt": 2 })));
    assert_eq!(of_another.never_called.len(), 1);
}

#[test]
fn a_function_in_the_database_has_its_effect_once_and_with_its_end() {
    let none = broken(|facts| facts.effects.clear());
    assert_eq!(none.effects, [format!("{}: 0 effects with its end", id(SQL))]);
    let twice = broken(|facts| facts.effects.push(facts.effects[0].clone()));
    assert_eq!(twice.effects.len(), 1);
    // An effect of the attempt whose process died.
    let left =
        broken(|facts| facts.effects.push(Effect { xid: xid(SQL, 0), input: Some(json!({ "n": SQL })) }));
    assert_eq!(left.effects.len(), 1);
    let of_another = broken(|facts| facts.effects[0].input = None);
    assert_eq!(of_another.effects.len(), 1);
}

#[test]
fn no_firing_is_lost_and_each_has_its_run() {
    let first = broken(|facts| facts.schedules[0].first = -MINUTE);
    let between = broken(|facts| facts.firings[1].fire_at = 2 * MINUTE);
    let last = broken(|facts| drop(facts.firings.remove(1)));
    let waits = broken(|facts| facts.firings[1].outcome = "waiting".to_owned());
    let without_reason = broken(|facts| facts.firings[1].reason = Some("nobody was there".to_owned()));
    let alone = broken(|facts| facts.firings[1].job_run_id = None);
    let of_another_grain = broken(|facts| facts.runs[2].grain_start = MINUTE);
    let every_grain = broken(|facts| facts.schedules[0].grain = MINUTE);
    for report in [first, last, waits, without_reason, alone, of_another_grain, every_grain] {
        assert_eq!(report.firings.len(), 1, "{report:?}");
    }
    assert_eq!(between.firings.len(), 2);
    let mixed_up = broken(|facts| facts.runs[2].scheduled_for = Some(-MINUTE));
    assert_eq!(mixed_up.firings.len(), 1);
}

#[test]
fn a_run_of_a_schedule_has_one_firing_and_is_not_early() {
    let early = broken(|facts| facts.runs[2].created_at = -1);
    assert_eq!(early.unscheduled.len(), 1);
    let twice = broken(|facts| facts.firings[1].outcome = "started".to_owned());
    assert_eq!(twice.unscheduled.len(), 1);
    let unfired = broken(|facts| facts.runs[SQL].schedule_id = Some(id(9)));
    assert_eq!(unfired.unscheduled.len(), 1);
}

#[test]
fn under_one_key_there_is_one_run() {
    let completed = broken(|facts| facts.runs[SQL].lock_key = "key 0".to_owned());
    assert_eq!(completed.doubled, ["key 0 is completed twice"]);
    let at_once = broken(|facts| {
        facts.runs[DEAD].lock_key = "key 0".to_owned();
        facts.letters[0].error_details["lock_key"] = json!("key 0");
        // It was made while the other ran.
        let made = facts.changes.iter().position(|change| change.run == id(DEAD)).unwrap();
        let made = facts.changes.remove(made);
        facts.changes.insert(2, made);
    });
    assert!(!at_once.doubled.is_empty() && at_once.letters.is_empty());
    // After the other, insisted on.
    let mut forced = good();
    forced.runs[SQL].lock_key = "key 0".to_owned();
    forced.runs[SQL].is_forced = true;
    assert!(audit(&forced).is_clean());
}

#[test]
fn no_process_holds_a_job_run_past_its_lease_and_none_loses_one_before() {
    for silence in [LEASE, LEASE * 20, 0] {
        let report = broken(|facts| {
            let mut story = changes(facts, SQL);
            story[2].heartbeat_before = Some(story[2].at - silence);
        });
        assert_eq!(report.blocked.len(), 1);
    }
    let seen = broken(|facts| facts.seen.push("a run has been silent for an hour".to_owned()));
    assert_eq!(seen.blocked.len(), 1);
}

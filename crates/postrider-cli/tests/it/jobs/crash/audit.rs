//! The auditor: what callers were told, what functions saw and what a trigger wrote down, beside what the database says. It reads; it
//! trusts none of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::json;
use uuid::Uuid;

use super::report::{Change, Facts, Firing, Function, Letter, Receipt, Report, Run, Schedule};

/// The error of a job run whose process stopped its heartbeats.
pub const WENT_AWAY: &str = "the process that ran it went away";

/// Reasons not to make a run of a firing: the grain has one.
const HAS_ONE: &[&str] = &[
    "a run of this grain is running",
    "a run of this grain waits for its retry",
    "completed before in this grain",
];

/// Everything is over: nobody works any more.
pub fn audit(facts: &Facts) -> Report {
    let mut report = Report::default();
    let known: HashMap<Uuid, &Run> = facts.runs.iter().map(|run| (run.id, run)).collect();
    report.lost =
        facts.acquired.iter().filter(|id| !known.contains_key(id)).map(ToString::to_string).collect();
    let functions: HashMap<&str, &Function> =
        facts.functions.iter().map(|function| (function.name.as_str(), function)).collect();
    let mut changes: HashMap<Uuid, Vec<&Change>> = HashMap::new();
    for change in &facts.changes {
        changes.entry(change.run).or_default().push(change);
    }
    let mut letters: HashMap<Uuid, Vec<&Letter>> = HashMap::new();
    for letter in facts.letters.iter().filter(|letter| !letter.is_resolved) {
        letters.entry(letter.run).or_default().push(letter);
    }
    let mut receipts: HashMap<String, Vec<&Receipt>> = HashMap::new();
    for receipt in &facts.receipts {
        receipts.entry(receipt.run.clone()).or_default().push(receipt);
    }
    for run in &facts.runs {
        *report.statuses.entry(run.status.clone()).or_default() += 1;
        let Some(function) = functions.get(run.function_name.as_str()) else {
            report.unfinished.push(format!("{} of no function", run.id));
            continue;
        };
        let story = changes.get(&run.id).map(Vec::as_slice).unwrap_or_default();
        compare_end(run, &letters.remove(&run.id).unwrap_or_default(), &mut report);
        compare_retries(facts, run, function, story, &mut report);
        compare_calls(
            run,
            function,
            story,
            &receipts.remove(&run.id.to_string()).unwrap_or_default(),
            &mut report,
        );
    }
    report.letters.extend(letters.keys().map(|run| format!("a letter about {run}, which does not exist")));
    report.uncalled_for.extend(receipts.keys().map(|run| format!("calls of {run}, which does not exist")));
    compare_effects(facts, &functions, &changes, &mut report);
    for schedule in &facts.schedules {
        compare_firings(facts, schedule, &known, &mut report);
    }
    compare_scheduled(facts, &mut report);
    compare_keys(facts, &known, &mut report);
    report.blocked.extend(facts.seen.iter().cloned());
    report
}

fn compare_end(run: &Run, letters: &[&Letter], report: &mut Report) {
    let is_failed = run.status == "failed" && !run.waits_for_retry;
    if !is_failed && run.status != "completed" {
        report.unfinished.push(format!("{} is {}", run.id, run.status));
    }
    if letters.len() != usize::from(is_failed) {
        report.letters.push(format!("{} is {}, with {} letters", run.id, run.status, letters.len()));
    }
    for letter in letters {
        report.dead_letters += 1;
        let details = &letter.error_details;
        let is_complete = details["function_name"] == json!(run.function_name)
            && details["lock_key"] == json!(run.lock_key)
            && details["input_params"] == json!(run.input_params)
            && details["retry_count"] == json!(run.retry_count)
            && details["last_attempt_at"].is_string()
            && Some(&letter.error_message) == run.error_message.as_ref()
            && !letter.error_message.is_empty();
        if !is_complete {
            report.letters.push(format!("{} has a letter that is not complete: {letter:?}", run.id));
        }
    }
}

/// Goes through the story of a run.
fn compare_retries(facts: &Facts, run: &Run, function: &Function, story: &[&Change], report: &mut Report) {
    let (mut retries, mut claims) = (0, 0);
    for change in story {
        let mut wrong = |why: &str| report.misstepped.push(format!("{}: {why}: {change:?}", run.id));
        claims += change.claims - change.claims_before.unwrap_or_default();
        match (change.status_before.as_deref(), change.status.as_str()) {
            (Some("failed"), "running") => {
                retries += 1;
                report.retries += 1;
                if change.retry_at_before.is_none_or(|at| change.at < at) {
                    wrong("before its time");
                }
            }
            (Some("running"), "failed") => {
                let may_retry = change.retry_count < function.max_retries;
                match change.retry_at {
                    Some(at)
                        if !may_retry || (at - change.at - step(function, change.retry_count)).abs() > 10 =>
                    {
                        wrong("not as the policy says");
                    }
                    None if may_retry && !was_refused(facts, run) => wrong("given up too early"),
                    _ => {}
                }
                let silence = change.heartbeat_before.map(|beat| change.at - beat);
                let went_away = change.error_message.as_deref() == Some(WENT_AWAY);
                report.recovered += usize::from(went_away);
                if went_away
                    && silence.is_none_or(|it| it <= facts.lease || it > facts.lease + facts.allowance)
                {
                    report.blocked.push(format!("{} was taken after {silence:?} microseconds", run.id));
                }
            }
            _ => {}
        }
        if change.retry_count != retries {
            report.miscounted.push(format!("{}: {} retries of {retries}", run.id, change.retry_count));
        }
    }
    let told = (run.retry_count, run.claims, Some(run.status.as_str()));
    if told != (retries, claims, story.last().map(|change| change.status.as_str())) {
        report.miscounted.push(format!("{}: {told:?}, and it was {retries} and {claims}", run.id));
    }
}

/// The pause after a failure, in microseconds.
fn step(function: &Function, retry_count: i32) -> i64 {
    let pause = f64::from(function.initial_delay_ms) * function.backoff_multiplier.powi(retry_count.min(20));
    (pause.min(f64::from(function.max_delay_ms)) * 1000.0) as i64
}

/// Whether its letter says that another try would be of no use.
fn was_refused(facts: &Facts, run: &Run) -> bool {
    facts.letters.iter().any(|letter| letter.run == run.id && letter.error_code == "EXECUTION_ERROR")
}

fn compare_calls(run: &Run, function: &Function, story: &[&Change], calls: &[&Receipt], report: &mut Report) {
    let claims = story.iter().filter(|change| change.claims > change.claims_before.unwrap_or_default());
    // Each claim is a right to one call.
    let mut open: BTreeMap<i32, usize> = BTreeMap::new();
    claims.for_each(|claim| *open.entry(claim.retry_count + 1).or_default() += 1);
    for call in calls {
        let right = open.get_mut(&call.attempt).filter(|left| **left > 0);
        match right {
            Some(left) if call.attempt <= run.retry_count + 1 && call.verified => *left -= 1,
            _ => {
                report
                    .uncalled_for
                    .push(format!("{}: attempt {}, {:?}", run.id, call.attempt, call.answered));
            }
        }
    }
    if run.status == "completed" && function.kind == "http" {
        let last = run.retry_count + 1;
        let well = |call: &&&Receipt| call.attempt == last && call.acted && call.answered == Some(200);
        let result = json!({ "ok": true, "job_id": run.id, "attempt": last });
        if calls.iter().filter(well).count() != 1 || run.result.as_ref() != Some(&result) {
            report.never_called.push(format!("{}: attempt {last}, {:?}", run.id, run.result));
        }
    }
}

/// A run of a function in the database is completed in the transaction that has its effect, and no other effect stays.
fn compare_effects(
    facts: &Facts,
    functions: &HashMap<&str, &Function>,
    changes: &HashMap<Uuid, Vec<&Change>>,
    report: &mut Report,
) {
    let mut effects: HashMap<i64, Vec<_>> = HashMap::new();
    for effect in &facts.effects {
        effects.entry(effect.xid).or_default().push(&effect.input);
    }
    for run in &facts.runs {
        let is_sql = functions.get(run.function_name.as_str()).is_some_and(|function| function.kind == "sql");
        if !is_sql || run.status != "completed" {
            continue;
        }
        let story = changes.get(&run.id).map(Vec::as_slice).unwrap_or_default();
        let ended = story.iter().find(|change| change.status == "completed");
        let found = ended.and_then(|change| effects.remove(&change.xid)).unwrap_or_default();
        if found != [&run.input_params] {
            report.effects.push(format!("{}: {} effects with its end", run.id, found.len()));
        }
    }
    report.effects.extend(effects.iter().map(|(xid, inputs)| format!("{inputs:?} in {xid}, of no run")));
}

fn compare_firings(facts: &Facts, schedule: &Schedule, known: &HashMap<Uuid, &Run>, report: &mut Report) {
    let mut firings: Vec<&Firing> =
        facts.firings.iter().filter(|firing| firing.schedule_id == schedule.id).collect();
    firings.sort_by_key(|firing| firing.fire_at);
    let mut wrong = |why: String| report.firings.push(format!("{}: {why}", schedule.id));
    let mut expected = schedule.first;
    for firing in &firings {
        if firing.fire_at != expected {
            wrong(format!("{} follows where {expected} was due", firing.fire_at));
        }
        expected = firing.fire_at + schedule.step;
        let run = firing.job_run_id.and_then(|id| known.get(&id));
        match (firing.outcome.as_str(), run) {
            ("started", Some(run)) => {
                if run.schedule_id != Some(schedule.id) || run.scheduled_for != Some(firing.fire_at) {
                    wrong(format!("{} has the run of another firing", firing.fire_at));
                }
            }
            // Only where a grain has capacity for more than one.
            ("skipped", Some(run)) => {
                let is_grain = firing.fire_at - firing.fire_at.rem_euclid(schedule.grain) == run.grain_start;
                let has_reason = firing.reason.as_deref().is_some_and(|reason| HAS_ONE.contains(&reason));
                if schedule.step >= schedule.grain || !is_grain || !has_reason {
                    wrong(format!("{} was skipped: {:?}", firing.fire_at, firing.reason));
                }
            }
            _ => {
                wrong(format!("{} is {} without a run: {:?}", firing.fire_at, firing.outcome, firing.reason));
            }
        }
    }
    if schedule.next != expected {
        wrong(format!("it goes on at {} where {expected} was due", schedule.next));
    }
}

/// One firing for each run of a schedule, and not before its time.
fn compare_scheduled(facts: &Facts, report: &mut Report) {
    let mut started: HashMap<Uuid, usize> = HashMap::new();
    for firing in facts.firings.iter().filter(|firing| firing.outcome == "started") {
        *started.entry(firing.job_run_id.unwrap_or_default()).or_default() += 1;
    }
    for run in facts.runs.iter().filter(|run| run.schedule_id.is_some()) {
        let firings = started.get(&run.id).copied().unwrap_or_default();
        let is_early = run.scheduled_for.is_none_or(|time| time > run.created_at);
        if firings != 1 || is_early {
            report.unscheduled.push(format!("{}: {firings} firings, early: {is_early}", run.id));
        }
    }
}

/// Under a key there is one active run at a time, and one that is completed, unless it was forced.
fn compare_keys(facts: &Facts, known: &HashMap<Uuid, &Run>, report: &mut Report) {
    let mut completed = HashSet::new();
    for run in facts.runs.iter().filter(|run| run.status == "completed" && !run.is_forced) {
        if !completed.insert(&run.lock_key) {
            report.doubled.push(format!("{} is completed twice", run.lock_key));
        }
    }
    let mut active: HashMap<&str, Uuid> = HashMap::new();
    for change in &facts.changes {
        let Some(key) = known.get(&change.run).map(|run| run.lock_key.as_str()) else { continue };
        let is_active = change.status == "running" || change.retry_at.is_some();
        match active.get(key) {
            Some(other) if *other != change.run => {
                report.doubled.push(format!("{key}: {} beside {other}", change.run));
            }
            _ if is_active => drop(active.insert(key, change.run)),
            _ => drop(active.remove(key)),
        }
    }
}

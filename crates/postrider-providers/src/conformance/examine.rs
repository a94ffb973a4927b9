//! Compares a trial with the rule of its case: the reported result, the requests that arrived, and the key in them.

use secrecy::ExposeSecret;

use super::{
    DROPPED_AFTER,
    case::{Case, OutcomeKind},
    http::Request,
    report::CaseReport,
    server::Kind,
    subject::Subject,
    trial::{Reported, Trial},
};

/// Maximum bytes of an endless answer that a client may take before it closes. The system's buffers hold most of them.
const TAKEN_BYTES_MAX: usize = 16 << 20;

/// Headers that belong to a connection, not to a message.
const OF_THE_CONNECTION: &[&str] = &["host", "connection"];

/// Compares a trial with the rule of its case.
pub(super) fn examine(subject: &Subject, case: Case, trial: &Trial) -> CaseReport {
    let (expected, because) = subject.expects(case);
    let mut problems = Vec::new();
    for reported in &trial.reported {
        problems.extend(outcome_problems(subject, case, &expected, reported.as_ref(), trial));
    }
    problems.extend(request_problems(subject, case, trial));
    let got = trial
        .reported
        .last()
        .and_then(Option::as_ref)
        .map(|reported| (reported.kind, reported.words.clone()));
    let actions = trial.traffic.count(Kind::Action);
    CaseReport {
        case,
        expected,
        because: because.map(str::to_owned),
        // The worker drops such a call, and the item is in doubt: this equals the outcome `Unknown`.
        got: got
            .or((case == Case::Slow)
                .then(|| (OutcomeKind::Unknown, "dropped when its time was up".to_owned()))),
        actions,
        others: trial.traffic.requests.len() - actions,
        connections: trial.traffic.connections,
        problems,
    }
}

fn outcome_problems(
    subject: &Subject,
    case: Case,
    expected: &[OutcomeKind],
    reported: Option<&Reported>,
    trial: &Trial,
) -> Vec<String> {
    let Some(reported) = reported else {
        let in_doubt = case == Case::Slow && expected.contains(&OutcomeKind::Unknown);
        return if in_doubt {
            vec![]
        } else {
            vec![format!("no outcome was reported within {DROPPED_AFTER:?}")]
        };
    };
    let mut problems = Vec::new();
    if !expected.contains(&reported.kind) {
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        problems.push(format!(
            "expected {}, but the adapter reported {}: {}",
            expected.join(" or "),
            reported.kind,
            reported.words
        ));
    }
    if reported.words.trim().is_empty() {
        problems.push(format!("the adapter reported {} without a reason", reported.kind));
    }
    let repeats = |secret: &String| {
        reported.words.contains(secret) || reported.message_id.as_ref().is_some_and(|id| id.contains(secret))
    };
    if secrets(subject).iter().any(repeats) {
        problems.push("the reported text repeats the secret of the account".to_owned());
    }
    if case == Case::Busy && reported.kind == OutcomeKind::NotSent && reported.retry_after != subject.busy.1 {
        problems.push(format!(
            "the vendor asked to wait {:?}, but the adapter reported {:?}",
            subject.busy.1, reported.retry_after
        ));
    }
    if matches!(reported.kind, OutcomeKind::Delivered | OutcomeKind::Done)
        && let Some(wanted) = message_id(subject, case, trial)
        && reported.message_id.as_ref() != Some(&wanted)
    {
        let named = reported.message_id.as_deref().unwrap_or_default();
        problems.push(format!("the vendor's id is `{wanted}`, but the adapter reported `{named}`"));
    }
    problems
}

/// The texts that no outcome may contain: the secret, and each part of a secret that is a JSON object.
fn secrets(subject: &Subject) -> Vec<String> {
    let secret = subject.secret.expose_secret();
    let parts: Vec<serde_json::Value> = match serde_json::from_str(secret) {
        Ok(serde_json::Value::Object(parts)) => parts.into_values().collect(),
        _ => Vec::new(),
    };
    let parts = parts.iter().filter_map(serde_json::Value::as_str);
    std::iter::once(secret).chain(parts).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The vendor's id of the message, if its last answer was a complete success.
fn message_id(subject: &Subject, case: Case, trial: &Trial) -> Option<String> {
    let last = &trial.traffic.requests.last()?.request;
    match (case, &subject.look_up) {
        (Case::Success | Case::KeptConnection | Case::RepeatAccepted, _) => {
            (subject.accepts)(last).message_id
        }
        (Case::LookUpFound, Some(look_up)) => (look_up.found)(last).message_id,
        _ => None,
    }
}

fn request_problems(subject: &Subject, case: Case, trial: &Trial) -> Vec<String> {
    let traffic = &trial.traffic;
    let mut problems = Vec::new();

    // One action per call, and one per repeat. A preparation without an action and a look-up are not actions.
    let is_doubt = case.is_repeat() || case.is_look_up();
    let calls = match case {
        Case::ConnectionRefused | Case::PreparationRefused | Case::PreparationCut => 0,
        _ => trial.keys.len(),
    };
    let repeats = usize::from(case.is_repeat() && case != Case::RepeatNotTaken);
    for (stage, what, wanted) in [(0, "call", calls), (1, "repeat", repeats)] {
        let came = traffic.actions(stage).count();
        if came != wanted && (stage == 0 || is_doubt) {
            problems.push(format!("{came} requests that act arrived for the {what} instead of {wanted}"));
        }
    }
    if case.is_look_up() && traffic.count(Kind::LookUp) == 0 {
        problems.push("the adapter sent no look-up".to_owned());
    }
    if case == Case::RepeatNotTaken && traffic.requests.iter().any(|received| received.stage > 0) {
        problems.push("the manifest excludes repeats, but a request arrived".to_owned());
    }
    // A connection without a request means that the client retried.
    if traffic.connections > traffic.requests.len() {
        problems.push(format!("{} connections for {} requests", traffic.connections, traffic.requests.len()));
    }
    if trial.elsewhere > 0 {
        problems.push("the adapter followed the redirect".to_owned());
    }
    if traffic.bytes_written > TAKEN_BYTES_MAX {
        problems.push(format!("the adapter read {} MiB of an endless answer", traffic.bytes_written >> 20));
    }
    problems.extend(key_problem(subject, trial));
    let mut stages = traffic.actions(0).zip(traffic.actions(1));
    if let Some(difference) = stages.find_map(|(call, repeat)| difference(subject, call, repeat)) {
        problems.push(format!("the repeat differs from the call: {difference}"));
    }
    problems
}

/// Every reservation's key, once per stage, in the order of the calls.
fn key_problem(subject: &Subject, trial: &Trial) -> Option<String> {
    for stage in [0, 1] {
        for (request, key) in trial.traffic.actions(stage).zip(&trial.keys) {
            if !subject.key.is_in(request, key) {
                return Some(format!(
                    "{} {} does not carry the key {}",
                    request.method, request.path, subject.key
                ));
            }
        }
    }
    None
}

fn difference(subject: &Subject, call: &Request, repeat: &Request) -> Option<String> {
    let headers = |request: &Request| -> Vec<(String, String)> {
        let counts = |name: &str| {
            !OF_THE_CONNECTION.contains(&name)
                && !subject.varying_headers.iter().any(|varying| varying.eq_ignore_ascii_case(name))
        };
        let mut headers: Vec<_> = request.headers.iter().filter(|(name, _)| counts(name)).cloned().collect();
        headers.sort();
        headers
    };
    if (&call.method, &call.path) != (&repeat.method, &repeat.path) {
        return Some(format!("{} {} became {} {}", call.method, call.path, repeat.method, repeat.path));
    }
    if call.body != repeat.body {
        return Some("the body differs".to_owned());
    }
    let (before, after) = (headers(call), headers(repeat));
    let (name, _) = before
        .iter()
        .find(|header| !after.contains(header))
        .or_else(|| after.iter().find(|header| !before.contains(header)))?;
    Some(format!("header `{name}` differs"))
}

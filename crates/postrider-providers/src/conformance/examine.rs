//! What is wrong with what happened in a case: what was said, what arrived, and where the key was.

use secrecy::ExposeSecret;

use super::{
    DROPPED_AFTER,
    case::{Case, Verdict},
    http::Request,
    play::{Said, Trial},
    report::CaseReport,
    server::Kind,
    subject::Subject,
};

/// What a client may have taken of an answer without end before it closed. The system's own buffers hold most of it.
const TAKEN_BYTES_MAX: usize = 16 << 20;

/// Headers that belong to a connection, not to a message.
const OF_THE_CONNECTION: &[&str] = &["host", "connection"];

/// Compares a trial with what must be.
pub(super) fn examine(subject: &Subject, case: Case, trial: &Trial) -> CaseReport {
    let (expected, because) = subject.expects(case);
    let mut problems = Vec::new();
    for said in &trial.said {
        problems.extend(wrong_words(subject, case, &expected, said.as_ref(), trial));
    }
    problems.extend(wrong_requests(subject, case, trial));
    let got = trial.said.last().and_then(Option::as_ref).map(|said| (said.verdict, said.words.clone()));
    let actions = trial.seen.count(Kind::Action);
    CaseReport {
        case,
        expected,
        because: because.map(str::to_owned),
        // The worker drops such a call, and the item is in doubt: this is as good as saying so.
        got: got
            .or((case == Case::Slow).then(|| (Verdict::Unknown, "dropped when its time was up".to_owned()))),
        actions,
        others: trial.seen.requests.len() - actions,
        connections: trial.seen.connections,
        problems,
    }
}

fn wrong_words(
    subject: &Subject,
    case: Case,
    expected: &[Verdict],
    said: Option<&Said>,
    trial: &Trial,
) -> Vec<String> {
    let Some(said) = said else {
        let in_doubt = case == Case::Slow && expected.contains(&Verdict::Unknown);
        return if in_doubt { vec![] } else { vec![format!("nothing was said within {DROPPED_AFTER:?}")] };
    };
    let mut problems = Vec::new();
    if !expected.contains(&said.verdict) {
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        problems.push(format!(
            "expected {}, and it said {}: {}",
            expected.join(" or "),
            said.verdict,
            said.words
        ));
    }
    if said.words.trim().is_empty() {
        problems.push(format!("it said {} and did not say why", said.verdict));
    }
    let repeats = |secret: &String| {
        said.words.contains(secret) || said.message_id.as_ref().is_some_and(|id| id.contains(secret))
    };
    if secrets(subject).iter().any(repeats) {
        problems.push("what it said repeats the secret of the account".to_owned());
    }
    if case == Case::Busy && said.verdict == Verdict::NotSent && said.retry_after != subject.busy.1 {
        problems.push(format!(
            "the vendor wants to be asked again after {:?}, and it said {:?}",
            subject.busy.1, said.retry_after
        ));
    }
    if matches!(said.verdict, Verdict::Delivered | Verdict::Done)
        && let Some(wanted) = message_id(subject, case, trial)
        && said.message_id.as_ref() != Some(&wanted)
    {
        let named = said.message_id.as_deref().unwrap_or_default();
        problems.push(format!("the vendor calls it `{wanted}`, and it said `{named}`"));
    }
    problems
}

/// What must not be said: the secret, and each part of one that is a JSON object.
fn secrets(subject: &Subject) -> Vec<String> {
    let secret = subject.secret.expose_secret();
    let parts: Vec<serde_json::Value> = match serde_json::from_str(secret) {
        Ok(serde_json::Value::Object(parts)) => parts.into_values().collect(),
        _ => Vec::new(),
    };
    let parts = parts.iter().filter_map(serde_json::Value::as_str);
    std::iter::once(secret).chain(parts).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The vendor's name for the message, where its last answer was good and whole.
fn message_id(subject: &Subject, case: Case, trial: &Trial) -> Option<String> {
    let last = &trial.seen.requests.last()?.request;
    match (case, &subject.question) {
        (Case::Success | Case::KeptConnection | Case::RepeatAccepted, _) => {
            (subject.accepts)(last).message_id
        }
        (Case::LookUpFound, Some(question)) => (question.found)(last).message_id,
        _ => None,
    }
}

fn wrong_requests(subject: &Subject, case: Case, trial: &Trial) -> Vec<String> {
    let seen = &trial.seen;
    let mut problems = Vec::new();

    // One action per call, and one per repeat. Whatever comes before an action that never came, and a look-up, are none.
    let is_doubt = case.is_repeat() || case.is_question();
    let calls = match case {
        Case::ConnectionRefused | Case::PreparationRefused | Case::PreparationCut => 0,
        _ => trial.keys.len(),
    };
    let repeats = usize::from(case.is_repeat() && case != Case::RepeatNotTaken);
    for (stage, what, wanted) in [(0, "call", calls), (1, "repeat", repeats)] {
        let came = seen.actions(stage).count();
        if came != wanted && (stage == 0 || is_doubt) {
            problems.push(format!("{came} requests that act arrived for the {what}, and not {wanted}"));
        }
    }
    if case.is_question() && seen.count(Kind::Question) == 0 {
        problems.push("nobody asked the vendor".to_owned());
    }
    if case == Case::RepeatNotTaken && seen.requests.iter().any(|received| received.stage > 0) {
        problems.push("the manifest says that there are no repeats, and there was a request".to_owned());
    }
    // A connection without a request is one on which something was tried again.
    if seen.connections > seen.requests.len() {
        problems.push(format!("{} connections for {} requests", seen.connections, seen.requests.len()));
    }
    if trial.elsewhere > 0 {
        problems.push("it followed the redirect".to_owned());
    }
    if seen.bytes_written > TAKEN_BYTES_MAX {
        problems.push(format!("it read {} MiB of an answer that does not end", seen.bytes_written >> 20));
    }
    problems.extend(wrong_keys(subject, trial));
    let mut stages = seen.actions(0).zip(seen.actions(1));
    if let Some(difference) = stages.find_map(|(call, repeat)| difference(subject, call, repeat)) {
        problems.push(format!("the repeat is not the call: {difference}"));
    }
    problems
}

/// Every reservation's key, once per stage, in the order of the calls.
fn wrong_keys(subject: &Subject, trial: &Trial) -> Option<String> {
    for stage in [0, 1] {
        for (request, key) in trial.seen.actions(stage).zip(&trial.keys) {
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
        return Some("its body is another".to_owned());
    }
    let (before, after) = (headers(call), headers(repeat));
    let (name, _) = before
        .iter()
        .find(|header| !after.contains(header))
        .or_else(|| after.iter().find(|header| !before.contains(header)))?;
    Some(format!("header `{name}` is another"))
}

//! Plays the vendor in one case, and lets the adapter meet it.

use std::{future::Future, sync::Arc, time::Duration};

use postrider_model::{Finding, Outcome, ids::ProviderAccountId};
use postrider_store::Reservation;
use serde_json::json;
use tokio::time::timeout;

use super::{
    CannotRun, DROPPED_AFTER,
    case::{Case, Verdict},
    http::{Answer, Request},
    reservations::Reservations,
    server::{Deserted, Kind, Script, Seen, Server, Then},
    subject::{Question, Subject},
};
use crate::provider::{Account, Provider};

/// What an adapter said, taken apart.
#[derive(Debug)]
pub(super) struct Said {
    pub verdict: Verdict,
    /// Reason, evidence or name.
    pub words: String,
    pub message_id: Option<String>,
    pub retry_after: Option<Duration>,
}

/// What happened in one case.
#[derive(Debug, Default)]
pub(super) struct Trial {
    /// The keys of its reservations, in the order of the calls.
    pub keys: Vec<String>,
    /// What was said about each call, or about the repeat or look-up after it; `None` when nothing was said in time.
    pub said: Vec<Option<Said>>,
    /// What arrived.
    pub seen: Seen,
    /// How many connections were made to where a redirect leads.
    pub elsewhere: usize,
}

/// How many reservations a case needs.
pub(super) fn calls(case: Case) -> usize {
    if case == Case::KeptConnection { 2 } else { 1 }
}

/// Runs one case.
pub(super) async fn play(
    subject: &Subject,
    case: Case,
    own: Vec<Reservation>,
    reservations: &Reservations,
) -> Result<Trial, CannotRun> {
    let mut trial = Trial {
        keys: own.iter().map(|reservation| reservation.key().as_str().to_owned()).collect(),
        ..Trial::default()
    };
    if case == Case::ConnectionRefused {
        let deserted = Deserted::find()?;
        let provider = open(subject, &deserted.url()?)?;
        for reservation in own {
            trial.said.push(call(subject, &*provider, reservation, reservations).await?);
        }
        return Ok(trial);
    }

    let elsewhere = Server::start(Arc::new(|_, _| (Kind::Action, Then::Answer(Answer::status(200))))).await?;
    let server = Server::start(script(subject.clone(), case, elsewhere.url())).await?;
    let provider = open(subject, &server.url())?;
    for reservation in own {
        if case.is_repeat() || case.is_question() {
            let _ = in_time(provider.call(&reservation, &subject.message)).await;
            let doubt = reservations.doubt(reservation).await?;
            server.next_stage();
            let found = if case.is_repeat() {
                in_time(provider.repeat(&doubt, &subject.message)).await
            } else {
                in_time(provider.look_up(&doubt, Some(&subject.message))).await
            };
            trial.said.push(found.as_ref().map(Said::of_finding));
        } else {
            trial.said.push(call(subject, &*provider, reservation, reservations).await?);
        }
    }
    // With its connections.
    drop(provider);
    trial.seen = server.seen().await?;
    trial.elsewhere = elsewhere.seen().await?.connections;
    Ok(trial)
}

fn open(subject: &Subject, url: &str) -> Result<Arc<dyn Provider>, CannotRun> {
    let settings = (subject.settings)(url);
    let account = Account { id: ProviderAccountId::new(), settings: &settings, secret: &subject.secret };
    Ok(subject.adapter.open(&account)?)
}

async fn call(
    subject: &Subject,
    provider: &dyn Provider,
    reservation: Reservation,
    reservations: &Reservations,
) -> Result<Option<Said>, CannotRun> {
    let outcome = in_time(provider.call(&reservation, &subject.message)).await;
    let said = outcome.as_ref().map(Said::of_outcome);
    let dropped = || Outcome::Unknown { reason: "no outcome in time".to_owned() };
    reservations.settle(reservation, outcome.unwrap_or_else(dropped)).await?;
    Ok(said)
}

/// The worker drops a call whose time is up.
async fn in_time<T>(call: impl Future<Output = T>) -> Option<T> {
    timeout(DROPPED_AFTER, call).await.ok()
}

/// What the server does in a case.
fn script(subject: Subject, case: Case, elsewhere: String) -> Script {
    Arc::new(move |request, moment| {
        if let Some((_, answer)) = subject.preparations.iter().find(|(is, _)| is(request)) {
            let then = match case {
                Case::PreparationRefused => Then::Answer(server_error()),
                Case::PreparationCut => Then::Close(Vec::new()),
                _ => Then::Answer(answer(request)),
            };
            return (Kind::Preparation, then);
        }
        if let Some(question) = subject.question.as_ref().filter(|question| (question.is)(request)) {
            return (Kind::Question, to_question(&subject, question, case, request));
        }
        let then = match case {
            // The first call of a case that is about the resolver was carried out, and nobody heard of it.
            case if moment.stage == 0 && (case.is_repeat() || case.is_question()) => Then::Reset,
            Case::KeptConnection if moment.earlier > 0 => Then::Reset,
            _ => to_action(&subject, case, request, &elsewhere),
        };
        (Kind::Action, then)
    })
}

fn to_action(subject: &Subject, case: Case, request: &Request, elsewhere: &str) -> Then {
    let good = (subject.accepts)(request);
    let redirect = |status| {
        Then::Answer(Answer::status(status).header("location", &format!("{elsewhere}{}", request.path)))
    };
    match case {
        Case::Refusal | Case::RepeatRefused => Then::Answer(subject.refuses.clone()),
        Case::Busy | Case::RepeatBusy => Then::Answer(subject.busy.0.clone()),
        Case::ServerError | Case::RepeatServerError => Then::Answer(server_error()),
        Case::Unavailable => Then::Answer(page(503)),
        Case::Slow => Then::Stall,
        Case::CutBeforeAnswer => Then::Close(Vec::new()),
        Case::CutAfterActing | Case::RepeatCut => Then::Reset,
        Case::HalfHead => {
            let (head, _) = good.wire();
            Then::Close(head[..head.len() / 2].to_vec())
        }
        Case::HalfBody | Case::RepeatHalfBody => Then::Close(half(&good)),
        Case::EndMissing => Then::Close(without_end(&good)),
        Case::NotHttp => Then::Close(b"220 mail.example ESMTP ready\r\n".to_vec()),
        Case::WrongContentType => Then::Answer(page(200)),
        Case::Huge => {
            let head =
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
            let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
            Then::Endless(head.to_vec(), chunk.into_bytes())
        }
        Case::Redirect => redirect(307),
        Case::RedirectFound => redirect(302),
        _ => Then::Answer(good),
    }
}

fn to_question(subject: &Subject, question: &Question, case: Case, request: &Request) -> Then {
    match case {
        Case::LookUpFound => Then::Answer((question.found)(request)),
        Case::LookUpBusy => Then::Answer(subject.busy.0.clone()),
        Case::LookUpServerError => Then::Answer(server_error()),
        Case::LookUpForbidden => Then::Answer(Answer::json(401, &json!({ "error": "who are you" }))),
        Case::LookUpCut => Then::Reset,
        Case::LookUpWrongContentType => Then::Answer(page(200)),
        _ => Then::Answer((question.missing)(request)),
    }
}

fn server_error() -> Answer {
    Answer::json(500, &json!({ "error": "internal error" }))
}

fn page(status: u16) -> Answer {
    Answer::text(status, "text/html", "<!doctype html><title>Hello</title><p>This is not what you asked for.")
}

/// A whole head, and half of the body that it announces. An answer without a body announces one for this.
fn half(answer: &Answer) -> Vec<u8> {
    let (head, body) = answer.wire();
    if body.is_empty() {
        return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nhalf of".to_vec();
    }
    [head, body[..body.len() / 2].to_vec()].concat()
}

/// All of an answer that announces one byte more.
fn without_end(answer: &Answer) -> Vec<u8> {
    let (_, body) = answer.wire();
    if body.is_empty() {
        return half(answer);
    }
    [answer.head(body.len() + 1), body].concat()
}

impl Said {
    fn of_outcome(outcome: &Outcome) -> Self {
        let (words, message_id, retry_after) = match outcome {
            Outcome::Delivered { message_id } => (format!("`{message_id}`"), Some(message_id.clone()), None),
            Outcome::NotSent { reason, retry_after } => (reason.clone(), None, *retry_after),
            Outcome::Rejected { reason } | Outcome::Unknown { reason } => (reason.clone(), None, None),
        };
        Self { verdict: outcome.into(), words, message_id, retry_after }
    }

    fn of_finding(finding: &Finding) -> Self {
        let (words, message_id) = match finding {
            Finding::Done { message_id, evidence } => (evidence.clone(), Some(message_id.clone())),
            Finding::Absent { evidence } => (evidence.clone(), None),
            Finding::Unclear { reason } | Finding::CannotTell { reason } => (reason.clone(), None),
        };
        Self { verdict: finding.into(), words, message_id, retry_after: None }
    }
}

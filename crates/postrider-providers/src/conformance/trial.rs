//! Runs one case: starts a scripted vendor and lets the adapter call it.

use std::{future::Future, sync::Arc, time::Duration};

use postrider_model::{Finding, Outcome, ids::ProviderAccountId};
use postrider_store::Reservation;
use serde_json::json;
use tokio::time::timeout;

use super::{
    CannotRun, DROPPED_AFTER,
    case::{Case, OutcomeKind},
    http::{Answer, Request},
    reservations::Reservations,
    server::{Kind, Reaction, Script, Server, Traffic, UnusedAddress},
    subject::{LookUp, Subject},
};
use crate::provider::{Account, Provider};

/// The outcome or finding that an adapter reported.
#[derive(Debug)]
pub(super) struct Reported {
    pub kind: OutcomeKind,
    /// Reason, evidence or id.
    pub words: String,
    pub message_id: Option<String>,
    pub retry_after: Option<Duration>,
}

/// The record of one case.
#[derive(Debug, Default)]
pub(super) struct Trial {
    /// Keys of the reservations, in the order of the calls.
    pub keys: Vec<String>,
    /// The report about each call, or about the repeat or look-up after it; `None` if the adapter reported nothing in time.
    pub reported: Vec<Option<Reported>>,
    /// The requests that arrived.
    pub traffic: Traffic,
    /// Number of connections to the target of a redirect.
    pub elsewhere: usize,
}

/// Number of reservations that a case needs.
pub(super) fn calls(case: Case) -> usize {
    if case == Case::KeptConnection { 2 } else { 1 }
}

/// Runs one case.
pub(super) async fn run(
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
        let unused = UnusedAddress::find()?;
        let provider = open(subject, &unused.url()?)?;
        for reservation in own {
            trial.reported.push(call(subject, &*provider, reservation, reservations).await?);
        }
        return Ok(trial);
    }

    let elsewhere =
        Server::start(Arc::new(|_, _| (Kind::Action, Reaction::Answer(Answer::status(200))))).await?;
    let server = Server::start(script(subject.clone(), case, elsewhere.url())).await?;
    let provider = open(subject, &server.url())?;
    for reservation in own {
        if case.is_repeat() || case.is_look_up() {
            let _ = in_time(provider.call(&reservation, &subject.message)).await;
            let doubt = reservations.doubt(reservation).await?;
            server.next_stage();
            let found = if case.is_repeat() {
                in_time(provider.repeat(&doubt, &subject.message)).await
            } else {
                in_time(provider.look_up(&doubt, Some(&subject.message))).await
            };
            trial.reported.push(found.as_ref().map(Reported::of_finding));
        } else {
            trial.reported.push(call(subject, &*provider, reservation, reservations).await?);
        }
    }
    // Closes its connections as well.
    drop(provider);
    trial.traffic = server.traffic().await?;
    trial.elsewhere = elsewhere.traffic().await?.connections;
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
) -> Result<Option<Reported>, CannotRun> {
    let outcome = in_time(provider.call(&reservation, &subject.message)).await;
    let reported = outcome.as_ref().map(Reported::of_outcome);
    let dropped = || Outcome::Unknown { reason: "no outcome in time".to_owned() };
    reservations.settle(reservation, outcome.unwrap_or_else(dropped)).await?;
    Ok(reported)
}

/// The worker drops a call whose time is up.
async fn in_time<T>(call: impl Future<Output = T>) -> Option<T> {
    timeout(DROPPED_AFTER, call).await.ok()
}

/// The behavior of the server in a case.
fn script(subject: Subject, case: Case, elsewhere: String) -> Script {
    Arc::new(move |request, position| {
        if let Some((_, answer)) = subject.preparations.iter().find(|(is, _)| is(request)) {
            let reaction = match case {
                Case::PreparationRefused => Reaction::Answer(server_error()),
                Case::PreparationCut => Reaction::Close(Vec::new()),
                _ => Reaction::Answer(answer(request)),
            };
            return (Kind::Preparation, reaction);
        }
        if let Some(look_up) = subject.look_up.as_ref().filter(|look_up| (look_up.is)(request)) {
            return (Kind::LookUp, look_up_reaction(&subject, look_up, case, request));
        }
        let reaction = match case {
            // In a case about the resolver the vendor acts on the first call, and the connection is reset before the answer.
            case if position.stage == 0 && (case.is_repeat() || case.is_look_up()) => Reaction::Reset,
            Case::KeptConnection if position.earlier > 0 => Reaction::Reset,
            _ => action_reaction(&subject, case, request, &elsewhere),
        };
        (Kind::Action, reaction)
    })
}

fn action_reaction(subject: &Subject, case: Case, request: &Request, elsewhere: &str) -> Reaction {
    let good = (subject.accepts)(request);
    let redirect = |status| {
        Reaction::Answer(Answer::status(status).header("location", &format!("{elsewhere}{}", request.path)))
    };
    match case {
        Case::Refusal | Case::RepeatRefused => Reaction::Answer(subject.refuses.clone()),
        Case::Busy | Case::RepeatBusy => Reaction::Answer(subject.busy.0.clone()),
        Case::ServerError | Case::RepeatServerError => Reaction::Answer(server_error()),
        Case::Unavailable => Reaction::Answer(page(503)),
        Case::Slow => Reaction::Stall,
        Case::CutBeforeAnswer => Reaction::Close(Vec::new()),
        Case::CutAfterActing | Case::RepeatCut => Reaction::Reset,
        Case::HalfHead => {
            let (head, _) = good.wire();
            Reaction::Close(head[..head.len() / 2].to_vec())
        }
        Case::HalfBody | Case::RepeatHalfBody => Reaction::Close(half(&good)),
        Case::EndMissing => Reaction::Close(without_end(&good)),
        Case::NotHttp => Reaction::Close(b"220 mail.example ESMTP ready\r\n".to_vec()),
        Case::WrongContentType => Reaction::Answer(page(200)),
        Case::Huge => {
            let head =
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
            let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
            Reaction::Endless(head.to_vec(), chunk.into_bytes())
        }
        Case::Redirect => redirect(307),
        Case::RedirectFound => redirect(302),
        _ => Reaction::Answer(good),
    }
}

fn look_up_reaction(subject: &Subject, look_up: &LookUp, case: Case, request: &Request) -> Reaction {
    match case {
        Case::LookUpFound => Reaction::Answer((look_up.found)(request)),
        Case::LookUpBusy => Reaction::Answer(subject.busy.0.clone()),
        Case::LookUpServerError => Reaction::Answer(server_error()),
        Case::LookUpForbidden => Reaction::Answer(Answer::json(401, &json!({ "error": "who are you" }))),
        Case::LookUpCut => Reaction::Reset,
        Case::LookUpWrongContentType => Reaction::Answer(page(200)),
        _ => Reaction::Answer((look_up.missing)(request)),
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

impl Reported {
    fn of_outcome(outcome: &Outcome) -> Self {
        let (words, message_id, retry_after) = match outcome {
            Outcome::Delivered { message_id } => (format!("`{message_id}`"), Some(message_id.clone()), None),
            Outcome::NotSent { reason, retry_after } => (reason.clone(), None, *retry_after),
            other => (other.text().to_owned(), None, None),
        };
        Self { kind: outcome.into(), words, message_id, retry_after }
    }

    fn of_finding(finding: &Finding) -> Self {
        let (words, message_id) = match finding {
            Finding::Done { message_id, evidence } => (evidence.clone(), Some(message_id.clone())),
            Finding::Absent { evidence } => (evidence.clone(), None),
            Finding::Unclear { reason } | Finding::Later { reason, .. } | Finding::CannotTell { reason } => {
                (reason.clone(), None)
            }
        };
        Self { kind: finding.into(), words, message_id, retry_after: None }
    }
}

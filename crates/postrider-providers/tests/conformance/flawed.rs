//! Adapters with a flaw on purpose: the suite must report each flaw in the right case.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome};
use postrider_providers::{
    Account, Adapter, GuardedClient, InvalidAccount, Provider, Reuse,
    conformance::{self, Answer, Case, Key, Subject},
    guard::{self, CallError, Ending},
};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::{Method, Request, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

/// The flaw of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    SendsTwice,
    RetriesWhenCut,
    TimeoutIsRejected,
    ServerErrorIsNotSent,
    FollowsRedirects,
    TruncatedAnswerIsSuccess,
    ReadsEndlessAnswers,
    RetriesServerErrors,
    OmitsTheKey,
    InventsKeys,
    IgnoresRetryAfter,
    InventsAnId,
    RevealsTheSecret,
    RevealsAPartOfTheSecret,
    RepeatsOtherBytes,
    RateLimitIsAbsent,
    SendsInsteadOfLookingUp,
}

struct FlawedAdapter {
    client: GuardedClient,
    flaw: Flaw,
}

const MANIFEST: Manifest = Manifest {
    doubt: DoubtClass::Key,
    key_lifetime: Some(Duration::from_secs(86_400)),
    ..Manifest::new("flawed", &[Channel::Social])
};

impl Adapter for FlawedAdapter {
    fn manifest(&self) -> &'static Manifest {
        &MANIFEST
    }

    fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount> {
        let url = account.settings["url"].as_str().unwrap().to_owned();
        Ok(Arc::new(FlawedProvider {
            client: self.client.clone(),
            url,
            secret: account.secret.clone(),
            flaw: self.flaw,
        }))
    }
}

struct FlawedProvider {
    client: GuardedClient,
    url: String,
    secret: SecretString,
    flaw: Flaw,
}

impl FlawedProvider {
    fn request(&self, method: Method, key: &str, text: String) -> Request {
        let mut request = Request::new(method, format!("{}/send", self.url).parse().unwrap());
        let key = if self.flaw == Flaw::InventsKeys { "12345" } else { key };
        if self.flaw != Flaw::OmitsTheKey {
            request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        }
        *request.body_mut() = Some(text.into());
        request
    }

    async fn send(&self, method: Method, key: &IdempotencyKey, text: String) -> Outcome {
        let request = || self.request(method.clone(), key.as_str(), text.clone());
        if matches!(self.flaw, Flaw::FollowsRedirects | Flaw::ReadsEndlessAnswers) {
            return self.send_unguarded(request()).await;
        }
        let mut answer = self.client.send(request(), Reuse::Never).await;
        let again = match self.flaw {
            Flaw::SendsTwice => true,
            Flaw::RetriesWhenCut => matches!(answer, Err(CallError::Unanswered { .. })),
            Flaw::RetriesServerErrors => answer.as_ref().is_ok_and(|answer| answer.status.is_server_error()),
            _ => false,
        };
        if again {
            answer = self.client.send(request(), Reuse::Never).await;
        }
        match answer {
            Ok(answer) => self.judge(&answer),
            Err(error @ CallError::Unanswered { .. }) if self.flaw == Flaw::TimeoutIsRejected => {
                Outcome::Rejected { reason: error.reason() }
            }
            Err(error @ CallError::Unanswered { .. }) => Outcome::Unknown { reason: error.reason() },
            Err(error) => Outcome::NotSent { reason: error.reason(), retry_after: None },
        }
    }

    async fn send_unguarded(&self, request: Request) -> Outcome {
        let client = reqwest::Client::builder().timeout(conformance::CALL_WITHIN * 2).build().unwrap();
        let sent = match client.execute(request).await {
            Ok(response) => {
                let (status, headers) = (response.status(), response.headers().clone());
                response.bytes().await.map(|body| (status, headers, body))
            }
            Err(error) => Err(error),
        };
        match sent {
            Ok((status, headers, body)) => {
                self.judge(&guard::Answer { status, headers, body, ending: Ending::Whole })
            }
            Err(error) if error.is_connect() => {
                Outcome::NotSent { reason: error.to_string(), retry_after: None }
            }
            Err(error) => Outcome::Unknown { reason: error.to_string() },
        }
    }

    fn judge(&self, answer: &guard::Answer) -> Outcome {
        let status = answer.status;
        let reason = match self.flaw {
            Flaw::RevealsTheSecret => format!("{status} for {}", self.secret.expose_secret()),
            Flaw::RevealsAPartOfTheSecret => format!("{status} for canary-of-the-account"),
            _ => status.to_string(),
        };
        let retry_after = answer.retry_after(Timestamp::now());
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        match status {
            StatusCode::TOO_MANY_REQUESTS if self.flaw == Flaw::IgnoresRetryAfter => {
                Outcome::NotSent { reason, retry_after: None }
            }
            StatusCode::TOO_MANY_REQUESTS => Outcome::NotSent { reason, retry_after },
            _ if status.is_client_error() => Outcome::Rejected { reason },
            _ if status.is_server_error() && self.flaw == Flaw::ServerErrorIsNotSent => {
                Outcome::NotSent { reason, retry_after }
            }
            _ if status.is_success() && self.flaw == Flaw::InventsAnId => {
                Outcome::Delivered { message_id: "1".to_owned() }
            }
            _ if status.is_success() && self.flaw == Flaw::TruncatedAnswerIsSuccess => {
                Outcome::Delivered { message_id: body["id"].as_str().unwrap_or_default().to_owned() }
            }
            _ => match body["id"].as_str() {
                Some(id) if status.is_success() && answer.ending == Ending::Whole => {
                    Outcome::Delivered { message_id: id.to_owned() }
                }
                _ => Outcome::Unknown { reason },
            },
        }
    }
}

#[async_trait]
impl Provider for FlawedProvider {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        self.send(Method::POST, reservation.key(), serde_json::to_string(message).unwrap()).await
    }

    async fn repeat(&self, doubt: &HeldDoubt, message: &Message) -> Finding {
        let mut text = serde_json::to_string(message).unwrap();
        if self.flaw == Flaw::RepeatsOtherBytes {
            text.push(' ');
        }
        match self.send(Method::POST, doubt.key(), text).await {
            Outcome::Delivered { message_id } => {
                Finding::Done { message_id, evidence: "answered".to_owned() }
            }
            Outcome::NotSent { reason, .. } if self.flaw == Flaw::RateLimitIsAbsent => {
                Finding::Absent { evidence: reason }
            }
            Outcome::Rejected { reason } => Finding::Absent { evidence: reason },
            other => Finding::Unclear { reason: other.text().to_owned() },
        }
    }

    async fn look_up(&self, doubt: &HeldDoubt, _: Option<&Message>) -> Finding {
        let method = if self.flaw == Flaw::SendsInsteadOfLookingUp { Method::POST } else { Method::GET };
        let request = self.request(method, doubt.key().as_str(), String::new());
        let unclear = |reason: &str| Finding::Unclear { reason: reason.to_owned() };
        let Ok(answer) = self.client.send(request, Reuse::Never).await else { return unclear("no answer") };
        match self.judge(&answer) {
            Outcome::Delivered { message_id } => {
                Finding::Done { message_id, evidence: "it is there".to_owned() }
            }
            Outcome::Rejected { .. } if answer.status == StatusCode::NOT_FOUND => {
                Finding::Absent { evidence: "it is not there".to_owned() }
            }
            other => unclear(&format!("{other:?}")),
        }
    }
}

fn subject(flaw: Flaw) -> Subject {
    let adapter = Arc::new(FlawedAdapter { client: conformance::client().unwrap(), flaw });
    let good = |_: &conformance::Request| Answer::json(200, &json!({ "id": "c-1" })).with_message_id("c-1");
    Subject::new(adapter, crate::social(), |url| json!({ "url": url }))
        .secret(r#"{"token": "canary-of-the-account", "other": "parrot"}"#)
        .accepts(good)
        .refuses(Answer::json(422, &json!({ "error": "no" })))
        .looks_up(|request| request.method == "GET", good, |_| Answer::status(404))
        .key(Key::Header("Idempotency-Key"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_flaw_is_reported() {
    let flaws = [
        (Flaw::None, &[][..]),
        (
            Flaw::SendsTwice,
            &[
                (Case::Success, "2 requests that act arrived for the call instead of 1"),
                (Case::KeptConnection, "4 requests that act"),
                (Case::RepeatAccepted, "2 requests that act arrived for the repeat instead of 1"),
            ],
        ),
        (
            Flaw::RetriesWhenCut,
            &[
                (Case::CutBeforeAnswer, "2 requests that act"),
                (Case::CutAfterActing, "2 requests that act"),
                (Case::Slow, "2 requests that act"),
                (Case::HalfHead, "2 requests that act"),
            ],
        ),
        (Flaw::TimeoutIsRejected, &[(Case::Slow, "expected unknown, but the adapter reported rejected")]),
        (
            Flaw::ServerErrorIsNotSent,
            &[
                (Case::ServerError, "expected unknown, but the adapter reported not sent"),
                (Case::Unavailable, "expected unknown, but the adapter reported not sent"),
            ],
        ),
        (
            Flaw::FollowsRedirects,
            &[
                (Case::Redirect, "the adapter followed the redirect"),
                (Case::RedirectFound, "the adapter followed the redirect"),
            ],
        ),
        (
            Flaw::TruncatedAnswerIsSuccess,
            &[(Case::HalfBody, "expected unknown, but the adapter reported delivered")],
        ),
        (Flaw::ReadsEndlessAnswers, &[(Case::Huge, "MiB of an endless answer")]),
        (Flaw::RetriesServerErrors, &[(Case::ServerError, "2 requests that act")]),
        (
            Flaw::OmitsTheKey,
            &[
                (Case::Success, "POST /send does not carry the key in the header `Idempotency-Key`"),
                (Case::RepeatAccepted, "does not carry the key"),
            ],
        ),
        (Flaw::InventsKeys, &[(Case::Success, "does not carry the key")]),
        (
            Flaw::IgnoresRetryAfter,
            &[(Case::Busy, "the vendor asked to wait Some(7s), but the adapter reported None")],
        ),
        (
            Flaw::InventsAnId,
            &[
                (Case::Success, "the vendor's id is `c-1`, but the adapter reported `1`"),
                (Case::WrongContentType, "expected unknown, but the adapter reported delivered"),
            ],
        ),
        (Flaw::RevealsTheSecret, &[(Case::Refusal, "repeats the secret")]),
        (Flaw::RevealsAPartOfTheSecret, &[(Case::Refusal, "repeats the secret")]),
        (
            Flaw::RepeatsOtherBytes,
            &[(Case::RepeatAccepted, "the repeat differs from the call: the body differs")],
        ),
        (Flaw::RateLimitIsAbsent, &[(Case::RepeatBusy, "expected unclear, but the adapter reported absent")]),
        (
            Flaw::SendsInsteadOfLookingUp,
            &[
                (Case::LookUpFound, "1 requests that act arrived for the repeat instead of 0"),
                (Case::LookUpMissing, "the adapter sent no look-up"),
            ],
        ),
    ];
    let reports = crate::run_all(flaws.iter().map(|(flaw, _)| subject(*flaw)).collect()).await;
    for ((flaw, expected), report) in flaws.into_iter().zip(reports) {
        assert_eq!(report.is_passed(), flaw == Flaw::None, "{flaw:?}: {report}");
        for (case, words) in expected {
            let problems = report.problems(*case).unwrap();
            assert!(
                problems.iter().any(|problem| problem.contains(words)),
                "{flaw:?} in {}: {report}",
                case.name()
            );
        }
    }
}

// Cases that a flaw does not affect pass.
#[tokio::test]
async fn a_report_shows_the_expected_and_the_reported_outcome_and_the_requests() {
    let report = crate::run_all(vec![subject(Flaw::TimeoutIsRejected)]).await.remove(0);
    assert_eq!(report.problems(Case::Success), Some(&[][..]));
    let shown = report.passed().unwrap_err().to_string();
    let line = |start: &str| shown.lines().find(|line| line.starts_with(start)).expect(start).to_owned();
    let words = |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert_eq!(words(line("ok     success ")), "ok success delivered delivered 1 0 1", "{shown}");
    assert_eq!(
        words(line("FAILED no answer in time")),
        "FAILED no answer in time unknown rejected 1 0 1",
        "{shown}"
    );
    assert!(
        shown.contains("! expected unknown, but the adapter reported rejected: 127.0.0.1 did not answer"),
        "{shown}"
    );
}

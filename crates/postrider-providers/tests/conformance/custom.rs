//! An adapter of a library user, and its test.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome};
use postrider_providers::{
    Account, Adapter, GuardedClient, InvalidAccount, Provider, Reuse, check_url,
    conformance::{self, Answer, Key, Reservations, Subject},
    guard::{CallError, Ending},
};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::{Method, Request, StatusCode, header::AUTHORIZATION};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use url::Url;

/// Posts to pagers. `PUT /pages/{key}` acts once per key; `GET` returns the page, if it exists.
pub struct PagerAdapter {
    pub client: GuardedClient,
}

const MANIFEST: Manifest = Manifest {
    doubt: DoubtClass::Key,
    key_lifetime: Some(Duration::from_secs(86_400)),
    ..Manifest::new("pager", &[Channel::Social])
};

impl Adapter for PagerAdapter {
    fn manifest(&self) -> &'static Manifest {
        &MANIFEST
    }

    fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount> {
        let invalid = |error: &dyn std::fmt::Display| InvalidAccount(error.to_string());
        let url = account.settings["url"].as_str().unwrap_or_default();
        let url: Url = url.parse().map_err(|error| invalid(&error))?;
        check_url(&url, self.client.policy()).map_err(|error| invalid(&error))?;
        Ok(Arc::new(Pager { client: self.client.clone(), url, token: account.secret.clone() }))
    }
}

struct Pager {
    client: GuardedClient,
    url: Url,
    token: SecretString,
}

impl Pager {
    fn request(&self, method: Method, key: &IdempotencyKey) -> Request {
        let url = self.url.join(&format!("/pages/{}", key.as_str())).unwrap();
        let mut request = Request::new(method, url);
        let token = format!("Bearer {}", self.token.expose_secret());
        request.headers_mut().insert(AUTHORIZATION, token.parse().unwrap());
        request
    }

    async fn put(&self, key: &IdempotencyKey, message: &Message) -> Outcome {
        let mut request = self.request(Method::PUT, key);
        *request.body_mut() = Some(serde_json::to_vec(message).unwrap().into());
        match self.client.send(request, Reuse::Never).await {
            Ok(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS => Outcome::NotSent {
                reason: answer.excerpt(),
                retry_after: answer.retry_after(Timestamp::now()),
            },
            Ok(answer) if answer.status.is_client_error() => Outcome::Rejected { reason: answer.excerpt() },
            Ok(answer) => {
                let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                match body["page"].as_str() {
                    Some(page) if answer.status.is_success() && answer.ending == Ending::Whole => {
                        Outcome::Delivered { message_id: page.to_owned() }
                    }
                    _ => Outcome::Unknown { reason: answer.status.to_string() },
                }
            }
            Err(error @ CallError::Unanswered { .. }) => Outcome::Unknown { reason: error.reason() },
            Err(error) => Outcome::NotSent { reason: error.reason(), retry_after: None },
        }
    }
}

#[async_trait]
impl Provider for Pager {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        self.put(reservation.key(), message).await
    }

    async fn repeat(&self, doubt: &HeldDoubt, message: &Message) -> Finding {
        match self.put(doubt.key(), message).await {
            Outcome::Delivered { message_id } => {
                Finding::Done { message_id, evidence: "the repeat was answered".to_owned() }
            }
            Outcome::Rejected { reason } => Finding::Absent { evidence: reason },
            other => Finding::Unclear { reason: other.text().to_owned() },
        }
    }

    async fn look_up(&self, doubt: &HeldDoubt, _: Option<&Message>) -> Finding {
        match self.client.send(self.request(Method::GET, doubt.key()), Reuse::Never).await {
            Ok(answer) if answer.status == StatusCode::NOT_FOUND => {
                Finding::Absent { evidence: "there is no such page".to_owned() }
            }
            Ok(answer) => match serde_json::from_slice::<Value>(&answer.body) {
                Ok(body) if answer.status.is_success() && body["page"].is_string() => Finding::Done {
                    message_id: body["page"].as_str().unwrap().to_owned(),
                    evidence: "the page is there".to_owned(),
                },
                _ => Finding::Unclear { reason: answer.status.to_string() },
            },
            Err(error) => Finding::Unclear { reason: error.reason() },
        }
    }
}

#[tokio::test]
async fn an_adapter_of_a_user_passes_the_suite() {
    let adapter = Arc::new(PagerAdapter { client: conformance::client().unwrap() });
    let page = |_: &conformance::Request| Answer::json(200, &json!({ "page": "p-1" })).with_message_id("p-1");
    let subject = Subject::new(adapter, crate::social(), |url| json!({ "url": url }))
        .secret("pager-token-hunter2")
        .accepts(page)
        .refuses(Answer::json(422, &json!({ "error": "too long" })))
        .looks_up(|request| request.method == "GET", page, |_| Answer::status(404))
        .key(Key::Found(|request, key| request.path == format!("/pages/{key}")));
    let reservations = Reservations::start().await.unwrap();
    let report = conformance::run(&subject, &reservations).await.unwrap();
    println!("{report}");
    // All cases except those for vendors with a preparation, and for vendors without repeats.
    assert_eq!(report.cases.len(), conformance::Case::ALL.len() - 3);
    report.passed().unwrap();
}

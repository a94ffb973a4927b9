//! The face of Resend: `POST /resend/emails`.
//!
//! | request | answer |
//! |---|---|
//! | a new key, or no key | 200 and an `id` |
//! | a key of the last 24 hours, and the same body | the first answer |
//! | a key of the last 24 hours, and another body | 409 `invalid_idempotent_request` |
//! | a key whose first request is under way | 409 `concurrent_idempotent_requests` |
//!
//! After a mail the sim reports `email.sent` and the result to the webhook, if one is set (`PUT /callbacks/resend`), signed as Svix does,
//! even if the sender got no answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::http::request::Parts;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use standardwebhooks::Webhook as Signer;
use url::Url;
use uuid::Uuid;

use super::World;
use super::access::{bearer, number_of};
use super::acting::{Action, ErrorAnswer, Face, Refusal, ValidRequest};
use super::callbacks::{self, Callback, Report};
use super::http::text_of;
use super::memory::{Clash, Done, Identity};
use super::receipts::Receipt;
use super::results::Ending;

/// See the [module](self).
pub static FACE: Face = Face {
    provider: "resend",
    read_head,
    validate,
    error_body,
    refuses_with: StatusCode::UNPROCESSABLE_ENTITY,
    is_natural: false,
};

const KEY_CHARS_MAX: usize = 256;
const RECIPIENTS_MAX: usize = 50;
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 3600);

/// The fields of a mail that the face reads.
#[derive(Deserialize)]
struct Email {
    from: Option<String>,
    to: Option<Recipients>,
    subject: Option<String>,
    html: Option<String>,
    text: Option<String>,
    #[serde(default)]
    tags: Vec<Tag>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Tag {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Recipients {
    One(String),
    Many(Vec<String>),
}

fn read_head(world: &World, head: &Parts, receipt: &mut Receipt) {
    receipt.key = text_of(&head.headers, "idempotency-key");
    receipt.channel = Some("email".to_owned());
    receipt.verified = world.access.admits(bearer(&head.headers));
}

fn validate(_: &World, head: &Parts, body: &Bytes, receipt: &mut Receipt) -> Result<ValidRequest, Refusal> {
    let Some(token) = bearer(&head.headers) else {
        return Err(named(StatusCode::UNAUTHORIZED, "missing_api_key", "Missing API key"));
    };
    if receipt.verified == Some(false) {
        return Err(named(StatusCode::FORBIDDEN, "invalid_api_key", "API key is invalid"));
    }
    if receipt.key.as_ref().is_some_and(|key| key.len() > KEY_CHARS_MAX) {
        let why = "The key must be between 1 and 256 characters";
        return Err(named(StatusCode::BAD_REQUEST, "invalid_idempotency_key", why));
    }
    let email: Email = serde_json::from_slice(body).map_err(|error| {
        named(StatusCode::UNPROCESSABLE_ENTITY, "validation_error", &format!("the body is no mail: {error}"))
    })?;
    let (sent, tags) = email.tags();
    let (from, to) =
        sent.check().map_err(|(name, why)| named(StatusCode::UNPROCESSABLE_ENTITY, name, &why))?;
    (receipt.from, receipt.to) = (Some(from.clone()), Some(to.clone()));
    let identity = receipt.key.as_ref().map(|key| Identity {
        name: format!("resend {} {key}", number_of(token)),
        life: REMEMBERED_FOR,
        clash: Some(clash),
    });
    Ok(ValidRequest { identity, action: Box::new(Sending { from, to, tags }) })
}

impl Email {
    /// The mail, and its tags as webhooks show them.
    fn tags(mut self) -> (Self, BTreeMap<String, String>) {
        let tags = std::mem::take(&mut self.tags);
        (self, tags.into_iter().map(|tag| (tag.name, tag.value)).collect())
    }

    /// Returns the sender and the recipients, or the name and the reason of the error.
    fn check(self) -> Result<(String, String), (&'static str, String)> {
        let missing = |field: &str| ("missing_required_field", format!("Missing `{field}` field."));
        let from = self.from.ok_or_else(|| missing("from"))?;
        let to = match self.to.ok_or_else(|| missing("to"))? {
            Recipients::One(to) => vec![to],
            Recipients::Many(to) => to,
        };
        if self.subject.is_none() {
            return Err(missing("subject"));
        }
        if self.html.is_none() && self.text.is_none() {
            return Err(("missing_required_field", "Missing `html` or `text` field.".to_owned()));
        }
        let invalid = |field: &str| ("validation_error", format!("Invalid `{field}` field."));
        if self.headers.iter().any(|(name, value)| format!("{name}{value}").contains(char::is_control)) {
            return Err(invalid("headers"));
        }
        if !from.contains('@') {
            return Err(("invalid_from_address", "Invalid `from` field.".to_owned()));
        }
        let fits = (1..=RECIPIENTS_MAX).contains(&to.len());
        if !fits || !to.iter().all(|address| address.contains('@')) {
            return Err(invalid("to"));
        }
        Ok((from, to.join(", ")))
    }
}

struct Sending {
    from: String,
    to: String,
    tags: BTreeMap<String, String>,
}

impl Action for Sending {
    fn perform(&self, _: &World) -> Done {
        let id = Uuid::now_v7().to_string();
        let answer = json!({ "id": id });
        Done::new(Some(id), StatusCode::OK, &answer)
    }

    fn publish(&self, world: &Arc<World>, done: &Done, _: Instant) {
        let (Some(id), Some(webhook)) = (&done.id, world.resend.get()) else { return };
        let outcome = world.results.of(&self.to);
        let events = events(outcome.ending).map(|(kind, more)| webhook.report(&self.event(id, kind, &more)));
        match events.into_iter().collect() {
            Ok(reports) => {
                let reports = outcome.play(reports);
                callbacks::send(world, Callback { url: webhook.url, about: id.clone(), reports });
            }
            Err(error) => tracing::error!(?error, "the sim could not sign the reports of a mail"),
        }
    }
}

/// The first event about a mail, and the event with its result.
fn events(ending: Ending) -> [(&'static str, Value); 2] {
    let bounce = |kind: &str, sub_type: &str, code: &str| {
        let message = "the mail server refused the mail";
        let diagnostic = json!([format!("smtp; {code}")]);
        json!({ "bounce": { "type": kind, "subType": sub_type, "message": message, "diagnosticCode": diagnostic } })
    };
    let result = match ending {
        Ending::Bounced => ("email.bounced", bounce("Permanent", "NoEmail", "550 5.1.1 user unknown")),
        Ending::SoftBounced => {
            ("email.bounced", bounce("Transient", "MailboxFull", "452 4.2.2 mailbox full"))
        }
        Ending::Complained => ("email.complained", json!({})),
        Ending::Delayed => ("email.delivery_delayed", json!({})),
        Ending::Failed => ("email.failed", json!({ "failed": { "reason": "reached_daily_quota" } })),
        _ => ("email.delivered", json!({})),
    };
    [("email.sent", json!({})), result]
}

impl Sending {
    /// The body of a webhook.
    fn event(&self, id: &str, kind: &str, more: &Value) -> Value {
        let Self { from, to, tags } = self;
        let now = Timestamp::now().to_string();
        let mut data = json!({
            "email_id": id, "created_at": now, "from": from, "to": [to], "subject": "", "tags": tags,
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            data[name] = value.clone();
        }
        json!({ "type": kind, "created_at": now, "data": data })
    }
}

/// The webhook for the events of all mails.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// An `http` URL on loopback.
    pub url: String,
    /// Secret for signatures, `whsec_…`. It is write-only.
    #[serde(skip_serializing)]
    pub webhook_secret: SecretString,
}

impl Webhook {
    /// An example of a body for `PUT /callbacks/resend`.
    pub const EXAMPLE: &'static str = r#"{"url": "http://127.0.0.1:8080/hook", "webhook_secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}"#;

    /// The event, signed. Svix writes the headers of Standard Webhooks under its own names.
    fn report(&self, event: &Value) -> anyhow::Result<Report> {
        let body = event.to_string();
        let (id, now) = (format!("msg_{}", Uuid::now_v7().simple()), Timestamp::now().as_second());
        let signer = Signer::new(self.webhook_secret.expose_secret())?;
        let signature = vec![
            ("svix-signature", signer.sign(&id, now, body.as_bytes())?),
            ("svix-timestamp", now.to_string()),
            ("svix-id", id),
        ];
        Ok(Report { content_type: "application/json", signature, body })
    }
}

/// The current webhook.
#[derive(Default)]
pub struct Webhooks(Mutex<Option<Webhook>>);

impl Webhooks {
    /// Replaces the webhook, unless its URL or secret is not valid.
    pub fn set(&self, webhook: Option<Webhook>) -> Result<(), String> {
        if let Some(webhook) = &webhook {
            Url::parse(&webhook.url).map_err(|error| format!("`{}` is no URL: {error}", webhook.url))?;
            Signer::new(webhook.webhook_secret.expose_secret())
                .map_err(|_| "`webhook_secret` is not `whsec_` followed by base64".to_owned())?;
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = webhook;
        Ok(())
    }

    /// The webhook, if there is one.
    pub fn get(&self) -> Option<Webhook> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn clash(clash: Clash) -> Refusal {
    let (name, why) = match clash {
        Clash::UnderWay => (
            "concurrent_idempotent_requests",
            "Another request with the same idempotency key is under way; try again later",
        ),
        Clash::OtherBody => {
            ("invalid_idempotent_request", "This idempotency key has been used with another request body")
        }
    };
    named(StatusCode::CONFLICT, name, why)
}

fn error_body(&ErrorAnswer { status, why, .. }: &ErrorAnswer<'_>) -> Value {
    let name = match status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
        status if status.is_server_error() => "internal_server_error",
        _ => "validation_error",
    };
    named(status, name, why).1
}

fn named(status: StatusCode, name: &str, why: &str) -> Refusal {
    (status, json!({ "statusCode": status.as_u16(), "name": name, "message": why }))
}

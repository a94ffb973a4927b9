//! The face of a webhook receiver (Standard Webhooks): `POST /hooks/{name}`.
//!
//! A `webhook-id` that contains an idempotency key belongs to a message, and the face recognises its repeats on the same
//! path. Any other id belongs to an event: the face accepts and counts each delivery, so that the receipts show how often
//! an event was delivered.

use std::borrow::Cow;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use standardwebhooks::{HEADER_WEBHOOK_ID, HEADER_WEBHOOK_TIMESTAMP, Webhook};
use uuid::Uuid;

use super::World;
use super::access::key_in;
use super::acting::{Action, Face, Refusal, ValidRequest};
use super::http::text_of;
use super::memory::{Done, Identity};
use super::receipts::Receipt;

/// See the [module](self).
pub static FACE: Face = Face {
    provider: "webhook",
    read_head,
    validate,
    error_body: |answer| error(answer.why),
    refuses_with: StatusCode::BAD_REQUEST,
    is_natural: false,
};

/// Longer than any sender retries a webhook.
const REMEMBERED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// Verifies signatures with the secrets of senders.
pub struct Verifier {
    secrets: Vec<Webhook>,
}

impl Verifier {
    /// Parses secrets of the form `whsec_` and base64. Errors do not contain them.
    pub fn new(secrets: &[SecretString]) -> anyhow::Result<Self> {
        let mut known = Vec::with_capacity(secrets.len());
        for (place, secret) in secrets.iter().enumerate() {
            let what = || format!("--secret number {} is not `whsec_` followed by base64", place + 1);
            let secret = secret.expose_secret();
            ensure!(secret.len() > "whsec_".len() && secret.starts_with("whsec_"), what());
            known.push(Webhook::new(secret).ok().with_context(what)?);
        }
        Ok(Self { secrets: known })
    }

    /// Whether the signature is valid under any secret; `None` if no secret is set.
    pub fn verify(&self, body: &[u8], headers: &HeaderMap) -> Option<bool> {
        let verified = || self.secrets.iter().any(|secret| secret.verify(body, headers).is_ok());
        (!self.secrets.is_empty()).then(verified)
    }
}

/// Whether a path is `/hooks/{name}`.
pub fn is_hook(path: &str) -> bool {
    path.strip_prefix("/hooks/").is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

fn read_head(_: &World, head: &Parts, receipt: &mut Receipt) {
    receipt.webhook_id = text_of(&head.headers, HEADER_WEBHOOK_ID);
    receipt.webhook_timestamp = text_of(&head.headers, HEADER_WEBHOOK_TIMESTAMP);
}

fn validate(
    world: &World,
    head: &Parts,
    body: &Bytes,
    receipt: &mut Receipt,
) -> Result<ValidRequest, Refusal> {
    receipt.event_type = event_type(body);
    receipt.verified = world.webhooks.verify(body, &head.headers);
    let (Some(id), Some(_)) = (receipt.webhook_id.clone(), &receipt.webhook_timestamp) else {
        let needed = "the headers webhook-id and webhook-timestamp are needed";
        return Err((StatusCode::BAD_REQUEST, error(needed)));
    };
    // Only valid requests get faults, so a wrong signature is always reported as one.
    if receipt.verified == Some(false) {
        return Err((StatusCode::UNAUTHORIZED, error("the signature does not hold")));
    }
    let key = key_in(&id).map(str::to_owned);
    let is_message = key.is_some();
    let identity = is_message.then(|| Identity {
        name: format!("{} {id}", receipt.path),
        life: REMEMBERED_FOR,
        clash: None,
    });
    if is_message {
        let message = serde_json::from_slice::<Value>(body).unwrap_or_default();
        let text = |name: &str| message[name].as_str().or_else(|| message["data"][name].as_str());
        receipt.channel = text("channel").map(str::to_owned);
        receipt.to = text("to").map(str::to_owned);
        receipt.key = key;
    }
    Ok(ValidRequest { identity, action: Box::new(Taking { id, is_message }) })
}

struct Taking {
    id: String,
    is_message: bool,
}

impl Action for Taking {
    fn perform(&self, _: &World) -> Done {
        let name = self.is_message.then(|| format!("sim-{}", Uuid::now_v7().simple()));
        let mut answer = json!({ "accepted": true, "webhook_id": self.id });
        if let Some(name) = &name {
            answer["id"] = json!(name);
        }
        Done::new(name, StatusCode::OK, &answer)
    }
}

fn error(why: &str) -> Value {
    json!({ "error": why })
}

fn event_type(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Payload<'a> {
        #[serde(rename = "type", borrow)]
        event_type: Cow<'a, str>,
    }
    serde_json::from_slice::<Payload<'_>>(body).ok().map(|payload| payload.event_type.into_owned())
}

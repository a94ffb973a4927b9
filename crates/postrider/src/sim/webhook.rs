//! The face of a webhook receiver (Standard Webhooks): `POST /hooks/{name}`.

use std::borrow::Cow;

use anyhow::{Context, ensure};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use standardwebhooks::{HEADER_WEBHOOK_ID, HEADER_WEBHOOK_TIMESTAMP, Webhook};

use super::World;
use super::answer::{Answer, Cut, conclude, problem};
use super::faults::Fault;
use super::http::{Body, read_body, text_of};
use super::receipts::{Receipt, now};

/// Knows the secrets that senders sign with.
pub struct Receiver {
    secrets: Vec<Webhook>,
}

impl Receiver {
    /// Takes secrets of the form `whsec_` and base64. Errors do not show them.
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

    /// Whether any secret signed this; nothing when there is none to compare with.
    fn verify(&self, body: &[u8], headers: &HeaderMap) -> Option<bool> {
        let verified = || self.secrets.iter().any(|secret| secret.verify(body, headers).is_ok());
        (!self.secrets.is_empty()).then(verified)
    }
}

/// Whether a path is `/hooks/{name}`.
pub fn is_hook(path: &str) -> bool {
    path.strip_prefix("/hooks/").is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

/// Reads a request, judges it, lets a fault strike if it is good, writes it down and answers.
pub async fn receive(world: &World, request: Request<Incoming>) -> Result<Answer, Cut> {
    let (head, body) = request.into_parts();
    let mut receipt = Receipt {
        path: head.uri.path().to_owned(),
        webhook_id: text_of(&head.headers, HEADER_WEBHOOK_ID),
        webhook_timestamp: text_of(&head.headers, HEADER_WEBHOOK_TIMESTAMP),
        ..Receipt::default()
    };
    let body = match read_body(body).await {
        Body::Whole(body) => body,
        Body::TooLarge => {
            receipt.at = now();
            let answer = json!({ "error": "the body is larger than 1 MiB" });
            return conclude(world, receipt, (StatusCode::PAYLOAD_TOO_LARGE, answer)).await;
        }
        // Half a request is not one: nothing was received, and nothing is written down.
        Body::Broken => return Ok(problem(StatusCode::BAD_REQUEST, "the body breaks off")),
    };
    receipt.at = now();
    receipt.event_type = event_type(&body);
    receipt.body_sha256 = Some(format!("{:x}", Sha256::digest(&body)));
    receipt.verified = world.webhooks.verify(&body, &head.headers);

    if receipt.webhook_id.is_none() || receipt.webhook_timestamp.is_none() {
        let answer = json!({ "error": "the headers webhook-id and webhook-timestamp are needed" });
        return conclude(world, receipt, (StatusCode::BAD_REQUEST, answer)).await;
    }
    if receipt.verified == Some(false) {
        let answer = json!({ "error": "the signature does not hold" });
        return conclude(world, receipt, (StatusCode::UNAUTHORIZED, answer)).await;
    }
    // Only good requests meet faults, so a wrong signature always shows as one.
    receipt.fault = world.draw(None, receipt.webhook_id.as_deref());
    receipt.acted = receipt.fault.is_none_or(Fault::acts);
    let answer = json!({ "accepted": true, "webhook_id": receipt.webhook_id });
    conclude(world, receipt, (StatusCode::OK, answer)).await
}

fn event_type(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Payload<'a> {
        #[serde(rename = "type", borrow)]
        event_type: Cow<'a, str>,
    }
    serde_json::from_slice::<Payload<'_>>(body).ok().map(|payload| payload.event_type.into_owned())
}

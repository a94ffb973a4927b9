//! The face of a provider of messages: `POST /messages` with `Idempotency-Key`, for e-mail, voice and social.
//!
//! It does not recognise a key that it has seen: it acts every time it is asked, and counts. A provider that forgave
//! a second call would hide what the receipts are there to show.

use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, Request, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::World;
use super::answer::{Answer, Cut, conclude, problem};
use super::faults::Fault;
use super::http::{Body, read_body, text_of};
use super::receipts::{Receipt, now};

const KEY_CHARS_MAX: usize = 255;

/// Knows the token that callers must show, if they must.
pub struct Provider {
    token: Option<SecretString>,
}

impl Provider {
    /// Without a token everybody is welcome.
    pub fn new(token: Option<SecretString>) -> Self {
        Self { token }
    }

    /// Whether the caller has the token; nothing when there is none to compare with.
    fn verify(&self, headers: &HeaderMap) -> Option<bool> {
        let token = self.token.as_ref()?.expose_secret();
        let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        Some(shown.and_then(|shown| shown.strip_prefix("Bearer ")) == Some(token))
    }
}

/// What a message must be.
#[derive(Deserialize)]
#[serde(tag = "channel", rename_all = "lowercase")]
enum Message {
    Email { to: String, text: Option<String>, html: Option<String> },
    Voice { to: String, script: String },
    Social { text: String },
}

impl Message {
    /// Channel and recipient, or what is missing.
    fn check(self) -> Result<(&'static str, Option<String>), &'static str> {
        match self {
            Self::Email { to, .. } | Self::Voice { to, .. } if to.is_empty() => Err("`to` is empty"),
            Self::Email { text: None, html: None, .. } => Err("an email needs `text` or `html`"),
            Self::Email { to, .. } => Ok(("email", Some(to))),
            Self::Voice { script, .. } if script.is_empty() => Err("`script` is empty"),
            Self::Voice { to, .. } => Ok(("voice", Some(to))),
            Self::Social { text } if text.is_empty() => Err("`text` is empty"),
            Self::Social { .. } => Ok(("social", None)),
        }
    }
}

/// Reads a request, judges it, lets a fault strike if it is good, writes it down and answers.
pub async fn receive(world: &World, request: Request<Incoming>) -> Result<Answer, Cut> {
    let (head, body) = request.into_parts();
    let mut receipt = Receipt {
        path: head.uri.path().to_owned(),
        key: text_of(&head.headers, "idempotency-key"),
        verified: world.provider.verify(&head.headers),
        ..Receipt::default()
    };
    let body = match read_body(body).await {
        Body::Whole(body) => body,
        Body::TooLarge => {
            receipt.at = now();
            return conclude(world, receipt, refusal(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"))
                .await;
        }
        // Half a request is not one: nothing was received, and nothing is written down.
        Body::Broken => return Ok(problem(StatusCode::BAD_REQUEST, "the body breaks off")),
    };
    receipt.at = now();
    receipt.body_sha256 = Some(format!("{:x}", Sha256::digest(&body)));

    if receipt.verified == Some(false) {
        return conclude(world, receipt, refusal(StatusCode::UNAUTHORIZED, "the token is wrong")).await;
    }
    if receipt.key.as_ref().is_none_or(|key| key.len() > KEY_CHARS_MAX) {
        let needed = "the header Idempotency-Key is needed, with at most 255 characters";
        return conclude(world, receipt, refusal(StatusCode::BAD_REQUEST, needed)).await;
    }
    let message = serde_json::from_slice::<Message>(&body).map_err(|error| error.to_string());
    match message.and_then(|message| message.check().map_err(str::to_owned)) {
        Ok((channel, to)) => (receipt.channel, receipt.to) = (Some(channel.to_owned()), to),
        Err(wrong) => return conclude(world, receipt, refusal(StatusCode::BAD_REQUEST, &wrong)).await,
    }

    receipt.fault = world.draw(receipt.to.as_deref(), receipt.key.as_deref());
    receipt.acted = receipt.fault.is_none_or(Fault::acts);
    let id = format!("sim-{}", Uuid::now_v7().simple());
    receipt.message_id = receipt.acted.then(|| id.clone());
    conclude(world, receipt, (StatusCode::OK, json!({ "id": id, "accepted": true }))).await
}

fn refusal(status: StatusCode, why: &str) -> (StatusCode, Value) {
    (status, json!({ "error": why }))
}

//! The face of a message provider for e-mail, voice, social and chat: `POST /messages` with `Idempotency-Key`, and
//! `GET /messages?key=KEY` for look-ups.
//!
//! The face does not recognise repeats: it acts on every request, so that the receipts show a second call under a key.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::World;
use super::access::bearer;
use super::acting::{Action, Face, Refusal, ValidRequest, look_up};
use super::answer::{Answer, Cut};
use super::http::{query_value, text_of};
use super::memory::Done;
use super::receipts::Receipt;

/// See the [module](self).
pub static FACE: Face = Face {
    provider: "sim",
    read_head,
    validate,
    error_body: |answer| error(answer.why),
    refuses_with: StatusCode::BAD_REQUEST,
    is_natural: false,
};

const KEY_CHARS_MAX: usize = 255;

/// The body of a message.
#[derive(Deserialize)]
#[serde(tag = "channel", rename_all = "lowercase")]
enum Message {
    Email { to: String, text: Option<String>, html: Option<String> },
    Voice { to: String, script: String },
    Social { text: String },
    Chat { to: String, text: String },
}

impl Message {
    /// Returns the channel and the recipient, or the reason why the message is invalid.
    fn check(self) -> Result<(&'static str, Option<String>), &'static str> {
        match self {
            Self::Email { to, .. } | Self::Voice { to, .. } | Self::Chat { to, .. } if to.is_empty() => {
                Err("`to` is empty")
            }
            Self::Email { text: None, html: None, .. } => Err("an email needs `text` or `html`"),
            Self::Email { to, .. } => Ok(("email", Some(to))),
            Self::Voice { script, .. } if script.is_empty() => Err("`script` is empty"),
            Self::Voice { to, .. } => Ok(("voice", Some(to))),
            Self::Social { text } | Self::Chat { text, .. } if text.is_empty() => Err("`text` is empty"),
            Self::Social { .. } => Ok(("social", None)),
            Self::Chat { to, .. } => Ok(("chat", Some(to))),
        }
    }
}

fn read_head(world: &World, head: &Parts, receipt: &mut Receipt) {
    receipt.key = text_of(&head.headers, "idempotency-key");
    receipt.verified = world.access.admits(bearer(&head.headers));
}

fn validate(_: &World, _: &Parts, body: &Bytes, receipt: &mut Receipt) -> Result<ValidRequest, Refusal> {
    if receipt.verified == Some(false) {
        return Err((StatusCode::UNAUTHORIZED, error("the token is wrong")));
    }
    let refusal = |why: &str| (StatusCode::BAD_REQUEST, error(why));
    let Some(key) = receipt.key.clone().filter(|key| key.len() <= KEY_CHARS_MAX) else {
        return Err(refusal("the header Idempotency-Key is needed, with at most 255 characters"));
    };
    let message = serde_json::from_slice::<Message>(body).map_err(|error| refusal(&error.to_string()))?;
    let (channel, to) = message.check().map_err(refusal)?;
    (receipt.channel, receipt.to) = (Some(channel.to_owned()), to);
    Ok(ValidRequest { identity: None, action: Box::new(Sending { key }) })
}

struct Sending {
    key: String,
}

impl Action for Sending {
    fn perform(&self, _: &World) -> Done {
        let id = format!("sim-{}", Uuid::now_v7().simple());
        let answer = json!({ "id": id, "accepted": true });
        Done::new(Some(id), StatusCode::OK, &answer)
    }

    fn publish(&self, world: &Arc<World>, done: &Done, findable_at: Instant) {
        if let Some(id) = &done.id {
            world.messages.add(&self.key, findable_at, id.as_str().into());
        }
    }
}

/// `GET /messages?key=KEY`: the id of the first message under this key.
pub async fn find(world: &World, request: &Request<Incoming>) -> Result<Answer, Cut> {
    let key = query_value(request.uri().query(), "key");
    look_up(world, &FACE, None, key.as_deref(), || {
        let admitted = world.access.admits(bearer(request.headers()));
        match key.as_deref() {
            _ if admitted == Some(false) => (StatusCode::UNAUTHORIZED, error("the token is wrong")),
            None => (StatusCode::BAD_REQUEST, error("the query takes key=KEY")),
            Some(key) => match world.messages.find(key) {
                Some(id) => (StatusCode::OK, json!({ "id": *id })),
                None => (StatusCode::NOT_FOUND, error("unknown key")),
            },
        }
    })
    .await
}

fn error(why: &str) -> Value {
    json!({ "error": why })
}

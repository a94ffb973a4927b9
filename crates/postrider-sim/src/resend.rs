//! The face of Resend: `POST /resend/emails`.
//!
//! | request | answer |
//! |---|---|
//! | a new key, or no key | 200 and an `id` |
//! | a key of the last 24 hours, and the same body | the first answer |
//! | a key of the last 24 hours, and another body | 409 `invalid_idempotent_request` |
//! | a key whose first request is under way | 409 `concurrent_idempotent_requests` |

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::World;
use super::access::{bearer, number_of};
use super::acting::{Action, ErrorAnswer, Face, Refusal, ValidRequest};
use super::http::text_of;
use super::memory::{Clash, Done, Identity};
use super::receipts::Receipt;

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
    let (from, to) =
        email.check().map_err(|(name, why)| named(StatusCode::UNPROCESSABLE_ENTITY, name, &why))?;
    (receipt.from, receipt.to) = (Some(from), Some(to));
    let identity = receipt.key.as_ref().map(|key| Identity {
        name: format!("resend {} {key}", number_of(token)),
        life: REMEMBERED_FOR,
        clash: Some(clash),
    });
    Ok(ValidRequest { identity, action: Box::new(Sending) })
}

impl Email {
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

struct Sending;

impl Action for Sending {
    fn perform(&self, _: &World) -> Done {
        let id = Uuid::now_v7().to_string();
        let answer = json!({ "id": id });
        Done::new(Some(id), StatusCode::OK, &answer)
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

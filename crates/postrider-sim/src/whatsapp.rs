//! The face of WhatsApp's Cloud API: `POST /whatsapp/{phone_number_id}/messages`, and its status reports.
//!
//! The face does not recognise repeats: every accepted request is a message. The sim reports `sent` and `delivered` to the
//! webhook of the number, if one is set (`PUT /callbacks/whatsapp`), with the message's `biz_opaque_callback_data`, signed
//! with the app's secret, even if the sender got no answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use hyper::StatusCode;
use hyper::http::request::Parts;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::Sha256;
use url::Url;
use uuid::Uuid;

use super::World;
use super::access::{bearer, number_of};
use super::acting::{Action, ErrorAnswer, Face, Refusal, ValidRequest};
use super::callbacks::{self, Callback, Report};
use super::memory::Done;
use super::receipts::Receipt;

/// See the [module](self).
pub static FACE: Face = Face {
    provider: "whatsapp",
    read_head,
    validate,
    error_body,
    refuses_with: StatusCode::BAD_REQUEST,
    is_natural: false,
};

const TEXT_CHARS_MAX: usize = 4096;
const ECHO_CHARS_MAX: usize = 512;

/// Whether a path is `/whatsapp/{phone_number_id}/messages`.
pub fn is_messages(path: &str) -> bool {
    number_in(path).is_some()
}

fn number_in(path: &str) -> Option<&str> {
    let number = path.strip_prefix("/whatsapp/")?.strip_suffix("/messages")?;
    (!number.is_empty() && !number.contains('/')).then_some(number)
}

/// The fields of a message that the face reads.
#[derive(Deserialize)]
struct Body {
    messaging_product: Option<String>,
    to: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    text: Option<Text>,
    context: Option<Context>,
    biz_opaque_callback_data: Option<String>,
}

#[derive(Deserialize)]
struct Text {
    body: Option<String>,
}

#[derive(Deserialize)]
struct Context {
    message_id: Option<String>,
}

fn read_head(world: &World, head: &Parts, receipt: &mut Receipt) {
    receipt.channel = Some("chat".to_owned());
    receipt.from = number_in(head.uri.path()).map(str::to_owned);
    receipt.verified = world.access.admits(bearer(&head.headers));
}

fn validate(_: &World, head: &Parts, body: &Bytes, receipt: &mut Receipt) -> Result<ValidRequest, Refusal> {
    if bearer(&head.headers).is_none() || receipt.verified == Some(false) {
        return Err(coded(StatusCode::UNAUTHORIZED, 190, "Invalid OAuth access token"));
    }
    let invalid = |why: &str| detailed(StatusCode::BAD_REQUEST, 100, "(#100) Invalid parameter", why);
    let body: Body = serde_json::from_slice(body).map_err(|error| invalid(&error.to_string()))?;
    let text = body.text.and_then(|text| text.body).filter(|text| !text.is_empty());
    let echo = body.biz_opaque_callback_data.filter(|echo| !echo.is_empty());
    (receipt.to, receipt.text, receipt.key) = (body.to.clone(), text.clone(), echo.clone());
    receipt.thread = body.context.and_then(|context| context.message_id);

    let number = number_in(head.uri.path()).filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let Some(number) = number.map(str::to_owned) else {
        return Err(no_such_number());
    };
    if body.messaging_product.as_deref() != Some("whatsapp") {
        return Err(invalid("`messaging_product` must be `whatsapp`"));
    }
    if body.kind.is_some_and(|kind| kind != "text") {
        return Err(invalid("the sim takes messages of type `text` only"));
    }
    let to = body.to.unwrap_or_default();
    let wa_id = wa_id_of(&to).ok_or_else(|| invalid("`to` must be a phone number"))?;
    let fits = text.is_some_and(|text| text.chars().count() <= TEXT_CHARS_MAX);
    if !fits {
        return Err(invalid("`text.body` must have between 1 and 4096 characters"));
    }
    if echo.as_ref().is_some_and(|echo| echo.chars().count() > ECHO_CHARS_MAX) {
        return Err(invalid("`biz_opaque_callback_data` takes at most 512 characters"));
    }
    Ok(ValidRequest { identity: None, action: Box::new(Sending { number, to, wa_id, echo }) })
}

/// The digits of a phone number.
fn wa_id_of(to: &str) -> Option<String> {
    let digits: String = to.chars().filter(|c| !" +-()".contains(*c)).collect();
    let is_number = (6..=15).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(digits)
}

struct Sending {
    number: String,
    to: String,
    wa_id: String,
    echo: Option<String>,
}

impl Action for Sending {
    fn perform(&self, _: &World) -> Done {
        let id = format!("wamid.{}", STANDARD.encode(format!("{}{}", self.wa_id, Uuid::now_v7().simple())));
        let answer = json!({
            "messaging_product": "whatsapp",
            "contacts": [{ "input": self.to, "wa_id": self.wa_id }],
            "messages": [{ "id": id }],
        });
        Done::new(Some(id), StatusCode::OK, &answer)
    }

    fn publish(&self, world: &Arc<World>, done: &Done, _: Instant) {
        let (Some(id), Some(webhook)) = (&done.id, world.whatsapp.of(&self.number)) else { return };
        let reports =
            ["sent", "delivered"].map(|status| report(&webhook.app_secret, &self.status(id, status)));
        match reports.into_iter().collect() {
            Ok(reports) => {
                callbacks::send(world, Callback { url: webhook.url, about: id.clone(), reports });
            }
            Err(error) => tracing::error!(?error, "the sim could not sign the reports of a message"),
        }
    }
}

impl Sending {
    /// The webhook's body about one change.
    fn status(&self, id: &str, status: &str) -> Value {
        let Self { number, wa_id, echo, .. } = self;
        let mut change = json!({
            "id": id,
            "status": status,
            "timestamp": Timestamp::now().as_second().to_string(),
            "recipient_id": wa_id,
            "pricing": { "billable": false, "pricing_model": "PMP", "category": "service" },
        });
        if let Some(echo) = echo {
            change["biz_opaque_callback_data"] = json!(echo);
        }
        let metadata = json!({ "display_phone_number": display_number(number), "phone_number_id": number });
        let value = json!({ "messaging_product": "whatsapp", "metadata": metadata, "statuses": [change] });
        let entry = json!({ "id": "1", "changes": [{ "field": "messages", "value": value }] });
        json!({ "object": "whatsapp_business_account", "entry": [entry] })
    }
}

/// An unassigned phone number, the same for each id.
fn display_number(id: &str) -> String {
    format!("1555{:07}", number_of(id) % 10_000_000)
}

fn report(app_secret: &SecretString, body: &Value) -> anyhow::Result<Report> {
    let body = body.to_string();
    let mut signed = Hmac::<Sha256>::new_from_slice(app_secret.expose_secret().as_bytes())?;
    signed.update(body.as_bytes());
    let signature =
        vec![("x-hub-signature-256", format!("sha256={}", hex::encode(signed.finalize().into_bytes())))];
    Ok(Report { content_type: "application/json", signature, body })
}

/// The webhook for the reports about a number.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// Id of the number; if absent, the webhook is for all numbers without their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phone_number_id: Option<String>,
    /// An `http` URL on loopback.
    pub url: String,
    /// Secret for signatures. It is write-only.
    #[serde(skip_serializing)]
    pub app_secret: SecretString,
}

/// The current webhooks.
#[derive(Default)]
pub struct Webhooks(Mutex<Vec<Webhook>>);

impl Webhooks {
    /// An example of a body for `PUT /callbacks/whatsapp`.
    pub const EXAMPLE: &'static str =
        r#"[{"phone_number_id": "1055", "url": "http://127.0.0.1:8080/hook", "app_secret": "secret"}]"#;

    /// Replaces all webhooks, unless a URL is not valid.
    pub fn set(&self, webhooks: Vec<Webhook>) -> Result<(), String> {
        for webhook in &webhooks {
            Url::parse(&webhook.url).map_err(|error| format!("`{}` is no URL: {error}", webhook.url))?;
        }
        *self.now() = webhooks;
        Ok(())
    }

    /// All webhooks.
    pub fn all(&self) -> Vec<Webhook> {
        self.now().clone()
    }

    fn of(&self, number: &str) -> Option<Webhook> {
        let all = self.now();
        let is_for = |wanted: Option<&str>| {
            all.iter().find(|webhook| webhook.phone_number_id.as_deref() == wanted).cloned()
        };
        is_for(Some(number)).or_else(|| is_for(None))
    }

    fn now(&self) -> MutexGuard<'_, Vec<Webhook>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn error_body(answer: &ErrorAnswer<'_>) -> Value {
    let (code, message) = match answer.status {
        StatusCode::TOO_MANY_REQUESTS => (130_429, "(#130429) Rate limit hit"),
        StatusCode::SERVICE_UNAVAILABLE => (131_016, "(#131016) Service unavailable"),
        status if status.is_server_error() => (131_000, "(#131000) Something went wrong"),
        _ => (131_009, "(#131009) Parameter value is not valid"),
    };
    detailed(answer.status, code, message, answer.why).1
}

/// The answer of the Graph API for an object that is missing or not accessible with the token.
fn no_such_number() -> Refusal {
    let (status, mut answer) =
        coded(StatusCode::BAD_REQUEST, 100, "Unsupported post request: no such object");
    (answer["error"]["type"], answer["error"]["error_subcode"]) = (json!("GraphMethodException"), json!(33));
    (status, answer)
}

fn detailed(status: StatusCode, code: u32, message: &str, details: &str) -> Refusal {
    let (status, mut answer) = coded(status, code, message);
    answer["error"]["error_data"] = json!({ "messaging_product": "whatsapp", "details": details });
    (status, answer)
}

fn coded(status: StatusCode, code: u32, message: &str) -> Refusal {
    let trace = format!("A{}", Uuid::now_v7().simple());
    let error = json!({ "message": message, "type": "OAuthException", "code": code, "fbtrace_id": trace });
    (status, json!({ "error": error }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_signed_over_its_body() {
        // As `openssl dgst -sha256 -hmac shh` signs `null`.
        let expected = "sha256=7256291e5fa7eec8c2f8fada259802fac2d430a29da4817c39a9a12e1205f3be";
        assert_eq!(
            report(&"shh".into(), &Value::Null).unwrap().signature,
            [("x-hub-signature-256", expected.to_owned())]
        );
    }
}

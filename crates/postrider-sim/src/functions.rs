//! The face of functions that jobs call (Standard Webhooks): `POST /functions/{name}`.
//!
//! The function runs on every call, and its receipt contains the attempt: the receipts show how often a job was
//! performed. It answers `{"ok": true, "job_id": …, "attempt": …}`, or with `sim_answer` of the input, if the input is an
//! object that has one.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};
use standardwebhooks::{HEADER_WEBHOOK_ID, HEADER_WEBHOOK_TIMESTAMP};

use super::World;
use super::acting::{Action, Face, Refusal, ValidRequest};
use super::http::text_of;
use super::memory::Done;
use super::receipts::Receipt;

/// See the [module](self).
pub static FACE: Face = Face {
    provider: "function",
    read_head,
    validate,
    error_body: |answer| error(answer.why),
    refuses_with: StatusCode::BAD_REQUEST,
    is_natural: false,
};

/// The body of a call.
#[derive(Deserialize)]
struct Call {
    r#type: String,
    data: Invocation,
}

#[derive(Deserialize)]
struct Invocation {
    tenant_id: String,
    job_id: String,
    function_name: String,
    lock_key: String,
    attempt: u32,
    input: Value,
}

/// Whether a path is `/functions/{name}`.
pub fn is_function(path: &str) -> bool {
    path.strip_prefix("/functions/").is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

fn read_head(_: &World, head: &Parts, receipt: &mut Receipt) {
    receipt.webhook_id = text_of(&head.headers, HEADER_WEBHOOK_ID);
    receipt.webhook_timestamp = text_of(&head.headers, HEADER_WEBHOOK_TIMESTAMP);
    receipt.key = receipt.webhook_id.clone();
}

fn validate(
    world: &World,
    head: &Parts,
    body: &Bytes,
    receipt: &mut Receipt,
) -> Result<ValidRequest, Refusal> {
    let refusal = |why: &str| (StatusCode::BAD_REQUEST, error(why));
    receipt.verified = world.webhooks.verify(body, &head.headers);
    let call = serde_json::from_slice::<Call>(body).map_err(|error| refusal(&error.to_string()));
    if let Ok(Call { r#type, data }) = &call {
        receipt.event_type = Some(r#type.clone());
        receipt.to = Some(data.function_name.clone());
        receipt.tenant_id = Some(data.tenant_id.clone());
        receipt.lock_key = Some(data.lock_key.clone());
        receipt.attempt = Some(data.attempt);
    }
    // Only valid requests get faults, so a wrong signature is always reported as one.
    if receipt.verified == Some(false) {
        return Err((StatusCode::UNAUTHORIZED, error("the signature does not hold")));
    }
    if receipt.webhook_id.is_none() || receipt.webhook_timestamp.is_none() {
        return Err(refusal("the headers webhook-id and webhook-timestamp are needed"));
    }
    let Call { r#type, data } = call?;
    if r#type != "function.invoked" {
        return Err(refusal("`type` must be `function.invoked`"));
    }
    if receipt.webhook_id.as_ref() != Some(&data.job_id) {
        return Err(refusal("the header webhook-id must be `job_id`"));
    }
    Ok(ValidRequest { identity: None, action: Box::new(data) })
}

impl Action for Invocation {
    fn perform(&self, _: &World) -> Done {
        let answer = match self.input.get("sim_answer") {
            Some(wanted) => wanted.clone(),
            None => json!({ "ok": true, "job_id": self.job_id, "attempt": self.attempt }),
        };
        Done::new(None, StatusCode::OK, &answer)
    }
}

fn error(why: &str) -> Value {
    json!({ "error": why })
}

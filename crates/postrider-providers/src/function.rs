//! Functions behind URLs that tenants set, which job runs call.
//!
//! A request is signed according to the Standard Webhooks specification. `webhook-id` is the id of the job run and is the same for all
//! attempts, so a function can recognise a repeat; `attempt` and the times are those of this call.
//!
//! ```json
//! {"type": "function.invoked",
//!  "timestamp": "2026-02-03T04:05:06.007Z",
//!  "data": {"tenant_id": "…", "job_id": "…", "function_name": "sync-orders", "lock_key": "…", "attempt": 1, "input": {"since": "2026-02-03"}}}
//! ```
//!
//! | answer | result | retry? |
//! |---|---|---|
//! | 2xx, `application/json` or `…+json` | any JSON value is the result | |
//! | 2xx without a body | the result is null | |
//! | 2xx, another content type, broken JSON, a NUL character, nested deeper than 64, longer than 64 KiB | failed | no: a retry would repeat the work with the same answer |
//! | 2xx, broken off | failed | yes |
//! | 3xx: redirects are not followed | failed | no |
//! | 408, 425, 429 | failed | yes |
//! | any other 4xx | failed | no |
//! | 5xx, and every undefined status | failed | yes |
//! | a URL that the guard refuses | failed, nothing was sent | no |
//! | no name, no connection, reset, silence | failed | yes |
//!
//! A call is always one request; the job run decides about retries. The error of a failure quotes only the beginning of the text in
//! `{"error": "…"}`.

use std::time::Duration;

use jiff::Timestamp;
use postrider_model::ids::{JobRunId, TenantId};
use secrecy::SecretString;
use serde::Serialize;
use serde_json::Value;

use crate::{
    endpoint::{Endpoint, Question, media_type, problem},
    guard::{Answer, Ending, GuardedClient, Limits},
    text,
};

/// Time limits of a client for functions: the maximum timeout of a function. A caller with less time drops the call.
pub const LIMITS: Limits = Limits { connect: Duration::from_secs(5), total: Duration::from_secs(900) };

/// Maximum nesting of a result.
pub const RESULT_DEPTH_MAX: usize = 64;

/// Maximum bytes of a function's error text that are quoted.
const ERROR_BYTES_MAX: usize = 500;

const CALLEE: &str = "the function";

/// A function that can be called.
pub struct HttpFunction(Endpoint);

/// The request to a function.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct FunctionCall<'a> {
    /// Tenant of the job run.
    pub tenant_id: TenantId,
    /// Id of the job run. All attempts have the same id.
    pub job_id: JobRunId,
    /// Name of the function.
    pub function_name: &'a str,
    /// Lock key of the job run.
    pub lock_key: &'a str,
    /// Number of the attempt, counted from 1.
    pub attempt: i32,
    /// Input of the job run.
    pub input: &'a Value,
}

/// A function failed, or its success is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FunctionFailed {
    /// The reason, in one short line.
    pub message: String,
    /// Whether a retry may succeed.
    pub retryable: bool,
}

impl HttpFunction {
    /// Checks the address and the secret. Nothing is sent.
    pub fn new(client: &GuardedClient, url: &str, secret: &SecretString) -> Result<Self, FunctionFailed> {
        let endpoint = Endpoint::new(client, url, secret, CALLEE);
        endpoint.map(Self).map_err(|message| FunctionFailed { message, retryable: false })
    }

    /// Calls the function once and returns the result. Dropping the future closes the connection.
    pub async fn call(&self, call: &FunctionCall<'_>) -> Result<Value, FunctionFailed> {
        let webhook_id = call.job_id.0.to_string();
        let question = Question {
            r#type: "function.invoked",
            webhook_id: &webhook_id,
            timestamp: Timestamp::now(),
            data: call,
        };
        match self.0.ask(CALLEE, &question).await {
            Ok(answer) => judge(&answer),
            Err(unanswered) => {
                Err(FunctionFailed { message: unanswered.reason, retryable: unanswered.is_retryable })
            }
        }
    }
}

/// Classifies an answer by the table of the [module](self).
fn judge(answer: &Answer) -> Result<Value, FunctionFailed> {
    if let Some(problem) = problem(answer, CALLEE) {
        let message = match error_text(answer) {
            Some(text) => format!("{problem}: {text}"),
            None => problem,
        };
        return Err(FunctionFailed { message, retryable: is_retryable(answer) });
    }
    if answer.body.is_empty() {
        return Ok(Value::Null);
    }
    result(answer).map_err(|message| FunctionFailed { message, retryable: false })
}

/// Whether a retry may succeed after an answer that is not a success.
fn is_retryable(answer: &Answer) -> bool {
    match answer.status.as_u16() {
        200..=299 => answer.ending == Ending::Broken,
        408 | 425 | 429 => true,
        300..=499 => false,
        _ => true,
    }
}

/// The result in a complete answer of success, or the problem of the answer.
fn result(answer: &Answer) -> Result<Value, String> {
    let media_type = media_type(answer);
    if !is_json(&media_type) {
        return Err(format!(
            "the function answered with the content type `{}`; it must be application/json",
            text::excerpt(&media_type)
        ));
    }
    let value = serde_json::from_slice(&answer.body)
        .map_err(|error| format!("the function answered with invalid JSON: {}", position(&error)))?;
    match unfit(&value, RESULT_DEPTH_MAX) {
        Some(problem) => Err(format!("the function answered with JSON that {problem}")),
        None => Ok(value),
    }
}

/// The text in `{"error": "…"}`, if the answer has one.
fn error_text(answer: &Answer) -> Option<String> {
    if answer.ending != Ending::Whole || !is_json(&media_type(answer)) {
        return None;
    }
    let value: Value = serde_json::from_slice(&answer.body).ok()?;
    let text = text::excerpt_within(value.get("error")?.as_str()?, ERROR_BYTES_MAX);
    (!text.trim().is_empty()).then_some(text)
}

fn is_json(media_type: &str) -> bool {
    media_type == "application/json" || media_type.ends_with("+json")
}

/// The position of a syntax error. The parser's message is not used, because it may quote the text.
fn position(error: &serde_json::Error) -> String {
    format!("line {}, column {}", error.line(), error.column())
}

/// The first part of a value that the database cannot store, up to this many levels.
fn unfit(value: &Value, levels: usize) -> Option<&'static str> {
    const NUL: &str = "holds the character NUL, which cannot be stored";
    let inside = || levels.checked_sub(1);
    match value {
        Value::String(text) => text.contains('\0').then_some(NUL),
        Value::Array(_) | Value::Object(_) if inside().is_none() => Some("is nested deeper than 64 levels"),
        Value::Array(items) => items.iter().find_map(|item| unfit(item, inside()?)),
        Value::Object(fields) => fields
            .iter()
            .find_map(|(name, field)| if name.contains('\0') { Some(NUL) } else { unfit(field, inside()?) }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::endpoint::tests::answer;

    const JSON: &str = "application/json; charset=utf-8";

    fn nested(levels: usize) -> String {
        format!("{}{}", "[".repeat(levels), "]".repeat(levels))
    }

    #[test]
    fn any_json_is_a_result_and_no_body_is_null() {
        for (status, content_type, body, expected) in [
            (200, "application/json", r#"{"synced": 12}"#, json!({ "synced": 12 })),
            (200, "Application/JSON;charset=utf-8", " [1, null] ", json!([1, null])),
            (201, "application/vnd.example+json", r#""done""#, json!("done")),
            (202, JSON, "false", json!(false)),
            (200, JSON, "null", Value::Null),
            (200, JSON, r#"{"error": "no"}"#, json!({ "error": "no" })),
            (200, JSON, "\"\\\\u0000\"", json!("\\u0000")),
            (200, JSON, &nested(64), serde_json::from_str(&nested(64)).unwrap()),
            (204, "", "", Value::Null),
            (200, "text/html", "", Value::Null),
        ] {
            let judged = judge(&answer(status, content_type, body, Ending::Whole));
            assert_eq!(judged, Ok(expected), "{status} {content_type}: {body}");
        }
    }

    #[test]
    fn a_failure_is_retryable_when_a_retry_may_succeed() {
        let text = |text: &str| text.as_bytes().to_vec();
        #[rustfmt::skip]
        let table = [
            (200, "text/html",        text("<p>"),                Ending::Whole,   false, "the content type `text/html`; it must be application/json"),
            (200, "",                 text("{}"),                 Ending::Whole,   false, "the content type ``"),
            (200, "text/json",        text("{}"),                 Ending::Whole,   false, "the content type `text/json`"),
            (200, JSON,               text("{"),                  Ending::Whole,   false, "invalid JSON: line 1, column 1"),
            (200, JSON,               text("{} {}"),              Ending::Whole,   false, "invalid JSON"),
            (200, JSON,               text(r#""\ud800""#),        Ending::Whole,   false, "invalid JSON"),
            (200, JSON,               text("1e999"),              Ending::Whole,   false, "invalid JSON"),
            (200, JSON,               b"\"\xff\"".to_vec(),       Ending::Whole,   false, "invalid JSON"),
            (200, JSON,               text(&nested(500)),         Ending::Whole,   false, "invalid JSON"),
            (200, JSON,               text(&nested(65)),          Ending::Whole,   false, "nested deeper than 64 levels"),
            (200, JSON,               text(r#"[{"a": "\u0000"}]"#), Ending::Whole, false, "the character NUL"),
            (200, JSON,               text(r#"{"\u0000": 1}"#),   Ending::Whole,   false, "the character NUL"),
            (200, JSON,               text("{}"),                 Ending::TooLong, false, "with more than 65536 bytes"),
            (200, JSON,               text("{}"),                 Ending::Broken,  true,  "broke off"),
            (302, JSON,               text("{}"),                 Ending::Whole,   false, "redirects are not followed"),
            (304, JSON,               text(""),                   Ending::Whole,   false, "redirects are not followed"),
            (400, JSON,               text("{}"),                 Ending::Whole,   false, "answered 400 Bad Request"),
            (404, JSON,               text("{}"),                 Ending::Broken,  false, "answered 404 Not Found"),
            (408, JSON,               text("{}"),                 Ending::Whole,   true,  "answered 408"),
            (409, JSON,               text("{}"),                 Ending::Whole,   false, "answered 409"),
            (425, JSON,               text("{}"),                 Ending::Whole,   true,  "answered 425"),
            (429, JSON,               text("{}"),                 Ending::Whole,   true,  "answered 429"),
            (499, JSON,               text("{}"),                 Ending::Whole,   false, "answered 499"),
            (500, JSON,               text("{}"),                 Ending::Whole,   true,  "answered 500"),
            (503, JSON,               text("{}"),                 Ending::TooLong, true,  "answered 503"),
            (599, JSON,               text("{}"),                 Ending::Broken,  true,  "answered 599"),
            (101, JSON,               text(""),                   Ending::Whole,   true,  "answered 101"),
            (700, JSON,               text(""),                   Ending::Whole,   true,  "answered 700"),
        ];
        for (status, content_type, body, ending, retryable, says) in table {
            let failed = judge(&answer(status, content_type, body, ending)).unwrap_err();
            assert!(failed.message.contains(says), "{status}: {failed}");
            assert!(failed.message.starts_with("the "), "{failed}");
            assert_eq!(failed.retryable, retryable, "{failed}");
        }
    }

    #[test]
    fn only_the_beginning_of_the_error_text_is_quoted() {
        let message = |status, content_type: &str, body: &str, ending| {
            judge(&answer(status, content_type, body, ending)).unwrap_err().message
        };
        let failed = |content_type: &str, body: &str| message(500, content_type, body, Ending::Whole);
        let bare = "the function answered 500 Internal Server Error";
        assert_eq!(failed(JSON, r#"{"error": "disk\n\u0000full"}"#), format!("{bare}: disk full"));
        assert_eq!(failed("application/problem+json", r#"{"error": "a", "x": "b"}"#), format!("{bare}: a"));
        let long = failed(JSON, &json!({ "error": "é".repeat(400) }).to_string());
        assert_eq!(long, format!("{bare}: {}…", "é".repeat(248)));
        for (content_type, body) in [
            (JSON, r#""hunter2""#),
            (JSON, r#"["hunter2"]"#),
            (JSON, r#"{"message": "hunter2"}"#),
            (JSON, r#"{"error": {"text": "hunter2"}}"#),
            (JSON, r#"{"error": "hunter2""#),
            (JSON, r#"{"error": " \u0000"}"#),
            ("text/plain", r#"{"error": "hunter2"}"#),
            ("text/html", "hunter2"),
        ] {
            assert_eq!(failed(content_type, body), bare, "{body}");
        }
        for (status, body, ending) in [
            (200, r#"{"error": "hunter2"}"#, Ending::Broken),
            (500, r#"{"error": "hunter2"}"#, Ending::TooLong),
            (200, r#"{hunter2: 1}"#, Ending::Whole),
            (200, r#"{"hunter2": "\u0000"}"#, Ending::Whole),
        ] {
            let message = message(status, JSON, body, ending);
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}

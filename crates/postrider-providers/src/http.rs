//! Code that the vendors with an HTTP API share: reading an account, building and sending a request, and classifying an answer.
//!
//! | answer to a call | outcome |
//! |---|---|
//! | 2xx, complete, with the vendor's id of the message | delivered |
//! | 2xx, broken off, too long, of another content type, or without that id | unknown: the vendor may have acted |
//! | 307, 308 | rejected: redirects are not followed |
//! | any other 3xx | unknown: some servers answer so after they have acted |
//! | 401, 403 | account refused: the vendor refused the account and not the message |
//! | 408 | unknown |
//! | 409 | unknown: another request with the same key is or was in progress |
//! | 429 | not sent, with `Retry-After`, or with [`RATE_LIMIT_WAIT`] when the vendor names no time |
//! | any other 4xx | rejected |
//! | 5xx, and every undefined status | unknown, whatever the body is |
//! | refused by the guard, or no connection | not sent |
//! | no answer | unknown |
//!
//! | answer to a repeat | finding |
//! |---|---|
//! | an answer that means delivered | done |
//! | 400 or 422, complete, with a JSON object: the vendor refuses this message | absent; the resolver looks the item up |
//! | everything else, silence included | unclear |
//!
//! A vendor's file documents only the differences.

use std::{fmt::Display, time::Duration};

use jiff::Timestamp;
use postrider_model::{Finding, IdempotencyKey, Message, Outcome, ids::OutboxId};
use reqwest::{
    Method, Request, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use url::Url;

use crate::{
    guard::{Answer, CallError, Ending, GuardedClient, Reuse, check_url},
    provider::{Account, InvalidAccount},
    text,
};

/// Time to wait after a rate limit whose end the vendor does not name.
pub const RATE_LIMIT_WAIT: Duration = Duration::from_secs(30);

/// Declares the adapter of a vendor: its `MANIFEST` and its `description`, the type of an opened account, and the methods of the account that read webhooks or
/// status callbacks.
macro_rules! adapter {
    (@is_given) => {
        false
    };
    (@is_given $method:ident) => {
        true
    };
    (
        $name:ident opens $account:ident
        $(and reads webhooks with $receive:ident)?
        $(and reads callbacks with $read:ident)?
    ) => {
        /// Adapter of the vendor. `docs/providers.md` describes its settings.
        pub struct $name {
            client: GuardedClient,
        }

        impl $name {
            /// Calls through this client.
            #[must_use]
            pub fn new(client: &GuardedClient) -> Self {
                Self { client: client.clone() }
            }
        }

        impl Adapter for $name {
            fn manifest(&self) -> &'static Manifest {
                &MANIFEST
            }

            fn describe(&self) -> $crate::Description {
                $crate::Description {
                    takes_webhooks: $crate::http::adapter!(@is_given $($receive)?),
                    takes_callbacks: $crate::http::adapter!(@is_given $($read)?),
                    ..description()
                }
            }

            fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount> {
                Ok(Arc::new($account::new(&self.client, account)?))
            }

            $(
                fn receive(
                    &self,
                    account: &Account<'_>,
                    webhook: &InboundWebhook<'_>,
                ) -> Result<Received, CallbackRefused> {
                    let opened = $account::new(&self.client, account).map_err(|error| {
                        CallbackRefused::Forged(format!("nothing can be verified: {error}"))
                    })?;
                    opened.$receive(webhook)
                }
            )?

            $(
                fn read_callback(
                    &self,
                    account: &Account<'_>,
                    callback: &Callback<'_>,
                ) -> Result<Echo, CallbackRefused> {
                    let opened = $account::new(&self.client, account).map_err(|error| {
                        CallbackRefused::Forged(format!("nothing can be verified: {error}"))
                    })?;
                    opened.$read(callback)
                }
            )?
        }
    };
}

pub(crate) use adapter;

/// Parses the settings of an account. The error shows an example.
pub fn settings<T: DeserializeOwned>(
    account: &Account<'_>,
    provider: &str,
    example: &str,
) -> Result<T, InvalidAccount> {
    T::deserialize(account.settings)
        .map_err(|error| InvalidAccount(format!("{error}; the settings of `{provider}` are like {example}")))
}

/// Parses a secret that has several parts: a JSON object. The error contains nothing of the secret, not even a name, since a
/// secret may be in the place of a name.
pub fn secrets<T: DeserializeOwned>(
    account: &Account<'_>,
    provider: &str,
    example: &str,
) -> Result<T, InvalidAccount> {
    let secret = account.secret.expose_secret();
    let wrong = match serde_json::from_str(secret) {
        Ok(parts) => return Ok(parts),
        Err(_) if secret.trim().is_empty() => "is missing",
        Err(error) if error.is_data() => "lacks a part, or has one that is not known or not a text",
        Err(_) => "is not JSON",
    };
    Err(InvalidAccount(format!("the secret {wrong}; that of `{provider}` is like {example}")))
}

/// A part of such a secret. An empty part is an error.
pub fn part<'a>(part: &'a SecretString, name: &str) -> Result<&'a str, InvalidAccount> {
    match part.expose_secret() {
        empty if empty.trim().is_empty() => Err(InvalidAccount(format!("`{name}` of the secret is empty"))),
        part => Ok(part),
    }
}

/// The base URL that a tenant set. It is checked here and again before every call.
pub fn base(client: &GuardedClient, mut url: Url) -> Result<Url, InvalidAccount> {
    check_url(&url, client.policy()).map_err(|error| InvalidAccount(error.to_string()))?;
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

/// The public URL of a vendor.
#[expect(clippy::expect_used, reason = "a constant that a test of its vendor reads")]
pub fn known(url: &'static str) -> Url {
    Url::parse(url).expect("the address of a vendor is a URL")
}

/// The time in the id of an item, just before its reservation. Unlike the clock, it is the same for a call and its repeat.
pub fn planned_at(id: OutboxId) -> Timestamp {
    let time = id.0.get_timestamp().and_then(|time| {
        let (seconds, nanoseconds) = time.to_unix();
        Timestamp::new(i64::try_from(seconds).ok()?, i32::try_from(nanoseconds).ok()?).ok()
    });
    // Every id of Postrider has a time.
    time.unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Appends a path to a URL.
pub fn below(base: &Url, path: &[&str]) -> Url {
    let mut url = base.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(path);
    }
    url
}

/// `Authorization: Bearer …`, which logs do not show.
pub fn bearer(secret: &SecretString, what: &str) -> Result<HeaderValue, InvalidAccount> {
    authorization(&format!("Bearer {}", present(secret, what)?))
}

/// The secret. An empty one is an error; `what` describes the expected secret.
pub fn present<'a>(secret: &'a SecretString, what: &str) -> Result<&'a str, InvalidAccount> {
    match secret.expose_secret() {
        "" => Err(InvalidAccount(format!("the secret is missing: it is {what}"))),
        secret => Ok(secret),
    }
}

/// A value for `Authorization` that no log shows.
pub fn authorization(value: &str) -> Result<HeaderValue, InvalidAccount> {
    let mut value = HeaderValue::try_from(value)
        .map_err(|_| InvalidAccount("the secret holds characters that a header cannot carry".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A request with a JSON body.
pub fn post(
    url: Url,
    authorization: Option<&HeaderValue>,
    body: &impl Serialize,
) -> Result<Request, Outcome> {
    let mut request = Request::new(Method::POST, url);
    if let Some(authorization) = authorization {
        request.headers_mut().insert(AUTHORIZATION, authorization.clone());
    }
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *request.body_mut() = Some(serde_json::to_vec(body).map_err(|error| unwritten(&error))?.into());
    Ok(request)
}

/// Sends a GET, which changes nothing at the vendor. The error is the finding when there is no answer.
pub async fn ask(
    client: &GuardedClient,
    url: Url,
    authorization: Option<&HeaderValue>,
) -> Result<Answer, Finding> {
    let mut request = Request::new(Method::GET, url);
    if let Some(authorization) = authorization {
        request.headers_mut().insert(AUTHORIZATION, authorization.clone());
    }
    send(client, Ok(request)).await.map_err(unclear)
}

/// Adds the header `idempotency-key`.
pub fn with_key(mut request: Request, key: &IdempotencyKey) -> Result<Request, Outcome> {
    let key = HeaderValue::from_str(key.as_str()).map_err(|error| unwritten(&error))?;
    request.headers_mut().insert("idempotency-key", key);
    Ok(request)
}

/// A request that could not be built, which is a bug. Nothing was sent.
pub fn unwritten(error: &dyn Display) -> Outcome {
    not_sent(format!("the message could not be written as a request: {error}"))
}

/// The outcome of a call. A request that was not built or not answered already has its outcome.
pub fn outcome(sent: Result<Answer, Outcome>, judge: impl FnOnce(&Answer, Timestamp) -> Outcome) -> Outcome {
    match sent {
        Ok(answer) => judge(&answer, Timestamp::now()),
        Err(outcome) => outcome,
    }
}

/// The finding of a repeat, with the `judge` of the call.
pub fn finding(sent: Result<Answer, Outcome>, judge: impl FnOnce(&Answer, Timestamp) -> Outcome) -> Finding {
    match sent {
        Ok(answer) => judge_repeat(&answer, judge(&answer, Timestamp::now())),
        Err(outcome) => unclear(outcome),
    }
}

/// Sends a request once. The error is the outcome when there is no answer.
pub async fn send(client: &GuardedClient, request: Result<Request, Outcome>) -> Result<Answer, Outcome> {
    // Not a pooled connection: a pool may resend a request that it assumes was lost on an old connection.
    client.send(request?, Reuse::Never).await.map_err(|error| match error {
        CallError::Refused(_) | CallError::Unreachable { .. } => not_sent(error.reason()),
        CallError::Unanswered { .. } => Outcome::Unknown { reason: error.reason() },
    })
}

/// Removes a secret from an answer, because some vendors repeat it.
pub fn without(mut answer: Answer, secret: &str) -> Answer {
    let body = String::from_utf8_lossy(&answer.body);
    if !secret.is_empty() && body.contains(secret) {
        answer.body = body.replace(secret, "…").into();
    }
    answer
}

/// The first table of the [module](self). `message_id` finds the vendor's id of the message in a 2xx.
pub fn judge(answer: &Answer, now: Timestamp, message_id: impl FnOnce(&Answer) -> Option<String>) -> Outcome {
    let (status, reason) = (answer.status, describe(answer));
    match status {
        _ if status.is_success() => match message_id(answer) {
            Some(message_id) => Outcome::Delivered { message_id },
            None => {
                Outcome::Unknown { reason: format!("the answer to the message is not complete: {reason}") }
            }
        },
        // The server asks for the same request elsewhere, so it has not acted.
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => Outcome::Rejected {
            reason: format!("{status}, but redirects are not followed; set `url` to where it should go"),
        },
        // Some servers redirect to the result after they have acted.
        _ if status.is_redirection() => Outcome::Unknown {
            reason: format!("{status}, and redirects are not followed; set `url` to where it should go"),
        },
        StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT => Outcome::Unknown { reason },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => account_refused(&reason),
        StatusCode::TOO_MANY_REQUESTS => rate_limited(answer, now, reason, RATE_LIMIT_WAIT),
        _ if status.is_client_error() => Outcome::Rejected { reason },
        _ => Outcome::Unknown { reason },
    }
}

/// The second table of the [module](self). `judged` is the outcome that the answer would mean for a call.
fn judge_repeat(answer: &Answer, judged: Outcome) -> Finding {
    match judged {
        Outcome::Delivered { message_id } => Finding::Done {
            message_id,
            evidence: "a repeat under the same key was accepted as the same message".to_owned(),
        },
        Outcome::Rejected { reason } if is_about_the_message(answer) => {
            Finding::Absent { evidence: format!("the provider refuses a repeat: {reason}") }
        }
        other => unclear(other),
    }
}

/// Whether the vendor itself refused the message. A page of a proxy proves nothing about the first request.
fn is_about_the_message(answer: &Answer) -> bool {
    matches!(answer.status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY)
        && json::<serde_json::Map<String, serde_json::Value>>(answer).is_some()
}

/// The finding of an outcome that proves nothing.
pub fn unclear(outcome: Outcome) -> Finding {
    Finding::Unclear { reason: reason(outcome) }
}

/// The text of an outcome.
pub fn reason(outcome: Outcome) -> String {
    match outcome {
        Outcome::Delivered { message_id } => message_id,
        Outcome::Rejected { reason }
        | Outcome::NotSent { reason, .. }
        | Outcome::AccountRefused { reason, .. }
        | Outcome::Unknown { reason } => reason,
    }
}

/// Time from `now` until `then`, or zero.
pub fn until(then: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    then.map(|then| Duration::try_from(then.duration_since(now)).unwrap_or_default())
}

/// The body of an answer, if it is complete and the expected JSON.
pub fn json<T: DeserializeOwned>(answer: &Answer) -> Option<T> {
    let is_json = answer.headers.get(CONTENT_TYPE).is_none_or(|kind| {
        kind.to_str().is_ok_and(|kind| kind.split(';').next().is_some_and(|kind| kind.contains("json")))
    });
    let is_whole = answer.ending == Ending::Whole;
    (is_json && is_whole).then(|| serde_json::from_slice(&answer.body).ok()).flatten()
}

/// A field of an answer that is a text and not empty, such as the vendor's id of a message.
pub fn named(answer: &Answer, field: &str) -> Option<String> {
    let body: serde_json::Value = json(answer)?;
    Some(text::excerpt(body.get(field)?.as_str()?)).filter(|name| !name.trim().is_empty())
}

/// The status and the beginning of the body.
pub fn describe(answer: &Answer) -> String {
    match answer.excerpt() {
        empty if empty.trim().is_empty() => answer.status.to_string(),
        excerpt => format!("{}: {excerpt}", answer.status),
    }
}

/// Nothing was sent, or the vendor did not act.
pub fn not_sent(reason: String) -> Outcome {
    Outcome::NotSent { reason, retry_after: None }
}

/// The vendor refused the account, and so it did not act.
pub fn account_refused(reason: &str) -> Outcome {
    Outcome::AccountRefused { reason: format!("the account is refused: {reason}"), is_login: false }
}

/// The vendor's rate limit: not sent, and to be tried after `Retry-After`, or after `wait` when the vendor names no time.
pub fn rate_limited(answer: &Answer, now: Timestamp, reason: String, wait: Duration) -> Outcome {
    Outcome::NotSent { reason, retry_after: Some(answer.retry_after(now).unwrap_or(wait)) }
}

/// The outcome of a message of a channel that a vendor does not serve.
pub fn wrong_channel(provider: &str, carries: &str, message: &Message) -> Outcome {
    Outcome::Rejected {
        reason: format!("{provider} carries {carries} and no {} messages", message.channel()),
    }
}

/// Rejects a text that is longer than the vendor accepts.
pub fn check_length(part: &str, text: &str, chars_max: usize, vendor: &str) -> Result<(), Outcome> {
    if text.chars().count() <= chars_max {
        return Ok(());
    }
    let reason = format!("the {part} is longer than the {chars_max} characters that {vendor} accepts");
    Err(Outcome::Rejected { reason })
}

#[cfg(test)]
pub mod tests;

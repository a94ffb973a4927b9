//! What the vendors that speak HTTP have in common: how an account is read, how a request leaves, and what an answer means.
//!
//! | answer to a call | outcome |
//! |---|---|
//! | 2xx, whole, with the vendor's name for the message | delivered |
//! | 2xx, broken off, too long, of another content type, or without that name | unknown: it may have acted |
//! | 307, 308 | rejected: redirects are not followed |
//! | any other 3xx | unknown: some servers say so when they have acted |
//! | 401, 403 | not sent: the account is refused, which says nothing about the message |
//! | 408 | unknown |
//! | 409 | unknown: somebody is at it, or was, under the same key |
//! | 429 | not sent, with `Retry-After` |
//! | any other 4xx | rejected |
//! | 5xx, and every status there is not | unknown, whatever it says |
//! | refused by our own rules, or no connection | not sent |
//! | no answer | unknown |
//!
//! | answer to a repeat | finding |
//! |---|---|
//! | what would be delivered | done |
//! | 400 or 422, whole, and a JSON object: the vendor's own words about this message | absent: refused, so it is looked up |
//! | everything else, silence included | unclear |
//!
//! A vendor's file says only where that vendor differs.

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

/// Declares a vendor: its `MANIFEST`, an account that is opened with a client, and where webhooks come in what reads them.
macro_rules! adapter {
    ($name:ident opens $account:ident $(and reads webhooks with $receive:ident)?) => {
        /// The vendor; `docs/providers.md` says what it takes.
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
        }
    };
}

pub(crate) use adapter;

/// Reads what an account may set, or says what is wrong and how it should look.
pub fn settings<T: DeserializeOwned>(
    account: &Account<'_>,
    provider: &str,
    example: &str,
) -> Result<T, InvalidAccount> {
    T::deserialize(account.settings)
        .map_err(|error| InvalidAccount(format!("{error}; the settings of `{provider}` are like {example}")))
}

/// Reads a secret that has several parts: a JSON object. Nothing that was given is part of the error, not even a name, since
/// a secret may stand where a name should.
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

/// A part of such a secret, if it is there.
pub fn part<'a>(part: &'a SecretString, name: &str) -> Result<&'a str, InvalidAccount> {
    match part.expose_secret() {
        empty if empty.trim().is_empty() => Err(InvalidAccount(format!("`{name}` of the secret is empty"))),
        part => Ok(part),
    }
}

/// An address that the tenant set and paths are added to. It is checked here and again before every call.
pub fn base(client: &GuardedClient, mut url: Url) -> Result<Url, InvalidAccount> {
    check_url(&url, client.policy()).map_err(|error| InvalidAccount(error.to_string()))?;
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

/// An address of a vendor that everybody knows.
#[expect(clippy::expect_used, reason = "a constant that a test of its vendor reads")]
pub fn known(url: &'static str) -> Url {
    Url::parse(url).expect("the address of a vendor is a URL")
}

/// When an item was about to be reserved, as its id tells: the same for its call and for a repeat, unlike the time of day.
pub fn planned_at(id: OutboxId) -> Timestamp {
    let time = id.0.get_timestamp().and_then(|time| {
        let (seconds, nanoseconds) = time.to_unix();
        Timestamp::new(i64::try_from(seconds).ok()?, i32::try_from(nanoseconds).ok()?).ok()
    });
    // Only an id that is not one of ours has none.
    time.unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A path below an address.
pub fn below(base: &Url, path: &[&str]) -> Url {
    let mut url = base.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(path);
    }
    url
}

/// `Authorization: Bearer …`, never shown.
pub fn bearer(secret: &SecretString, what: &str) -> Result<HeaderValue, InvalidAccount> {
    authorization(&format!("Bearer {}", present(secret, what)?))
}

/// The secret, if there is one. `what` says what it should be.
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

/// Asks a question, which does nothing to anybody. The error says why there is no answer.
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

/// The same request with the header that several vendors know a message by.
pub fn with_key(mut request: Request, key: &IdempotencyKey) -> Result<Request, Outcome> {
    let key = HeaderValue::from_str(key.as_str()).map_err(|error| unwritten(&error))?;
    request.headers_mut().insert("idempotency-key", key);
    Ok(request)
}

/// Our own bytes always have a form, so this names a bug. Nothing left.
pub fn unwritten(error: &dyn Display) -> Outcome {
    not_sent(format!("the message could not be written as a request: {error}"))
}

/// What a call came to. A request that could not be written, or was not answered, is its own outcome.
pub fn outcome(sent: Result<Answer, Outcome>, judge: impl FnOnce(&Answer, Timestamp) -> Outcome) -> Outcome {
    match sent {
        Ok(answer) => judge(&answer, Timestamp::now()),
        Err(outcome) => outcome,
    }
}

/// What a repeat came to, with the `judge` of the call.
pub fn finding(sent: Result<Answer, Outcome>, judge: impl FnOnce(&Answer, Timestamp) -> Outcome) -> Finding {
    match sent {
        Ok(answer) => judge_repeat(&answer, judge(&answer, Timestamp::now())),
        Err(outcome) => unclear(outcome),
    }
}

/// Sends a request, once. The error is what is known without an answer.
pub async fn send(client: &GuardedClient, request: Result<Request, Outcome>) -> Result<Answer, Outcome> {
    // A connection of its own: a pool may send again on a new one what it believes was lost on an old one.
    client.send(request?, Reuse::Never).await.map_err(|error| match error {
        CallError::Refused(_) | CallError::Unreachable { .. } => not_sent(error.reason()),
        CallError::Unanswered { .. } => Outcome::Unknown { reason: error.reason() },
    })
}

/// The same answer without a secret in it: some vendors repeat what they were given.
pub fn without(mut answer: Answer, secret: &str) -> Answer {
    let body = String::from_utf8_lossy(&answer.body);
    if !secret.is_empty() && body.contains(secret) {
        answer.body = body.replace(secret, "…").into();
    }
    answer
}

/// The first table of the [module](self). `name` finds the vendor's name for the message in a 2xx.
pub fn judge(answer: &Answer, now: Timestamp, name: impl FnOnce(&Answer) -> Option<String>) -> Outcome {
    let (status, reason) = (answer.status, words(answer));
    match status {
        _ if status.is_success() => match name(answer) {
            Some(message_id) => Outcome::Delivered { message_id },
            None => Outcome::Unknown { reason: format!("the answer to the message is not whole: {reason}") },
        },
        // Asks for the same request elsewhere, so it has not done it here.
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => Outcome::Rejected {
            reason: format!("{status}, but redirects are not followed; set `url` to where it should go"),
        },
        // "It is done; look there" is said like this, too.
        _ if status.is_redirection() => Outcome::Unknown {
            reason: format!("{status}, and redirects are not followed; set `url` to where it should go"),
        },
        StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT => Outcome::Unknown { reason },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            not_sent(format!("the account is refused: {reason}"))
        }
        StatusCode::TOO_MANY_REQUESTS => Outcome::NotSent { reason, retry_after: answer.retry_after(now) },
        _ if status.is_client_error() => Outcome::Rejected { reason },
        _ => Outcome::Unknown { reason },
    }
}

/// The second table of the [module](self), where `judged` is what the answer would mean for a call.
fn judge_repeat(answer: &Answer, judged: Outcome) -> Finding {
    match judged {
        Outcome::Delivered { message_id } => Finding::Done {
            message_id,
            evidence: "it was sent again under the same key, and the provider took it as the same message"
                .to_owned(),
        },
        Outcome::Rejected { reason } if is_about_the_message(answer) => {
            Finding::Absent { evidence: format!("sent again, the provider refuses it: {reason}") }
        }
        other => unclear(other),
    }
}

/// A refusal in the words of the vendor. A page of something in between says nothing about what became of the first request.
fn is_about_the_message(answer: &Answer) -> bool {
    matches!(answer.status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY)
        && json::<serde_json::Map<String, serde_json::Value>>(answer).is_some()
}

/// What is left of an outcome when it proves nothing.
pub fn unclear(outcome: Outcome) -> Finding {
    Finding::Unclear { reason: reason(outcome) }
}

/// The words of an outcome.
pub fn reason(outcome: Outcome) -> String {
    match outcome {
        Outcome::Delivered { message_id } => message_id,
        Outcome::Rejected { reason } | Outcome::NotSent { reason, .. } | Outcome::Unknown { reason } => {
            reason
        }
    }
}

/// How long it is until then.
pub fn until(then: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    then.map(|then| Duration::try_from(then.duration_since(now)).unwrap_or_default())
}

/// The body of an answer, if it is whole and the JSON that is expected.
pub fn json<T: DeserializeOwned>(answer: &Answer) -> Option<T> {
    let is_json = answer.headers.get(CONTENT_TYPE).is_none_or(|kind| {
        kind.to_str().is_ok_and(|kind| kind.split(';').next().is_some_and(|kind| kind.contains("json")))
    });
    let is_whole = answer.ending == Ending::Whole;
    (is_json && is_whole).then(|| serde_json::from_slice(&answer.body).ok()).flatten()
}

/// The vendor's name for a message: a field of its answer that is a text and not empty.
pub fn named(answer: &Answer, field: &str) -> Option<String> {
    let body: serde_json::Value = json(answer)?;
    Some(text::excerpt(body.get(field)?.as_str()?)).filter(|name| !name.trim().is_empty())
}

/// The status and the beginning of what came with it.
pub fn words(answer: &Answer) -> String {
    match answer.excerpt() {
        empty if empty.trim().is_empty() => answer.status.to_string(),
        excerpt => format!("{}: {excerpt}", answer.status),
    }
}

/// Nothing left us, or nothing was done.
pub fn not_sent(reason: String) -> Outcome {
    Outcome::NotSent { reason, retry_after: None }
}

/// A message of a channel that a vendor does not carry.
pub fn wrong_channel(provider: &str, carries: &str, message: &Message) -> Outcome {
    Outcome::Rejected {
        reason: format!("{provider} carries {carries} and no {} messages", message.channel()),
    }
}

#[cfg(test)]
pub mod tests;

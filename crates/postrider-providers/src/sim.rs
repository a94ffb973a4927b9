//! `postrider sim`, which plays a provider of every channel: `POST {url}/messages`.
//!
//! | answer | outcome |
//! |---|---|
//! | 2xx, whole, with an `id` | delivered |
//! | 2xx, broken off or without an `id` | unknown: it may have acted |
//! | 3xx | rejected: redirects are not followed |
//! | 408 | unknown |
//! | 429 | not sent, with `Retry-After` |
//! | any other 4xx | rejected |
//! | 5xx, and every status there is not | unknown, whatever it says |
//! | refused by our own rules, or no connection | not sent |
//! | no answer | unknown |

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{Channel, DoubtClass, IdempotencyKey, Manifest, Message, Outcome};
use postrider_store::Reservation;
use reqwest::{
    Method, Request, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use secrecy::ExposeSecret;
use serde::Deserialize;
use url::Url;

use crate::{
    guard::{Answer, CallError, Ending, GuardedClient, Reuse, check_url},
    provider::{Account, Adapter, InvalidAccount, Provider},
    text,
};

const MANIFEST: Manifest = Manifest {
    doubt: DoubtClass::Lookup,
    ..Manifest::new("sim", &[Channel::Email, Channel::Voice, Channel::Social])
};

/// See the [module](self).
pub struct SimAdapter {
    client: GuardedClient,
}

impl SimAdapter {
    /// Calls through this client.
    #[must_use]
    pub fn new(client: &GuardedClient) -> Self {
        Self { client: client.clone() }
    }
}

/// What an account may set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    url: Url,
}

impl Adapter for SimAdapter {
    fn manifest(&self) -> &'static Manifest {
        &MANIFEST
    }

    fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount> {
        Ok(Arc::new(Sim::new(&self.client, account)?))
    }
}

/// An account at a sim.
struct Sim {
    client: GuardedClient,
    messages: Url,
    token: Option<HeaderValue>,
}

impl Sim {
    fn new(client: &GuardedClient, account: &Account<'_>) -> Result<Self, InvalidAccount> {
        let settings = Settings::deserialize(account.settings).map_err(|error| {
            InvalidAccount(format!(
                "{error}; the settings of `sim` are like {{\"url\": \"http://127.0.0.1:9090\"}}"
            ))
        })?;
        check_url(&settings.url, client.policy()).map_err(|error| InvalidAccount(error.to_string()))?;
        let mut messages = settings.url;
        messages.set_query(None);
        messages.set_fragment(None);
        if let Ok(mut path) = messages.path_segments_mut() {
            path.pop_if_empty().push("messages");
        }
        Ok(Self { client: client.clone(), messages, token: bearer(account.secret.expose_secret())? })
    }

    async fn send(&self, key: &IdempotencyKey, message: &Message) -> Outcome {
        let request = match self.request(key, message) {
            Ok(request) => request,
            Err(error) => return not_sent(format!("the message could not be written as a request: {error}")),
        };
        // A connection of its own: a pool may send again on a new one what it believes was lost on an old one.
        match self.client.send(request, Reuse::Never).await {
            Ok(answer) => judge(&answer, Timestamp::now()),
            Err(error @ (CallError::Refused(_) | CallError::Unreachable { .. })) => not_sent(error.reason()),
            Err(error @ CallError::Unanswered { .. }) => Outcome::Unknown { reason: error.reason() },
        }
    }

    fn request(
        &self,
        key: &IdempotencyKey,
        message: &Message,
    ) -> Result<Request, Box<dyn std::error::Error + Send + Sync>> {
        let mut request = Request::new(Method::POST, self.messages.clone());
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("idempotency-key", HeaderValue::from_str(key.as_str())?);
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.clone());
        }
        *request.body_mut() = Some(serde_json::to_vec(message)?.into());
        Ok(request)
    }
}

#[async_trait]
impl Provider for Sim {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        self.send(reservation.key(), message).await
    }
}

/// The table of the [module](self).
fn judge(answer: &Answer, now: Timestamp) -> Outcome {
    let status = answer.status;
    let reason = match answer.excerpt() {
        empty if empty.trim().is_empty() => status.to_string(),
        excerpt => format!("{status}: {excerpt}"),
    };
    match status {
        _ if status.is_success() => match message_id(answer) {
            Some(message_id) => Outcome::Delivered { message_id },
            None => Outcome::Unknown { reason: format!("the answer to the message is not whole: {reason}") },
        },
        _ if status.is_redirection() => Outcome::Rejected {
            reason: format!("{status}, but redirects are not followed; set `url` to where it should go"),
        },
        StatusCode::REQUEST_TIMEOUT => Outcome::Unknown { reason },
        StatusCode::TOO_MANY_REQUESTS => Outcome::NotSent { reason, retry_after: answer.retry_after(now) },
        _ if status.is_client_error() => Outcome::Rejected { reason },
        _ => Outcome::Unknown { reason },
    }
}

/// The sim's own name for the message, if its answer is one.
fn message_id(answer: &Answer) -> Option<String> {
    #[derive(Deserialize)]
    struct Accepted {
        id: String,
    }
    if answer.ending != Ending::Whole {
        return None;
    }
    let accepted: Accepted = serde_json::from_slice(&answer.body).ok()?;
    Some(text::excerpt(&accepted.id)).filter(|id| !id.is_empty())
}

fn bearer(token: &str) -> Result<Option<HeaderValue>, InvalidAccount> {
    if token.is_empty() {
        return Ok(None);
    }
    // Not shown: it is a secret.
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| InvalidAccount("the secret holds characters that a header cannot carry".to_owned()))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn not_sent(reason: String) -> Outcome {
    Outcome::NotSent { reason, retry_after: None }
}

#[cfg(test)]
mod tests;

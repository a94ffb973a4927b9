//! Webhooks: every message as a signed request to a URL of the tenant, after the Standard Webhooks specification.
//!
//! `webhook-id` is the idempotency key, and by the specification a receiver recognises a repeat by it. So a repeat is
//! harmless at any time, and what is in doubt is simply sent again. The status alone decides, as the specification has it;
//! otherwise `http.rs` holds, as for all:
//!
//! | answer | to a call | to a repeat |
//! |---|---|---|
//! | 2xx, whatever comes with it | delivered, under the `id` of the answer or else the key | done |
//! | 410 and any other 4xx but 401, 403, 408, 409 | rejected | 400 and 422 in JSON: absent; otherwise unclear |
//!
//! ```json
//! {"type": "message.email",
//!  "timestamp": "2026-02-03T04:05:06.007Z",
//!  "data": {"idempotency_key": "…", "channel": "email", "to": "ada@example.com", "subject": "…", "text": "…", "html": null}}
//! ```
//!
//! `timestamp` is when the item was reserved, which stays the same; the time of the attempt is in `webhook-timestamp`. So
//! each attempt has the same body.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{
    Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome, ids::OutboxId,
};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::Request;
use serde::{Deserialize, Serialize};
use standardwebhooks::Webhook;
use url::Url;

use crate::{
    guard::{Answer, GuardedClient, check_url},
    http,
    provider::{Account, Adapter, InvalidAccount, Provider},
    signing,
};

const MANIFEST: Manifest = Manifest {
    // As Natural as can be, but a receiver may note an id only after it has acted: a repeat waits for the quiet time.
    doubt: DoubtClass::Key,
    // As long as others try again, receivers must remember.
    key_lifetime: Some(Duration::from_secs(72 * 60 * 60)),
    ..Manifest::new("webhook", &[Channel::Email, Channel::Voice, Channel::Social])
};

const EXAMPLE: &str = r#"{"url": "https://example.com/messages"}"#;

http::adapter!(WebhookAdapter opens Receiver);

/// What an account may set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    url: Url,
}

/// Somebody who takes messages.
struct Receiver {
    client: GuardedClient,
    url: Url,
    signer: Webhook,
}

impl Receiver {
    fn new(client: &GuardedClient, account: &Account<'_>) -> Result<Self, InvalidAccount> {
        let settings: Settings = http::settings(account, "webhook", EXAMPLE)?;
        check_url(&settings.url, client.policy()).map_err(|error| InvalidAccount(error.to_string()))?;
        let signer = signing::signer(account.secret).map_err(|problem| {
            InvalidAccount(format!(
                "the secret {problem}; make one with `echo \"whsec_$(openssl rand -base64 32)\"` and give it to the receiver"
            ))
        })?;
        Ok(Self { client: client.clone(), url: settings.url, signer })
    }

    /// The same id and the same body for the same message, each time.
    fn request(&self, id: OutboxId, key: &IdempotencyKey, message: &Message) -> Result<Request, Outcome> {
        #[derive(Serialize)]
        struct Body<'a> {
            r#type: String,
            timestamp: Timestamp,
            data: Data<'a>,
        }
        #[derive(Serialize)]
        struct Data<'a> {
            idempotency_key: &'a IdempotencyKey,
            #[serde(flatten)]
            message: &'a Message,
        }
        let body = Body {
            r#type: format!("message.{}", message.channel()),
            timestamp: http::planned_at(id),
            data: Data { idempotency_key: key, message },
        };
        let body = serde_json::to_vec(&body).map_err(|error| http::unwritten(&error))?;
        signing::request(self.url.clone(), std::slice::from_ref(&self.signer), key.as_str(), body.into())
            .map_err(|error| http::unwritten(&error))
    }
}

#[async_trait]
impl Provider for Receiver {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        let key = reservation.key();
        let request = self.request(reservation.outbox_id(), key, message);
        http::outcome(http::send(&self.client, request).await, |answer, now| judge(answer, now, key))
    }

    async fn repeat(&self, doubt: &HeldDoubt, message: &Message) -> Finding {
        let key = doubt.key();
        let request = self.request(doubt.outbox_id(), key, message);
        http::finding(http::send(&self.client, request).await, |answer, now| judge(answer, now, key))
    }
}

/// A receiver may have a name of its own for the message, and need not.
fn judge(answer: &Answer, now: Timestamp, key: &IdempotencyKey) -> Outcome {
    http::judge(answer, now, |answer| Some(http::named(answer, "id").unwrap_or_else(|| key.to_string())))
}

#[cfg(test)]
mod tests;

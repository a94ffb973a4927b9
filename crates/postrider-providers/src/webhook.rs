//! Webhooks: every message as a signed request to a URL of the tenant, according to the Standard Webhooks specification.
//!
//! `webhook-id` is the idempotency key, and by the specification a receiver recognises a repeat by it. So a repeat is
//! harmless, and the resolver repeats an item in doubt. By the specification the status alone decides; the rest follows the
//! tables in `http.rs`:
//!
//! | answer | to a call | to a repeat |
//! |---|---|---|
//! | 2xx, with any body | delivered, under the `id` of the answer or else the key | done |
//! | 410 and any other 4xx but 401, 403, 408, 409 | rejected | 400 and 422 in JSON: absent; otherwise unclear |
//!
//! ```json
//! {"type": "message.email",
//!  "timestamp": "2026-02-03T04:05:06.007Z",
//!  "data": {"idempotency_key": "…", "channel": "email", "to": "ada@example.com", "subject": "…", "text": "…", "html": null}}
//! ```
//!
//! `timestamp` is the time of the reservation, which does not change; the time of the attempt is in `webhook-timestamp`. So
//! each attempt has the same body.
//!
//! For chat, a program sends inbound messages as webhooks, too, signed with the same secret and at most five minutes old.
//! A repeat is recognised by `webhook-id`:
//!
//! ```json
//! {"type": "message.received",
//!  "timestamp": "2026-02-03T04:05:06.007Z",
//!  "data": {"sender_id": "ada", "conversation_id": "room-7", "thread": "t-1", "text": "…"}}
//! ```
//!
//! Without `conversation_id` the reply goes to the sender; `thread` and `timestamp` are optional. Another `type` is ignored. The
//! sender is a program that can be corrected, so an empty or too long text is malformed, and so is an unknown field.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use hmac::Hmac;
use jiff::Timestamp;
use postrider_model::{
    Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome,
    channels::{InboundMessage, TEXT_BYTES_MAX},
    ids::OutboxId,
};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::Request;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use standardwebhooks::{HEADER_WEBHOOK_ID, HEADER_WEBHOOK_SIGNATURE, HEADER_WEBHOOK_TIMESTAMP, Webhook};
use url::Url;

use crate::{
    Description,
    chat::inbound,
    guard::{Answer, GuardedClient, check_url},
    http,
    provider::{Account, Adapter, CallbackRefused, InboundWebhook, InvalidAccount, Provider, Received},
    signing,
};

const MANIFEST: Manifest = Manifest {
    // Not `Natural`: a receiver may record an id only after it has acted, so a repeat must wait for the quiet time.
    doubt: DoubtClass::Key,
    // Receivers should remember an id as long as usual senders of webhooks retry.
    key_lifetime: Some(Duration::from_secs(72 * 60 * 60)),
    ..Manifest::new("webhook", &[Channel::Email, Channel::Voice, Channel::Social, Channel::Chat])
};

const EXAMPLE: &str = r#"{"url": "https://example.com/messages"}"#;

http::adapter!(WebhookAdapter opens Receiver and reads webhooks with receive);

fn description() -> Description {
    Description::new(
        "Webhook",
        "Messages of every channel to a URL of your own, signed as by Standard Webhooks.",
    )
    .settings::<Settings>()
    .secret(
        "Signing secret",
        "The secret that signs requests, like whsec_…; make one with: openssl rand -base64 32",
    )
}

/// Settings of an account.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Address that receives the messages.
    url: Url,
}

/// A receiver of messages.
struct Receiver {
    client: GuardedClient,
    url: Url,
    signer: Webhook,
    verifier: Hmac<Sha256>,
}

impl Receiver {
    fn new(client: &GuardedClient, account: &Account<'_>) -> Result<Self, InvalidAccount> {
        let settings: Settings = http::settings(account, "webhook", EXAMPLE)?;
        check_url(&settings.url, client.policy()).map_err(|error| InvalidAccount(error.to_string()))?;
        let wrong = |problem| {
            InvalidAccount(format!(
                "the secret {problem}; make one with `echo \"whsec_$(openssl rand -base64 32)\"` and give it to the receiver"
            ))
        };
        let signer = signing::signer(account.secret).map_err(wrong)?;
        let verifier = signing::verifier(account.secret).map_err(wrong)?;
        Ok(Self { client: client.clone(), url: settings.url, signer, verifier })
    }

    /// Builds the request. The same message always has the same id and body.
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

    /// Verifies an inbound webhook and reads it.
    fn receive(&self, webhook: &InboundWebhook<'_>) -> Result<Received, CallbackRefused> {
        #[derive(Deserialize)]
        struct Kind {
            r#type: String,
        }
        if webhook.is_get {
            return Err(CallbackRefused::NotTaken);
        }
        let id = webhook.header(HEADER_WEBHOOK_ID)?;
        let time = webhook.header(HEADER_WEBHOOK_TIMESTAMP)?;
        let received = webhook.header(HEADER_WEBHOOK_SIGNATURE)?;
        inbound::check_time(HEADER_WEBHOOK_TIMESTAMP, time, webhook.now)?;
        if !signing::is_signed(&self.verifier, id, time, webhook.body, received) {
            return Err(inbound::forged(
                "no signature is right for this account; check that the sender signs with the account's secret",
            ));
        }
        // With a full stop in the id, the signature would not fix the boundary between id and time.
        if id.contains('.') {
            return Err(inbound::malformed("the header `webhook-id` holds a full stop"));
        }
        let kind: Kind = inbound::read(webhook.body, "a sender of messages")?;
        match &*kind.r#type {
            "message.received" => Ok(inbound::received(Some(inbound_message(id, webhook.body)?))),
            _ => Ok(inbound::received(None)),
        }
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

/// Classifies an answer. The receiver may return an id for the message; otherwise the key is the id.
fn judge(answer: &Answer, now: Timestamp, key: &IdempotencyKey) -> Outcome {
    http::judge(answer, now, |answer| Some(http::named(answer, "id").unwrap_or_else(|| key.to_string())))
}

/// Parses an inbound message.
fn inbound_message(id: &str, body: &[u8]) -> Result<InboundMessage, CallbackRefused> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        #[serde(rename = "type")]
        _type: String,
        #[serde(rename = "timestamp")]
        _timestamp: Option<Timestamp>,
        data: Data,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Data {
        sender_id: String,
        conversation_id: Option<String>,
        thread: Option<String>,
        text: String,
    }
    let Body { data, .. } = inbound::read(body, "a sender of messages")?;
    let conversation = data.conversation_id.as_ref().unwrap_or(&data.sender_id);
    let thread = data.thread.as_ref();
    let wrong = || inbound::malformed(format!("the text is empty, or longer than {TEXT_BYTES_MAX} bytes"));
    Ok(InboundMessage {
        provider_message_id: inbound::name("webhook-id", id, inbound::MESSAGE_NAME_BYTES_MAX)?,
        sender_id: inbound::name("sender_id", &data.sender_id, inbound::NAME_BYTES_MAX)?,
        recipient_id: inbound::name("conversation_id", conversation, inbound::NAME_BYTES_MAX)?,
        thread: thread.map(|it| inbound::name("thread", it, inbound::MESSAGE_NAME_BYTES_MAX)).transpose()?,
        text: inbound::clean_text(&data.text)
            .filter(|_| data.text.len() <= TEXT_BYTES_MAX)
            .ok_or_else(wrong)?,
    })
}

#[cfg(test)]
mod tests;

//! WhatsApp, the Cloud API: `POST {url}/{phone_number_id}/messages`. A refusal has a code, and the code decides, not the status:
//!
//! | answer | outcome |
//! |---|---|
//! | 200 with `messages[0].id` | delivered |
//! | a code of [`REFUSES_MESSAGE`]: the number, the text, 24 hours since the person wrote | rejected |
//! | a code of [`REFUSES_ACCOUNT`]: the token, permissions, payment, the business | account refused: it says nothing about the message |
//! | 100 with subcode 33: the number of the account is not there, or not for this token | account refused |
//! | a code of [`RATE_LIMITED`], and 429 | not sent, with `Retry-After`, or half a minute without it |
//! | a code of [`INTERNAL_ERRORS`] | unknown |
//! | every other code, and an answer without one | by the table in `http.rs` |
//!
//! WhatsApp takes no key and offers no lookup. It returns `biz_opaque_callback_data`, the id of the reply, in each status callback.
//! `sent`, `delivered`, `read` and `played` prove that it has the message; `failed` does not.
//!
//! A text longer than 4096 characters is rejected before any call. Graph repeats a malformed token in its answer, so the adapter removes
//! the token from every reason.
//!
//! Webhooks are signed with the secret of the app (`X-Hub-Signature-256`), and carry no time: a repeat is recognised by its id. Before
//! Meta uses an address, it sends a challenge with a GET. The adapter ignores messages to another number of the app, and messages in
//! groups, because a reply would go to the person. A pressed button and a chosen row of a list are messages with its title. A reply
//! quotes a message that itself is a reply.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use hmac::Hmac;
use jiff::Timestamp;
use postrider_model::{
    Channel, DoubtClass, Manifest, Message, Outcome, Rate,
    channels::{DeliveryReport, InboundMessage},
    ids::OutboxId,
};
use postrider_store::Reservation;
use reqwest::{Request, header::HeaderValue};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;
use sha2::Sha256;
use url::{Url, form_urlencoded};

use super::inbound;
use crate::{
    Description,
    guard::{Answer, GuardedClient},
    http,
    provider::{Account, Adapter, CallbackRefused, InboundWebhook, InvalidAccount, Provider, Received},
    text,
};

const MANIFEST: Manifest = Manifest {
    doubt: DoubtClass::Echo,
    rate: Some(Rate { calls: 80, per: Duration::from_secs(1) }),
    ..Manifest::new("whatsapp", &[Channel::Chat])
};

const EXAMPLE: &str = r#"{"phone_number_id": "1055…"}"#;
const SECRET_EXAMPLE: &str = r#"{"access_token": "…", "app_secret": "…", "verify_token": "…"}"#;

/// Longest text, from Meta's description.
const TEXT_CHARS_MAX: usize = 4096;

/// Codes that refuse this message for good; nothing was sent.
const REFUSES_MESSAGE: &[i64] = &[
    100,    // a parameter
    130472, // the person is part of an experiment
    130497, // the country of the person
    131008, // a parameter is missing
    131009, // the value of a parameter
    131021, // to oneself
    131026, // not on WhatsApp, or not reachable there
    131030, // not a number for tests
    131047, // more than 24 hours since the person wrote
    131049, // too many messages to this person, in Meta's view
    131051, // the kind of message
];

/// Codes about the account and not about this message; nothing was sent.
const REFUSES_ACCOUNT: &[i64] = &[
    0,      // the token
    3,      // the capability
    10,     // the permission
    33,     // the number was deleted
    102,    // the session
    104,    // there is no token
    190,    // the token has expired
    200,    // a permission
    368,    // blocked for violations
    131005, // the permission
    131031, // locked
    131037, // the display name is not approved
    131042, // payment
    131045, // the number is not registered
    131057, // maintenance of the account
    133010, // the number is not registered
];

/// Codes of a rate limit; nothing was sent.
const RATE_LIMITED: &[i64] = &[
    4,      // calls of the app
    17,     // calls of the user
    613,    // calls of the app
    80007,  // calls of the business
    130429, // messages of the number
    131048, // quality
    131056, // messages between these two
];

/// Codes of an internal failure; the message may have been sent.
const INTERNAL_ERRORS: &[i64] = &[
    1,      // unknown
    2,      // the service
    131000, // something
    131016, // a service
    133004, // the server
    135000, // something
];

http::adapter!(WhatsappAdapter opens Whatsapp and reads webhooks with receive);

fn description() -> Description {
    Description::new("WhatsApp", "Replies from a number of the WhatsApp Business Platform.")
        .settings::<Settings>()
        .secrets::<Secrets>()
}

/// Settings of an account.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Id of the number that sends, as Meta shows it.
    phone_number_id: String,
    /// Address of the API. Needed only for another one than the default.
    #[serde(default = "api")]
    url: Url,
}

fn api() -> Url {
    http::known("https://graph.facebook.com/v23.0")
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Secrets {
    /// Access token of the app.
    #[schemars(with = "String")]
    access_token: SecretString,
    /// Secret of the app, with which Meta signs webhooks.
    #[schemars(with = "String")]
    app_secret: SecretString,
    /// Text that was given to Meta with the address of the webhook.
    #[schemars(with = "String")]
    verify_token: SecretString,
}

/// A number of a business.
struct Whatsapp {
    client: GuardedClient,
    messages: Url,
    phone_number_id: String,
    token: HeaderValue,
    /// Removed from every text that Graph returns.
    access_token: SecretString,
    /// Keyed with the secret of the app.
    signature: Hmac<Sha256>,
    verify_token: SecretString,
}

impl Whatsapp {
    fn new(client: &GuardedClient, account: &Account<'_>) -> Result<Self, InvalidAccount> {
        let settings: Settings = http::settings(account, "whatsapp", EXAMPLE)?;
        let phone_number_id = settings.phone_number_id;
        if phone_number_id.is_empty() || !phone_number_id.bytes().all(|b| b.is_ascii_digit()) {
            return Err(InvalidAccount(format!(
                "`phone_number_id` is not a number; the settings of `whatsapp` are like {EXAMPLE}"
            )));
        }
        let secrets: Secrets = http::secrets(account, "whatsapp", SECRET_EXAMPLE)?;
        http::part(&secrets.access_token, "access_token")?;
        http::part(&secrets.app_secret, "app_secret")?;
        http::part(&secrets.verify_token, "verify_token")?;
        let base = http::base(client, settings.url)?;
        Ok(Self {
            client: client.clone(),
            messages: http::below(&base, &[&phone_number_id, "messages"]),
            phone_number_id,
            token: http::bearer(&secrets.access_token, "an access token")?,
            signature: inbound::signature(&secrets.app_secret)?,
            access_token: secrets.access_token,
            verify_token: secrets.verify_token,
        })
    }

    fn request(&self, id: OutboxId, message: &Message) -> Result<Request, Outcome> {
        #[derive(Serialize)]
        struct Send<'a> {
            messaging_product: &'static str,
            recipient_type: &'static str,
            to: &'a str,
            r#type: &'static str,
            text: Text<'a>,
            #[serde(skip_serializing_if = "Option::is_none")]
            context: Option<Context<'a>>,
            biz_opaque_callback_data: String,
        }
        #[derive(Serialize)]
        struct Text<'a> {
            body: &'a str,
            preview_url: bool,
        }
        #[derive(Serialize)]
        struct Context<'a> {
            message_id: &'a str,
        }
        let Message::Chat { to, thread, text } = message else {
            return Err(http::wrong_channel("whatsapp", "chat", message));
        };
        http::check_length("text", text, TEXT_CHARS_MAX, "WhatsApp")?;
        let send = Send {
            messaging_product: "whatsapp",
            recipient_type: "individual",
            to,
            r#type: "text",
            text: Text { body: text, preview_url: false },
            context: thread.as_deref().map(|message_id| Context { message_id }),
            biz_opaque_callback_data: id.0.to_string(),
        };
        http::post(self.messages.clone(), Some(&self.token), &send)
    }

    /// Verifies a webhook and reads it, or responds to a challenge.
    fn receive(&self, webhook: &InboundWebhook<'_>) -> Result<Received, CallbackRefused> {
        if webhook.is_get {
            return self.subscribe(webhook.query);
        }
        let received = webhook.header("x-hub-signature-256")?;
        let received = received.strip_prefix("sha256=").ok_or_else(|| {
            inbound::forged("the header `X-Hub-Signature-256` does not begin with `sha256=`")
        })?;
        inbound::verify_hex(&self.signature, &[webhook.body], received, "Meta")?;
        self.read(webhook.body)
    }

    fn subscribe(&self, query: &str) -> Result<Received, CallbackRefused> {
        let field = |name: &str| {
            let mut values = form_urlencoded::parse(query.as_bytes()).filter(|(field, _)| field == name);
            match (values.next(), values.next()) {
                (Some((_, value)), None) => Ok(value.into_owned()),
                _ => Err(inbound::forged(format!("`{name}` is missing, or is there twice"))),
            }
        };
        if field("hub.mode")? != "subscribe"
            || !inbound::is_same(&field("hub.verify_token")?, &self.verify_token)
        {
            return Err(inbound::forged(
                "`hub.verify_token` is not this account's; set it to the `verify_token` of its secret",
            ));
        }
        inbound::challenge(&field("hub.challenge")?)
    }

    fn read(&self, body: &[u8]) -> Result<Received, CallbackRefused> {
        #[derive(Deserialize)]
        struct Body<'a> {
            #[serde(borrow, default)]
            entry: Vec<Entry<'a>>,
        }
        #[derive(Deserialize)]
        struct Entry<'a> {
            #[serde(borrow, default)]
            changes: Vec<Change<'a>>,
        }
        #[derive(Deserialize)]
        struct Change<'a> {
            field: String,
            #[serde(borrow)]
            value: &'a RawValue,
        }
        #[derive(Deserialize)]
        struct Value<'a> {
            metadata: Metadata,
            #[serde(borrow, default)]
            messages: Vec<&'a RawValue>,
            #[serde(default)]
            statuses: Vec<Status>,
        }
        #[derive(Deserialize)]
        struct Metadata {
            phone_number_id: String,
        }
        let body: Body<'_> = inbound::read(body, "Meta")?;
        let (mut messages, mut reports) = (Vec::new(), Vec::new());
        let changes = body.entry.into_iter().flat_map(|entry| entry.changes);
        for change in changes.filter(|change| change.field == "messages") {
            let value: Value<'_> = inbound::read(change.value.get().as_bytes(), "Meta")?;
            if value.metadata.phone_number_id != self.phone_number_id {
                // An app has one address for all its numbers, unless each number has its own.
                if !value.messages.is_empty() {
                    let number = text::excerpt(&value.metadata.phone_number_id);
                    tracing::warn!(
                        ours = self.phone_number_id,
                        "messages to number {number} arrived at the webhook of another number and are ignored; give each number its own webhook"
                    );
                }
                continue;
            }
            for message in value.messages {
                messages.extend(inbound_message(message.get().as_bytes())?);
            }
            for status in value.statuses {
                reports.push(status.report()?);
            }
        }
        Ok(Received::Happened { messages, reports })
    }
}

#[async_trait]
impl Provider for Whatsapp {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        let sent = http::send(&self.client, self.request(reservation.outbox_id(), message)).await;
        http::outcome(sent.map(|answer| http::without(answer, self.access_token.expose_secret())), judge)
    }
}

/// The table of the [module](self).
fn judge(answer: &Answer, now: Timestamp) -> Outcome {
    #[derive(Deserialize)]
    struct Refusal {
        error: Failure,
    }
    let is_refusal = answer.status.is_client_error() || answer.status.is_server_error();
    let Some(Refusal { error }) = is_refusal.then(|| http::json(answer)).flatten() else {
        return http::judge(answer, now, message_id);
    };
    let reason = format!("WhatsApp says {}", error.describe());
    match (error.code, error.error_subcode) {
        (100, Some(33)) => http::account_refused(&reason),
        (code, _) if REFUSES_MESSAGE.contains(&code) => Outcome::Rejected { reason },
        (code, _) if REFUSES_ACCOUNT.contains(&code) => http::account_refused(&reason),
        (code, _) if RATE_LIMITED.contains(&code) => {
            http::rate_limited(answer, now, reason, http::RATE_LIMIT_WAIT)
        }
        (code, _) if INTERNAL_ERRORS.contains(&code) => Outcome::Unknown { reason },
        _ => http::judge(answer, now, |_| None),
    }
}

/// WhatsApp's id of the message.
fn message_id(answer: &Answer) -> Option<String> {
    #[derive(Deserialize)]
    struct Sent {
        messages: Vec<Named>,
    }
    #[derive(Deserialize)]
    struct Named {
        id: String,
    }
    let sent: Sent = http::json(answer)?;
    Some(text::excerpt(&sent.messages.first()?.id)).filter(|id| !id.trim().is_empty())
}

/// An error in an answer or a status.
#[derive(Deserialize)]
struct Failure {
    code: i64,
    error_subcode: Option<i64>,
    title: Option<String>,
    message: Option<String>,
    error_data: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    details: Option<String>,
}

impl Failure {
    fn describe(&self) -> String {
        let title = self.message.as_ref().or(self.title.as_ref()).map(|title| format!(": {title}"));
        let details = self.error_data.as_ref().and_then(|data| data.details.as_ref());
        let details = details.map(|details| format!(" ({details})"));
        text::excerpt(&format!("{}{}{}", self.code, title.unwrap_or_default(), details.unwrap_or_default()))
    }
}

/// A status callback about a sent message.
#[derive(Deserialize)]
struct Status {
    id: String,
    status: String,
    timestamp: Option<String>,
    biz_opaque_callback_data: Option<String>,
    #[serde(default)]
    errors: Vec<Failure>,
}

impl Status {
    fn report(self) -> Result<DeliveryReport, CallbackRefused> {
        let at = self.timestamp.and_then(|seconds| Timestamp::from_second(seconds.parse().ok()?).ok());
        Ok(DeliveryReport {
            // Other programs may send from this number, with other data.
            reply_id: self.biz_opaque_callback_data.and_then(|data| data.parse().ok()),
            provider_message_id: inbound::name("id", &self.id, inbound::MESSAGE_NAME_BYTES_MAX)?,
            proves_action: matches!(&*self.status, "sent" | "delivered" | "read" | "played"),
            status: inbound::name("status", &self.status, inbound::NAME_BYTES_MAX)?,
            at,
            error: self.errors.first().map(Failure::describe),
        })
    }
}

/// The message of a person, if it is one.
fn inbound_message(message: &[u8]) -> Result<Option<InboundMessage>, CallbackRefused> {
    #[derive(Deserialize)]
    struct Kind {
        r#type: String,
        group_id: Option<IgnoredAny>,
        from: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Written {
        from: String,
        id: String,
        text: Option<Text>,
        /// The button of a template.
        button: Option<Button>,
        /// A button or a row of a list that we sent.
        interactive: Option<Interactive>,
        context: Option<Context>,
    }
    #[derive(Deserialize)]
    struct Text {
        body: String,
    }
    #[derive(Deserialize)]
    struct Button {
        text: String,
    }
    #[derive(Deserialize)]
    struct Interactive {
        button_reply: Option<Choice>,
        list_reply: Option<Choice>,
    }
    #[derive(Deserialize)]
    struct Choice {
        title: String,
    }
    #[derive(Deserialize)]
    struct Context {
        id: Option<String>,
    }
    let kind: Kind = inbound::read(message, "Meta")?;
    // A sender without a number cannot receive a reply.
    if !matches!(&*kind.r#type, "text" | "button" | "interactive")
        || kind.group_id.is_some()
        || kind.from.is_none()
    {
        return Ok(None);
    }
    let parsed: Written = inbound::read(message, "Meta")?;
    let chosen = |interactive: Interactive| interactive.button_reply.or(interactive.list_reply);
    let text = match &*kind.r#type {
        "text" => parsed.text.map(|text| text.body),
        "button" => parsed.button.map(|button| button.text),
        _ => parsed.interactive.and_then(chosen).map(|choice| choice.title),
    };
    let Some(text) = text.as_deref().and_then(inbound::clean_text) else { return Ok(None) };
    let id = inbound::name("id", &parsed.id, inbound::MESSAGE_NAME_BYTES_MAX)?;
    let from = inbound::name("from", &parsed.from, inbound::NAME_BYTES_MAX)?;
    let is_quoted = parsed.context.is_some_and(|context| context.id.is_some());
    Ok(Some(InboundMessage {
        sender_id: from.clone(),
        recipient_id: from,
        thread: is_quoted.then(|| id.clone()),
        provider_message_id: id,
        text,
    }))
}

#[cfg(test)]
mod tests;

//! Telegram: `POST {url}/bot{token}/sendMessage`. Plain text: without `parse_mode` no text becomes markup.
//!
//! | answer in Telegram's JSON | outcome |
//! |---|---|
//! | 200 with a `message_id` | delivered, as `CHAT:MESSAGE` |
//! | 400: there is no such chat, the text is empty | rejected |
//! | 400 with `migrate_to_chat_id`: the group is a supergroup now | the message is sent to that id, once |
//! | 403: the person has blocked the bot, or the group removed it | rejected: this is about the recipient, and not, as for other vendors, about the account |
//! | 401, and 404, which Telegram sends for a malformed token | account refused |
//! | 429 | not sent, until `parameters.retry_after` is over |
//!
//! The table in `http.rs` decides about everything else, also about answers without Telegram's JSON, such as a proxy's 403.
//!
//! A text longer than 4096 characters is rejected before any call. Telegram takes no key, does not list the messages of a bot, and
//! sends no status callbacks, so only a person can settle an item in doubt.
//!
//! The token is a part of the address. The adapter removes it from every reason, also where an answer repeats it.
//!
//! Webhooks are updates, with the secret of `setWebhook` in `X-Telegram-Bot-Api-Secret-Token`. Messages with a text or a caption, and
//! pressed buttons (`callback_query`) with their data, are messages. A reply quotes the message in a group, in a thread, and when the
//! message itself is a reply; in a private chat it does not. In a topic of a forum it goes to the topic: the thread is `TOPIC/MESSAGE`.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{Channel, Manifest, Message, Outcome, Rate, channels::InboundMessage};
use postrider_store::Reservation;
use reqwest::{Request, StatusCode};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;
use url::Url;

use super::inbound;
use crate::{
    Description,
    guard::{Answer, GuardedClient},
    http,
    provider::{Account, Adapter, CallbackRefused, InboundWebhook, InvalidAccount, Provider, Received},
    text,
};

const MANIFEST: Manifest = Manifest {
    rate: Some(Rate { calls: 30, per: Duration::from_secs(1) }),
    ..Manifest::new("telegram", &[Channel::Chat])
};

const EXAMPLE: &str = r#"{} or {"url": "https://api.telegram.org"}"#;
const SECRET_EXAMPLE: &str = r#"{"bot_token": "123:abc", "webhook_secret": "…"}"#;

/// Longest text, from Telegram's description.
const TEXT_CHARS_MAX: usize = 4096;
/// Longest secret of a webhook.
const WEBHOOK_SECRET_CHARS_MAX: usize = 256;

http::adapter!(TelegramAdapter opens Telegram and reads webhooks with receive);

fn description() -> Description {
    Description::new("Telegram", "Replies of a Telegram bot.").settings::<Settings>().secrets::<Secrets>()
}

/// Settings of an account.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Address of the API. Needed only for another one than the default.
    #[serde(default = "api")]
    url: Url,
}

fn api() -> Url {
    http::known("https://api.telegram.org")
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Secrets {
    /// Token that BotFather gave, like 123:abc.
    #[schemars(with = "String")]
    bot_token: SecretString,
    /// The `secret_token` that was given to `setWebhook`.
    #[schemars(with = "String")]
    webhook_secret: SecretString,
}

/// A bot.
struct Telegram {
    client: GuardedClient,
    /// Contains the token, so it is never shown.
    send: Url,
    /// The secret part of the token, removed from every reason.
    token: SecretString,
    webhook_secret: SecretString,
}

impl Telegram {
    fn new(client: &GuardedClient, account: &Account<'_>) -> Result<Self, InvalidAccount> {
        let settings: Settings = http::settings(account, "telegram", EXAMPLE)?;
        let secrets: Secrets = http::secrets(account, "telegram", SECRET_EXAMPLE)?;
        let bot_token = http::part(&secrets.bot_token, "bot_token")?;
        let is_word = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
        };
        let token = bot_token
            .split_once(':')
            .filter(|(bot, token)| {
                bot.bytes().all(|b| b.is_ascii_digit()) && !bot.is_empty() && is_word(token)
            })
            .map(|(_, token)| SecretString::from(token))
            .ok_or_else(|| {
                InvalidAccount("`bot_token` of the secret is not like 123456:ABC-def".to_owned())
            })?;
        let webhook_secret = http::part(&secrets.webhook_secret, "webhook_secret")?;
        if !is_word(webhook_secret) || webhook_secret.len() > WEBHOOK_SECRET_CHARS_MAX {
            return Err(InvalidAccount(format!(
                "`webhook_secret` of the secret is not 1 to {WEBHOOK_SECRET_CHARS_MAX} characters A-Z, a-z, 0-9, _ and -"
            )));
        }
        let base = http::base(client, settings.url)?;
        Ok(Self {
            client: client.clone(),
            send: http::below(&base, &[&format!("bot{bot_token}"), "sendMessage"]),
            token,
            webhook_secret: secrets.webhook_secret,
        })
    }

    /// Builds the request, to another chat if the one of the message has moved.
    fn request(&self, message: &Message, moved_to: Option<i64>) -> Result<Request, Outcome> {
        #[derive(Serialize)]
        struct Send<'a> {
            chat_id: Chat<'a>,
            #[serde(skip_serializing_if = "Option::is_none")]
            message_thread_id: Option<i64>,
            text: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            reply_parameters: Option<Reply>,
        }
        /// A number, or the name of a public chat.
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Chat<'a> {
            Id(i64),
            Name(&'a str),
        }
        #[derive(Serialize)]
        struct Reply {
            message_id: i64,
            // A reply without the quote is better than no reply.
            allow_sending_without_reply: bool,
        }
        let Message::Chat { to, thread, text } = message else {
            return Err(http::wrong_channel("telegram", "chat", message));
        };
        http::check_length("text", text, TEXT_CHARS_MAX, "Telegram")?;
        let no_thread = |_| Outcome::Rejected {
            reason: "the thread is not the number of a message, or TOPIC/MESSAGE".to_owned(),
        };
        let (topic, quoted) = match thread.as_deref().map(|thread| thread.split_once('/').ok_or(thread)) {
            None => (None, None),
            Some(Ok((topic, message))) => (Some(topic), Some(message)),
            Some(Err(message)) => (None, Some(message)),
        };
        let message_thread_id = topic.map(str::parse).transpose().map_err(no_thread)?;
        let message_id: Option<i64> = quoted.map(str::parse).transpose().map_err(no_thread)?;
        let reply_parameters =
            message_id.map(|message_id| Reply { message_id, allow_sending_without_reply: true });
        let chat_id = match moved_to {
            Some(id) => Chat::Id(id),
            None => to.parse().map_or(Chat::Name(to), Chat::Id),
        };
        http::post(self.send.clone(), None, &Send { chat_id, message_thread_id, text, reply_parameters })
    }

    /// Sends a message. The error is the outcome when there is no answer.
    async fn send(&self, message: &Message, moved_to: Option<i64>) -> Result<Answer, Outcome> {
        let sent = http::send(&self.client, self.request(message, moved_to)).await;
        sent.map(|answer| http::without(answer, self.token.expose_secret()))
    }

    /// Verifies an update and reads it.
    fn receive(&self, webhook: &InboundWebhook<'_>) -> Result<Received, CallbackRefused> {
        #[derive(Deserialize)]
        struct Update<'a> {
            update_id: i64,
            /// A new message. An edited one is in another field.
            #[serde(borrow)]
            message: Option<&'a RawValue>,
            /// A pressed button of a message of the bot.
            #[serde(borrow)]
            callback_query: Option<&'a RawValue>,
        }
        if webhook.is_get {
            return Err(CallbackRefused::NotTaken);
        }
        if !inbound::is_same(webhook.header("x-telegram-bot-api-secret-token")?, &self.webhook_secret) {
            return Err(inbound::forged(
                "the secret token is not this account's; call `setWebhook` with its `webhook_secret`",
            ));
        }
        let update: Update<'_> = inbound::read(webhook.body, "Telegram")?;
        let message = match (update.message, update.callback_query) {
            (Some(message), _) => inbound_message(update.update_id, message.get().as_bytes())?,
            (None, Some(query)) => pressed_button(update.update_id, query.get().as_bytes())?,
            (None, None) => None,
        };
        Ok(inbound::received(message))
    }
}

#[async_trait]
impl Provider for Telegram {
    async fn call(&self, _reservation: &Reservation, message: &Message) -> Outcome {
        self.deliver(message).await
    }
}

impl Telegram {
    /// Sends a message, to the chat that replaces its own if Telegram names one.
    async fn deliver(&self, message: &Message) -> Outcome {
        let sent = match self.send(message, None).await {
            // Telegram refused the first request, so this is the only one that it acts on.
            Ok(answer) => match moved_to(&answer) {
                Some(chat) => self.send(message, Some(chat)).await,
                None => Ok(answer),
            },
            Err(outcome) => Err(outcome),
        };
        http::outcome(sent, judge)
    }
}

/// The id of the chat that replaces the one of a refused message.
fn moved_to(answer: &Answer) -> Option<i64> {
    #[derive(Deserialize)]
    struct Refusal {
        ok: bool,
        parameters: Moved,
    }
    #[derive(Deserialize)]
    struct Moved {
        migrate_to_chat_id: i64,
    }
    let refusal: Refusal = http::json(answer).filter(|_| answer.status == StatusCode::BAD_REQUEST)?;
    (!refusal.ok).then_some(refusal.parameters.migrate_to_chat_id)
}

/// The table of the [module](self).
fn judge(answer: &Answer, now: Timestamp) -> Outcome {
    #[derive(Deserialize)]
    struct Body {
        ok: bool,
        description: Option<String>,
        #[serde(default)]
        parameters: Parameters,
        result: Option<Sent>,
    }
    #[derive(Default, Deserialize)]
    struct Parameters {
        retry_after: Option<u64>,
        migrate_to_chat_id: Option<i64>,
    }
    #[derive(Deserialize)]
    struct Sent {
        message_id: i64,
        chat: Id,
    }
    let Some(body) = http::json::<Body>(answer) else {
        return http::judge(answer, now, |_| None);
    };
    let moved = body.parameters.migrate_to_chat_id.map(|id| format!("; the chat is now {id}"));
    let reason = match body.description {
        Some(words) => text::excerpt(&format!("Telegram says: {words}{}", moved.unwrap_or_default())),
        None => http::describe(answer),
    };
    match (answer.status, body.ok, body.result) {
        (StatusCode::OK, true, Some(sent)) => {
            Outcome::Delivered { message_id: format!("{}:{}", sent.chat.id, sent.message_id) }
        }
        (StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN, false, _) => Outcome::Rejected { reason },
        (StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND, false, _) => http::account_refused(&reason),
        (StatusCode::TOO_MANY_REQUESTS, ..) => {
            let after = body.parameters.retry_after.map(Duration::from_secs);
            match after {
                Some(after) => Outcome::NotSent { reason, retry_after: Some(after) },
                None => http::rate_limited(answer, now, reason, http::RATE_LIMIT_WAIT),
            }
        }
        _ => http::judge(answer, now, |_| None),
    }
}

#[derive(Deserialize)]
struct Id {
    id: i64,
}

/// The message of a person, if the update is one.
fn inbound_message(update: i64, message: &[u8]) -> Result<Option<InboundMessage>, CallbackRefused> {
    #[derive(Deserialize)]
    struct Body {
        message_id: i64,
        message_thread_id: Option<i64>,
        #[serde(default)]
        is_topic_message: bool,
        from: Option<Sender>,
        /// Present if the sender is not a person: a channel or an anonymous administrator.
        sender_chat: Option<IgnoredAny>,
        /// Present if a bot wrote the text and a person only chose it.
        via_bot: Option<IgnoredAny>,
        chat: Chat,
        reply_to_message: Option<IgnoredAny>,
        text: Option<String>,
        /// Of a photo, a document and the like.
        caption: Option<String>,
    }
    let body: Body = inbound::read(message, "Telegram")?;
    let person =
        body.from.filter(|from| !from.is_bot && body.sender_chat.is_none() && body.via_bot.is_none());
    let text = body.text.or(body.caption);
    let (Some(person), Some(text)) = (person, text.as_deref().and_then(inbound::clean_text)) else {
        return Ok(None);
    };
    let topic = body.message_thread_id.filter(|_| body.is_topic_message);
    let is_quoted =
        body.chat.r#type != "private" || body.message_thread_id.is_some() || body.reply_to_message.is_some();
    Ok(Some(InboundMessage {
        provider_message_id: update.to_string(),
        sender_id: person.id.to_string(),
        recipient_id: body.chat.id.to_string(),
        thread: is_quoted.then(|| thread_of(topic, body.message_id)),
        text,
    }))
}

/// The thread of a reply that quotes this message.
fn thread_of(topic: Option<i64>, message: i64) -> String {
    topic.map_or_else(|| message.to_string(), |topic| format!("{topic}/{message}"))
}

/// The message that a person sends by a button: the data that the bot gave it.
fn pressed_button(update: i64, query: &[u8]) -> Result<Option<InboundMessage>, CallbackRefused> {
    #[derive(Deserialize)]
    struct Query {
        from: Sender,
        /// Missing when the message is too old.
        message: Option<Pressed>,
        data: Option<String>,
    }
    #[derive(Deserialize)]
    struct Pressed {
        message_id: i64,
        message_thread_id: Option<i64>,
        #[serde(default)]
        is_topic_message: bool,
        chat: Chat,
    }
    let query: Query = inbound::read(query, "Telegram")?;
    let data = query.data.as_deref().and_then(inbound::clean_text);
    let (Some(pressed), Some(text), false) = (query.message, data, query.from.is_bot) else {
        return Ok(None);
    };
    let topic = pressed.message_thread_id.filter(|_| pressed.is_topic_message);
    let is_quoted = pressed.chat.r#type != "private" || topic.is_some();
    Ok(Some(InboundMessage {
        provider_message_id: update.to_string(),
        sender_id: query.from.id.to_string(),
        recipient_id: pressed.chat.id.to_string(),
        thread: is_quoted.then(|| thread_of(topic, pressed.message_id)),
        text,
    }))
}

#[derive(Deserialize)]
struct Sender {
    id: i64,
    is_bot: bool,
}

#[derive(Deserialize)]
struct Chat {
    id: i64,
    r#type: String,
}

#[cfg(test)]
mod tests;

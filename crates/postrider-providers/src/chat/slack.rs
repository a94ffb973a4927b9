//! Slack: `POST {url}/chat.postMessage`. Slack refuses with a 200 and an error word, so the word decides:
//!
//! | answer | outcome |
//! |---|---|
//! | `ok` with `channel` and `ts` | delivered, as `CHANNEL:TS` |
//! | a word of [`REFUSES_MESSAGE`]: the conversation, the text | rejected |
//! | a word of [`REFUSES_ACCOUNT`]: the token, its scopes, the workspace | not sent: it says nothing about the message |
//! | a word of [`RATE_LIMITED`], and 429 | not sent, with `Retry-After` |
//! | every other word, `internal_error` and `fatal_error` among them: "some aspect of the operation" may have succeeded | unknown |
//! | every other status | by the table in `http.rs` |
//!
//! Slack does not deduplicate on a key. It stores the key in the metadata of the message and lists it: `conversations.history`, or
//! `conversations.replies` in a thread, back to before the reservation. A message with the item's key proves the item sent. A list
//! without the key proves that it was not sent only if the list was read to its end and shows metadata.
//!
//! `&`, `<` and `>` are escaped, as Slack documents: without them no text can become a link or a mention (`<!channel>`, `<@U…>`).
//! `*bold*` and other markup stay unchanged.
//!
//! Webhooks are those of the Events API: signed (`X-Slack-Signature`, `v0`), at most five minutes old. The id of a message is
//! `CHANNEL:TS`, so its `message` and its `app_mention` are the same message.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use hmac::Hmac;
use jiff::Timestamp;
use postrider_model::{
    Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome, channels::InboundMessage,
};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::{Request, StatusCode, header::HeaderValue};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;
use sha2::Sha256;
use url::Url;

use super::inbound;
use crate::{
    Description,
    guard::{Answer, Ending, GuardedClient},
    http,
    provider::{Account, Adapter, CallbackRefused, InboundWebhook, InvalidAccount, Provider, Received},
    text,
};

const MANIFEST: Manifest = Manifest { doubt: DoubtClass::Lookup, ..Manifest::new("slack", &[Channel::Chat]) };

const EXAMPLE: &str = r#"{} or {"url": "https://slack.com/api"}"#;
const SECRET_EXAMPLE: &str = r#"{"bot_token": "xoxb-…", "signing_secret": "…"}"#;

/// Type of the metadata that Postrider adds to a message.
const EVENT_TYPE: &str = "postrider_reply";
/// Longest text; Slack cuts longer ones.
const TEXT_CHARS_MAX: usize = 40_000;
/// Messages in one page of a list: the maximum for an app that is not in Slack's marketplace. The client reads an answer up to
/// 64 KiB; if a page is longer, the adapter requests smaller pages.
const PAGE: usize = 15;
/// Maximum pages of one look-up.
const PAGES_MAX: usize = 20;
/// Maximum skew of Slack's clock.
const SKEW: Duration = Duration::from_secs(5 * 60);

/// Errors that refuse this message for good; nothing was posted.
const REFUSES_MESSAGE: &[&str] = &[
    "cannot_reply_to_message",
    "channel_not_found",
    "invalid_arg_name",
    "invalid_arguments",
    "invalid_charset",
    "invalid_form_data",
    "invalid_metadata_format",
    "invalid_metadata_schema",
    "invalid_post_type",
    "invalid_thread_ts",
    "is_archived",
    "metadata_too_large",
    "missing_post_type",
    "msg_too_long",
    "no_text",
    "not_in_channel",
    "restricted_action",
    "restricted_action_non_threadable_channel",
    "restricted_action_read_only_channel",
    "restricted_action_thread_locked",
    "restricted_action_thread_only_channel",
];

/// Errors about the account and not about this message; nothing was posted.
const REFUSES_ACCOUNT: &[&str] = &[
    "access_denied",
    "accesslimited",
    "account_inactive",
    "deprecated_endpoint",
    "ekm_access_denied",
    "enterprise_is_restricted",
    "invalid_auth",
    "messages_tab_disabled",
    "metadata_must_be_sent_from_app",
    "method_deprecated",
    "missing_scope",
    "no_permission",
    "not_allowed_token_type",
    "not_authed",
    "org_login_required",
    "team_access_not_granted",
    "team_added_to_org",
    "team_not_found",
    "token_expired",
    "token_revoked",
    "two_factor_setup_required",
];

/// Errors of a rate limit; nothing was posted.
const RATE_LIMITED: &[&str] = &["message_limit_exceeded", "rate_limited", "ratelimited"];

http::adapter!(SlackAdapter opens Slack and reads webhooks with receive);

fn description() -> Description {
    Description::new("Slack", "Replies of a Slack app in the conversations that it is in.")
        .settings::<Settings>()
        .secrets::<Secrets>()
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
    http::known("https://slack.com/api")
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Secrets {
    /// Bot token, like xoxb-….
    #[schemars(with = "String")]
    bot_token: SecretString,
    /// Signing secret of the app.
    #[schemars(with = "String")]
    signing_secret: SecretString,
}

/// An app in a workspace.
struct Slack {
    client: GuardedClient,
    api: Url,
    token: HeaderValue,
    /// Removed from every text that Slack returns.
    bot_token: SecretString,
    /// Keyed with the signing secret.
    signature: Hmac<Sha256>,
}

impl Slack {
    fn new(client: &GuardedClient, account: &Account<'_>) -> Result<Self, InvalidAccount> {
        let settings: Settings = http::settings(account, "slack", EXAMPLE)?;
        let secrets: Secrets = http::secrets(account, "slack", SECRET_EXAMPLE)?;
        http::part(&secrets.bot_token, "bot_token")?;
        http::part(&secrets.signing_secret, "signing_secret")?;
        Ok(Self {
            client: client.clone(),
            api: http::base(client, settings.url)?,
            token: http::bearer(&secrets.bot_token, "a bot token")?,
            signature: inbound::signature(&secrets.signing_secret)?,
            bot_token: secrets.bot_token,
        })
    }

    fn request(&self, key: &IdempotencyKey, message: &Message) -> Result<Request, Outcome> {
        #[derive(Serialize)]
        struct Post<'a> {
            channel: &'a str,
            text: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            thread_ts: Option<&'a str>,
            metadata: Metadata<'a>,
        }
        #[derive(Serialize)]
        struct Metadata<'a> {
            event_type: &'static str,
            event_payload: Payload<'a>,
        }
        #[derive(Serialize)]
        struct Payload<'a> {
            key: &'a IdempotencyKey,
        }
        let Message::Chat { to, thread, text } = message else {
            return Err(http::wrong_channel("slack", "chat", message));
        };
        let text = escaped(text);
        http::check_length("text", &text, TEXT_CHARS_MAX, "Slack")?;
        let metadata = Metadata { event_type: EVENT_TYPE, event_payload: Payload { key } };
        let post = Post { channel: to, text, thread_ts: thread.as_deref(), metadata };
        http::post(http::below(&self.api, &["chat.postMessage"]), Some(&self.token), &post)
    }

    /// Reads a conversation, or a thread of it, back to `since`. The error is the finding if the list could not be read.
    async fn search(
        &self,
        place: Place<'_>,
        since: Timestamp,
        key: &IdempotencyKey,
        text: &str,
    ) -> Result<Finding, Finding> {
        let (mut cursor, mut page_size, mut may_be_ours) = (None::<String>, PAGE, false);
        for _ in 0..PAGES_MAX {
            let url = self.page(place, since, page_size, cursor.as_deref());
            let answer = http::ask(&self.client, url, Some(&self.token)).await?;
            if answer.ending == Ending::TooLong && page_size > 1 {
                page_size /= 2;
                continue;
            }
            let page = listed(&http::without(answer, self.bot_token.expose_secret()))?;
            if let Some(ours) = page.messages.iter().find(|posted| posted.carries(key)) {
                return Ok(Finding::Done {
                    message_id: text::excerpt(&format!("{}:{}", place.channel, ours.ts)),
                    evidence: "the conversation has a message with this key in its metadata".to_owned(),
                });
            }
            may_be_ours |= page.messages.iter().any(|posted| posted.may_say(text));
            match page.next() {
                Some(next) => cursor = Some(next),
                None if page.has_more => {
                    return Err(unclear("Slack sent no cursor for the next page of its list"));
                }
                None if may_be_ours => {
                    return Err(unclear(
                        "a bot's message has the same text, and Slack shows no metadata of it; check that the app has the scope `metadata.message:read`",
                    ));
                }
                None => {
                    let evidence = "no message since the reservation has this key in its metadata".to_owned();
                    return Ok(Finding::Absent { evidence });
                }
            }
        }
        Err(unclear("there are too many messages since then to read them all"))
    }

    fn page(&self, place: Place<'_>, since: Timestamp, page_size: usize, cursor: Option<&str>) -> Url {
        let method = if place.thread.is_some() { "conversations.replies" } else { "conversations.history" };
        let mut url = http::below(&self.api, &[method]);
        let mut query = url.query_pairs_mut();
        query.append_pair("channel", place.channel);
        if let Some(thread) = place.thread {
            query.append_pair("ts", thread);
        }
        query
            .append_pair("oldest", &format!("{}.{:06}", since.as_second(), since.subsec_microsecond()))
            .append_pair("include_all_metadata", "true")
            .append_pair("limit", &page_size.to_string());
        if let Some(cursor) = cursor {
            query.append_pair("cursor", cursor);
        }
        drop(query);
        url
    }

    /// Verifies a webhook of the Events API and reads it.
    fn receive(&self, webhook: &InboundWebhook<'_>) -> Result<Received, CallbackRefused> {
        #[derive(Deserialize)]
        struct Body<'a> {
            r#type: String,
            challenge: Option<String>,
            #[serde(borrow)]
            event: Option<&'a RawValue>,
            #[serde(default)]
            authorizations: Vec<Authorization>,
        }
        if webhook.is_get {
            return Err(CallbackRefused::NotTaken);
        }
        let time = webhook.header("x-slack-request-timestamp")?;
        let received = webhook.header("x-slack-signature")?;
        inbound::check_time("X-Slack-Request-Timestamp", time, webhook.now)?;
        let received = received
            .strip_prefix("v0=")
            .ok_or_else(|| inbound::forged("the header `X-Slack-Signature` does not begin with `v0=`"))?;
        inbound::verify_hex(
            &self.signature,
            &[b"v0:", time.as_bytes(), b":", webhook.body],
            received,
            "Slack",
        )?;

        let body: Body<'_> = inbound::read(webhook.body, "Slack")?;
        match (&*body.r#type, body.challenge, body.event) {
            ("url_verification", Some(challenge), _) => inbound::challenge(&challenge),
            ("event_callback", _, Some(event)) => {
                Ok(inbound::received(inbound_message(event.get().as_bytes(), &body.authorizations)?))
            }
            ("url_verification" | "event_callback", ..) => {
                Err(inbound::malformed("`challenge` or `event` is missing"))
            }
            _ => Ok(inbound::received(None)),
        }
    }
}

/// The conversation and thread of a message.
#[derive(Clone, Copy)]
struct Place<'a> {
    channel: &'a str,
    thread: Option<&'a str>,
}

#[async_trait]
impl Provider for Slack {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        let sent = http::send(&self.client, self.request(reservation.key(), message)).await;
        http::outcome(sent.map(|answer| http::without(answer, self.bot_token.expose_secret())), judge)
    }

    async fn look_up(&self, doubt: &HeldDoubt, message: Option<&Message>) -> Finding {
        let Some(Message::Chat { to, thread, text }) = message else {
            return unclear("the message cannot be rendered as it was, so its thread is unknown");
        };
        let place = Place { channel: to, thread: thread.as_deref() };
        let since = doubt.reserved_at() - SKEW;
        self.search(place, since, doubt.key(), text).await.unwrap_or_else(|unclear| unclear)
    }
}

/// The table of the [module](self).
fn judge(answer: &Answer, now: Timestamp) -> Outcome {
    #[derive(Deserialize)]
    struct Body {
        ok: bool,
        error: Option<String>,
        /// Missing scopes, with `missing_scope`.
        needed: Option<String>,
        channel: Option<String>,
        ts: Option<String>,
    }
    let body: Option<Body> = if answer.status == StatusCode::OK { http::json(answer) } else { None };
    match body {
        Some(Body { ok: true, channel: Some(channel), ts: Some(ts), .. })
            if !channel.trim().is_empty() && !ts.trim().is_empty() =>
        {
            Outcome::Delivered { message_id: text::excerpt(&format!("{channel}:{ts}")) }
        }
        Some(Body { ok: false, error: Some(error), needed, .. }) => {
            let needed = needed.map(|scopes| format!(" (it needs {scopes})")).unwrap_or_default();
            let reason = text::excerpt(&format!("Slack says `{error}`{needed}"));
            match &*error {
                error if REFUSES_MESSAGE.contains(&error) => Outcome::Rejected { reason },
                error if REFUSES_ACCOUNT.contains(&error) => {
                    http::not_sent(format!("the account is refused: {reason}"))
                }
                error if RATE_LIMITED.contains(&error) => {
                    Outcome::NotSent { reason, retry_after: answer.retry_after(now) }
                }
                _ => Outcome::Unknown { reason },
            }
        }
        _ => http::judge(answer, now, |_| None),
    }
}

/// Escapes the text, so that Slack does not interpret it as markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A page of a list.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    messages: Vec<Posted>,
    #[serde(default)]
    has_more: bool,
    response_metadata: Option<Cursor>,
}

#[derive(Deserialize)]
struct Cursor {
    next_cursor: Option<String>,
}

/// A message in it.
#[derive(Deserialize)]
struct Posted {
    ts: String,
    text: Option<String>,
    bot_id: Option<IgnoredAny>,
    /// Metadata of any app, so of any shape.
    #[serde(default)]
    metadata: serde_json::Value,
}

impl Page {
    fn next(&self) -> Option<String> {
        self.response_metadata.as_ref()?.next_cursor.clone().filter(|cursor| !cursor.is_empty())
    }
}

impl Posted {
    fn carries(&self, key: &IdempotencyKey) -> bool {
        self.metadata["event_type"] == EVENT_TYPE && self.metadata["event_payload"]["key"] == key.as_str()
    }

    /// Whether it may be the message of the item although it shows no key.
    fn may_say(&self, text: &str) -> bool {
        // Slack puts links between these characters; those of the text itself are escaped.
        let letters = |text: &str| -> String {
            text.chars().filter(|c| !c.is_whitespace() && !matches!(c, '<' | '>')).collect()
        };
        self.bot_id.is_some()
            && self.metadata["event_type"].is_null()
            && self.text.as_ref().is_some_and(|posted| letters(posted) == letters(&escaped(text)))
    }
}

/// Errors that mean that this bot can never read the conversation.
const UNREADABLE: &[&str] = &[
    "missing_scope",
    "no_permission",
    "not_in_channel",
    "channel_not_found",
    "thread_not_found",
    "method_not_supported_for_channel_type",
];

/// Parses a complete page of a list.
fn listed(answer: &Answer) -> Result<Page, Finding> {
    #[derive(Deserialize)]
    struct Body {
        ok: bool,
        error: Option<String>,
    }
    let body: Option<Body> = if answer.status == StatusCode::OK { http::json(answer) } else { None };
    match body {
        Some(Body { ok: true, .. }) => {
            http::json(answer).ok_or_else(|| unclear("the list of messages is not what Slack documents"))
        }
        // Another request would get the same error.
        Some(Body { error: Some(error), .. }) if UNREADABLE.contains(&&*error) => Err(Finding::CannotTell {
            reason: text::excerpt(&format!("the conversation cannot be read: Slack says `{error}`")),
        }),
        Some(Body { error: Some(error), .. }) => {
            Err(unclear(&text::excerpt(&format!("the messages cannot be listed: Slack says `{error}`"))))
        }
        _ => Err(unclear(&format!("the messages cannot be listed: {}", http::describe(answer)))),
    }
}

/// The authorization under which Slack delivers an event.
#[derive(Deserialize)]
struct Authorization {
    user_id: Option<String>,
    #[serde(default)]
    is_bot: bool,
}

/// The message of a person, if the event is one.
fn inbound_message(event: &[u8], ours: &[Authorization]) -> Result<Option<InboundMessage>, CallbackRefused> {
    #[derive(Deserialize)]
    struct Kind {
        r#type: String,
        /// Present for everything else than a plain message: an edit, a join, a message of a bot.
        subtype: Option<IgnoredAny>,
        bot_id: Option<IgnoredAny>,
        bot_profile: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Message {
        channel: String,
        ts: String,
        thread_ts: Option<String>,
        user: Option<String>,
        text: Option<String>,
    }
    let kind: Kind = inbound::read(event, "Slack")?;
    let is_by_a_bot = kind.bot_id.is_some() || kind.bot_profile.is_some();
    if !matches!(&*kind.r#type, "message" | "app_mention") || kind.subtype.is_some() || is_by_a_bot {
        return Ok(None);
    }
    let message: Message = inbound::read(event, "Slack")?;
    let (Some(user), Some(text)) = (message.user, message.text.as_deref().and_then(inbound::clean_text))
    else {
        return Ok(None);
    };
    if ours.iter().any(|we| we.is_bot && we.user_id.as_deref() == Some(&user)) {
        return Ok(None);
    }
    let id = format!("{}:{}", message.channel, message.ts);
    let thread = message.thread_ts.as_deref();
    Ok(Some(InboundMessage {
        provider_message_id: inbound::name("channel:ts", &id, inbound::MESSAGE_NAME_BYTES_MAX)?,
        sender_id: inbound::name("user", &user, inbound::NAME_BYTES_MAX)?,
        recipient_id: inbound::name("channel", &message.channel, inbound::NAME_BYTES_MAX)?,
        thread: thread
            .map(|ts| inbound::name("thread_ts", ts, inbound::MESSAGE_NAME_BYTES_MAX))
            .transpose()?,
        text,
    }))
}

fn unclear(reason: &str) -> Finding {
    Finding::Unclear { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests;

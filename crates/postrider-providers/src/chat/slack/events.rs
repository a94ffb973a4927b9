//! Webhooks of Slack: the Events API, and the forms of slash commands and of buttons.
//!
//! | webhook | handling |
//! |---|---|
//! | `url_verification` | the challenge is answered |
//! | `message`, `app_mention` of a person, also `thread_broadcast` and `file_share` with a text | a message |
//! | other events and subtypes, messages of bots | ignored |
//! | a slash command | answered, to the person alone: the app reads messages, not commands |
//! | `ssl_check`, and a `payload` of a button or a dialog | acknowledged |

use postrider_model::channels::InboundMessage;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{json, value::RawValue};
use url::form_urlencoded;

use super::{super::inbound, Slack, markup};
use crate::provider::{CallbackRefused, InboundWebhook, Received};

/// Subtypes of messages that a person has written.
const WRITTEN: &[&str] = &["thread_broadcast", "file_share"];

impl Slack {
    /// Verifies a webhook and reads it.
    pub(super) fn receive(&self, webhook: &InboundWebhook<'_>) -> Result<Received, CallbackRefused> {
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
        let is_form = webhook.headers.iter().any(|(name, value)| {
            name == "content-type" && value.starts_with("application/x-www-form-urlencoded")
        });
        if is_form {
            return answer_form(webhook.body);
        }
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

/// The answer to a slash command, or to another form.
fn answer_form(body: &[u8]) -> Result<Received, CallbackRefused> {
    let has = |name: &str| form_urlencoded::parse(body).any(|(field, _)| field == name);
    if has("command") {
        let text = "This app reads messages, not commands. Write to it in a message.";
        return Ok(Received::Answer(json!({ "response_type": "ephemeral", "text": text })));
    }
    if has("ssl_check") || has("payload") {
        return Ok(inbound::received(None));
    }
    Err(inbound::malformed("the form is neither a command nor a payload"))
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
        subtype: Option<serde_json::Value>,
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
    let is_written =
        kind.subtype.is_none_or(|subtype| subtype.as_str().is_some_and(|word| WRITTEN.contains(&word)));
    if !matches!(&*kind.r#type, "message" | "app_mention") || !is_written || is_by_a_bot {
        return Ok(None);
    }
    let message: Message = inbound::read(event, "Slack")?;
    let text = message.text.as_deref().map(markup::plain);
    let (Some(user), Some(text)) = (message.user, text.as_deref().and_then(inbound::clean_text)) else {
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

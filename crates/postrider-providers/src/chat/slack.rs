//! Slack: `POST {url}/chat.postMessage`. Slack refuses with a 200 and an error word, so the word decides:
//!
//! | answer | outcome |
//! |---|---|
//! | `ok` with `channel` and `ts` | delivered, as `CHANNEL:TS` |
//! | a word of [`REFUSES_MESSAGE`]: the conversation, the text | rejected |
//! | a word of [`REFUSES_ACCOUNT`]: the token, its scopes, the workspace | account refused: it says nothing about the message |
//! | a word of [`RATE_LIMITED`], and 429 | not sent, with `Retry-After`, or half a minute without it |
//! | every other word, `internal_error` and `fatal_error` among them: "some aspect of the operation" may have succeeded | unknown |
//! | every other status | by the table in `http.rs` |
//!
//! Slack does not deduplicate on a key. It stores the key in the metadata of the message and lists it: `conversations.history`, or
//! `conversations.replies` in a thread, around the time of the call (`look_up.rs`). A message with the item's key proves the item sent. A
//! list without the key proves that it was not sent only if the list was read to its end and shows metadata.
//!
//! `&`, `<` and `>` are escaped, as Slack documents: without them no text can become a link or a mention (`<!channel>`, `<@U…>`).
//! `*bold*` and other markup stay unchanged.
//!
//! Webhooks are those of the Events API: signed (`X-Slack-Signature`, `v0`), at most five minutes old. The id of a message is
//! `CHANNEL:TS`, so its `message` and its `app_mention` are the same message.

mod events;
mod look_up;
mod markup;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use hmac::Hmac;
use jiff::Timestamp;
use postrider_model::{Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome, Rate};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::{Request, StatusCode, header::HeaderValue};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use url::Url;

use self::look_up::{Begun, Period, Place, unclear};
use super::inbound;
use crate::{
    Description,
    guard::{Answer, GuardedClient},
    http,
    provider::{Account, Adapter, CallbackRefused, InboundWebhook, InvalidAccount, Provider, Received},
    text,
};

const MANIFEST: Manifest = Manifest {
    doubt: DoubtClass::Lookup,
    // For apps outside Slack's marketplace, of each method; both list messages.
    look_ups: Some(Rate { calls: 1, per: Duration::from_secs(60) }),
    ..Manifest::new("slack", &[Channel::Chat])
};

const EXAMPLE: &str = r#"{} or {"url": "https://slack.com/api"}"#;
const SECRET_EXAMPLE: &str = r#"{"bot_token": "xoxb-…", "signing_secret": "…"}"#;

/// Type of the metadata that Postrider adds to a message.
const EVENT_TYPE: &str = "postrider_reply";
/// Longest text; Slack cuts longer ones.
const TEXT_CHARS_MAX: usize = 40_000;
/// Maximum skew of Slack's clock.
const SKEW: Duration = Duration::from_secs(5 * 60);

/// Errors that refuse this message for good; nothing was posted.
const REFUSES_MESSAGE: &[&str] = &[
    "as_user_not_supported",
    "cannot_reply_to_message",
    "channel_not_found",
    "invalid_arg_name",
    "invalid_arguments",
    "invalid_array_arg",
    "invalid_blocks",
    "invalid_blocks_format",
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
    "too_many_attachments",
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
    begun: Begun,
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
            begun: Begun::default(),
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
        let text = markup::escaped(text);
        http::check_length("text", &text, TEXT_CHARS_MAX, "Slack")?;
        let metadata = Metadata { event_type: EVENT_TYPE, event_payload: Payload { key } };
        let post = Post { channel: to, text, thread_ts: thread.as_deref(), metadata };
        http::post(http::below(&self.api, &["chat.postMessage"]), Some(&self.token), &post)
    }
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
        let period = Period { from: doubt.reserved_at() - SKEW, until: doubt.doubted_since() + SKEW };
        self.search(place, period, doubt.key(), text).await.unwrap_or_else(|unclear| unclear)
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
                error if REFUSES_ACCOUNT.contains(&error) => http::account_refused(&reason),
                error if RATE_LIMITED.contains(&error) => {
                    http::rate_limited(answer, now, reason, http::RATE_LIMIT_WAIT)
                }
                _ => Outcome::Unknown { reason },
            }
        }
        _ => http::judge(answer, now, |_| None),
    }
}

#[cfg(test)]
mod tests;

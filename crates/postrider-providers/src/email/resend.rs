//! Resend: `POST {url}/emails`, classified by the tables in `http.rs`:
//!
//! | answer | to a call | to a repeat |
//! |---|---|---|
//! | 200 with an `id` | delivered | done: under a key it knows, Resend answers as it did the first time |
//! | 400, 422 with a JSON object | rejected | absent: it refuses this very mail |
//! | 409: a request with this key is in progress, or the key was used for another mail | unknown | unclear |
//! | 401, 403: the API key, the domain of `from` | account refused | unclear |
//! | 429 | not sent, until `Retry-After` | unclear |
//! | 429 `daily_quota_exceeded`, `monthly_quota_exceeded` | not sent, and tried again after an hour: the quota has no published end | unclear |
//!
//! Resend recognises an `Idempotency-Key` for 24 hours.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome, Rate};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::{Request, StatusCode, header::HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use super::smtp::mailbox;
use crate::{
    Description,
    guard::{Answer, GuardedClient},
    http,
    provider::{Account, Adapter, InvalidAccount, Provider},
};

const MANIFEST: Manifest = Manifest {
    doubt: DoubtClass::Key,
    key_lifetime: Some(Duration::from_secs(24 * 60 * 60)),
    // The limit of a team, unless Resend granted more.
    rate: Some(Rate { calls: 2, per: Duration::from_secs(1) }),
    ..Manifest::new("resend", &[Channel::Email])
};

const EXAMPLE: &str = r#"{"from": "News <news@example.com>"}"#;

/// Errors of a used-up quota.
const QUOTAS: &[&str] = &["daily_quota_exceeded", "monthly_quota_exceeded"];
/// Time after which a used-up quota is tried again.
const QUOTA_WAIT: Duration = Duration::from_secs(60 * 60);

http::adapter!(ResendAdapter opens Resend);

fn description() -> Description {
    Description::new(
        "Resend",
        "E-mail by the HTTP API of Resend. Verify the domain of the sender at Resend first.",
    )
    .settings::<Settings>()
    .secret("API key", "An API key of Resend with permission to send, like re_…")
}

/// Settings of an account.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Sender of every mail, such as `News <news@example.com>`.
    from: String,
    /// Address for answers, if it is another one.
    reply_to: Option<String>,
    /// Address of the API. Needed only for another one than the default.
    #[serde(default = "api")]
    url: Url,
}

fn api() -> Url {
    http::known("https://api.resend.com")
}

/// An account at Resend.
struct Resend {
    client: GuardedClient,
    emails: Url,
    token: HeaderValue,
    from: String,
    reply_to: Option<String>,
}

impl Resend {
    fn new(client: &GuardedClient, account: &Account<'_>) -> Result<Self, InvalidAccount> {
        let settings: Settings = http::settings(account, "resend", EXAMPLE)?;
        let check = |name: &str, input: &str| match mailbox(input) {
            Ok(_) => Ok(()),
            Err(wrong) => Err(InvalidAccount(format!("`{name}` {wrong}"))),
        };
        check("from", &settings.from)?;
        settings.reply_to.as_deref().map(|input| check("reply_to", input)).transpose()?;
        Ok(Self {
            client: client.clone(),
            emails: http::below(&http::base(client, settings.url)?, &["emails"]),
            token: http::bearer(account.secret, "an API key of Resend, like re_…")?,
            from: settings.from,
            reply_to: settings.reply_to,
        })
    }

    /// Builds the request. The same mail always has the same bytes.
    fn request(&self, key: &IdempotencyKey, message: &Message) -> Result<Request, Outcome> {
        #[derive(Serialize)]
        struct Mail<'a> {
            from: &'a str,
            to: &'a str,
            subject: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            html: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            text: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            reply_to: Option<&'a str>,
        }
        let Message::Email { to, subject, text, html } = message else {
            return Err(http::wrong_channel("resend", "e-mail", message));
        };
        let mail = Mail {
            from: &self.from,
            to,
            subject,
            html: html.as_deref(),
            text: text.as_deref(),
            reply_to: self.reply_to.as_deref(),
        };
        http::with_key(http::post(self.emails.clone(), Some(&self.token), &mail)?, key)
    }
}

#[async_trait]
impl Provider for Resend {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        http::outcome(http::send(&self.client, self.request(reservation.key(), message)).await, judge)
    }

    async fn repeat(&self, doubt: &HeldDoubt, message: &Message) -> Finding {
        http::finding(http::send(&self.client, self.request(doubt.key(), message)).await, judge)
    }
}

fn judge(answer: &Answer, now: Timestamp) -> Outcome {
    let is_quota = || http::named(answer, "name").is_some_and(|name| QUOTAS.contains(&&*name));
    if answer.status == StatusCode::TOO_MANY_REQUESTS && is_quota() {
        return http::rate_limited(answer, now, http::describe(answer), QUOTA_WAIT);
    }
    http::judge(answer, now, |answer| http::named(answer, "id"))
}

#[cfg(test)]
mod tests;

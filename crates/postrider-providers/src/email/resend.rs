//! Resend: `POST {url}/emails`, classified by the tables in `http.rs`:
//!
//! | answer | to a call | to a repeat |
//! |---|---|---|
//! | 200 with an `id` | delivered | done: under a key it knows, Resend answers as it did the first time |
//! | 400, 422 with a JSON object | rejected | absent: it refuses this very mail |
//! | 409: a request with this key is in progress, or the key was used for another mail | unknown | unclear |
//! | 401, 403: the API key, the domain of `from` | not sent | unclear |
//! | 429: the rate or the quota | not sent | unclear |
//!
//! Resend recognises an `Idempotency-Key` for 24 hours.
//!
//! Every mail has the key as the tag `postrider_key`, and Resend repeats the tags in its webhooks. They come to
//! `/api/v2/tenants/{tenant}/providers/resend/{account}/callback`, signed as Standard Webhooks with headers that begin with `svix-`:
//!
//! | event | delivery status |
//! |---|---|
//! | `email.sent` | accepted |
//! | `email.delivered`, `email.delivery_delayed`, `email.bounced`, `email.complained`, `email.failed` | the same |
//! | `email.suppressed`: the address is on the suppression list of Resend | failed |
//! | any other event, and an event about a mail without the tag | ignored |
//!
//! Each of them proves that Resend has the mail.

mod webhooks;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use hmac::Hmac;
use jiff::Timestamp;
use postrider_model::{Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome, Rate};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::{Request, header::HeaderValue};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use url::Url;

use super::smtp::{mailbox, unsubscribing};
use crate::{
    Description,
    guard::{Answer, GuardedClient},
    http,
    provider::{Account, Adapter, Callback, CallbackRefused, Echo, InvalidAccount, Provider},
    signing,
};

const MANIFEST: Manifest = Manifest {
    doubt: DoubtClass::Key,
    key_lifetime: Some(Duration::from_secs(24 * 60 * 60)),
    // The limit of a team, unless Resend granted more.
    rate: Some(Rate { calls: 2, per: Duration::from_secs(1) }),
    ..Manifest::new("resend", &[Channel::Email])
};

const EXAMPLE: &str = r#"{"from": "News <news@example.com>"}"#;
const SECRET_EXAMPLE: &str = r#"{"api_key": "re_…", "webhook_secret": "whsec_…"}"#;

/// The tag of a mail that has its key.
const KEY_TAG: &str = "postrider_key";

http::adapter!(ResendAdapter opens Resend and reads callbacks with read);

fn description() -> Description {
    Description::new(
        "Resend",
        "E-mail by the HTTP API of Resend. Verify the domain of the sender at Resend first.",
    )
    .settings::<Settings>()
    .secrets::<Secrets>()
}

/// Settings of an account.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Sender of every mail, such as `News <news@example.com>`.
    from: String,
    /// Address for answers, if it is another one.
    reply_to: Option<String>,
    /// Suppress a lead whose address does not exist, as a mail server reported by a permanent bounce.
    #[serde(default = "yes")]
    suppress_bounced: bool,
    /// Suppress a lead who reported a mail as spam.
    #[serde(default = "yes")]
    suppress_complained: bool,
    /// Address of the API. Needed only for another one than the default.
    #[serde(default = "api")]
    url: Url,
}

fn api() -> Url {
    http::known("https://api.resend.com")
}

fn yes() -> bool {
    true
}

/// The secret of an account that receives webhooks. The secret of any other one may be the API key alone.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Secrets {
    /// An API key of Resend with permission to send, like re_….
    #[schemars(with = "String")]
    api_key: SecretString,
    /// The signing secret of the webhook at Resend, like whsec_…. Without it, no delivery is reported.
    #[schemars(with = "Option<String>")]
    webhook_secret: Option<SecretString>,
}

impl Secrets {
    fn of(account: &Account<'_>) -> Result<Self, InvalidAccount> {
        if account.secret.expose_secret().trim_start().starts_with('{') {
            return http::secrets(account, "resend", SECRET_EXAMPLE);
        }
        Ok(Self { api_key: account.secret.clone(), webhook_secret: None })
    }
}

/// An account at Resend.
struct Resend {
    client: GuardedClient,
    emails: Url,
    token: HeaderValue,
    from: String,
    reply_to: Option<String>,
    /// Keyed with the signing secret of the webhook, if the account has one.
    webhooks: Option<Hmac<Sha256>>,
    suppresses: webhooks::Suppresses,
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
        let secrets = Secrets::of(account)?;
        // A form sends an empty text for a part that was left out.
        let is_given = |secret: &&SecretString| !secret.expose_secret().is_empty();
        let verifier = |secret: &SecretString| {
            signing::verifier(secret)
                .map_err(|wrong| InvalidAccount(format!("`webhook_secret` of the secret {wrong}")))
        };
        Ok(Self {
            client: client.clone(),
            emails: http::below(&http::base(client, settings.url)?, &["emails"]),
            token: http::bearer(&secrets.api_key, "an API key of Resend, like re_…")?,
            webhooks: secrets.webhook_secret.as_ref().filter(is_given).map(verifier).transpose()?,
            suppresses: webhooks::Suppresses {
                bounced: settings.suppress_bounced,
                complained: settings.suppress_complained,
            },
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
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            headers: BTreeMap<&'static str, String>,
            tags: [Tag<'a>; 1],
        }
        #[derive(Serialize)]
        struct Tag<'a> {
            name: &'static str,
            value: &'a str,
        }
        let Message::Email { to, subject, text, html, unsubscribe_url } = message else {
            return Err(http::wrong_channel("resend", "e-mail", message));
        };
        let headers = unsubscribing(unsubscribe_url.as_deref())
            .map_err(|reason| Outcome::Rejected { reason })?
            .into_iter()
            .collect();
        let mail = Mail {
            from: &self.from,
            to,
            subject,
            html: html.as_deref(),
            text: text.as_deref(),
            reply_to: self.reply_to.as_deref(),
            headers,
            tags: [Tag { name: KEY_TAG, value: key.as_str() }],
        };
        http::with_key(http::post(self.emails.clone(), Some(&self.token), &mail)?, key)
    }

    /// Verifies a webhook and reads it.
    fn read(&self, callback: &Callback<'_>) -> Result<Option<Echo>, CallbackRefused> {
        if callback.key.is_some() {
            return Err(CallbackRefused::NotTaken);
        }
        webhooks::verify(self.webhooks.as_ref(), callback)?;
        webhooks::read(callback.body, self.suppresses)
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
    http::judge(answer, now, |answer| http::named(answer, "id"))
}

#[cfg(test)]
mod tests;

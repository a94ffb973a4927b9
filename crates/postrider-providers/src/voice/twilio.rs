//! Twilio: a call, `POST {url}/2010-04-01/Accounts/{sid}/Calls.json`, classified by the table in `http.rs`:
//!
//! | answer | outcome |
//! |---|---|
//! | 201 with a `sid` | delivered: Twilio makes the call |
//! | 400: the number, the script | rejected |
//! | 400 with a code of [`REFUSES_ACCOUNT`], 401, 403, 404: the account, its number, its permissions | account refused |
//! | 429: too many requests | not sent |
//!
//! Twilio takes no key, so a call is never repeated. It sends status callbacks to an address that contains the key:
//! `{callback_url}/api/v2/tenants/{tenant}/providers/twilio/{account}/callback/{key}`. A callback with a valid signature proves that there is a call.
//!
//! The list of calls proves nothing. It has numbers and times and no keys: the only call to a number may belong to another
//! item, and a queued call has no time yet. So a look-up lists the calls that may be the item's, for the person who decides.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use jiff::{Timestamp, fmt::rfc2822, tz::TimeZone};
use postrider_model::{
    Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome, Rate,
    ids::{ProviderAccountId, TenantId},
};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::{
    Method, Request, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use schemars::JsonSchema;
use serde::Deserialize;
use sha1::Sha1;
use url::{Url, form_urlencoded};

use crate::{
    Description,
    guard::{Answer, GuardedClient},
    http,
    provider::{Account, Adapter, Callback, CallbackRefused, Echo, InvalidAccount, Provider},
    text,
};

const MANIFEST: Manifest = Manifest {
    doubt: DoubtClass::Echo,
    rate: Some(Rate { calls: 1, per: Duration::from_secs(1) }),
    ..Manifest::new("twilio", &[Channel::Voice])
};

const EXAMPLE: &str =
    r#"{"account_sid": "AC…", "from": "+15005550006", "callback_url": "https://postrider.example.com"}"#;

/// Codes about the account and not about this call; no call was made.
const REFUSES_ACCOUNT: &[i64] = &[
    10001, // the account is not active
    20003, // the login
    20005, // the account is not active
    20404, // there is no such account
    21210, // `from` is not a verified number
    21212, // `from` is not a number
    21215, // the account may not call this country
];

/// Longest script with its tags, from Twilio's description.
const TWIML_CHARS_MAX: usize = 4000;
/// Time after the reservation in which a call may have been made.
const LOOK_FOR: Duration = Duration::from_secs(4 * 60);
/// Maximum calls that are read from the list.
const LIST_MAX: &str = "20";

http::adapter!(TwilioAdapter opens Twilio and reads callbacks with read);

fn description() -> Description {
    Description::new("Twilio", "Voice calls that read a script to the person who answers.")
        .settings::<Settings>()
        .secret("Auth token", "The auth token of the account; Twilio signs its callbacks with it")
}

/// Settings of an account.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Account SID, like AC….
    account_sid: String,
    /// Number that calls, as E.164.
    from: String,
    /// Public address of this installation, to which Twilio sends status callbacks.
    callback_url: Url,
    /// Address of the API. Needed only for another one than the default.
    #[serde(default = "api")]
    url: Url,
}

fn api() -> Url {
    http::known("https://api.twilio.com")
}

/// An account at Twilio.
struct Twilio {
    client: GuardedClient,
    calls: Url,
    login: HeaderValue,
    /// Keyed with the auth token.
    signature: Hmac<Sha1>,
    from: String,
    /// Public URL of this installation, without a slash at the end.
    installation: Url,
    account: ProviderAccountId,
}

impl Twilio {
    fn new(client: &GuardedClient, account: &Account<'_>) -> Result<Self, InvalidAccount> {
        let settings: Settings = http::settings(account, "twilio", EXAMPLE)?;
        let invalid =
            |what: &str| Err(InvalidAccount(format!("{what}; the settings of `twilio` are like {EXAMPLE}")));
        let sid = settings.account_sid;
        if !sid
            .strip_prefix("AC")
            .is_some_and(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()))
        {
            return invalid("`account_sid` is not `AC` and 32 hex digits");
        }
        let digits = settings.from.strip_prefix('+').unwrap_or_default();
        if !(7..=15).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return invalid("`from` is not a number like +15005550006");
        }
        let installation = http::base(client, settings.callback_url)
            .map_err(|InvalidAccount(wrong)| InvalidAccount(format!("`callback_url`: {wrong}")))?;
        let token = http::present(account.secret, "the auth token of the account")?;
        let signature = Hmac::new_from_slice(token.as_bytes())
            .map_err(|_| InvalidAccount("the secret is not usable as a key".to_owned()))?;
        let calls = ["2010-04-01", "Accounts", &sid, "Calls.json"];
        Ok(Self {
            client: client.clone(),
            calls: http::below(&http::base(client, settings.url)?, &calls),
            login: http::authorization(&format!("Basic {}", STANDARD.encode(format!("{sid}:{token}"))))?,
            signature,
            from: settings.from,
            account: account.id,
            installation,
        })
    }

    fn request(&self, tenant: TenantId, key: &IdempotencyKey, message: &Message) -> Result<Request, Outcome> {
        let Message::Voice { to, script } = message else {
            return Err(http::wrong_channel("twilio", "calls", message));
        };
        let twiml = twiml(script);
        http::check_length("script", &twiml, TWIML_CHARS_MAX, "Twilio")?;
        let callback = self.callback(tenant, key);
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("To", to)
            .append_pair("From", &self.from)
            .append_pair("Twiml", &twiml)
            .append_pair("StatusCallback", callback.as_str())
            .append_pair("StatusCallbackMethod", "POST");
        for event in ["initiated", "ringing", "answered", "completed"] {
            form.append_pair("StatusCallbackEvent", event);
        }
        let mut request = Request::new(Method::POST, self.calls.clone());
        let headers = request.headers_mut();
        headers.insert(AUTHORIZATION, self.login.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        *request.body_mut() = Some(form.finish().into());
        Ok(request)
    }

    /// The address at which Twilio reports on the call with this key.
    fn callback(&self, tenant: TenantId, key: &IdempotencyKey) -> Url {
        let (tenant, account) = (tenant.0.to_string(), self.account.0.to_string());
        let below =
            ["api", "v2", "tenants", &tenant, "providers", "twilio", &account, "callback", key.as_str()];
        http::below(&self.installation, &below)
    }

    /// Lists the calls that may be the item's.
    async fn candidates(&self, to: &str, reserved_at: Timestamp) -> Result<Finding, Finding> {
        let mut url = self.calls.clone();
        let day = reserved_at.to_zoned(TimeZone::UTC).date();
        url.query_pairs_mut()
            .append_pair("To", to)
            .append_pair("From", &self.from)
            .append_pair("StartTime>", &day.to_string())
            .append_pair("PageSize", LIST_MAX);
        let answer = http::ask(&self.client, url, Some(&self.login)).await?;
        Ok(Finding::Unclear { reason: describe(&answer, reserved_at) })
    }

    /// Verifies a callback and reads it.
    fn read(&self, callback: &Callback<'_>) -> Result<Echo, CallbackRefused> {
        let received = callback.headers.iter().find(|(name, _)| name == "x-twilio-signature");
        let (_, received) = received.ok_or_else(|| forged("the header `X-Twilio-Signature` is missing"))?;
        let received =
            STANDARD.decode(received).map_err(|_| forged("the header `X-Twilio-Signature` is not base64"))?;
        let form: Vec<(String, String)> = form_urlencoded::parse(callback.body).into_owned().collect();
        if !self.addresses(callback.path_and_query).iter().any(|url| self.is_signed(url, &form, &received)) {
            return Err(forged(
                "the signature is not Twilio's for this account; check the auth token and `callback_url`",
            ));
        }
        let path = callback.path_and_query.split('?').next().unwrap_or_default();
        if path.rsplit('/').next() != Some(callback.key) {
            return Err(CallbackRefused::Malformed("the key is not the end of the path".to_owned()));
        }
        let field = |name: &str| {
            let value = form.iter().find(|(field, _)| field == name).map(|(_, value)| text::excerpt(value));
            value
                .filter(|value| !value.is_empty())
                .ok_or_else(|| CallbackRefused::Malformed(format!("the field `{name}` is missing")))
        };
        // Every status proves that there is a call.
        Ok(Echo { message_id: field("CallSid")?, status: field("CallStatus")?, proves_action: true })
    }

    /// The URLs that Twilio may have signed: with the port or, for https, without.
    fn addresses(&self, path_and_query: &str) -> Vec<String> {
        let with = |base: &Url| format!("{}{path_and_query}", base.as_str().trim_end_matches('/'));
        let mut without_port = self.installation.clone();
        match without_port.set_port(None) {
            Ok(()) if without_port != self.installation && without_port.scheme() == "https" => {
                vec![with(&self.installation), with(&without_port)]
            }
            _ => vec![with(&self.installation)],
        }
    }

    /// HMAC-SHA1 over the URL and the fields of the form, sorted by name, compared in constant time.
    fn is_signed(&self, url: &str, form: &[(String, String)], received: &[u8]) -> bool {
        let mut fields: Vec<_> = form.iter().collect();
        fields.sort();
        let mut signature = self.signature.clone();
        signature.update(url.as_bytes());
        for (name, value) in fields {
            signature.update(name.as_bytes());
            signature.update(value.as_bytes());
        }
        signature.verify_slice(received).is_ok()
    }
}

#[async_trait]
impl Provider for Twilio {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        http::outcome(
            http::send(&self.client, self.request(reservation.tenant_id(), reservation.key(), message)).await,
            judge,
        )
    }

    async fn look_up(&self, doubt: &HeldDoubt, _message: Option<&Message>) -> Finding {
        let Some(to) = doubt.recipient() else {
            return Finding::Unclear { reason: "the item has no number to look for".to_owned() };
        };
        self.candidates(to, doubt.reserved_at()).await.unwrap_or_else(|unclear| unclear)
    }
}

fn judge(answer: &Answer, now: Timestamp) -> Outcome {
    #[derive(Deserialize)]
    struct Refusal {
        code: i64,
    }
    let code = || http::json::<Refusal>(answer).map(|refusal| refusal.code);
    match answer.status {
        // There is no such account: the path names nothing else.
        StatusCode::NOT_FOUND => http::account_refused(&http::describe(answer)),
        StatusCode::BAD_REQUEST if code().is_some_and(|code| REFUSES_ACCOUNT.contains(&code)) => {
            http::account_refused(&http::describe(answer))
        }
        _ => http::judge(answer, now, |answer| http::named(answer, "sid")),
    }
}

/// The script as TwiML. Characters that XML cannot hold are removed; they have no sound.
fn twiml(script: &str) -> String {
    let mut said = String::with_capacity(script.len());
    for c in script.chars() {
        match c {
            '&' => said.push_str("&amp;"),
            '<' => said.push_str("&lt;"),
            '>' => said.push_str("&gt;"),
            '\n' | '\t' | '\r' => said.push(' '),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() => {}
            c => said.push(c),
        }
    }
    format!("<Response><Say>{said}</Say></Response>")
}

/// Describes the list of calls, for a person.
fn describe(answer: &Answer, reserved_at: Timestamp) -> String {
    #[derive(Deserialize)]
    struct List {
        calls: Vec<Call>,
    }
    #[derive(Deserialize)]
    struct Call {
        sid: String,
        status: String,
        date_created: String,
    }
    let list: Option<List> = if answer.status == StatusCode::OK { http::json(answer) } else { None };
    let Some(list) = list else {
        return format!("the calls to this number could not be listed: {}", http::describe(answer));
    };
    let made = reserved_at..=reserved_at + LOOK_FOR;
    let of_the_time: Vec<String> = list
        .calls
        .iter()
        // Twilio reports times in seconds.
        .filter(|call| {
            rfc2822::parse(&call.date_created).is_ok_and(|at| {
                made.contains(&at.timestamp()) || at.timestamp().as_second() == reserved_at.as_second()
            })
        })
        .map(|call| format!("{} ({})", call.sid, call.status))
        .collect();
    let reason = match of_the_time.len() {
        0 => "Twilio lists no call to this number at that time, which does not prove that there is none"
            .to_owned(),
        _ => format!(
            "calls to this number at that time, of this item or of another: {}",
            of_the_time.join(", ")
        ),
    };
    text::excerpt(&reason)
}

fn forged(reason: &str) -> CallbackRefused {
    CallbackRefused::Forged(reason.to_owned())
}

#[cfg(test)]
mod tests;

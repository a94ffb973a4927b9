//! The face of Twilio's calls: `POST` and `GET /twilio/2010-04-01/Accounts/{sid}/Calls.json`.
//!
//! The face does not recognise repeats: every accepted request is a call. The sim sends the status callbacks after the call,
//! even if the caller got no answer. In lists every call is completed.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, StatusCode};
use jiff::{Timestamp, Zoned, fmt::rfc2822, tz::TimeZone};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

use super::World;
use super::access::basic;
use super::acting::{Action, ErrorAnswer, Face, Refusal, ValidRequest, look_up};
use super::answer::{Answer, Cut};
use super::callbacks::{self, Callback};
use super::calls::{self, Event};
use super::http::query_value;
use super::memory::Done;
use super::receipts::Receipt;

/// See the [module](self).
pub static FACE: Face = Face {
    provider: "twilio",
    read_head,
    validate,
    error_body,
    refuses_with: StatusCode::BAD_REQUEST,
    is_natural: false,
};

const ACCOUNTS: &str = "/twilio/2010-04-01/Accounts/";
const API_VERSION: &str = "2010-04-01";
const NUMBER_CHARS_MAX: usize = 64;
const URL_CHARS_MAX: usize = 2048;
const TWIML_CHARS_MAX: usize = 4000;
const PAGE: usize = 50;
const PAGE_MAX: usize = 1000;

/// A phone call.
#[derive(Clone)]
pub struct Call {
    /// `CA` and 32 hex digits.
    pub sid: String,
    /// Account of the call.
    pub account: String,
    /// Called number.
    pub to: String,
    /// Number of the caller.
    pub from: String,
    created_at: Timestamp,
}

/// Whether a path is that of an account's calls.
pub fn is_calls(path: &str) -> bool {
    account_in(path).is_some()
}

fn account_in(path: &str) -> Option<&str> {
    let sid = path.strip_prefix(ACCOUNTS)?.strip_suffix("/Calls.json")?;
    (!sid.is_empty() && !sid.contains('/')).then_some(sid)
}

fn read_head(world: &World, head: &Parts, receipt: &mut Receipt) {
    receipt.channel = Some("voice".to_owned());
    let shown = basic(&head.headers);
    receipt.verified = world.access.admits(shown.as_ref().map(|(_, token)| token.expose_secret()));
}

fn validate(_: &World, head: &Parts, body: &Bytes, receipt: &mut Receipt) -> Result<ValidRequest, Refusal> {
    let Some((_, token)) = basic(&head.headers).filter(|_| receipt.verified != Some(false)) else {
        return Err(coded(StatusCode::UNAUTHORIZED, 20003, "Authenticate"));
    };
    let form: Vec<(String, String)> = url::form_urlencoded::parse(body).into_owned().collect();
    let field = |name: &str| {
        let found = form.iter().find(|(actual, value)| actual == name && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    };
    let callback = field("StatusCallback").map(str::to_owned);
    receipt.key = callback.as_deref().and_then(last_segment);
    let invalid = |code, why: &str| coded(StatusCode::BAD_REQUEST, code, why);
    let number = |name, missing, malformed| match field(name) {
        None => Err(invalid(missing, &format!("No '{name}' number is specified"))),
        Some(number) if !is_number(number) => {
            Err(invalid(malformed, &format!("The '{name}' number is not a valid phone number")))
        }
        Some(number) => Ok(number.to_owned()),
    };
    let (to, from) = (number("To", 21201, 21211)?, number("From", 21213, 21212)?);
    (receipt.to, receipt.from) = (Some(to.clone()), Some(from.clone()));
    match (field("Twiml"), field("Url")) {
        (None, None) => return Err(invalid(21205, "Url or Twiml is required")),
        (Some(twiml), _) if twiml.chars().count() > TWIML_CHARS_MAX => {
            return Err(invalid(21626, "Twiml is longer than 4000 characters"));
        }
        _ => {}
    }
    let callback = match callback {
        None => None,
        Some(url) if url.len() > URL_CHARS_MAX || Url::parse(&url).is_err() => {
            return Err(invalid(21609, "StatusCallback is not a valid URL"));
        }
        Some(url) => Some((url, events(&form))),
    };
    let account = account_in(head.uri.path()).unwrap_or_default().to_owned();
    let calling = Calling { account, to, from, callback, token, made_at: OnceLock::new() };
    Ok(ValidRequest { identity: None, action: Box::new(calling) })
}

/// Whether the text is `+` and digits, or one of Twilio's `client:` and `sip:` addresses.
fn is_number(text: &str) -> bool {
    let is_digits = |rest: &str| (6..=15).contains(&rest.len()) && rest.bytes().all(|b| b.is_ascii_digit());
    text.len() <= NUMBER_CHARS_MAX
        && (text.strip_prefix('+').is_some_and(is_digits)
            || text.starts_with("client:")
            || text.starts_with("sip:"))
}

/// The last part of a URL's path, which contains the key of a call.
fn last_segment(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let last = url.path_segments()?.next_back()?;
    (!last.is_empty()).then(|| last.to_owned())
}

/// The events to report: the requested ones, or `completed` by default.
fn events(form: &[(String, String)]) -> Vec<Event> {
    let asked = form.iter().filter(|(name, _)| name == "StatusCallbackEvent");
    let asked: Vec<&str> = asked.flat_map(|(_, names)| names.split([' ', ','])).collect();
    if asked.is_empty() {
        return vec![Event::Completed];
    }
    let is_asked = |event: &Event| asked.contains(&event.name());
    [Event::Initiated, Event::Completed].into_iter().filter(is_asked).collect()
}

struct Calling {
    account: String,
    to: String,
    from: String,
    callback: Option<(String, Vec<Event>)>,
    token: SecretString,
    made_at: OnceLock<Timestamp>,
}

impl Calling {
    fn call(&self, sid: String) -> Call {
        let (account, to, from) = (self.account.clone(), self.to.clone(), self.from.clone());
        Call { sid, account, to, from, created_at: *self.made_at.get_or_init(Timestamp::now) }
    }
}

impl Action for Calling {
    fn perform(&self, _: &World) -> Done {
        let call = self.call(format!("CA{}", Uuid::now_v7().simple()));
        let answer = call.shown("queued");
        Done::new(Some(call.sid), StatusCode::CREATED, &answer)
    }

    fn publish(&self, world: &Arc<World>, done: &Done, findable_at: Instant) {
        let Some(sid) = done.id.clone() else { return };
        let call = self.call(sid);
        if let Some((url, events)) = self.callback.clone() {
            let result = world.results.of(&call.to);
            match calls::reports(&call, &events, result.ending, &url, &self.token) {
                Ok(reports) => {
                    let reports = result.play(reports);
                    callbacks::send(world, Callback { url, about: call.sid.clone(), reports });
                }
                Err(error) => tracing::error!(?error, "the sim could not sign the reports of a call"),
            }
        }
        world.calls.add(findable_at, call);
    }
}

impl Call {
    fn shown(&self, status: &str) -> Value {
        let Self { sid, account, to, from, created_at } = self;
        let created = rfc_2822(*created_at);
        let is_over = status == "completed";
        let at = is_over.then_some(&created);
        json!({
            "sid": sid,
            "account_sid": account,
            "api_version": API_VERSION,
            "direction": "outbound-api",
            "status": status,
            "to": to,
            "to_formatted": to,
            "from": from,
            "from_formatted": from,
            "date_created": created,
            "date_updated": created,
            "start_time": at,
            "end_time": at,
            "duration": is_over.then_some("1"),
            "price": null,
            "price_unit": "USD",
            "uri": format!("/{API_VERSION}/Accounts/{account}/Calls/{sid}.json"),
            "subresource_uris": {},
        })
    }
}

/// Formats a time as Twilio does.
pub fn rfc_2822(at: Timestamp) -> String {
    // Only times far from now cannot be formatted.
    rfc2822::to_string(&Zoned::new(at, TimeZone::UTC)).unwrap_or_default()
}

/// `GET …/Calls.json?To=&From=&PageSize=&Page=`: newest first.
pub async fn list(world: &World, request: &Request<Incoming>) -> Result<Answer, Cut> {
    let value = |name| query_value(request.uri().query(), name).filter(|value| !value.is_empty());
    let (to, from) = (value("To"), value("From"));
    let number = |name| value(name).and_then(|value| value.parse::<usize>().ok());
    let size = number("PageSize").map_or(PAGE, |size| size.clamp(1, PAGE_MAX));
    let page = number("Page").unwrap_or_default().min(usize::MAX / PAGE_MAX);
    let account = account_in(request.uri().path()).unwrap_or_default();
    look_up(world, &FACE, to.as_deref(), None, || {
        let shown = basic(request.headers());
        let admitted = world.access.admits(shown.as_ref().map(|(_, token)| token.expose_secret()));
        if shown.is_none() || admitted == Some(false) {
            return coded(StatusCode::UNAUTHORIZED, 20003, "Authenticate");
        }
        let is =
            |wanted: &Option<String>, actual: &str| wanted.as_deref().is_none_or(|wanted| wanted == actual);
        let start = page * size;
        let mut calls = world.calls.newest(start, size + 1, |call| {
            let fits = call.account == account && is(&to, &call.to) && is(&from, &call.from);
            fits.then(|| call.shown("completed"))
        });
        let has_more = calls.len() > size;
        calls.truncate(size);
        let path = format!("/{API_VERSION}/Accounts/{account}/Calls.json");
        let uri = |page: usize| format!("{path}?{}", filters(&to, &from, size, page));
        let answer = json!({
            "page": page,
            "page_size": size,
            "start": start,
            "end": start + calls.len().saturating_sub(1),
            "uri": uri(page),
            "first_page_uri": uri(0),
            "next_page_uri": has_more.then(|| uri(page + 1)),
            "previous_page_uri": page.checked_sub(1).map(uri),
            "calls": calls,
        });
        (StatusCode::OK, answer)
    })
    .await
}

fn filters(to: &Option<String>, from: &Option<String>, size: usize, page: usize) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in [("To", to), ("From", from)] {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    query.append_pair("PageSize", &size.to_string()).append_pair("Page", &page.to_string());
    query.finish()
}

fn error_body(&ErrorAnswer { status, why, .. }: &ErrorAnswer<'_>) -> Value {
    let code = match status {
        StatusCode::TOO_MANY_REQUESTS => 20429,
        status if status.is_server_error() => 20500,
        _ => 21210,
    };
    coded(status, code, why).1
}

fn coded(status: StatusCode, code: u32, why: &str) -> Refusal {
    let more = format!("https://www.twilio.com/docs/errors/{code}");
    (status, json!({ "code": code, "message": why, "more_info": more, "status": status.as_u16() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_twilio_writes_them() {
        let at = "2010-08-31T20:36:28Z".parse().unwrap();
        assert_eq!(rfc_2822(at), "Tue, 31 Aug 2010 20:36:28 +0000");
    }

    #[test]
    fn the_key_is_the_last_part_of_the_path() {
        for (url, key) in [
            ("http://127.0.0.1:1/callbacks/twilio/abc", Some("abc")),
            ("http://127.0.0.1:1/callbacks/abc?tenant=1#top", Some("abc")),
            ("http://127.0.0.1:1/", None),
            ("mailto:a@example.com", None),
            ("nonsense", None),
        ] {
            assert_eq!(last_segment(url).as_deref(), key, "{url}");
        }
    }
}

//! The face of Mastodon: statuses under `Idempotency-Key`, kept for an hour, and the account's own timeline.
//!
//! Each token is an account with its own statuses. The face does not compare bodies: it answers a repeat under a key with
//! the first status. Text becomes paragraphs of HTML, without links.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};

use super::World;
use super::access::{bearer, number_of};
use super::acting::{Action, Face, Refusal, ValidRequest, look_up};
use super::answer::{Answer, Cut};
use super::http::{query_value, text_of};
use super::lists::RecentList;
use super::memory::{Done, Identity};
use super::receipts::{Receipt, now};

/// See the [module](self).
pub static FACE: Face = Face {
    provider: "mastodon",
    read_head,
    validate,
    error_body: |answer| error(answer.why),
    refuses_with: StatusCode::UNPROCESSABLE_ENTITY,
    is_natural: false,
};

const REMEMBERED_FOR: Duration = Duration::from_secs(3600);
const TEXT_CHARS_MAX: usize = 500;
const KEY_CHARS_MAX: usize = 255;
const PAGE: usize = 20;
const PAGE_MAX: usize = 40;
const ACCOUNTS: &str = "/mastodon/api/v1/accounts/";

/// The statuses of all accounts.
#[derive(Default)]
pub struct Statuses {
    posted: AtomicU64,
    timeline: RecentList<Posted>,
}

struct Posted {
    account: u64,
    id: u64,
    status: Arc<str>,
}

fn read_head(world: &World, head: &Parts, receipt: &mut Receipt) {
    receipt.key = text_of(&head.headers, "idempotency-key");
    receipt.channel = Some("social".to_owned());
    receipt.verified = world.access.admits(bearer(&head.headers));
}

fn validate(
    world: &World,
    head: &Parts,
    body: &Bytes,
    receipt: &mut Receipt,
) -> Result<ValidRequest, Refusal> {
    let account = account_of(world, &head.headers)?;
    receipt.from = Some(account.to_string());
    let refusal = |why: &str| (StatusCode::UNPROCESSABLE_ENTITY, error(why));
    let fields = fields(&head.headers, body).map_err(refusal)?;
    let text = fields.get("status").map(String::as_str).unwrap_or_default();
    if text.trim().is_empty() {
        return Err(refusal("Validation failed: Text can't be blank"));
    }
    if text.chars().count() > TEXT_CHARS_MAX {
        return Err(refusal("Validation failed: Text character limit of 500 exceeded"));
    }
    if receipt.key.as_ref().is_some_and(|key| key.len() > KEY_CHARS_MAX) {
        return Err(refusal("the header Idempotency-Key takes at most 255 characters"));
    }
    let identity = receipt.key.as_ref().map(|key| Identity {
        name: format!("mastodon {account} {key}"),
        life: REMEMBERED_FOR,
        clash: None,
    });
    let visibility = fields.get("visibility").map_or("public", String::as_str);
    if !["public", "unlisted", "private", "direct"].contains(&visibility) {
        return Err(refusal("Validation failed: Visibility is not included in the list"));
    }
    let (text, visibility) = (text.to_owned(), visibility.to_owned());
    Ok(ValidRequest { identity, action: Box::new(Posting { account, text, visibility }) })
}

/// The account of the token in the headers.
fn account_of(world: &World, headers: &HeaderMap) -> Result<u64, Refusal> {
    let shown = bearer(headers);
    match shown {
        // 53 bits, which every reader of JSON can hold.
        Some(token) if world.access.admits(shown) != Some(false) => Ok(number_of(token) >> 11),
        _ => Err((StatusCode::UNAUTHORIZED, error("The access token is invalid"))),
    }
}

/// The texts of a body, which is JSON or a form.
fn fields(headers: &HeaderMap, body: &[u8]) -> Result<BTreeMap<String, String>, &'static str> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if content_type.starts_with("application/x-www-form-urlencoded") {
        return Ok(url::form_urlencoded::parse(body).into_owned().collect());
    }
    let Ok(Value::Object(fields)) = serde_json::from_slice(body) else {
        return Err("expected a JSON object or a form");
    };
    let texts = fields.into_iter().filter_map(|(name, value)| match value {
        Value::String(text) => Some((name, text)),
        _ => None,
    });
    Ok(texts.collect())
}

struct Posting {
    account: u64,
    text: String,
    visibility: String,
}

impl Action for Posting {
    fn perform(&self, world: &World) -> Done {
        let id = world.statuses.next_id();
        let url = format!("https://mastodon.sim/@{}/{id}", name_of(self.account));
        let status = json!({
            "id": id.to_string(),
            "created_at": now(),
            "in_reply_to_id": null,
            "visibility": self.visibility,
            "uri": url,
            "url": url,
            "content": html_of(&self.text),
            "account": account(self.account),
        });
        Done::new(Some(id.to_string()), StatusCode::OK, &status)
    }

    fn publish(&self, world: &Arc<World>, done: &Done, findable_at: Instant) {
        let id = done.id.as_ref().and_then(|id| id.parse().ok()).unwrap_or_default();
        let posted = Posted { account: self.account, id, status: Arc::clone(&done.answer) };
        world.statuses.timeline.add(findable_at, posted);
    }
}

impl Statuses {
    /// Returns an id of milliseconds and a number, like those of Mastodon: later ids are larger.
    fn next_id(&self) -> u64 {
        let ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
        ms << 16 | self.posted.fetch_add(1, Ordering::Relaxed) & 0xffff
    }
}

/// Whether a path is `/mastodon/api/v1/accounts/{id}/statuses`.
pub fn is_timeline(path: &str) -> bool {
    account_in(path).is_some()
}

fn account_in(path: &str) -> Option<&str> {
    let id = path.strip_prefix(ACCOUNTS)?.strip_suffix("/statuses")?;
    (!id.is_empty() && !id.contains('/')).then_some(id)
}

/// `GET /mastodon/api/v1/accounts/verify_credentials`: the account of the token.
pub async fn verify_credentials(world: &World, request: &Request<Incoming>) -> Result<Answer, Cut> {
    look_up(world, &FACE, None, None, || match account_of(world, request.headers()) {
        Ok(id) => (StatusCode::OK, account(id)),
        Err(refusal) => refusal,
    })
    .await
}

/// `GET /mastodon/api/v1/accounts/{id}/statuses`: newest first, with `limit`, `max_id` and `since_id`.
pub async fn timeline(world: &World, request: &Request<Incoming>) -> Result<Answer, Cut> {
    let query = request.uri().query();
    let number = |name| query_value(query, name).and_then(|value| value.parse::<u64>().ok());
    let wanted = account_in(request.uri().path()).and_then(|id| id.parse::<u64>().ok());
    let limit = number("limit").map_or(PAGE, |limit| limit.clamp(1, PAGE_MAX as u64) as usize);
    let before = number("max_id").unwrap_or(u64::MAX);
    let after = number("since_id").or_else(|| number("min_id")).unwrap_or_default();
    look_up(world, &FACE, None, None, || {
        if bearer(request.headers()).is_some()
            && let Err(refusal) = account_of(world, request.headers())
        {
            return refusal;
        }
        let Some(account) = wanted else { return (StatusCode::NOT_FOUND, error("Record not found")) };
        let statuses = world.statuses.timeline.newest(0, limit, |posted| {
            let fits = posted.account == account && posted.id < before && posted.id > after;
            fits.then(|| serde_json::from_str::<Value>(&posted.status).unwrap_or_default())
        });
        (StatusCode::OK, Value::Array(statuses))
    })
    .await
}

fn name_of(account: u64) -> String {
    format!("sim{account:x}")
}

fn account(id: u64) -> Value {
    let name = name_of(id);
    let url = format!("https://mastodon.sim/@{name}");
    json!({ "id": id.to_string(), "username": name, "acct": name, "display_name": name, "url": url, "bot": false })
}

/// Converts text to paragraphs and line breaks, as Mastodon does.
fn html_of(text: &str) -> String {
    let escaped =
        text.trim().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    let paragraphs = escaped.replace("\r\n", "\n").replace("\n\n", "</p><p>").replace('\n', "<br />");
    format!("<p>{paragraphs}</p>")
}

fn error(why: &str) -> Value {
    json!({ "error": why })
}

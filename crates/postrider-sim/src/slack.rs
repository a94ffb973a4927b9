//! The face of Slack: `chat.postMessage`, and `conversations.history` and `conversations.replies` to find posts.
//!
//! The face does not recognise repeats: every accepted request is a message. It stores the metadata of a message and
//! returns them to requests with `include_all_metadata`. Every bot is in every channel. Like Slack, the face refuses with
//! 200 and `"ok": false`.

use std::sync::Arc;
use std::time::Instant;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};

use super::World;
use super::access::{bearer, number_of};
use super::acting::{Action, ErrorAnswer, Face, Refusal, ValidRequest, look_up};
use super::answer::{Answer, Cut};
use super::arguments::{Arguments, Unreadable};
use super::conversations::{Page, Post, Ts, Window};
use super::http::{Body, read_body};
use super::memory::Done;
use super::receipts::Receipt;

/// See the [module](self).
pub static FACE: Face = Face {
    provider: "slack",
    read_head,
    validate,
    error_body,
    refuses_with: StatusCode::OK,
    is_natural: false,
};

const TEXT_CHARS_MAX: usize = 40_000;
const PAGE: usize = 100;
const PAGE_MAX: usize = 999;

fn read_head(world: &World, head: &Parts, receipt: &mut Receipt) {
    receipt.channel = Some("chat".to_owned());
    receipt.verified = world.access.admits(bearer(&head.headers));
}

fn validate(
    world: &World,
    head: &Parts,
    body: &Bytes,
    receipt: &mut Receipt,
) -> Result<ValidRequest, Refusal> {
    let bot = Bot::of(world, &head.headers)?;
    receipt.from = Some(bot.id());
    let arguments = arguments(head, body)?;
    let (channel, text) = (arguments.text("channel"), arguments.text("text"));
    let thread = arguments.text("thread_ts");
    let metadata = arguments.object("metadata");
    (receipt.to, receipt.text, receipt.thread) = (channel.clone(), text.clone(), thread.clone());
    let key = metadata.as_ref().and_then(|metadata| metadata["event_payload"]["key"].as_str());
    receipt.key = key.map(str::to_owned);

    let channel = channel.ok_or_else(|| refused("channel_not_found"))?;
    let text = text.ok_or_else(|| refused("no_text"))?;
    if text.chars().count() > TEXT_CHARS_MAX {
        return Err(refused("msg_too_long"));
    }
    let thread = match thread {
        None => None,
        Some(thread) => Some(thread.parse().map_err(|_| refused("invalid_thread_ts"))?),
    };
    if let Some(metadata) = &metadata {
        check(metadata).map_err(refused)?;
    }
    Ok(ValidRequest { identity: None, action: Box::new(Posting { bot, channel, text, thread, metadata }) })
}

fn arguments(head: &Parts, body: &[u8]) -> Result<Arguments, Refusal> {
    Arguments::read(head, body).map_err(|why| {
        refused(match why {
            Unreadable::Json => "invalid_json",
            Unreadable::NoObject => "json_not_object",
            Unreadable::Type => "invalid_post_type",
        })
    })
}

/// Checks that metadata have a type and an object as payload.
fn check(metadata: &Value) -> Result<(), &'static str> {
    match () {
        () if !metadata.is_object() => Err("invalid_metadata_format"),
        () if metadata["event_type"].as_str().is_none_or(str::is_empty) => Err("invalid_metadata_schema"),
        () if !metadata["event_payload"].is_object() => Err("invalid_metadata_schema"),
        () => Ok(()),
    }
}

/// The bot of a token.
struct Bot(u32);

impl Bot {
    fn of(world: &World, headers: &HeaderMap) -> Result<Self, Refusal> {
        let shown = bearer(headers);
        let token = shown.ok_or_else(|| refused("not_authed"))?;
        if !token.starts_with("xoxb-") || world.access.admits(shown) == Some(false) {
            return Err(refused("invalid_auth"));
        }
        Ok(Self((number_of(token) >> 32) as u32))
    }

    fn id(&self) -> String {
        format!("B{:08X}", self.0)
    }
}

struct Posting {
    bot: Bot,
    channel: String,
    text: String,
    thread: Option<Ts>,
    metadata: Option<Value>,
}

impl Action for Posting {
    fn perform(&self, world: &World) -> Done {
        let ts = world.conversations.next_ts();
        let Self { bot, channel, text, thread, metadata } = self;
        let mut message = json!({
            "type": "message",
            "user": format!("U{:08X}", bot.0),
            "bot_id": bot.id(),
            "app_id": format!("A{:08X}", bot.0),
            "team": "T0000SIM",
            "text": text,
            "ts": ts.to_string(),
        });
        if let Some(thread) = thread {
            message["thread_ts"] = json!(thread.to_string());
        }
        if let Some(metadata) = metadata {
            message["metadata"] = metadata.clone();
        }
        let answer = json!({ "ok": true, "channel": channel, "ts": ts.to_string(), "message": message });
        Done::new(Some(format!("{channel}:{ts}")), StatusCode::OK, &answer)
    }

    fn publish(&self, world: &Arc<World>, done: &Done, findable_at: Instant) {
        let mut answer = serde_json::from_str::<Value>(&done.answer).unwrap_or_default();
        let Some(ts) = answer["ts"].as_str().and_then(|ts| ts.parse().ok()) else { return };
        let (channel, message) = (self.channel.clone(), answer["message"].take());
        world.conversations.add(findable_at, Post { channel, ts, thread: self.thread, message });
    }
}

/// `conversations.history`: the channel, newest first.
pub async fn history(world: &World, request: Request<Incoming>) -> Result<Answer, Cut> {
    read(world, request, |request| {
        let ReadRequest { channel, window, .. } = request;
        Ok(world.conversations.history(channel, window))
    })
    .await
}

/// `conversations.replies`: the message that `ts` names, and its thread, oldest first.
pub async fn replies(world: &World, request: Request<Incoming>) -> Result<Answer, Cut> {
    read(world, request, |request| {
        let ReadRequest { channel, thread, window, .. } = request;
        let thread = thread.ok_or_else(|| refused("thread_not_found"))?;
        let mut page = world.conversations.replies(channel, thread, window);
        if window.from.is_none() {
            let first = world.conversations.post(channel, thread);
            page.messages.insert(0, first.unwrap_or_else(|| written_by_a_person(thread)));
        }
        Ok(page)
    })
    .await
}

fn written_by_a_person(ts: Ts) -> Value {
    let ts = ts.to_string();
    json!({ "type": "message", "user": "U0PERSON", "text": "Hi", "ts": ts, "thread_ts": ts })
}

/// A request to read a conversation.
struct ReadRequest {
    channel: String,
    thread: Option<Ts>,
    window: Window,
    with_metadata: bool,
}

async fn read(
    world: &World,
    request: Request<Incoming>,
    find: impl FnOnce(&ReadRequest) -> Result<Page, Refusal>,
) -> Result<Answer, Cut> {
    let (head, body) = request.into_parts();
    let request = match read_body(body).await {
        Body::Whole(body) => ask(world, &head, &body),
        Body::TooLarge | Body::Broken => Err(refused("invalid_form_data")),
    };
    let channel = request.as_ref().ok().map(|request| request.channel.clone());
    look_up(world, &FACE, channel.as_deref(), None, || {
        let page = request.and_then(|request| Ok((find(&request)?, request.with_metadata)));
        match page {
            Ok((page, with_metadata)) => (StatusCode::OK, shown(page, with_metadata)),
            Err(refusal) => refusal,
        }
    })
    .await
}

fn ask(world: &World, head: &Parts, body: &[u8]) -> Result<ReadRequest, Refusal> {
    Bot::of(world, &head.headers)?;
    let arguments = arguments(head, body)?;
    let channel = arguments.text("channel").ok_or_else(|| refused("channel_not_found"))?;
    let ts = |name, otherwise| match arguments.text(name) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| refused(otherwise)),
    };
    let limit = match arguments.text("limit").map(|limit| limit.parse::<usize>()) {
        None => PAGE,
        Some(Ok(limit)) if (1..=PAGE_MAX).contains(&limit) => limit,
        Some(_) => return Err(refused("invalid_limit")),
    };
    let from = match arguments.text("cursor") {
        None => None,
        Some(cursor) => Some(place_of(&cursor).ok_or_else(|| refused("invalid_cursor"))?),
    };
    let window = Window {
        oldest: ts("oldest", "invalid_ts_oldest")?,
        latest: ts("latest", "invalid_ts_latest")?,
        inclusive: arguments.is_set("inclusive"),
        from,
        limit,
    };
    let with_metadata = arguments.is_set("include_all_metadata");
    Ok(ReadRequest { channel, thread: ts("ts", "thread_not_found")?, window, with_metadata })
}

fn shown(page: Page, with_metadata: bool) -> Value {
    let Page { mut messages, next } = page;
    if !with_metadata {
        messages.iter_mut().filter_map(Value::as_object_mut).for_each(|message| {
            message.remove("metadata");
        });
    }
    let next_cursor = next.map(cursor_at).unwrap_or_default();
    json!({
        "ok": true,
        "messages": messages,
        "has_more": next.is_some(),
        "response_metadata": { "next_cursor": next_cursor },
    })
}

fn cursor_at(ts: Ts) -> String {
    STANDARD.encode(format!("next_ts:{}", ts.as_micros()))
}

fn place_of(cursor: &str) -> Option<Ts> {
    let text = String::from_utf8(STANDARD.decode(cursor).ok()?).ok()?;
    Some(Ts::from_micros(text.strip_prefix("next_ts:")?.parse().ok()?))
}

fn error_body(answer: &ErrorAnswer<'_>) -> Value {
    let name = match answer.status {
        StatusCode::TOO_MANY_REQUESTS => "ratelimited",
        StatusCode::SERVICE_UNAVAILABLE => "service_unavailable",
        StatusCode::PAYLOAD_TOO_LARGE => "msg_too_long",
        StatusCode::BAD_REQUEST => "invalid_form_data",
        status if status.is_server_error() => "internal_error",
        _ => "restricted_action",
    };
    refused(name).1
}

fn refused(name: &str) -> Refusal {
    (StatusCode::OK, json!({ "ok": false, "error": name }))
}

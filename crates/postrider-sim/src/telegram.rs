//! The face of Telegram's bots: `POST /telegram/bot{token}/sendMessage`.
//!
//! The face has no look-up and does not recognise repeats: every accepted request is a message. Receipts do not contain
//! the token in the path; they name the bot by the number at the start of its token. The face does not check markup.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::http::request::Parts;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::World;
use super::access::number_of;
use super::acting::{Action, ErrorAnswer, Face, Refusal, ValidRequest};
use super::arguments::Arguments;
use super::memory::Done;
use super::receipts::Receipt;

/// See the [module](self).
pub static FACE: Face = Face {
    provider: "telegram",
    read_head,
    validate,
    error_body,
    refuses_with: StatusCode::BAD_REQUEST,
    is_natural: false,
};

const TEXT_CHARS_MAX: usize = 4096;

/// Counter for the ids of messages, over all bots.
#[derive(Default)]
pub struct MessageIds(AtomicU64);

/// Whether a path is `/telegram/bot{token}/sendMessage`.
pub fn is_send(path: &str) -> bool {
    token_in(path).is_some()
}

fn token_in(path: &str) -> Option<String> {
    let token = path.strip_prefix("/telegram/bot")?.strip_suffix("/sendMessage")?;
    (!token.is_empty() && !token.contains('/')).then(|| token.replace("%3A", ":").replace("%3a", ":"))
}

/// The number of a bot, at the start of its token.
fn bot_of(token: &str) -> Option<&str> {
    let (bot, secret) = token.split_once(':')?;
    let is_number = (1..=15).contains(&bot.len()) && bot.bytes().all(|byte| byte.is_ascii_digit());
    let is_secret = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (is_number && !secret.is_empty() && secret.bytes().all(is_secret)).then_some(bot)
}

fn read_head(world: &World, head: &Parts, receipt: &mut Receipt) {
    let token = token_in(head.uri.path()).unwrap_or_default();
    receipt.channel = Some("chat".to_owned());
    receipt.verified = world.access.admits(Some(&token));
    receipt.from = bot_of(&token).map(str::to_owned);
    receipt.path = format!("/telegram/bot{}/sendMessage", receipt.from.as_deref().unwrap_or_default());
}

fn validate(_: &World, head: &Parts, body: &Bytes, receipt: &mut Receipt) -> Result<ValidRequest, Refusal> {
    let bot = receipt.from.as_ref().and_then(|bot| bot.parse().ok());
    let bot: u64 = bot.ok_or_else(|| refused(StatusCode::NOT_FOUND, "Not Found"))?;
    if receipt.verified == Some(false) {
        return Err(refused(StatusCode::UNAUTHORIZED, "Unauthorized"));
    }
    let bad = |why: &str| refused(StatusCode::BAD_REQUEST, &format!("Bad Request: {why}"));
    let arguments = Arguments::read(head, body).map_err(|_| bad("can't parse request"))?;
    let (to, text) = (arguments.text("chat_id"), arguments.text("text"));
    let thread = arguments.text("message_thread_id");
    let quoted = arguments.object("reply_parameters").map(|reply| reply["message_id"].clone());
    (receipt.to, receipt.text) = (to.clone(), text.clone());
    receipt.thread = thread.clone().or_else(|| quoted.as_ref().map(Value::to_string));

    let chat = chat_of(&to.ok_or_else(|| bad("chat_id is empty"))?).ok_or_else(|| bad("chat not found"))?;
    let text = text.filter(|text| !text.trim().is_empty()).ok_or_else(|| bad("message text is empty"))?;
    if text.chars().count() > TEXT_CHARS_MAX {
        return Err(bad("message is too long"));
    }
    let thread = match thread.map(|thread| thread.parse::<i64>()) {
        None => None,
        Some(Ok(thread)) => Some(thread),
        Some(Err(_)) => return Err(bad("message thread not found")),
    };
    if quoted.is_some_and(|quoted| !quoted.is_i64()) {
        return Err(bad("message to be replied not found"));
    }
    Ok(ValidRequest { identity: None, action: Box::new(Sending { bot, chat, text, thread }) })
}

/// A number, which is negative for a group, or the name of a channel after `@`.
fn chat_of(text: &str) -> Option<Value> {
    match text.strip_prefix('@') {
        Some(name) if !name.is_empty() => {
            // Ids of channels have this many digits.
            let id = -1_000_000_000_000 - (number_of(name) >> 32) as i64;
            Some(json!({ "id": id, "type": "channel", "title": name, "username": name }))
        }
        _ => match text.parse::<i64>().ok()? {
            0 => None,
            id if id < 0 => Some(json!({ "id": id, "type": "supergroup", "title": "Group" })),
            id => Some(json!({ "id": id, "type": "private", "first_name": "Person" })),
        },
    }
}

struct Sending {
    bot: u64,
    chat: Value,
    text: String,
    thread: Option<i64>,
}

impl Action for Sending {
    fn perform(&self, world: &World) -> Done {
        let Self { bot, chat, text, thread } = self;
        let id = world.telegram.0.fetch_add(1, Ordering::Relaxed) + 1;
        let mut message = json!({
            "message_id": id,
            "from": { "id": bot, "is_bot": true, "first_name": "Bot", "username": format!("sim{bot}_bot") },
            "chat": chat,
            "date": Timestamp::now().as_second(),
            "text": text,
        });
        if let Some(thread) = thread {
            message["message_thread_id"] = json!(thread);
        }
        let name = format!("{}:{id}", chat["id"]);
        Done::new(Some(name), StatusCode::OK, &json!({ "ok": true, "result": message }))
    }
}

fn error_body(answer: &ErrorAnswer<'_>) -> Value {
    let ErrorAnswer { status, why, retry_after_seconds } = *answer;
    let reason = status.canonical_reason().unwrap_or_default();
    let Some(seconds) = retry_after_seconds else { return refused(status, &format!("{reason}: {why}")).1 };
    let mut answer = refused(status, &format!("{reason}: retry after {seconds}")).1;
    answer["parameters"] = json!({ "retry_after": seconds });
    answer
}

fn refused(status: StatusCode, description: &str) -> Refusal {
    (status, json!({ "ok": false, "error_code": status.as_u16(), "description": description }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_begins_with_the_number_of_its_bot() {
        for (path, bot) in [
            ("/telegram/bot123:AAb-_9/sendMessage", Some("123")),
            ("/telegram/bot123%3AAAb/sendMessage", Some("123")),
            ("/telegram/bot123:/sendMessage", None),
            ("/telegram/botabc:AAb/sendMessage", None),
            ("/telegram/bot123/sendMessage", None),
        ] {
            assert!(is_send(path));
            assert_eq!(bot_of(&token_in(path).unwrap()), bot, "{path}");
        }
        for other in ["/telegram/bot/sendMessage", "/telegram/bot1:a/b/sendMessage", "/telegram/bot1:a/getMe"]
        {
            assert!(!is_send(other), "{other}");
        }
    }
}

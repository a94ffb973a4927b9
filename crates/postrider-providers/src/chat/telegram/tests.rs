use postrider_model::ids::ProviderAccountId;
use postrider_testkit::server;
use serde_json::{Value, json};

use super::*;
use crate::{
    chat::inbound::tests::{Delivery, no_message, one_message},
    guard::Ending,
    http::tests::{
        NOW, ScriptedServer, answer, assert_request, body, chat, client, email, refused, with_header,
    },
};

const SECRET: &str = r#"{"bot_token": "123456:hunter2-AbC_9", "webhook_secret": "hunter2-hook"}"#;

fn open(settings: &Value) -> Telegram {
    let account = Account { id: ProviderAccountId::new(), settings, secret: &SecretString::from(SECRET) };
    Telegram::new(&client(true), &account).ok().unwrap()
}

// By the description of the Bot API: `chat_id` is an integer or a name, `reply_parameters` has a `message_id`.
#[test]
fn a_message_is_what_telegram_describes() {
    let telegram = open(&json!({}));
    let request = telegram.request(&chat(Some("77")), None).unwrap();
    assert_request(
        &request,
        "POST",
        "https://api.telegram.org/bot123456:hunter2-AbC_9/sendMessage",
        &[("content-type", "application/json")],
    );
    let sent: Value = serde_json::from_str(body(&request)).unwrap();
    let reply = json!({ "message_id": 77, "allow_sending_without_reply": true });
    assert_eq!(sent, json!({ "chat_id": 4711, "text": "Hello.", "reply_parameters": reply }));
    assert_eq!(body(&telegram.request(&chat(None), None).unwrap()), r#"{"chat_id":4711,"text":"Hello."}"#);

    let say = |to: &str, thread: Option<&str>, text: &str| {
        let (to, thread) = (to.to_owned(), thread.map(str::to_owned));
        telegram.request(&Message::Chat { to, thread, text: text.to_owned() }, None)
    };
    for (to, chat_id) in [("-1001234567890", json!(-1_001_234_567_890_i64)), ("@news", json!("@news"))] {
        let request = say(to, None, "*x* <b>&amp;").unwrap();
        let sent: Value = serde_json::from_str(body(&request)).unwrap();
        assert_eq!(sent, json!({ "chat_id": chat_id, "text": "*x* <b>&amp;" }), "plain text stays as it is");
    }
    assert!(say("1", None, &"é".repeat(4096)).is_ok());
    for (refused, why) in [
        (
            say("1", None, &"é".repeat(4097)),
            "the text is longer than the 4096 characters that Telegram accepts",
        ),
        (say("1", Some("topic"), "x"), "the thread is not the number of a message, or TOPIC/MESSAGE"),
        (telegram.request(&email(), None), "telegram carries chat and no email messages"),
    ] {
        assert_eq!(refused.err(), Some(Outcome::Rejected { reason: why.to_owned() }));
    }
}

fn no(status: u16, description: &str) -> Answer {
    answer(status, &json!({ "ok": false, "error_code": status, "description": description }).to_string())
}

#[test]
fn each_answer_of_telegram_has_its_outcome() {
    let good = r#"{"ok": true, "result": {"message_id": 7, "date": 1, "chat": {"id": -42, "type": "group"}, "text": "x"}}"#;
    assert_eq!(judge(&answer(200, good), NOW), Outcome::Delivered { message_id: "-42:7".to_owned() });
    for (said, expected) in [
        (no(400, "Bad Request: chat not found"), "rejected"),
        (no(400, "Bad Request: message text is empty"), "rejected"),
        (no(403, "Forbidden: bot was blocked by the user"), "rejected"),
        (no(403, "Forbidden: bot was kicked from the supergroup chat"), "rejected"),
        (no(401, "Unauthorized"), "account_refused"),
        (no(404, "Not Found"), "account_refused"),
        (no(409, "Conflict"), "unknown"),
        (no(429, "Too Many Requests: retry after 7"), "not_sent"),
        (no(500, "Internal Server Error"), "unknown"),
        (no(502, "Bad Gateway"), "unknown"),
        (no(200, "Bad Request: chat not found"), "unknown"),
        // Not Telegram's JSON.
        (answer(400, "<html>"), "rejected"),
        (answer(403, "<html>"), "account_refused"),
        (answer(404, "<html>"), "rejected"),
        (answer(429, ""), "not_sent"),
        (answer(503, good), "unknown"),
        (answer(307, ""), "rejected"),
        (answer(200, r#"{"ok": true}"#), "unknown"),
        (answer(200, r#"{"ok": true, "result": {"message_id": 7}}"#), "unknown"),
        (answer(200, ""), "unknown"),
        (Answer { ending: Ending::Broken, ..answer(200, good) }, "unknown"),
        (with_header(answer(200, good), "content-type", "text/html"), "unknown"),
        (
            Answer { ending: Ending::Broken, ..no(403, "Forbidden: bot was blocked by the user") },
            "account_refused",
        ),
    ] {
        assert_eq!(judge(&said, NOW).kind(), expected, "{} {:?}", said.status, said.body);
    }
    let Outcome::Rejected { reason } = judge(&no(403, "Forbidden: bot was blocked by the user"), NOW) else {
        panic!()
    };
    assert_eq!(reason, "Telegram says: Forbidden: bot was blocked by the user");
    let Outcome::AccountRefused { reason, .. } = judge(&no(401, "Unauthorized"), NOW) else { panic!() };
    assert_eq!(reason, "the account is refused: Telegram says: Unauthorized");
    let moved = json!({ "ok": false, "description": "Bad Request: group chat was upgraded to a supergroup chat", "parameters": { "migrate_to_chat_id": -1001 } });
    let Outcome::Rejected { reason } = judge(&answer(400, &moved.to_string()), NOW) else { panic!() };
    assert!(reason.ends_with("; the chat is now -1001"), "{reason}");
}

#[test]
fn rate_limits_return_the_time_to_wait() {
    let busy = |parameters: Value| {
        let said = json!({ "ok": false, "description": "Too Many Requests", "parameters": parameters });
        answer(429, &said.to_string())
    };
    let after = |said: &Answer| match judge(said, NOW) {
        Outcome::NotSent { retry_after, .. } => retry_after.map(|after| after.as_secs()),
        other => panic!("{other:?}"),
    };
    assert_eq!(after(&busy(json!({ "retry_after": 7 }))), Some(7));
    assert_eq!(after(&with_header(busy(json!({ "retry_after": 7 })), "retry-after", "9")), Some(7));
    assert_eq!(after(&with_header(busy(json!({})), "retry-after", "9")), Some(9));
    assert_eq!(after(&busy(json!({}))), Some(30), "the adapter supplies the wait");
    // The parameter is invalid, but the status is still 429.
    assert_eq!(after(&with_header(busy(json!({ "retry_after": -1 })), "retry-after", "9")), Some(9));
}

// The address holds the token, and some servers repeat the address.
#[tokio::test]
async fn no_outcome_repeats_the_token() {
    let path = "/bot123456:hunter2-AbC_9/sendMessage";
    let echoes: Vec<(u16, Value)> = [200, 307, 400, 401, 403, 404, 429, 500]
        .into_iter()
        .flat_map(|status| {
            let pad = "x".repeat(170);
            [
                json!(format!("Cannot POST {path}")),
                json!(format!("{pad}{path}")),
                json!({ "ok": false, "description": path }),
            ]
            .map(|said| (status, said))
        })
        .collect();
    let count = echoes.len();
    let server = ScriptedServer::start(echoes);
    let telegram = open(&json!({ "url": server.url }));
    for _ in 0..count {
        let sent = http::send(&telegram.client, telegram.request(&chat(None), None)).await;
        let outcome =
            http::outcome(sent.map(|answer| http::without(answer, telegram.token.expose_secret())), judge);
        assert!(!format!("{outcome:?}").contains("hunter2"), "{outcome:?}");
    }
    assert_eq!(server.lines(), vec![format!("POST {path}"); count]);
    // The server no longer listens.
    let silent = http::send(&telegram.client, telegram.request(&chat(None), None)).await.err().unwrap();
    assert!(!format!("{silent:?}").contains("hunter2"), "{silent:?}");
}

fn received(delivery: &Delivery) -> Result<Received, CallbackRefused> {
    delivery.to(&TelegramAdapter::new(&client(false)), &json!({}), SECRET)
}

fn sent(body: impl AsRef<[u8]>) -> Result<Received, CallbackRefused> {
    received(&Delivery::new(body).header("x-telegram-bot-api-secret-token", "hunter2-hook"))
}

fn message() -> Value {
    json!({
        "message_id": 77, "date": 1_770_000_000, "text": "Hello?",
        "from": { "id": 5, "is_bot": false, "first_name": "Ada" },
        "chat": { "id": 5, "type": "private", "first_name": "Ada" },
    })
}

fn update(message: &Value) -> String {
    json!({ "update_id": 10_000, "message": message }).to_string()
}

fn with(name: &str, value: Value) -> String {
    let mut message = message();
    message[name] = value;
    update(&message)
}

#[test]
fn a_message_of_a_person_is_received() {
    assert_eq!(sent(update(&message())), one_message("10000", "5", "5", None, "Hello?"));
    // A reply to another message, or in a group, is quoted.
    let group = json!({ "id": -100, "type": "supergroup", "title": "All" });
    assert_eq!(sent(with("chat", group)), one_message("10000", "5", "-100", Some("77"), "Hello?"));
    assert_eq!(
        sent(with("reply_to_message", json!({}))),
        one_message("10000", "5", "5", Some("77"), "Hello?")
    );
    assert_eq!(
        sent(with("message_thread_id", json!(3))),
        one_message("10000", "5", "5", Some("77"), "Hello?")
    );
    assert_eq!(sent(with("text", json!("a\u{0}b"))), one_message("10000", "5", "5", None, "ab"));
}

#[test]
fn updates_that_are_not_messages_of_people_are_ignored() {
    for body in [
        with("from", json!({ "id": 5, "is_bot": true })),
        with("from", Value::Null),
        with("sender_chat", json!({ "id": -100 })),
        with("via_bot", json!({ "id": 9 })),
        with("text", Value::Null),
        with("text", json!(" ")),
        json!({ "update_id": 1, "edited_message": message() }).to_string(),
        json!({ "update_id": 1, "channel_post": message() }).to_string(),
        json!({ "update_id": 1, "message_reaction": { "chat": { "id": 5 } } }).to_string(),
        json!({ "update_id": 1 }).to_string(),
    ] {
        assert_eq!(sent(&body), no_message(), "{body}");
    }
}

#[test]
fn a_forged_webhook_is_refused_with_the_reason() {
    let name = "x-telegram-bot-api-secret-token";
    let good = || Delivery::new(update(&message())).header(name, "hunter2-hook");
    let wrong = "the secret token is not this account's";
    for (forged, why) in [
        (good().set(name, ""), wrong),
        (good().set(name, "hunter2-of-another"), wrong),
        (good().set(name, "hunter2-hoo"), wrong),
        (good().set(name, "hunter2-hook "), wrong),
        (good().set(name, "Hunter2-hook"), wrong),
        (good().set(name, "123456:hunter2-AbC_9"), wrong),
        (good().header(name, "hunter2-hook"), "is there twice"),
        (good().without(name), "is missing"),
        // The secret is checked before the body is read.
        (good().without(name).body("["), "is missing"),
    ] {
        forged.is_forged(&received(&forged), why, &["hunter2"]);
    }
    assert_eq!(received(&good().get("")), Err(CallbackRefused::NotTaken));
}

#[test]
fn a_webhook_that_makes_no_sense_is_malformed() {
    for body in [
        String::new(),
        "null".to_owned(),
        "{}".to_owned(),
        "[".repeat(100_000),
        r#"{"update_id": "1"}"#.to_owned(),
        r#"{"update_id": 1, "update_id": 2}"#.to_owned(),
        r#"{"update_id": 1e400}"#.to_owned(),
        json!({ "update_id": 1, "message": [] }).to_string(),
        with("chat", Value::Null),
        with("chat", json!({ "id": "5" })),
        with("from", json!({ "id": 5 })),
        with("text", json!(7)),
        update(&message()).replace("Hello?", r"\ud800"),
    ] {
        let refused = sent(&body);
        let start: String = body.chars().take(80).collect();
        assert!(matches!(refused, Err(CallbackRefused::Malformed(_))), "{start}: {refused:?}");
    }
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let deep = update(&message()).replace("\"Hello?\"", &format!("\"Hello?\",\"entities\":{deep}"));
    assert_eq!(sent(deep), one_message("10000", "5", "5", None, "Hello?"));
    let Ok(Received::Happened { messages, .. }) = sent(with("text", json!("é".repeat(80_000)))) else {
        panic!()
    };
    assert!(messages[0].text.len() <= 64 * 1024 && messages[0].text.ends_with("é…"));
}

#[test]
fn an_account_has_a_token_and_a_secret_for_webhooks() {
    let with = |bot_token: &str, webhook_secret: &str| {
        json!({ "bot_token": bot_token, "webhook_secret": webhook_secret }).to_string()
    };
    let good = "123456:hunter2";
    let like = "`bot_token` of the secret is not like 123456:ABC-def";
    let (long, secrets) =
        ("h".repeat(257), ["hunter2", ":hunter2", "12a:hunter2", "12:", "12:hunter2/../x", "12:hunter2?x"]);
    for token in secrets {
        refused(Telegram::new, &[(false, json!({}), &with(token, "h"), like)]);
    }
    for hook in ["hunter2 x", "hünter2", &long] {
        refused(
            Telegram::new,
            &[(false, json!({}), &with(good, hook), "`webhook_secret` of the secret is not 1 to 256")],
        );
    }
    refused(
        Telegram::new,
        &[
            (false, json!({ "parse_mode": "HTML" }), SECRET, "unknown field `parse_mode`"),
            (false, json!({ "url": "https://[::1]" }), SECRET, "only public addresses are called"),
            (false, json!({}), "", "the secret is missing; that of `telegram` is like {\"bot_token\""),
            (false, json!({}), good, "the secret lacks a part"),
            (false, json!({}), &with("", "hunter2"), "`bot_token` of the secret is empty"),
            (false, json!({}), &with(good, ""), "`webhook_secret` of the secret is empty"),
        ],
    );
}

#[test]
fn captions_buttons_and_topics_are_messages() {
    let mut photo = message();
    photo.as_object_mut().unwrap().remove("text");
    photo["caption"] = json!("Hello?");
    assert_eq!(sent(update(&photo)), one_message("10000", "5", "5", None, "Hello?"));
    // In a topic of a forum the reply goes to the topic.
    let mut in_a_topic = message();
    in_a_topic["chat"] = json!({ "id": -100, "type": "supergroup", "is_forum": true });
    in_a_topic["message_thread_id"] = json!(3);
    in_a_topic["is_topic_message"] = json!(true);
    assert_eq!(sent(update(&in_a_topic)), one_message("10000", "5", "-100", Some("3/77"), "Hello?"));
    let telegram = open(&json!({}));
    let request = telegram.request(&chat(Some("3/77")), None).unwrap();
    let reply = json!({ "message_id": 77, "allow_sending_without_reply": true });
    let expected =
        json!({ "chat_id": 4711, "message_thread_id": 3, "text": "Hello.", "reply_parameters": reply });
    assert_eq!(serde_json::from_str::<Value>(body(&request)).unwrap(), expected);
    for wrong in ["", "/", "3/", "/77", "3/77/1", "a/77", "a"] {
        let refused = telegram.request(&chat(Some(wrong)), None).err().unwrap();
        assert_eq!(refused.kind(), "rejected", "{wrong}");
    }

    let pressed = |query: Value| json!({ "update_id": 10_000, "callback_query": query }).to_string();
    let query = json!({
        "id": "4382bfdwdsb323b2d9", "chat_instance": "1", "data": "yes",
        "from": { "id": 5, "is_bot": false, "first_name": "Ada" },
        "message": { "message_id": 78, "date": 1_770_000_000, "text": "Well?", "chat": { "id": 5, "type": "private" },
                     "from": { "id": 9, "is_bot": true, "first_name": "Bot" } },
    });
    assert_eq!(sent(pressed(query.clone())), one_message("10000", "5", "5", None, "yes"));
    let mut in_a_topic = query.clone();
    in_a_topic["message"]["chat"] = json!({ "id": -100, "type": "supergroup" });
    in_a_topic["message"]["message_thread_id"] = json!(3);
    in_a_topic["message"]["is_topic_message"] = json!(true);
    assert_eq!(sent(pressed(in_a_topic)), one_message("10000", "5", "-100", Some("3/78"), "yes"));
    // A game has no data, and an inline message has no chat.
    for missing in ["data", "message"] {
        let mut query = query.clone();
        query.as_object_mut().unwrap().remove(missing);
        assert_eq!(sent(pressed(query)), no_message(), "{missing}");
    }
}

#[tokio::test]
async fn a_message_to_a_migrated_chat_is_sent_to_the_new_id_once() {
    let moved = json!({ "ok": false, "error_code": 400, "description": "Bad Request: group chat was upgraded to a supergroup chat",
                        "parameters": { "migrate_to_chat_id": -1001 } });
    let good =
        json!({ "ok": true, "result": { "message_id": 7, "chat": { "id": -1001, "type": "supergroup" } } });
    for (second, expected) in [
        ((200, good), Outcome::Delivered { message_id: "-1001:7".to_owned() }),
        // The vendor moves a chat once.
        ((400, moved.clone()), Outcome::Rejected {
            reason: "Telegram says: Bad Request: group chat was upgraded to a supergroup chat; the chat is now -1001".to_owned(),
        }),
    ] {
        let server = server::ScriptedServer::start({
            let answers = [(400, moved.clone()), second];
            move |request: &server::Received| {
                let (status, body) = &answers[request.number];
                server::Reaction::json(&status.to_string(), &body.to_string())
            }
        })
        .unwrap();
        let telegram = open(&json!({ "url": server.url() }));
        assert_eq!(telegram.deliver(&chat(None)).await, expected);
        let chats: Vec<Value> = server.requests().iter().map(|request| request.json()["chat_id"].clone()).collect();
        assert_eq!(chats, [json!(4711), json!(-1001)]);
    }
}

//! The common behavior of faces: repeats, receipts, faults and errors.

use serde_json::{Value, json};

use super::*;

/// A key like ours: 64 hex digits.
pub fn key(n: u8) -> String {
    format!("{n:02x}").repeat(32)
}

/// A request with headers and a body, on its own connection.
pub fn request(method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n");
    format!("{head}{headers}content-length: {length}\r\n\r\n{body}").into_bytes()
}

pub fn resend(key: &str, text: &str) -> Vec<u8> {
    let body =
        json!({ "from": "Shop <shop@example.com>", "to": "a@example.com", "subject": "Hi", "text": text });
    let headers = format!("authorization: Bearer re_1\r\nidempotency-key: {key}\r\n");
    request("POST", "/resend/emails", &headers, &body.to_string())
}

pub fn mastodon(key: &str, text: &str) -> Vec<u8> {
    let headers = format!("authorization: Bearer token\r\nidempotency-key: {key}\r\n");
    request("POST", "/mastodon/api/v1/statuses", &headers, &json!({ "status": text }).to_string())
}

pub fn webhook(id: &str) -> Vec<u8> {
    let at = jiff::Timestamp::now().as_second();
    let headers = format!("webhook-id: {id}\r\nwebhook-timestamp: {at}\r\nwebhook-signature: v1,none\r\n");
    let data = json!({ "channel": "email", "to": "a@example.com", "text": "Hi" });
    let body = json!({ "type": "message.email", "data": data }).to_string();
    request("POST", "/hooks/messages", &headers, &body)
}

pub fn twilio(callback: &str) -> Vec<u8> {
    let form = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("To", "+491701234567")
        .append_pair("From", "+15005550006")
        .append_pair("Twiml", "<Response><Say>Hi</Say></Response>")
        .append_pair("StatusCallback", callback)
        .append_pair("StatusCallbackEvent", "initiated")
        .append_pair("StatusCallbackEvent", "completed")
        .finish();
    // AC1:secret
    request("POST", TWILIO, "authorization: Basic QUMxOnNlY3JldA==\r\n", &form)
}

pub fn slack(key: &str, text: &str) -> Vec<u8> {
    let metadata = json!({ "event_type": "postrider", "event_payload": { "key": key } });
    let body = json!({ "channel": "C1", "text": text, "metadata": metadata });
    request("POST", "/slack/chat.postMessage", SLACK, &body.to_string())
}

pub const SLACK: &str = "authorization: Bearer xoxb-1\r\ncontent-type: application/json; charset=utf-8\r\n";

pub fn telegram(text: &str) -> Vec<u8> {
    let body = json!({ "chat_id": 77, "text": text }).to_string();
    request("POST", "/telegram/bot123:abc/sendMessage", "content-type: application/json\r\n", &body)
}

pub fn whatsapp(key: &str, text: &str) -> Vec<u8> {
    let body = json!({
        "messaging_product": "whatsapp",
        "recipient_type": "individual",
        "to": "+491701234567",
        "type": "text",
        "text": { "body": text },
        "biz_opaque_callback_data": key,
    });
    request("POST", "/whatsapp/1055/messages", "authorization: Bearer EAA\r\n", &body.to_string())
}

/// Whether the face answers a repeat from memory.
pub fn remembers(face: &str) -> bool {
    !["sim", "twilio", "slack", "telegram", "whatsapp"].contains(&face)
}

/// The id of the action in an answer, as text.
fn name_in(face: &str, answer: &Value) -> Value {
    match face {
        "bluesky" => answer["uri"].clone(),
        "twilio" => answer["sid"].clone(),
        "slack" => json!(format!("C1:{}", answer["ts"].as_str().unwrap())),
        "telegram" => json!(format!("77:{}", answer["result"]["message_id"])),
        "whatsapp" => answer["messages"][0]["id"].clone(),
        _ => answer["id"].clone(),
    }
}

pub const TWILIO: &str = "/twilio/2010-04-01/Accounts/AC1/Calls.json";

/// One valid request to act for each face, under this key; `session` is for Bluesky.
pub fn one_of_each(key: &str, session: &str) -> Vec<(&'static str, Vec<u8>)> {
    let message = json!({ "channel": "email", "to": "a@example.com", "text": "Hi" }).to_string();
    vec![
        ("sim", request("POST", "/messages", &format!("idempotency-key: {key}\r\n"), &message)),
        ("resend", resend(key, "Hi")),
        ("twilio", twilio(&format!("http://127.0.0.1:9/callbacks/{key}"))),
        ("mastodon", mastodon(key, "Hi")),
        ("bluesky", bluesky::put(session, key, "Hi")),
        ("webhook", webhook(key)),
        ("slack", slack(key, "Hi")),
        ("telegram", telegram("Hi")),
        ("whatsapp", whatsapp(key, "Hi")),
    ]
}

impl RunningSim {
    /// Status and body of the answer to a request.
    pub async fn answer(&self, request: &[u8]) -> (u16, Value) {
        let answer = self.ask(request).await.unwrap();
        (status_of(&answer), json_of(&answer))
    }

    /// The receipts of actions.
    pub fn actions(&self) -> Vec<Value> {
        on_disk(&self.receipts).into_iter().filter(|receipt| receipt["acted"] == true).collect()
    }

    pub async fn put_rules(&self, rules: &Value) {
        let answer = self.put("/faults/rules", &rules.to_string()).await;
        assert_eq!(status_of(&answer), 200, "{answer}");
    }
}

#[tokio::test]
async fn faces_with_a_memory_answer_a_repeat_from_it_and_the_others_act_again() {
    let sim = RunningSim::with(&[]).await;
    let session = sim.session().await;
    for (n, (face, request)) in one_of_each(&key(1), &session).into_iter().enumerate() {
        let (before, recognises) = (sim.actions().len(), remembers(face));
        let (first, second) = (sim.answer(&request).await, sim.answer(&request).await);
        assert!((200..300).contains(&first.0), "{face}: {first:?}");
        assert_eq!(first.0, second.0, "{face}");
        let (name, other) = (name_in(face, &first.1), name_in(face, &second.1));
        assert!(name.as_str().is_some_and(|name| !name.is_empty()), "{face}: {first:?}");
        assert_eq!(name == other, recognises, "{face}: {first:?} {second:?}");

        let actions = sim.actions().split_off(before);
        assert_eq!(actions.len(), if recognises { 1 } else { 2 }, "{face}");
        for action in &actions {
            let known = if face == "telegram" { Value::Null } else { json!(key(1)) };
            assert_eq!((&action["provider"], &action["key"]), (&json!(face), &known), "{n}");
        }
        assert_eq!(actions[0]["message_id"], name, "{face}");
    }
    let counts = sim.counts("").await;
    assert_eq!([&counts["replays"], &counts["accepted"], &counts["received"]], [4, 14, 14]);
    assert_eq!(counts["repeated_texts"], 1, "Telegram gets no key");
    sim.stop().await;
}

#[tokio::test]
async fn every_fault_applies_to_every_face() {
    for (fault, acted, answered) in [
        ("latency", true, true),
        ("fail", false, true),
        ("fail_after", true, true),
        ("refuse", false, true),
        ("busy", false, true),
        ("half", true, false),
        ("reset", true, false),
        ("reset_before", false, false),
        ("stall", true, false),
    ] {
        let sim = RunningSim::with(&["--latency-ms", "1", "--stall-seconds", "0"]).await;
        let session = sim.session().await;
        sim.put_faults(&json!({ fault: 1 }).to_string()).await;
        for (face, request) in one_of_each(&key(2), &session) {
            // Some of them are cut.
            let answer = sim.ask(&request).await.unwrap_or_default();
            let receipt = on_disk(&sim.receipts).pop().unwrap();
            assert_eq!(receipt["provider"], face);
            assert_eq!((&receipt["fault"], &receipt["acted"]), (&json!(fault), &json!(acted)), "{face}");
            assert_eq!(receipt["answered"].is_u64(), answered, "{face}: {fault}");
            assert_eq!(receipt.get("message_id").is_some(), acted, "{face}: {fault}");
            if answered {
                assert_eq!(receipt["answered"], status_of(&answer), "{face}: {fault}");
            }
            assert_eq!(fault == "busy", answer.contains("retry-after: 1"), "{face}: {fault}");
        }
        sim.stop().await;
    }
}

#[tokio::test]
async fn a_repeat_of_an_accepted_request_is_never_refused_but_gets_other_faults() {
    let sim = RunningSim::with(&[]).await;
    let session = sim.session().await;
    let remember = |(face, _): &(&str, Vec<u8>)| remembers(face);
    for (face, request) in one_of_each(&key(3), &session).into_iter().filter(remember) {
        sim.put_faults("{}").await;
        let first = sim.answer(&request).await;
        for (fault, status) in [("refuse", 200), ("busy", 429), ("fail", 500), ("fail_after", 500)] {
            sim.put_faults(&json!({ fault: 1 }).to_string()).await;
            assert_eq!(sim.answer(&request).await.0, status, "{face}: {fault}");
        }
        sim.put_faults(r#"{"reset": 1}"#).await;
        assert!(sim.ask(&request).await.is_err(), "{face}");
        sim.put_faults("{}").await;
        let again = sim.answer(&request).await;
        assert_eq!((again.0, &again.1["id"]), (first.0, &first.1["id"]), "{face}");
    }
    assert_eq!(on_disk(&sim.receipts).len(), 4, "a repeat has no receipt");
    sim.stop().await;
}

#[tokio::test]
async fn an_event_is_accepted_every_time_and_a_message_once() {
    let sim = RunningSim::with(&[]).await;
    for id in ["evt_1", "evt_1", "17", "17", &key(1), &key(1)] {
        assert_eq!(sim.answer(&webhook(id)).await.0, 200);
    }
    let accepted: Vec<_> = sim.actions().iter().map(|receipt| receipt["webhook_id"].clone()).collect();
    assert_eq!(accepted, ["evt_1", "evt_1", "17", "17", &key(1)]);
    let message = sim.actions().pop().unwrap();
    assert_eq!([&message["to"], &message["channel"]], ["a@example.com", "email"]);
    sim.stop().await;
}

#[tokio::test]
async fn a_restarted_sim_remembers_only_its_receipts() {
    let sim = RunningSim::with(&[]).await;
    sim.answer(&resend(&key(1), "Hi")).await;
    let sim = RunningSim::in_dir(sim.stop().await, &[]).await;
    sim.answer(&resend(&key(1), "Hi")).await;
    let counts = sim.counts("").await;
    assert_eq!([&counts["accepted"], &counts["duplicate_keys"]], [2, 1]);
    sim.stop().await;
}

#[tokio::test]
async fn each_face_refuses_invalid_requests_with_its_own_errors() {
    let sim = RunningSim::with(&[]).await;
    let bearer = "authorization: Bearer t\r\n";
    let basic = "authorization: Basic QUMxOnNlY3JldA==\r\n";
    let (statuses, emails) = ("/mastodon/api/v1/statuses", "/resend/emails");
    let put = "/bluesky/xrpc/com.atproto.repo.putRecord";
    let session = format!("authorization: Bearer {}\r\n", sim.session().await);
    let form = format!("{bearer}content-type: application/x-www-form-urlencoded\r\n");
    for (path, headers, body, status) in [
        (emails, "", "{}", 401),
        (emails, bearer, "\u{0}", 422),
        (emails, bearer, "{}", 422),
        (emails, bearer, r#"{"from": "a@b.c", "to": [], "subject": "s", "text": "t"}"#, 422),
        (TWILIO, "", "To=1", 401),
        (TWILIO, "authorization: Basic !!!\r\n", "To=1", 401),
        (TWILIO, basic, "", 400),
        (TWILIO, basic, "To=%2B4917012345&From=%2B4917012345", 400),
        (TWILIO, basic, "To=911&From=%2B4917012345&Twiml=x", 400),
        (TWILIO, basic, "To=%2B4917012345&From=%2B4917012345&Twiml=x&StatusCallback=here", 400),
        (statuses, "", r#"{"status": "Hi"}"#, 401),
        (statuses, bearer, "[]", 422),
        (statuses, bearer, r#"{"status": ""}"#, 422),
        (statuses, bearer, r#"{"status": {"a": 1}}"#, 422),
        (statuses, &form, "status=%20", 422),
        ("/telegram/bot123/sendMessage", "", "", 404),
        ("/telegram/bot123:abc/sendMessage", "", "{}", 400),
        ("/telegram/bot123:abc/sendMessage?chat_id=0&text=Hi", "", "", 400),
        ("/telegram/bot123:abc/sendMessage?chat_id=7", "", "", 400),
        ("/telegram/bot123:abc/sendMessage?text=Hi", "", "", 400),
        ("/whatsapp/1055/messages", "", "{}", 401),
        ("/whatsapp/1055/messages", bearer, "", 400),
        ("/whatsapp/1055/messages", bearer, "{}", 400),
        ("/whatsapp/1055/messages", bearer, r#"{"messaging_product": "whatsapp", "to": "me"}"#, 400),
        (
            "/whatsapp/1055/messages",
            bearer,
            r#"{"messaging_product": "whatsapp", "to": "491701234567"}"#,
            400,
        ),
        (put, "", "{}", 401),
        (put, bearer, "{}", 400),
        (put, &session, "{}", 400),
        (put, &session, r#"{"repo": "a.example", "collection": "c", "rkey": "..", "record": 7}"#, 400),
    ] {
        let (answered, answer) = sim.answer(&request("POST", path, headers, body)).await;
        assert_eq!(answered, status, "{path} {body}: {answer}");
    }
    for (path, headers, status) in [
        (TWILIO, "", 401),
        ("/mastodon/api/v1/accounts/verify_credentials", "", 401),
        ("/mastodon/api/v1/accounts/x/statuses", bearer, 404),
        ("/bluesky/xrpc/com.atproto.repo.getRecord", "", 400),
        ("/bluesky/xrpc/com.atproto.repo.getRecord?repo=a&collection=b&rkey=%ff", "", 400),
        ("/messages", "", 400),
        ("/messages?key=none", "", 404),
        (emails, "", 405),
    ] {
        assert_eq!(sim.answer(&request("GET", path, headers, "")).await.0, status, "{path}");
    }
    assert!(sim.actions().is_empty());
    sim.stop().await;
}

#[tokio::test]
async fn each_face_reads_the_token_from_its_own_place() {
    let sim = RunningSim::with(&["--token", "secret"]).await;
    let sign_in = |password: &str| {
        let body = json!({ "identifier": "shop.example.com", "password": password }).to_string();
        request("POST", "/bluesky/xrpc/com.atproto.server.createSession", "", &body)
    };
    assert_eq!(sim.answer(&sign_in("other")).await.0, 401);
    assert_eq!(sim.answer(&sign_in("secret")).await.0, 200);
    assert_eq!(sim.answer(&resend(&key(1), "Hi")).await.0, 403);
    assert_eq!(sim.answer(&mastodon(&key(1), "Hi")).await.0, 401);
    assert_eq!(sim.answer(&twilio("http://127.0.0.1:9/k")).await.0, 201);
    assert_eq!(sim.answer(&whatsapp(&key(1), "Hi")).await.0, 401);
    assert_eq!(sim.answer(&telegram("Hi")).await.0, 401);
    assert_eq!(
        sim.answer(&slack(&key(1), "Hi")).await,
        (200, json!({ "ok": false, "error": "invalid_auth" }))
    );
    assert_eq!(sim.counts("").await["bad_signatures"], 5);
    sim.stop().await;
}

use base64::{Engine, engine::general_purpose::STANDARD};
use postrider_model::ids::ProviderAccountId;
use reqwest::header::HeaderMap;
use secrecy::SecretString;
use serde_json::{Value, json};

use super::*;
use crate::{
    chat::inbound::tests::{Delivery, no_message, one_message},
    guard::Ending,
    http::tests::{NOW, answer, body, chat, client, email, item, key, refused, social, voice, with_header},
};

fn secret() -> String {
    format!("whsec_{}", STANDARD.encode([7; 32]))
}

fn open() -> Receiver {
    let (settings, secret) =
        (json!({ "url": "http://127.0.0.1:9/hook?of=me" }), SecretString::from(secret()));
    let account = Account { id: ProviderAccountId::new(), settings: &settings, secret: &secret };
    Receiver::new(&client(true), &account).ok().unwrap()
}

// By the specification: three headers, and a body with `type`, `timestamp` and `data`. The reference library verifies the
// request.
#[test]
fn a_message_is_a_standard_webhook() {
    let (receiver, (id, at)) = (open(), item());
    let chat = (chat(Some("t-1")), "chat");
    for (message, kind) in [(email(), "email"), (voice(), "voice"), (social(), "social"), chat] {
        let request = receiver.request(id, &key(), &message).unwrap();
        assert_eq!(
            (request.method().as_str(), request.url().as_str()),
            ("POST", "http://127.0.0.1:9/hook?of=me")
        );
        let headers: &HeaderMap = request.headers();
        assert_eq!(
            (headers["content-type"].as_bytes(), headers["webhook-id"].to_str().unwrap()),
            (&b"application/json"[..], key().as_str())
        );
        Webhook::new(&secret()).unwrap().verify(body(&request).as_bytes(), headers).unwrap();

        let sent: Value = serde_json::from_str(body(&request)).unwrap();
        assert_eq!(sent["type"], format!("message.{kind}"));
        assert_eq!(sent["timestamp"].as_str().unwrap().parse::<Timestamp>().unwrap(), at);
        let mut data = serde_json::to_value(&message).unwrap();
        data["idempotency_key"] = json!(key());
        assert_eq!(sent["data"], data);
        assert_eq!(data["channel"], kind);
    }
    let [first, again] = [(); 2].map(|()| receiver.request(id, &key(), &email()).unwrap());
    assert_eq!(body(&first), body(&again), "each attempt has the same body");
}

#[test]
fn the_status_alone_decides() {
    let judge = |answer: &Answer| judge(answer, NOW, &key());
    let delivered = |name: &str| Outcome::Delivered { message_id: name.to_owned() };
    let named_by_key = delivered(key().as_str());
    for (answer, expected) in [
        (answer(200, r#"{"id": "m-1"}"#), delivered("m-1")),
        (answer(200, ""), named_by_key.clone()),
        (answer(204, ""), named_by_key.clone()),
        (with_header(answer(200, "OK"), "content-type", "text/html"), named_by_key.clone()),
        (Answer { ending: Ending::Broken, ..answer(200, r#"{"id": "m-1"}"#) }, named_by_key),
    ] {
        assert_eq!(judge(&answer), expected);
    }
    for (status, expected) in [
        (302, "unknown"),
        (307, "rejected"),
        (404, "rejected"),
        (410, "rejected"),
        (429, "not_sent"),
        (500, "unknown"),
    ] {
        assert_eq!(judge(&answer(status, "{}")).kind(), expected, "{status}");
    }
}

#[test]
fn an_account_has_a_url_and_a_secret_to_sign_with() {
    let good = || json!({ "url": "https://example.com/hook" });
    refused(
        Receiver::new,
        &[
            (false, json!({}), &secret(), "missing field `url`; the settings of `webhook` are like {"),
            (false, json!({ "url": "https://example.com", "uri": 1 }), &secret(), "unknown field `uri`"),
            (false, json!({ "url": "http://example.com" }), &secret(), "plain http"),
            (false, json!({ "url": "https://[::1]/" }), &secret(), "only public addresses are called"),
            (false, good(), "", "the secret does not begin with `whsec_`; make one with"),
            (false, good(), "hunter2-hunter2", "the secret does not begin with `whsec_`"),
            (false, good(), "whsec_aHVudGVyMg==", "does not hold 24 to 64 bytes"),
        ],
    );
}

fn other_secret() -> String {
    format!("whsec_{}", STANDARD.encode([8; 32]))
}

/// A webhook to an account, signed by the reference library.
fn delivery(id: &str, seconds: i64, secrets: &[&str], body: &str) -> Delivery {
    let signatures: Vec<String> = secrets
        .iter()
        .map(|secret| Webhook::new(secret).unwrap().sign(id, seconds, body.as_bytes()).unwrap())
        .collect();
    Delivery::new(body)
        .header("webhook-id", id)
        .header("webhook-timestamp", &seconds.to_string())
        .header("webhook-signature", &signatures.join(" "))
}

fn received(delivery: &Delivery) -> Result<Received, CallbackRefused> {
    let settings = json!({ "url": "https://example.com/hook" });
    delivery.to(&WebhookAdapter::new(&client(false)), &settings, &secret())
}

const WRITTEN: &str = r#"{"type": "message.received", "timestamp": "2026-02-02T02:40:00Z", "data": {"sender_id": "ada", "conversation_id": "room-7", "thread": "t-1", "text": "Hello?"}}"#;

#[test]
fn an_inbound_message_is_a_standard_webhook() {
    let now = NOW.as_second();
    let message = one_message("m-1", "ada", "room-7", Some("t-1"), "Hello?");
    assert_eq!(received(&delivery("m-1", now, &[&secret()], WRITTEN)), message);
    // While a secret is replaced there are two signatures, in one header.
    assert_eq!(received(&delivery("m-1", now, &[&other_secret(), &secret()], WRITTEN)), message);
    for seconds in [now - 300, now + 300] {
        assert_eq!(received(&delivery("m-1", seconds, &[&secret()], WRITTEN)), message, "{seconds}");
    }
    let least = r#"{"type": "message.received", "data": {"sender_id": "ada", "text": "a\u0000b"}}"#;
    assert_eq!(
        received(&delivery("m-2", now, &[&secret()], least)),
        one_message("m-2", "ada", "ada", None, "ab")
    );
    let other = r#"{"type": "message.chat", "timestamp": 7, "data": [], "more": 1}"#;
    assert_eq!(received(&delivery("m-3", now, &[&secret()], other)), no_message());
}

#[test]
fn a_forged_webhook_is_refused_with_the_reason() {
    let now = NOW.as_second();
    let good = || delivery("m-1", now, &[&secret()], WRITTEN);
    let other_body = WRITTEN.replace("Hello", "Pay me");
    let bare = STANDARD.encode([0; 32]);
    let right = Webhook::new(&secret()).unwrap().sign("m-1", now, WRITTEN.as_bytes()).unwrap();
    for (forged, why) in [
        (delivery("m-1", now - 301, &[&secret()], WRITTEN), "more than five minutes too old"),
        (delivery("m-1", now + 301, &[&secret()], WRITTEN), "more than five minutes too early"),
        (delivery("m-1", now, &[&other_secret()], WRITTEN), "no signature is right"),
        (good().body(&other_body), "no signature is right"),
        (good().body(WRITTEN.replace(": ", ":")), "no signature is right"),
        (good().set("webhook-id", "m-2"), "no signature is right"),
        (good().set("webhook-timestamp", &(now + 1).to_string()), "no signature is right"),
        (good().set("webhook-timestamp", "soon"), "not a time in seconds"),
        (good().set("webhook-timestamp", &format!("+{now}")), "not a time in seconds"),
        (good().set("webhook-timestamp", ""), "not a time in seconds"),
        (good().set("webhook-signature", ""), "no signature is right"),
        (good().set("webhook-signature", "v1,"), "no signature is right"),
        (good().set("webhook-signature", "v1,no base64"), "no signature is right"),
        (good().set("webhook-signature", &right.replace("v1,", "v2,")), "no signature is right"),
        (good().set("webhook-signature", &right.replace("v1,", "")), "no signature is right"),
        (good().set("webhook-signature", &bare), "no signature is right"),
        (good().set("webhook-signature", &format!("v1,{bare}")), "no signature is right"),
        (good().set("webhook-signature", &format!("v1a,{bare}")), "no signature is right"),
        (good().header("webhook-signature", "v1,a"), "`webhook-signature` is there twice"),
        (good().header("webhook-id", "m-1"), "`webhook-id` is there twice"),
        (good().header("webhook-timestamp", "1"), "`webhook-timestamp` is there twice"),
        (good().without("webhook-signature"), "`webhook-signature` is missing"),
        (good().without("webhook-timestamp"), "`webhook-timestamp` is missing"),
        (good().without("webhook-id"), "`webhook-id` is missing"),
    ] {
        forged.is_forged(&received(&forged), why, &[&secret()]);
    }
    assert_eq!(received(&good().get("")), Err(CallbackRefused::NotTaken));
}

#[test]
fn a_signed_webhook_that_makes_no_sense_is_malformed() {
    let now = NOW.as_second();
    let data = |data: &str| format!(r#"{{"type": "message.received", "data": {data}}}"#);
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    let name = "n".repeat(256);
    for body in [
        String::new(),
        "null".to_owned(),
        "[]".to_owned(),
        "{".to_owned(),
        "[".repeat(100_000),
        data("null"),
        data(r#"{"sender_id": "ada"}"#),
        data(r#"{"sender_id": 7, "text": "x"}"#),
        data(r#"{"sender_id": "", "text": "x"}"#),
        data(r#"{"sender_id": "a\u0000da", "text": "x"}"#),
        data(&format!(r#"{{"sender_id": "{name}", "text": "x"}}"#)),
        data(&format!(r#"{{"sender_id": "ada", "conversation_id": "{name}", "text": "x"}}"#)),
        data(r#"{"sender_id": "ada", "thread": " ", "text": "x"}"#),
        data(r#"{"sender_id": "ada", "text": " \u0000"}"#),
        data(r#"{"sender_id": "ada", "text": "\ud800"}"#),
        data(r#"{"sender_id": "ada", "sender_id": "eve", "text": "x"}"#),
        data(r#"{"sender_id": "ada", "text": "x", "role": "admin"}"#),
        data(&format!(r#"{{"sender_id": "ada", "text": "{long}"}}"#)),
        r#"{"type": "message.received", "data": {"sender_id": "ada", "text": "x"}, "tenant": 1}"#.to_owned(),
    ] {
        let refused = received(&delivery("m-1", now, &[&secret()], &body));
        let start: String = body.chars().take(80).collect();
        assert!(matches!(refused, Err(CallbackRefused::Malformed(_))), "{start}: {refused:?}");
    }
    for id in ["m.1".to_owned(), "m".repeat(513), " ".to_owned()] {
        let refused = received(&delivery(&id, now, &[&secret()], WRITTEN));
        assert!(matches!(refused, Err(CallbackRefused::Malformed(_))), "{id}: {refused:?}");
    }
}

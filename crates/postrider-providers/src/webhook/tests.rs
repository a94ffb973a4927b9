use base64::{Engine, engine::general_purpose::STANDARD};
use postrider_model::ids::ProviderAccountId;
use reqwest::header::HeaderMap;
use secrecy::SecretString;
use serde_json::{Value, json};

use super::*;
use crate::{
    guard::Ending,
    http::tests::{NOW, answer, body, client, email, item, key, refused, social, voice, with_header},
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

// As the specification has it: three headers, and a body with `type`, `timestamp` and `data`. The verification is that of
// the reference library.
#[test]
fn a_message_is_a_standard_webhook() {
    let (receiver, (id, at)) = (open(), item());
    for (message, kind) in [(email(), "email"), (voice(), "voice"), (social(), "social")] {
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

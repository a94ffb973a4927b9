use postrider_model::ids::ProviderAccountId;
use secrecy::SecretString;
use serde_json::{Value, json};

use super::*;
use crate::http::tests::{NOW, answer, assert_request, body, client, email, key, refused, social, voice};

fn open(settings: &Value) -> Resend {
    let secret = SecretString::from("re_hunter2");
    Resend::new(&client(true), &Account { id: ProviderAccountId::new(), settings, secret: &secret })
        .ok()
        .unwrap()
}

// By the description of Resend's API: `from`, `to` and `subject` are required, `Idempotency-Key` has at most 256
// characters.
#[test]
fn a_mail_is_what_resend_describes() {
    let resend = open(&json!({ "from": "News <news@example.com>", "reply_to": "desk@example.com" }));
    let request = resend.request(&key(), &email()).unwrap();
    assert_request(
        &request,
        "POST",
        "https://api.resend.com/emails",
        &[
            ("authorization", "Bearer re_hunter2"),
            ("content-type", "application/json"),
            ("idempotency-key", key().as_str()),
        ],
    );
    assert!(key().as_str().len() <= 256 && request.headers()["authorization"].is_sensitive());
    let expected = json!({
        "from": "News <news@example.com>",
        "to": "ada@example.com",
        "subject": "News",
        "html": "<p>Hello.</p>",
        "text": "Hello.",
        "reply_to": "desk@example.com",
    });
    assert_eq!(serde_json::from_str::<Value>(body(&request)).unwrap(), expected);

    let again = resend.request(&key(), &email()).unwrap();
    assert_eq!(body(&again), body(&request), "a repeat has the same bytes");
    let plain = Message::Email {
        to: "a@example.com".into(),
        subject: "S".into(),
        text: Some("T".into()),
        html: None,
    };
    let request = open(&json!({ "from": "news@example.com" })).request(&key(), &plain).unwrap();
    assert_eq!(
        body(&request),
        r#"{"from":"news@example.com","to":"a@example.com","subject":"S","text":"T"}"#
    );
    for other in [voice(), social()] {
        assert_eq!(resend.request(&key(), &other).err().unwrap().kind(), "rejected");
    }
}

#[test]
fn an_account_has_a_sender_and_a_key() {
    let url = open(&json!({ "from": "a@example.com", "url": "http://127.0.0.1:9/resend/" })).emails;
    assert_eq!(url.as_str(), "http://127.0.0.1:9/resend/emails");
    let good = || json!({ "from": "a@example.com" });
    refused(
        Resend::new,
        &[
            (false, json!({}), "re_hunter2", "missing field `from`; the settings of `resend` are like {"),
            (false, json!({ "from": "a@example.com", "form": 1 }), "re_hunter2", "unknown field `form`"),
            (false, json!({ "from": "nobody" }), "re_hunter2", "`from`"),
            (
                false,
                json!({ "from": "a@example.com\nBcc: b@example.com" }),
                "re_hunter2",
                "`from` holds a line break",
            ),
            (false, json!({ "from": "a@example.com", "reply_to": "x" }), "re_hunter2", "`reply_to`"),
            (false, good(), "", "the secret is missing: it is an API key of Resend"),
            (false, good(), "re_hunter2\n", "a header cannot carry"),
            (
                false,
                json!({ "from": "a@example.com", "url": "http://example.com" }),
                "re_hunter2",
                "plain http",
            ),
            (
                false,
                json!({ "from": "a@example.com", "url": "https://192.168.0.1" }),
                "re_hunter2",
                "a private address",
            ),
        ],
    );
}

// Resend documents no end of a quota, and no `Retry-After` with it.
#[test]
fn a_used_up_quota_waits_for_an_hour() {
    let busy = |name: &str| {
        let said = json!({ "statusCode": 429, "name": name, "message": "You have reached your quota." });
        match judge(&answer(429, &said.to_string()), NOW) {
            Outcome::NotSent { retry_after, .. } => retry_after.map(|wait| wait.as_secs()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(busy("daily_quota_exceeded"), Some(3600));
    assert_eq!(busy("monthly_quota_exceeded"), Some(3600));
    assert_eq!(busy("rate_limit_exceeded"), Some(30));
}

use postrider_model::ids::ProviderAccountId;
use secrecy::SecretString;
use serde_json::{Value, json};

use super::*;
use crate::http::tests::{assert_request, body, client, email, key, refused, social, voice};

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
        "tags": [{ "name": "postrider_key", "value": key().as_str() }],
    });
    assert_eq!(serde_json::from_str::<Value>(body(&request)).unwrap(), expected);

    let again = resend.request(&key(), &email()).unwrap();
    assert_eq!(body(&again), body(&request), "a repeat has the same bytes");
    let plain = Message::Email {
        to: "a@example.com".into(),
        subject: "S".into(),
        text: Some("T".into()),
        html: None,
        unsubscribe_url: None,
    };
    let request = open(&json!({ "from": "news@example.com" })).request(&key(), &plain).unwrap();
    let tag = format!(r#""tags":[{{"name":"postrider_key","value":"{}"}}]"#, key());
    assert_eq!(
        body(&request),
        format!(r#"{{"from":"news@example.com","to":"a@example.com","subject":"S","text":"T",{tag}}}"#)
    );
    let linked = Message::Email {
        to: "a@example.com".into(),
        subject: "S".into(),
        text: Some("T".into()),
        html: None,
        unsubscribe_url: Some("https://example.com/u/a".into()),
    };
    let request = resend.request(&key(), &linked).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(body(&request)).unwrap()["headers"],
        json!({ "List-Unsubscribe": "<https://example.com/u/a>", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click" })
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
            (false, good(), r#"{"webhook_secret": "whsec_x"}"#, "the secret lacks a part"),
            (false, good(), r#"{"api_key": "re_1", "hook": "x"}"#, "the secret lacks a part"),
            (false, good(), r#"{"api_key": "re_1""#, "the secret is not JSON"),
            (
                false,
                good(),
                r#"{"api_key": "re_1", "webhook_secret": "x"}"#,
                "`webhook_secret` of the secret does not begin with `whsec_`",
            ),
        ],
    );
    for secret in [
        r#"{"api_key": "re_hunter2"}"#,
        r#"{"api_key": "re_hunter2", "webhook_secret": ""}"#,
        r#"{"api_key": "re_hunter2", "webhook_secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}"#,
    ] {
        let (settings, secret) = (good(), SecretString::from(secret));
        let account = Account { id: ProviderAccountId::new(), settings: &settings, secret: &secret };
        let opened = Resend::new(&client(true), &account).ok().unwrap();
        assert_eq!(opened.token, "Bearer re_hunter2");
        assert_eq!(opened.webhooks.is_some(), secret.expose_secret().contains("whsec_"));
    }
}

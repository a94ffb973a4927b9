use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use postrider_model::ids::ProviderAccountId;

use super::*;
use crate::guard::{Limits, Policy};

const NOW: Timestamp = Timestamp::constant(1_770_000_000, 0);

fn answer(status: u16, body: &str, ending: Ending) -> Answer {
    let status = StatusCode::from_u16(status).unwrap();
    Answer { status, headers: HeaderMap::new(), body: body.to_owned().into(), ending }
}

#[test]
fn each_answer_has_its_outcome() {
    let good = r#"{"id": "sim-1", "accepted": true}"#;
    let whole = [
        (200, good, "delivered"),
        (201, good, "delivered"),
        (200, "", "unknown"),
        (200, "thanks", "unknown"),
        (200, r#"{"accepted": true}"#, "unknown"),
        (200, r#"{"id": ""}"#, "unknown"),
        (200, r#"{"id": 7}"#, "unknown"),
        (204, "", "unknown"),
        (301, "", "rejected"),
        (307, good, "rejected"),
        (400, "no", "rejected"),
        (401, "no", "rejected"),
        (404, "", "rejected"),
        (408, "", "unknown"),
        (409, "", "rejected"),
        (422, "", "rejected"),
        (429, "", "not_sent"),
        (500, "", "unknown"),
        (502, good, "unknown"),
        (503, "later", "unknown"),
        (504, "", "unknown"),
        (599, "", "unknown"),
        (999, "", "unknown"),
    ];
    for (status, body, expected) in whole {
        assert_eq!(judge(&answer(status, body, Ending::Whole), NOW).kind(), expected, "{status} {body}");
    }
    for ending in [Ending::Broken, Ending::TooLong] {
        assert_eq!(judge(&answer(200, good, ending), NOW).kind(), "unknown", "{ending:?}");
        assert_eq!(judge(&answer(400, "no", ending), NOW).kind(), "rejected", "{ending:?}");
    }
    let delivered = judge(&answer(200, good, Ending::Whole), NOW);
    assert_eq!(delivered, Outcome::Delivered { message_id: "sim-1".to_owned() });
}

#[test]
fn busy_says_when_to_come_again() {
    let cases = [
        ("7", Some(7)),
        (" 0 ", Some(0)),
        ("Mon, 02 Feb 2026 02:41:40 GMT", Some(100)),
        ("Mon, 02 Feb 2026 02:00:00 GMT", Some(0)),
        ("-1", None),
        ("soon", None),
        ("", None),
    ];
    for (header, seconds) in cases {
        let mut busy = answer(429, "", Ending::Whole);
        busy.headers.insert(RETRY_AFTER, header.parse().unwrap());
        let Outcome::NotSent { retry_after, .. } = judge(&busy, NOW) else { panic!("{header}") };
        assert_eq!(retry_after, seconds.map(Duration::from_secs), "{header}");
    }
}

#[test]
fn an_account_has_a_url_and_perhaps_a_token_and_nothing_else() {
    let client = |allow_private| GuardedClient::new(Policy { allow_private }, Limits::default()).unwrap();
    let open = |client: &GuardedClient, settings: Value, token: &str| {
        let secret = SecretString::from(token);
        Sim::new(client, &Account { id: ProviderAccountId::new(), settings: &settings, secret: &secret })
    };
    let development = client(true);
    for (url, messages) in [
        ("http://127.0.0.1:9", "http://127.0.0.1:9/messages"),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9/messages"),
        ("https://sim.example/a/b?c#d", "https://sim.example/a/b/messages"),
    ] {
        let sim = open(&development, json!({ "url": url }), "").ok().unwrap();
        assert_eq!((sim.messages.as_str(), sim.token), (messages, None));
    }
    let token =
        open(&development, json!({ "url": "http://127.0.0.1:9" }), "hunter2").ok().unwrap().token.unwrap();
    assert_eq!((token.to_str().unwrap(), token.is_sensitive()), ("Bearer hunter2", true));

    let production = client(false);
    for (client, settings, token, why) in [
        (&development, json!({}), "", "missing field `url`"),
        (&development, json!({ "url": "sim" }), "", "relative URL without a base"),
        (&development, json!({ "url": "http://127.0.0.1:9", "ur": 1 }), "", "unknown field `ur`"),
        (&development, json!({ "url": "ftp://127.0.0.1" }), "", "use an https:// URL"),
        (&development, json!({ "url": "http://127.0.0.1:9" }), "hunter2\n", "a header cannot carry"),
        (&production, json!({ "url": "http://127.0.0.1:9" }), "", "plain http"),
        (&production, json!({ "url": "https://10.0.0.1" }), "", "a private address"),
    ] {
        let error = open(client, settings, token).err().unwrap().to_string();
        assert!(error.contains(why) && !error.contains("hunter2"), "{error}");
    }
}

// The server would keep each connection open, and the pool would take it again.
#[tokio::test]
async fn every_call_has_a_connection_of_its_own() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = json!({ "url": format!("http://{}", listener.local_addr().unwrap()) });
    let (counted, mut connections) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.send(()).unwrap();
            tokio::spawn(async move {
                let body = r#"{"id": "sim-1"}"#;
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                // The request is small and comes in one piece.
                while stream.read(&mut [0; 4096]).await.unwrap_or(0) > 0 {
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    let client = GuardedClient::new(Policy { allow_private: true }, Limits::default()).unwrap();
    let sim = Sim::new(
        &client,
        &Account { id: ProviderAccountId::new(), settings: &settings, secret: &SecretString::from("") },
    )
    .ok()
    .unwrap();
    let key = IdempotencyKey::from_row("key".to_owned());
    for _ in 0..3 {
        let outcome = sim.send(&key, &Message::Social { text: "Hello.".to_owned() }).await;
        assert_eq!(outcome.kind(), "delivered", "{outcome:?}");
    }
    assert_eq!(std::iter::from_fn(|| connections.try_recv().ok()).count(), 3);
}

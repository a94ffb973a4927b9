//! Runs the suite with every standard adapter that uses HTTP.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use postrider_model::Message;
use postrider_providers::{
    Adapters,
    conformance::{self, Answer, Case, Key, OutcomeKind, Request, Subject},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Adapters without HTTP, which have their own fault tests.
const OTHER_PROTOCOLS: &[&str] = &["smtp"];

fn subjects(adapters: &Adapters) -> Vec<Subject> {
    vec![
        sim(adapters),
        resend(adapters),
        twilio(adapters),
        mastodon(adapters),
        bluesky(adapters),
        webhook(adapters),
        slack(adapters, None),
        slack(adapters, Some("1482960137.003543")),
        telegram(adapters),
        whatsapp(adapters),
    ]
}

fn sim(adapters: &Adapters) -> Subject {
    let sent = |_: &Request| Answer::json(200, &json!({ "id": "sim-1" })).with_message_id("sim-1");
    Subject::new(adapters.get("sim").unwrap().clone(), crate::email(), |url| json!({ "url": url }))
        .secret("sim-token-canary")
        .accepts(sent)
        .refuses(Answer::text(422, "text/plain", "no"))
        .key(Key::Header("idempotency-key"))
        .looks_up(
            |request| request.method == "GET",
            sent,
            |_| Answer::json(404, &json!({ "error": "unknown key" })),
        )
}

fn resend(adapters: &Adapters) -> Subject {
    let settings = |url: &str| json!({ "url": url, "from": "News <news@example.com>" });
    let refusal = json!({ "statusCode": 422, "name": "validation_error", "message": "Invalid `to` field." });
    Subject::new(adapters.get("resend").unwrap().clone(), crate::email(), settings)
        .secret("re_canary_of_the_account")
        .accepts(|_| Answer::json(200, &json!({ "id": "49a3999c" })).with_message_id("49a3999c"))
        .refuses(Answer::json(422, &refusal))
        .key(Key::Header("idempotency-key"))
}

fn twilio(adapters: &Adapters) -> Subject {
    let settings = |url: &str| {
        let callback_url = "https://postrider.example.com";
        let account_sid = format!("AC{}", "0".repeat(32));
        json!({ "url": url, "account_sid": account_sid, "from": "+15005550006", "callback_url": callback_url })
    };
    let refusal =
        json!({ "code": 21211, "message": "The 'To' number is not a valid phone number.", "status": 400 });
    let list = |_: &Request| Answer::json(200, &json!({ "calls": [] }));
    let nothing = "the list of calls has no keys, so a person decides";
    Subject::new(adapters.get("twilio").unwrap().clone(), crate::voice(), settings)
        .secret("twilio-token-canary")
        .accepts(|_| Answer::json(201, &json!({ "sid": "CA1", "status": "queued" })).with_message_id("CA1"))
        .refuses(Answer::json(400, &refusal))
        // Twilio takes no key; the key is in the address of status callbacks.
        .key(Key::Found(|request, key| request.text().contains(&format!("callback%2F{key}&"))))
        .looks_up(|request| request.method == "GET", list, list)
        .differs(Case::LookUpFound, OutcomeKind::Unclear, nothing)
        .differs(Case::LookUpMissing, OutcomeKind::Unclear, nothing)
}

fn mastodon(adapters: &Adapters) -> Subject {
    // The account first, then its posts, page by page.
    fn page(request: &Request, posts: Value) -> Answer {
        if request.path.ends_with("/verify_credentials") {
            return Answer::json(200, &json!({ "id": "me" }));
        }
        Answer::json(200, &if request.path.contains("max_id") { json!([]) } else { posts })
    }
    let found = |request: &Request| {
        let post =
            json!({ "id": "110", "created_at": Timestamp::now(), "content": "<p>Hello everybody.</p>" });
        page(request, json!([post])).with_message_id("110")
    };
    Subject::new(adapters.get("mastodon").unwrap().clone(), crate::social(), |url| json!({ "url": url }))
        .secret("mastodon-token-canary")
        .accepts(|_| Answer::json(200, &json!({ "id": "110" })).with_message_id("110"))
        .refuses(Answer::json(422, &json!({ "error": "Validation failed: Text can't be blank" })))
        .key(Key::Header("idempotency-key"))
        .looks_up(|request| request.method == "GET", found, |request| page(request, json!([])))
        .differs(Case::LookUpFound, OutcomeKind::Unclear, "two items may have the same text")
}

fn bluesky(adapters: &Adapters) -> Subject {
    let settings = |url: &str| json!({ "url": url, "identifier": "news.example.com" });
    let uri = "at://did:plc:me/app.bsky.feed.post/rkey";
    let record = move |text: Value| {
        Answer::json(200, &json!({ "uri": uri, "cid": "b", "value": text })).with_message_id(uri)
    };
    Subject::new(adapters.get("bluesky").unwrap().clone(), crate::social(), settings)
        .secret("app-password-canary")
        .prepares(
            |request| request.path.ends_with("createSession"),
            |_| Answer::json(200, &json!({ "accessJwt": "session-canary", "did": "did:plc:me" })),
        )
        .accepts(move |_| record(json!(null)))
        .refuses(Answer::json(400, &json!({ "error": "InvalidRequest", "message": "Invalid record" })))
        .looks_up(
            |request| request.method == "GET",
            move |_| record(json!({ "text": "Hello everybody." })),
            |_| {
                Answer::json(400, &json!({ "error": "RecordNotFound", "message": "Could not locate record" }))
            },
        )
        .key(Key::Found(|request, key| request.json()["rkey"] == record_key(key)))
}

/// The record key of a post: the first 60 bits of the hash of the key, in base 32.
fn record_key(key: &str) -> String {
    let first = u64::from_be_bytes(Sha256::digest(key)[..8].try_into().unwrap()) >> 4;
    let digits = b"234567abcdefghijklmnopqrstuvwxyz";
    (0..13).rev().map(|place| char::from(digits[(first >> (5 * place)) as usize % 32])).collect()
}

fn webhook(adapters: &Adapters) -> Subject {
    let settings = |url: &str| json!({ "url": format!("{url}/hook?tenant=7") });
    let status = "Standard Webhooks: the status alone decides";
    Subject::new(adapters.get("webhook").unwrap().clone(), crate::email(), settings)
        .secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        .accepts(|_| Answer::json(200, &json!({ "id": "r-1" })).with_message_id("r-1"))
        .refuses(Answer::json(422, &json!({ "error": "no" })))
        .key(Key::Header("webhook-id"))
        .varies("webhook-timestamp")
        .varies("webhook-signature")
        .differs(Case::HalfBody, OutcomeKind::Delivered, status)
        .differs(Case::EndMissing, OutcomeKind::Delivered, status)
        .differs(Case::WrongContentType, OutcomeKind::Delivered, status)
        .differs(Case::Huge, OutcomeKind::Delivered, status)
        .differs(Case::RepeatHalfBody, OutcomeKind::Done, status)
}

fn slack(adapters: &Adapters, thread: Option<&str>) -> Subject {
    fn key_in(message: &Value) -> &Value {
        &message["metadata"]["event_payload"]["key"]
    }
    let page =
        |messages: Value| Answer::json(200, &json!({ "ok": true, "messages": messages, "has_more": false }));
    // The list shows the posted message.
    let posted: Arc<Mutex<Value>> = Arc::default();
    let known = Arc::clone(&posted);
    let Message::Chat { to, text, .. } = crate::chat() else { panic!("chat is chat") };
    let method = if thread.is_some() { "/conversations.replies?" } else { "/conversations.history?" };
    let message = Message::Chat { to, thread: thread.map(str::to_owned), text };
    Subject::new(adapters.get("slack").unwrap().clone(), message, |url| json!({ "url": url }))
        .secret(r#"{"bot_token": "xoxb-canary", "signing_secret": "signing-canary"}"#)
        .accepts(|_| {
            let said = json!({ "ok": true, "channel": "C024BE91L", "ts": "1503435956.000247" });
            Answer::json(200, &said).with_message_id("C024BE91L:1503435956.000247")
        })
        .refuses(Answer::json(200, &json!({ "ok": false, "error": "channel_not_found" })))
        .key(Key::Found(|request, key| *key_in(&request.json()) == key))
        .looks_up(
            move |request| {
                // An action is not a look-up; the list shows it from then on.
                if request.method == "POST" {
                    *known.lock().unwrap() = request.json();
                }
                request.path.starts_with(method)
            },
            move |_| {
                let metadata = posted.lock().unwrap()["metadata"].clone();
                let message = json!({ "ts": "1503435956.000247", "bot_id": "B1", "metadata": metadata });
                page(json!([message])).with_message_id("C024BE91L:1503435956.000247")
            },
            move |_| page(json!([{ "ts": "1503435956.000248", "bot_id": "B1", "text": "Something else." }])),
        )
}

fn telegram(adapters: &Adapters) -> Subject {
    let message = Message::Chat { to: "4711".to_owned(), thread: None, text: "Hello.".to_owned() };
    let sent =
        json!({ "ok": true, "result": { "message_id": 7, "chat": { "id": 4711, "type": "private" } } });
    let no = |status: u16, description: &str| json!({ "ok": false, "error_code": status, "description": description, "parameters": { "retry_after": 7 } });
    Subject::new(adapters.get("telegram").unwrap().clone(), message, |url| json!({ "url": url }))
        .secret(r#"{"bot_token": "123456:canary-of-the-bot", "webhook_secret": "hook-canary"}"#)
        .accepts(move |_| Answer::json(200, &sent).with_message_id("4711:7"))
        .refuses(Answer::json(403, &no(403, "Forbidden: bot was blocked by the user")))
        .limits_rate(
            Answer::json(429, &no(429, "Too Many Requests: retry after 7")),
            Some(Duration::from_secs(7)),
        )
}

fn whatsapp(adapters: &Adapters) -> Subject {
    let settings = |url: &str| json!({ "url": url, "phone_number_id": "105512345" });
    let message = Message::Chat { to: "4917612345678".to_owned(), thread: None, text: "Hello.".to_owned() };
    let error =
        json!({ "message": "(#131047) Re-engagement message", "type": "OAuthException", "code": 131_047 });
    Subject::new(adapters.get("whatsapp").unwrap().clone(), message, settings)
        .secret(r#"{"access_token": "access-canary", "app_secret": "app-canary", "verify_token": "verify-canary"}"#)
        .accepts(|_| {
            Answer::json(200, &json!({ "messages": [{ "id": "wamid.X" }] })).with_message_id("wamid.X")
        })
        .refuses(Answer::json(400, &json!({ "error": error })))
        // WhatsApp takes no key, and returns the id of the reply in callbacks.
        .key(Key::Found(|request, _| {
            request.json()["biz_opaque_callback_data"].as_str().is_some_and(|id| id.parse::<Uuid>().is_ok())
        }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_standard_adapter_passes_the_suite() {
    let adapters = Adapters::standard(&conformance::client().unwrap());
    let reports = crate::run_all(subjects(&adapters)).await;
    let tried: BTreeSet<&str> =
        reports.iter().map(|report| report.adapter).chain(OTHER_PROTOCOLS.iter().copied()).collect();
    let all: BTreeSet<&str> = adapters.manifests().map(|manifest| manifest.name).collect();
    assert_eq!(tried, all, "a vendor with an HTTP API needs a subject here");
    for report in &reports {
        println!("{report}");
    }
    assert!(reports.iter().all(conformance::Report::is_passed), "see the tables above");
}

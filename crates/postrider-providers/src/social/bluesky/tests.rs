use postrider_model::ids::ProviderAccountId;
use serde_json::{Value, json};

use super::*;
use crate::{
    guard::Ending,
    http::tests::{
        NOW, ScriptedServer, answer, assert_request, body, client, email, item, key, refused, social,
        with_header,
    },
};

const DID: &str = "did:plc:ada";

fn open(settings: &Value) -> Bluesky {
    open_in(&Sessions::default(), ProviderAccountId::new(), settings, "hunter2-hunter2")
}

fn open_in(sessions: &Sessions, id: ProviderAccountId, settings: &Value, password: &str) -> Bluesky {
    let secret = SecretString::from(password);
    Bluesky::new(&client(true), sessions, &Account { id, settings, secret: &secret }).ok().unwrap()
}

fn at(server: &ScriptedServer) -> Bluesky {
    open(&json!({ "identifier": "@news.example.com", "url": server.url }))
}

fn session() -> (u16, Value) {
    (200, json!({ "accessJwt": "jwt-1", "refreshJwt": "jwt-2", "handle": "news.example.com", "did": DID }))
}

fn stored() -> (u16, Value) {
    (200, json!({ "uri": uri(), "cid": "bafy" }))
}

fn uri() -> String {
    format!("at://{DID}/app.bsky.feed.post/{}", record_key(&key()))
}

fn failure(status: u16, error: &str) -> (u16, Value) {
    (status, json!({ "error": error, "message": "words" }))
}

async fn call(bluesky: &Bluesky) -> Outcome {
    let message = social();
    http::outcome(bluesky.put(&Post::new(OutboxId::new(), &key(), &message).unwrap()).await, judge)
}

const SESSION: &str = "POST /xrpc/com.atproto.server.createSession";
const PUT: &str = "POST /xrpc/com.atproto.repo.putRecord";

// By the lexicons: putRecord takes repo, collection, rkey and record; a post has `text` and `createdAt`, and its key is a
// TID.
#[test]
fn a_post_is_what_the_lexicons_describe() {
    let bluesky = open(&json!({ "identifier": "news.example.com" }));
    let session = Session { token: "Bearer jwt-1".parse().unwrap(), did: DID.to_owned() };
    let ((id, at), message) = (item(), social());
    let request = bluesky.request(&session, &Post::new(id, &key(), &message).unwrap()).unwrap();
    assert_request(
        &request,
        "POST",
        "https://bsky.social/xrpc/com.atproto.repo.putRecord",
        &[("authorization", "Bearer jwt-1"), ("content-type", "application/json")],
    );
    let expected = json!({
        "repo": DID,
        "collection": "app.bsky.feed.post",
        "rkey": record_key(&key()),
        "record": {
            "$type": "app.bsky.feed.post",
            "text": "Hello.",
            "createdAt": format!("{at:.3}"),
        },
    });
    assert_eq!(serde_json::from_str::<Value>(body(&request)).unwrap(), expected);
    let again = bluesky.request(&session, &Post::new(id, &key(), &message).unwrap()).unwrap();
    assert_eq!(body(&again), body(&request), "a repeat has the same bytes");
    assert_eq!(Post::new(id, &key(), &email()).err().unwrap().kind(), "rejected");
}

#[test]
fn a_record_key_is_a_tid_of_before_2006_and_another_for_another_key() {
    let keys: std::collections::HashSet<String> = (0..10_000)
        .map(|n| {
            let tid = record_key(&IdempotencyKey::from_row(format!("key-{n}")));
            assert!(tid.len() == 13 && tid.bytes().all(|b| matches!(b, b'2'..=b'7' | b'a'..=b'z')), "{tid}");
            // TIDs sort by time: this one is of 2006-01-01.
            assert!(tid.as_str() < "32dc4zpvs2222", "{tid}");
            tid
        })
        .collect();
    assert_eq!(keys.len(), 10_000);
    assert_eq!(record_key(&key()), record_key(&key()));
}

#[test]
fn errors_of_the_session_are_not_rejections_of_the_post() {
    let words = |error: &str| json!({ "error": error, "message": "words" }).to_string();
    for (status, error, expected) in [
        (400, "InvalidRequest", "rejected"),
        (400, "ExpiredToken", "not_sent"),
        (400, "InvalidToken", "not_sent"),
        (401, "AuthMissing", "not_sent"),
        (429, "RateLimitExceeded", "not_sent"),
        (500, "InternalServerError", "unknown"),
    ] {
        assert_eq!(judge(&answer(status, &words(error)), NOW).kind(), expected, "{status} {error}");
    }
    let good = json!({ "uri": uri(), "cid": "bafy" }).to_string();
    assert_eq!(judge(&answer(200, &good), NOW), Outcome::Delivered { message_id: uri() });
    assert_eq!(judge(&answer(200, r#"{"cid": "bafy"}"#), NOW).kind(), "unknown");
    let busy = with_header(answer(429, "{}"), "ratelimit-reset", &(NOW.as_second() + 90).to_string());
    let Outcome::NotSent { retry_after, .. } = judge(&busy, NOW) else { panic!() };
    assert_eq!(retry_after, Some(Duration::from_secs(90)));
    for (error, is_absent) in [("InvalidRequest", true), ("ExpiredToken", false)] {
        let found = http::finding(Ok(answer(400, &words(error))), judge);
        assert_eq!(matches!(found, Finding::Absent { .. }), is_absent, "{error}: {found:?}");
    }
}

#[test]
fn a_record_is_read_back_as_it_was_put() {
    let record = |text: &str| json!({ "uri": uri(), "cid": "bafy", "value": { "text": text } }).to_string();
    let missing = json!({ "error": "RecordNotFound", "message": "Could not locate record" }).to_string();
    let kind = |answer: &Answer, text: Option<&str>| match found(answer, text) {
        Finding::Done { message_id, .. } => message_id,
        Finding::Absent { .. } => "absent".to_owned(),
        Finding::Unclear { .. } | Finding::Later { .. } | Finding::CannotTell { .. } => "unclear".to_owned(),
    };
    assert_eq!(kind(&answer(200, &record("Hello.")), Some("Hello.")), uri());
    assert_eq!(kind(&answer(200, &record("Hello.")), None), uri());
    assert_eq!(kind(&answer(200, &record("Else.")), Some("Hello.")), "unclear");
    assert_eq!(kind(&answer(400, &missing), None), "absent");
    assert_eq!(kind(&answer(404, &missing), None), "absent");
    let half = Answer { ending: Ending::Broken, ..answer(400, &missing) };
    assert_eq!(kind(&half, None), "unclear");
    for (status, body) in
        [(200, "{}"), (400, r#"{"error": "RepoNotFound"}"#), (404, ""), (401, &missing), (500, &missing)]
    {
        assert_eq!(kind(&answer(status, body), None), "unclear", "{status} {body}");
    }
}

#[tokio::test]
async fn one_session_serves_many_calls_and_a_refused_one_is_replaced() {
    let answers = vec![session(), stored(), stored(), failure(400, "ExpiredToken"), session(), stored()];
    let server = ScriptedServer::start(answers);
    let bluesky = at(&server);
    for expected in ["delivered", "delivered", "not_sent", "delivered"] {
        assert_eq!(call(&bluesky).await.kind(), expected);
    }
    assert_eq!(server.lines(), [SESSION, PUT, PUT, PUT, SESSION, PUT]);
}

#[tokio::test]
async fn a_session_is_kept_for_the_same_account_and_no_other() {
    let answers = vec![session(), stored(), stored(), session(), stored(), session(), stored()];
    let server = ScriptedServer::start(answers);
    let settings = json!({ "identifier": "news.example.com", "url": server.url });
    let (sessions, account) = (Sessions::default(), ProviderAccountId::new());
    for (id, password) in
        [(account, "one"), (account, "one"), (account, "two"), (ProviderAccountId::new(), "one")]
    {
        assert_eq!(call(&open_in(&sessions, id, &settings, password)).await.kind(), "delivered");
    }
    assert_eq!(server.lines(), [SESSION, PUT, PUT, SESSION, PUT, SESSION, PUT]);

    // Slots without a valid session are removed when they are unused.
    let unused = Sessions::default();
    for _ in 0..3 {
        drop(open_in(&unused, ProviderAccountId::new(), &settings, "one"));
    }
    assert_eq!(unused.0.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn without_a_session_nothing_is_sent_and_the_login_is_not_repeated() {
    for (refusal, expected) in [
        (failure(400, "InvalidRequest"), "account_refused"),
        (failure(401, "AuthenticationRequired"), "account_refused"),
        (failure(403, "AccountTakedown"), "account_refused"),
        (failure(429, "RateLimitExceeded"), "not_sent"),
        (failure(500, "InternalServerError"), "not_sent"),
        ((200, json!({ "accessJwt": "jwt-1" })), "not_sent"),
    ] {
        let server = ScriptedServer::start(vec![refusal]);
        let bluesky = at(&server);
        for _ in 0..3 {
            let outcome = call(&bluesky).await;
            assert_eq!(outcome.kind(), expected);
            assert!(!matches!(outcome, Outcome::AccountRefused { is_login: false, .. }), "{outcome:?}");
            let reason = http::reason(outcome);
            assert!(reason.starts_with("there is no session at Bluesky: "), "{reason}");
            assert!(!reason.contains("hunter2") && !reason.contains("jwt"), "{reason}");
        }
        assert!(matches!(bluesky.ask("rkey", None).await, Err(Finding::Unclear { .. })));
        assert_eq!(server.lines(), [SESSION]);
    }
}

#[tokio::test]
async fn a_look_up_reads_the_record_of_the_key() {
    let record =
        (200, json!({ "uri": uri(), "cid": "bafy", "value": { "$type": COLLECTION, "text": "Hello." } }));
    let server = ScriptedServer::start(vec![session(), record, failure(400, "RecordNotFound")]);
    let (bluesky, rkey) = (at(&server), record_key(&key()));
    let found = bluesky.ask(&rkey, Some("Hello.")).await;
    assert!(matches!(found, Ok(Finding::Done { .. })), "{found:?}");
    let found = bluesky.ask(&rkey, Some("Hello.")).await;
    assert!(matches!(found, Ok(Finding::Absent { .. })), "{found:?}");
    let get = format!(
        "GET /xrpc/com.atproto.repo.getRecord?repo=did%3Aplc%3Aada&collection=app.bsky.feed.post&rkey={rkey}"
    );
    assert_eq!(server.lines(), [SESSION, &get, &get]);
}

#[test]
fn an_account_has_an_identifier_and_a_password() {
    let good = || json!({ "identifier": "news.example.com" });
    refused(
        |client, account| Bluesky::new(client, &Sessions::default(), account),
        &[
            (false, json!({}), "hunter2", "missing field `identifier`; the settings of `bluesky` are like {"),
            (false, json!({ "identifier": "" }), "hunter2", "`identifier` is not a handle"),
            (false, json!({ "identifier": "a b" }), "hunter2", "`identifier` is not a handle"),
            (false, json!({ "identifier": "a.example", "pds": "x" }), "hunter2", "unknown field `pds`"),
            (false, good(), "", "the secret is missing: it is an app password"),
            (
                false,
                json!({ "identifier": "a.example", "url": "http://pds.example" }),
                "hunter2",
                "plain http",
            ),
            (
                false,
                json!({ "identifier": "a.example", "url": "https://127.0.0.1" }),
                "hunter2",
                "only public addresses are called",
            ),
        ],
    );
}

//! Records under a key that the caller chooses.

use serde_json::{Value, json};

use super::common_behavior::{key, request};
use super::*;

const REPO: &str = "shop.example.com";
const POST: &str = "app.bsky.feed.post";

fn record(text: &str) -> Value {
    json!({ "$type": POST, "text": text, "createdAt": "2026-02-06T14:05:00.000Z" })
}

fn put_body(session: &str, body: &Value) -> Vec<u8> {
    let headers = format!("authorization: Bearer {session}\r\n");
    request("POST", "/bluesky/xrpc/com.atproto.repo.putRecord", &headers, &body.to_string())
}

pub fn put(session: &str, rkey: &str, text: &str) -> Vec<u8> {
    put_body(session, &json!({ "repo": REPO, "collection": POST, "rkey": rkey, "record": record(text) }))
}

pub fn get(rkey: &str) -> Vec<u8> {
    let query = format!("repo={REPO}&collection={POST}&rkey={rkey}");
    request("GET", &format!("/bluesky/xrpc/com.atproto.repo.getRecord?{query}"), "", "")
}

impl RunningSim {
    pub async fn session(&self) -> String {
        let body = json!({ "identifier": REPO, "password": "secret" }).to_string();
        let path = "/bluesky/xrpc/com.atproto.server.createSession";
        let (status, answer) = self.answer(&request("POST", path, "", &body)).await;
        assert_eq!((status, &answer["handle"]), (200, &json!(REPO)));
        assert!(answer["did"].as_str().unwrap().starts_with("did:plc:"));
        answer["accessJwt"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_second_put_changes_the_record_without_a_second_post() {
    let sim = RunningSim::with(&[]).await;
    let session = sim.session().await;
    let (status, answer) = sim.answer(&get("3jzfcijpj2z2a")).await;
    assert_eq!((status, &answer["error"]), (400, &json!("RecordNotFound")));

    let (status, first) = sim.answer(&put(&session, "3jzfcijpj2z2a", "Hi")).await;
    assert_eq!(status, 200, "{first}");
    assert!(first["cid"].as_str().unwrap().starts_with("bafyrei"));
    let (_, second) = sim.answer(&put(&session, "3jzfcijpj2z2a", "Hello")).await;
    assert_eq!(first["uri"], second["uri"]);
    assert_ne!(first["cid"], second["cid"]);
    let (status, found) = sim.answer(&get("3jzfcijpj2z2a")).await;
    assert_eq!((status, &found["uri"], &found["cid"]), (200, &second["uri"], &second["cid"]));
    assert_eq!(found["value"], record("Hello"));

    let receipt = sim.actions().pop().unwrap();
    assert_eq!([&receipt["rkey"], &receipt["message_id"]], [&json!("3jzfcijpj2z2a"), &first["uri"]]);
    assert_eq!((receipt.get("key"), sim.actions().len()), (None, 1));
    sim.answer(&put(&session, &key(1), "Hi")).await;
    assert_eq!(sim.actions()[1]["key"], key(1), "a record key that is an idempotency key is recorded as one");
    sim.stop().await;
}

#[tokio::test]
async fn a_swap_is_refused_only_if_it_changes_another_version() {
    let sim = RunningSim::with(&[]).await;
    let session = sim.session().await;
    let swap = |text: &str, expected: Value| {
        let record = record(text);
        let body = json!({ "repo": REPO, "collection": POST, "rkey": "a", "record": record, "swapRecord": expected });
        put_body(&session, &body)
    };
    let (status, first) = sim.answer(&swap("Hi", Value::Null)).await;
    assert_eq!(status, 200, "{first}");
    assert_eq!(sim.answer(&swap("Hi", Value::Null)).await.0, 200);
    let (status, answer) = sim.answer(&swap("Hello", Value::Null)).await;
    assert_eq!((status, &answer["error"]), (400, &json!("InvalidSwap")));
    assert_eq!(sim.answer(&swap("Hello", first["cid"].clone())).await.0, 200);
    assert_eq!(sim.actions().len(), 1);
    sim.stop().await;
}

#[tokio::test]
async fn a_session_is_for_its_own_repo() {
    let sim = RunningSim::with(&[]).await;
    let session = sim.session().await;
    let body =
        json!({ "repo": "other.example.com", "collection": POST, "rkey": "a", "record": record("Hi") });
    assert_eq!(sim.answer(&put_body(&session, &body)).await.0, 400);
    let (status, answer) = sim.answer(&put("no.session.atall", "a", "Hi")).await;
    assert_eq!((status, &answer["error"]), (400, &json!("InvalidToken")));
    sim.stop().await;
}

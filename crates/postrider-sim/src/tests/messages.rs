//! The face of a message provider, and faults by rule.

use std::io::ErrorKind;

use serde_json::{Value, json};

use super::*;

fn email(to: &str) -> Value {
    json!({ "channel": "email", "to": to, "subject": "Hello", "text": "Hello.", "html": null })
}

fn post(headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "POST /messages HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n";
    format!("{head}{headers}content-length: {length}\r\n\r\n{body}").into_bytes()
}

fn message(key: &str, body: &Value) -> Vec<u8> {
    post(&format!("idempotency-key: {key}\r\n"), &body.to_string())
}

#[tokio::test]
async fn the_sim_acts_on_every_request_and_counts_repeated_keys() {
    let sim = RunningSim::with(&[]).await;
    let voice = json!({ "channel": "voice", "to": "+491701234567", "script": "Hello." });
    let social = json!({ "channel": "social", "text": "Hello." });
    let sent =
        [("k1", email("a@example.com")), ("k1", email("a@example.com")), ("k2", voice), ("k3", social)];
    let mut ids = Vec::new();
    for (key, body) in &sent {
        let answer = sim.ask(&message(key, body)).await.unwrap();
        assert_eq!((status_of(&answer), &json_of(&answer)["accepted"]), (200, &json!(true)));
        ids.push(json_of(&answer)["id"].clone());
    }

    let receipts = on_disk(&sim.receipts);
    let seen: Vec<_> = receipts.iter().map(|r| (&r["key"], &r["channel"], &r["to"])).collect();
    let to = json!("a@example.com");
    assert_eq!(seen[0], (&json!("k1"), &json!("email"), &to));
    assert_eq!(seen[1], seen[0]);
    assert_eq!(seen[2], (&json!("k2"), &json!("voice"), &json!("+491701234567")));
    assert_eq!(seen[3], (&json!("k3"), &json!("social"), &Value::Null));
    for (receipt, id) in receipts.iter().zip(&ids) {
        assert_eq!((&receipt["message_id"], &receipt["acted"]), (id, &json!(true)));
        assert!(id.as_str().unwrap().starts_with("sim-"));
    }
    assert_ne!(ids[0], ids[1]);
    let counts = sim.counts("").await;
    assert_eq!([&counts["accepted"], &counts["distinct_keys"], &counts["duplicate_keys"]], [4, 3, 1]);
    assert_eq!([&counts["distinct_ids"], &counts["duplicates"]], [0, 0]);
    sim.stop().await;
}

#[tokio::test]
async fn a_receipt_of_a_webhook_has_no_fields_of_a_message() {
    let sim = RunningSim::with(&[]).await;
    sim.ask(&hook("evt_1")).await.unwrap();
    let receipt = on_disk(&sim.receipts).remove(0);
    for field in ["key", "channel", "from", "to", "message_id", "bytes"] {
        assert!(receipt.get(field).is_none(), "{field}");
    }
    sim.stop().await;
}

#[tokio::test]
async fn an_invalid_message_is_refused_with_a_receipt_and_without_a_fault() {
    let sim = RunningSim::with(&["--fault", "reset=1"]).await;
    let long_key = format!("idempotency-key: {}\r\n", "k".repeat(256));
    let good = email("a@example.com").to_string();
    for (headers, body) in [
        ("", good.as_str()),
        (long_key.as_str(), good.as_str()),
        ("idempotency-key: k\r\n", "{"),
        ("idempotency-key: k\r\n", r#"{"channel": "fax", "to": "1"}"#),
        ("idempotency-key: k\r\n", r#"{"channel": "email", "to": "", "text": "t"}"#),
        ("idempotency-key: k\r\n", r#"{"channel": "email", "to": "a@example.com"}"#),
        ("idempotency-key: k\r\n", r#"{"channel": "voice", "to": "1", "script": ""}"#),
        ("idempotency-key: k\r\n", r#"{"channel": "social"}"#),
        ("idempotency-key: k\r\n", r#"{"channel": "chat", "to": "C1", "text": ""}"#),
    ] {
        assert_eq!(status_of(&sim.ask(&post(headers, body)).await.unwrap()), 400, "{body}");
    }
    assert_eq!(status_of(&sim.put("/messages", "{}").await), 405);
    let counts = sim.counts("").await;
    assert_eq!([&counts["received"], &counts["accepted"]], [9, 0]);
    sim.stop().await;
}

#[tokio::test]
async fn a_token_is_checked_when_there_is_one() {
    let sim = RunningSim::with(&["--token", "hunter2"]).await;
    let body = email("a@example.com").to_string();
    for (shown, status) in
        [("", 401), ("authorization: Bearer hunter3\r\n", 401), ("authorization: Bearer hunter2\r\n", 200)]
    {
        let headers = format!("idempotency-key: k\r\n{shown}");
        assert_eq!(status_of(&sim.ask(&post(&headers, &body)).await.unwrap()), status, "{shown}");
    }
    let verified: Vec<_> = on_disk(&sim.receipts).iter().map(|receipt| receipt["verified"].clone()).collect();
    assert_eq!(verified, [false, false, true]);
    assert_eq!(sim.counts("").await["accepted"], 1);
    sim.stop().await;
}

#[tokio::test]
async fn faults_apply_to_messages_like_to_webhooks() {
    for (fault, acted, answered) in [
        ("fail", false, json!(500)),
        ("fail_after", true, json!(500)),
        ("refuse", false, json!(400)),
        ("busy", false, json!(429)),
        ("half", true, Value::Null),
        ("reset", true, Value::Null),
    ] {
        let sim = RunningSim::with(&["--fault", &format!("{fault}=1")]).await;
        // One of them is reset.
        let _ = sim.ask(&message("k1", &email("a@example.com"))).await;
        assert_eq!(only_receipt(&sim), (json!(fault), json!(acted), answered));
        assert_eq!(on_disk(&sim.receipts)[0].get("message_id").is_some(), acted, "{fault}");
        sim.stop().await;
    }
}

#[tokio::test]
async fn rules_apply_to_matching_requests_before_random_faults() {
    let rule = r#"{"to": "a@example.com", "fault": "refuse", "times": 1}"#;
    let sim = RunningSim::with(&["--rule", rule, "--fault", "busy=1"]).await;
    let ask = |key: &'static str, to: &'static str| sim.ask_message(key, to);
    assert_eq!(ask("k1", "b@example.com").await, 429);
    assert_eq!(ask("k2", "a@example.com").await, 400);
    assert_eq!(ask("k3", "a@example.com").await, 429);

    sim.put_faults("{}").await;
    let rules = r#"[{"key": "k5", "fault": "fail"}, {"fault": "reset", "times": 1}]"#;
    assert_eq!(status_of(&sim.put("/faults/rules", rules).await), 200);
    assert_eq!(ask("k5", "a@example.com").await, 500);
    let broken = sim.ask(&hook("evt_1")).await.unwrap_err();
    assert_eq!(broken.kind(), ErrorKind::ConnectionReset);
    assert_eq!(ask("k5", "c@example.com").await, 500);
    assert_eq!(json_of(&sim.get("/faults/rules").await), json!([{ "key": "k5", "fault": "fail" }]));

    for bad in ["{}", r#"[{"to": "a"}]"#, r#"[{"fault": "fire"}]"#, r#"[{"fault": "fail", "who": "a"}]"#] {
        assert_eq!(status_of(&sim.put("/faults/rules", bad).await), 400, "{bad}");
    }
    assert_eq!(ask("k5", "c@example.com").await, 500);
    let delete = "DELETE /faults/rules HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n";
    assert_eq!(json_of(&sim.ask(delete.as_bytes()).await.unwrap()), json!([]));
    assert_eq!(ask("k5", "c@example.com").await, 200);
    sim.stop().await;
}

impl RunningSim {
    async fn ask_message(&self, key: &str, to: &str) -> u16 {
        status_of(&self.ask(&message(key, &email(to))).await.unwrap())
    }
}

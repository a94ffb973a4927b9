//! Functions that jobs call.

use serde_json::{Value, json};
use standardwebhooks::Webhook;

use super::common_behavior::request;
use super::*;

const JOB: &str = "0197f0a0-0000-7000-8000-000000000001";

fn data(attempt: u32, input: &Value) -> Value {
    json!({
        "tenant_id": "0197f0a0-0000-7000-8000-00000000000a",
        "job_id": JOB,
        "function_name": "sync-orders",
        "lock_key": "0f1e2d",
        "attempt": attempt,
        "input": input,
    })
}

fn body(data: &Value) -> String {
    json!({ "type": "function.invoked", "timestamp": "2026-02-03T04:05:06.007Z", "data": data }).to_string()
}

fn headers(id: &str, signature: &str) -> String {
    let at = jiff::Timestamp::now().as_second();
    format!("webhook-id: {id}\r\nwebhook-timestamp: {at}\r\nwebhook-signature: {signature}\r\n")
}

fn call(attempt: u32, input: &Value) -> Vec<u8> {
    request("POST", "/functions/sync", &headers(JOB, "v1,none"), &body(&data(attempt, input)))
}

#[tokio::test]
async fn a_function_runs_every_time_and_its_receipts_contain_job_and_attempt() {
    let sim = RunningSim::with(&[]).await;
    for attempt in [1, 2, 2] {
        let answer = json!({ "ok": true, "job_id": JOB, "attempt": attempt });
        assert_eq!(sim.answer(&call(attempt, &Value::Null)).await, (200, answer));
    }
    let actions = sim.actions();
    let attempts: Vec<_> = actions.iter().map(|receipt| receipt["attempt"].clone()).collect();
    assert_eq!(attempts, [1, 2, 2]);
    for receipt in &actions {
        let named = ["provider", "path", "key", "webhook_id", "to", "lock_key", "tenant_id", "event_type"]
            .map(|field| receipt[field].as_str().unwrap());
        let tenant = "0197f0a0-0000-7000-8000-00000000000a";
        let expected =
            ["function", "/functions/sync", JOB, JOB, "sync-orders", "0f1e2d", tenant, "function.invoked"];
        assert_eq!(named, expected);
        assert_eq!((&receipt["verified"], &receipt["answered"]), (&Value::Null, &json!(200)));
    }
    let counts = sim.counts("").await;
    assert_eq!([&counts["accepted"], &counts["distinct_keys"], &counts["duplicate_keys"]], [3, 1, 2]);
    sim.stop().await;
}

#[tokio::test]
async fn the_input_can_set_the_answer() {
    let sim = RunningSim::with(&[]).await;
    for wanted in [json!({ "synced": 12 }), json!("text"), json!([1.5, null]), Value::Null, json!(false)] {
        let input = json!({ "since": 1, "sim_answer": wanted });
        assert_eq!(sim.answer(&call(1, &input)).await, (200, wanted));
    }
    for input in [json!("sim_answer"), json!(["sim_answer"]), json!({ "answer": 1 }), Value::Null] {
        assert_eq!(sim.answer(&call(1, &input)).await.1["ok"], true, "{input}");
    }
    sim.stop().await;
}

#[tokio::test]
async fn every_fault_and_every_outage_applies_to_functions() {
    let sim = RunningSim::with(&["--latency-ms", "1", "--stall-seconds", "0"]).await;
    for (fault, acted, answered) in [
        ("latency", true, Some(200)),
        ("busy", false, Some(429)),
        ("refuse", false, Some(400)),
        ("fail", false, Some(500)),
        ("fail_after", true, Some(500)),
        ("half", true, None),
        ("reset", true, None),
        ("reset_before", false, None),
        ("stall", true, None),
    ] {
        let rule =
            json!({ "provider": "function", "to": "sync-orders", "key": JOB, "fault": fault, "times": 1 });
        sim.put_rules(&json!([rule])).await;
        // Some of them are cut.
        let answer = sim.ask(&call(7, &Value::Null)).await.unwrap_or_default();
        let receipt = on_disk(&sim.receipts).pop().unwrap();
        assert_eq!((&receipt["fault"], &receipt["acted"]), (&json!(fault), &json!(acted)));
        assert_eq!((&receipt["answered"], &receipt["attempt"]), (&json!(answered), &json!(7)), "{fault}");
        if let Some(status) = answered {
            assert_eq!(status_of(&answer), status, "{fault}");
        }
        assert_eq!(sim.answer(&call(8, &Value::Null)).await.0, 200, "the rule applies once");
    }
    for how in ["unavailable", "reset", "silence"] {
        sim.put("/outages", &json!({ "function": how }).to_string()).await;
        let answer = sim.ask(&call(9, &Value::Null)).await.unwrap_or_default();
        assert_eq!(answer.starts_with("HTTP/1.1 503 "), how == "unavailable");
        let receipt = on_disk(&sim.receipts).pop().unwrap();
        assert_eq!((&receipt["outage"], &receipt["acted"]), (&json!(how), &json!(false)));
        assert_eq!((&receipt["key"], &receipt["attempt"]), (&json!(JOB), &json!(9)));
    }
    sim.stop().await;
}

#[tokio::test]
async fn a_signature_is_required_only_with_a_secret() {
    let sim = RunningSim::with(&["--secret", SECRET]).await;
    let body = body(&data(1, &Value::Null));
    let at = jiff::Timestamp::now().as_second();
    let signature = Webhook::new(SECRET).unwrap().sign(JOB, at, body.as_bytes()).unwrap();
    let signed =
        format!("webhook-id: {JOB}\r\nwebhook-timestamp: {at}\r\nwebhook-signature: {signature}\r\n");
    assert_eq!(sim.answer(&request("POST", "/functions/sync", &signed, &body)).await.0, 200);
    assert_eq!(sim.answer(&call(1, &Value::Null)).await.0, 401);
    let verified: Vec<_> = on_disk(&sim.receipts).iter().map(|receipt| receipt["verified"].clone()).collect();
    assert_eq!(verified, [true, false]);
    sim.stop().await;
}

#[tokio::test]
async fn an_invalid_call_of_a_function_is_refused_without_a_run() {
    let sim = RunningSim::with(&[]).await;
    let good = data(1, &Value::Null);
    let without = |field: &str| {
        let mut data = good.clone();
        data.as_object_mut().unwrap().remove(field);
        body(&data)
    };
    let other_type = body(&good).replace("function.invoked", "message.received");
    for (id, body) in [
        (JOB, "\0".to_owned()),
        (JOB, "{}".to_owned()),
        (JOB, other_type),
        (JOB, without("job_id")),
        (JOB, without("attempt")),
        (JOB, without("tenant_id")),
        (JOB, without("input")),
        ("another", body(&good)),
        ("", body(&good)),
    ] {
        let refused = sim.answer(&request("POST", "/functions/sync", &headers(id, "v1,none"), &body)).await;
        assert!(refused.0 == 400 && refused.1["error"].is_string(), "{refused:?}");
    }
    assert_eq!(sim.answer(&request("GET", "/functions/sync", "", "")).await.0, 405);
    assert_eq!(sim.answer(&request("POST", "/functions/", "", "")).await.0, 404);
    assert_eq!(sim.answer(&request("POST", "/functions/a/b", "", "")).await.0, 404);
    assert!(sim.actions().is_empty());
    sim.stop().await;
}

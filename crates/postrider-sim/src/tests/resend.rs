//! Resend's idempotency.

use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::common_behavior::{key, resend};
use super::late_effects::wait_for_status;
use super::*;

#[tokio::test]
async fn the_same_key_with_another_body_is_refused() {
    let sim = RunningSim::with(&[]).await;
    let (_, first) = sim.answer(&resend(&key(1), "Hi")).await;
    let (status, answer) = sim.answer(&resend(&key(1), "Bye")).await;
    assert_eq!((status, &answer["statusCode"]), (409, &json!(409)));
    assert_eq!(answer["name"], "invalid_idempotent_request");
    assert!(answer["message"].is_string());
    assert_eq!(sim.answer(&resend(&key(1), "Hi")).await.1, first);

    let receipt = sim.actions().pop().unwrap();
    assert_eq!([&receipt["to"], &receipt["channel"]], ["a@example.com", "email"]);
    assert_eq!(sim.actions().len(), 1);
    sim.stop().await;
}

#[tokio::test]
async fn a_repeat_during_the_first_request_is_refused_and_answered_later() {
    let sim = RunningSim::with(&["--latency-ms", "60000"]).await;
    sim.put_rules(&json!([{ "fault": "latency", "times": 1 }])).await;
    let mut slow = sim.connect().await;
    slow.write_all(&resend(&key(1), "Hi")).await.unwrap();
    sim.counts("?accepted=1").await;

    let (status, answer) = sim.answer(&resend(&key(1), "Hi")).await;
    assert_eq!((status, &answer["name"]), (409, &json!("concurrent_idempotent_requests")));
    // The sim keeps the answer although the client disconnects.
    drop(slow);
    let answer = wait_for_status(&sim, &resend(&key(1), "Hi"), 200).await;
    assert_eq!(sim.actions().len(), 1);
    assert_eq!(sim.actions()[0]["message_id"], answer["id"]);
    sim.stop().await;
}

#[tokio::test]
async fn requests_without_a_key_are_new_and_each_account_has_its_own_keys() {
    let sim = RunningSim::with(&[]).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let bare = text(resend(&key(1), "Hi")).replace(&format!("idempotency-key: {}\r\n", key(1)), "");
    let other = text(resend(&key(1), "Hi")).replace("Bearer re_1", "Bearer re_2");
    for request in [&bare, &bare, &text(resend(&key(1), "Hi")), &other] {
        assert_eq!(sim.answer(request.as_bytes()).await.0, 200);
    }
    assert_eq!(sim.actions().len(), 4);
    sim.stop().await;
}

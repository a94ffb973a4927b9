//! Messages of bots.

use serde_json::{Value, json};

use super::common_behavior::{request, telegram};
use super::*;

const PATH: &str = "/telegram/bot123:abc/sendMessage";

fn send(body: &Value) -> Vec<u8> {
    request("POST", PATH, "content-type: application/json\r\n", &body.to_string())
}

#[tokio::test]
async fn a_message_is_sent_each_time_and_its_text_shows_a_repeat() {
    let sim = RunningSim::with(&[]).await;
    let (status, first) = sim.answer(&telegram("Hi")).await;
    assert_eq!((status, &first["ok"]), (200, &json!(true)));
    let message = &first["result"];
    assert_eq!((&message["chat"]["id"], &message["text"]), (&json!(77), &json!("Hi")));
    assert!(message["message_id"].is_u64() && message["date"].is_u64(), "{message}");
    assert_eq!((&message["from"]["id"], &message["from"]["is_bot"]), (&json!(123), &json!(true)));
    let (_, second) = sim.answer(&telegram("Hi")).await;
    assert_ne!(message["message_id"], second["result"]["message_id"]);
    sim.answer(&telegram("Ho")).await;
    let thread = json!({ "chat_id": "-100", "message_thread_id": 5, "text": "Hi" });
    assert_eq!(sim.answer(&send(&thread)).await.1["result"]["message_thread_id"], 5);
    let quoting = json!({ "chat_id": 78, "text": "Hi", "reply_parameters": { "message_id": 9 } });
    assert_eq!(sim.answer(&send(&quoting)).await.0, 200);
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let (_, named) = sim.answer(&request("POST", PATH, form, "chat_id=@news&text=Hi")).await;
    assert_eq!(named["result"]["chat"]["username"], "news");

    let receipts = sim.actions();
    assert_eq!([&receipts[0]["to"], &receipts[0]["text"], &receipts[0]["from"]], ["77", "Hi", "123"]);
    assert_eq!([&receipts[3]["to"], &receipts[3]["thread"]], ["-100", "5"]);
    assert_eq!([&receipts[4]["to"], &receipts[4]["thread"]], ["78", "9"]);
    assert_eq!(receipts[0]["message_id"], format!("77:{}", message["message_id"]));
    let counts = sim.counts("").await;
    assert_eq!([&counts["accepted"], &counts["repeated_texts"], &counts["duplicate_keys"]], [6, 1, 0]);
    let kept = std::fs::read_to_string(&sim.receipts).unwrap();
    assert!(!kept.contains("123:abc"), "receipts do not contain the token");
    sim.stop().await;
}

#[tokio::test]
async fn a_restarted_sim_counts_a_repeat_by_its_text_and_not_by_its_number() {
    let sim = RunningSim::with(&[]).await;
    sim.answer(&telegram("Hi")).await;
    let sim = RunningSim::in_dir(sim.stop().await, &[]).await;
    sim.answer(&telegram("Ho")).await;
    let counts = sim.counts("").await;
    assert_eq!([&counts["repeated_texts"], &counts["duplicate_keys"]], [0, 0]);
    sim.answer(&telegram("Hi")).await;
    assert_eq!(sim.counts("").await["repeated_texts"], 1);
    sim.stop().await;
}

#[tokio::test]
async fn errors_contain_the_reason_and_the_time_for_a_retry() {
    let sim = RunningSim::with(&["--retry-after-seconds", "7"]).await;
    let long = "😀".repeat(4097);
    for (body, description) in [
        (json!({ "text": "Hi" }), "Bad Request: chat_id is empty"),
        (json!({ "chat_id": "somebody", "text": "Hi" }), "Bad Request: chat not found"),
        (json!({ "chat_id": 77, "text": " " }), "Bad Request: message text is empty"),
        (json!({ "chat_id": 77, "text": long }), "Bad Request: message is too long"),
        (
            json!({ "chat_id": 77, "text": "Hi", "reply_parameters": { "message_id": "x" } }),
            "Bad Request: message to be replied not found",
        ),
    ] {
        let answer = json!({ "ok": false, "error_code": 400, "description": description });
        assert_eq!(sim.answer(&send(&body)).await, (400, answer));
    }
    let fits = json!({ "chat_id": 77, "text": "😀".repeat(4096) });
    assert_eq!(sim.answer(&send(&fits)).await.0, 200);

    sim.put_faults(r#"{"busy": 1}"#).await;
    let (status, answer) = sim.answer(&telegram("Hi")).await;
    assert_eq!((status, &answer["error_code"]), (429, &json!(429)));
    assert_eq!(answer["description"], "Too Many Requests: retry after 7");
    assert_eq!(answer["parameters"], json!({ "retry_after": 7 }));
    sim.stop().await;
}

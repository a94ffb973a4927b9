//! A face with an outage, and the receipts of its requests.

use serde_json::{Value, json};

use super::common_behavior::{SLACK, key, one_of_each, request, slack, telegram};
use super::*;

async fn set(sim: &RunningSim, outages: &Value) {
    let answer = sim.put("/outages", &outages.to_string()).await;
    assert_eq!((status_of(&answer), &json_of(&answer)), (200, outages));
}

#[tokio::test]
async fn during_an_outage_every_request_is_turned_away_with_a_receipt() {
    let sim = RunningSim::with(&[]).await;
    assert_eq!(sim.answer(&slack(&key(1), "Hi")).await.0, 200);
    let began = jiff::Timestamp::now();
    set(&sim, &json!({ "slack": "unavailable" })).await;
    let history = request("GET", "/slack/conversations.history?channel=C1", SLACK, "{}");
    let gone = (503, json!({ "ok": false, "error": "service_unavailable" }));
    assert_eq!(sim.answer(&slack(&key(2), "Hi")).await, gone);
    assert_eq!(sim.answer(&history).await, gone);
    assert_eq!(sim.answer(&telegram("Hi")).await.0, 200, "other faces answer");
    assert_eq!(json_of(&sim.get("/outages").await), json!({ "slack": "unavailable" }));
    set(&sim, &json!({})).await;
    let ended = jiff::Timestamp::now();
    assert_eq!(sim.answer(&slack(&key(2), "Hi")).await.0, 200);
    assert_eq!(sim.answer(&history).await.1["messages"].as_array().unwrap().len(), 2);

    let turned_away: Vec<_> =
        on_disk(&sim.receipts).into_iter().filter(|receipt| receipt["outage"] == "unavailable").collect();
    let [send, look_up] = turned_away.as_slice() else { panic!("{turned_away:?}") };
    assert_eq!([&send["key"], &send["to"], &send["method"]], [key(2).as_str(), "C1", "POST"]);
    assert_eq!([&look_up["path"], &look_up["method"]], ["/slack/conversations.history", "GET"]);
    for receipt in &turned_away {
        assert_eq!((&receipt["acted"], &receipt["answered"]), (&json!(false), &json!(503)));
        assert_eq!([receipt.get("message_id"), receipt.get("delayed_ms")], [None, None]);
        let at: jiff::Timestamp = receipt["at"].as_str().unwrap().parse().unwrap();
        assert!(began <= at && at <= ended, "{receipt}");
    }
    let counts = sim.counts("?turned_away=2").await;
    assert_eq!([&counts["turned_away"], &counts["accepted"], &counts["received"]], [2, 3, 5]);
    sim.stop().await;
}

#[tokio::test]
async fn every_face_can_have_every_outage() {
    let sim = RunningSim::with(&["--stall-seconds", "0", "--fault", "latency=1"]).await;
    let session = sim.session().await;
    for how in ["unavailable", "reset", "silence"] {
        for (face, request) in one_of_each(&key(1), &session) {
            set(&sim, &json!({ face: how })).await;
            let answer = sim.ask(&request).await;
            match how {
                "unavailable" => assert_eq!(status_of(&answer.unwrap()), 503, "{face}"),
                "reset" => assert!(answer.is_err(), "{face}"),
                _ => assert_eq!(answer.unwrap(), "", "{face}"),
            }
            let receipt = on_disk(&sim.receipts).pop().unwrap();
            assert_eq!([&receipt["provider"], &receipt["outage"]], [face, how]);
            assert_eq!(receipt["fault"], Value::Null, "a face with an outage draws no fault");
            let known = if face == "telegram" { Value::Null } else { json!(key(1)) };
            assert_eq!(receipt["key"], known, "{face}");
        }
    }
    assert!(sim.actions().is_empty());
    for bad in ["[]", r#"{"smtp": "reset"}"#, r#"{"pigeon": "reset"}"#, r#"{"slack": "slow"}"#] {
        assert_eq!(status_of(&sim.put("/outages", bad).await), 400, "{bad}");
    }
    assert_eq!(
        json_of(&sim.get("/outages").await),
        json!({ "whatsapp": "silence" }),
        "an invalid outage changes nothing"
    );
    sim.stop().await;
}

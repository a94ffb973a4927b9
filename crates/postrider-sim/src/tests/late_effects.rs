//! The faults with a delayed effect: late keys, early look-ups and late requests.

use serde_json::json;

use super::bluesky::get;
use super::common_behavior::{
    SLACK, TWILIO, key, mastodon, one_of_each, remembers, request, resend, twilio, webhook,
};
use super::*;

const SOON: &str = "50";
const NEVER: u64 = 3_600_000;

fn find_message(key: &str) -> Vec<u8> {
    request("GET", &format!("/messages?key={key}"), "", "")
}

/// Repeats a request until the answer has this status.
pub async fn wait_for_status(sim: &RunningSim, request: &[u8], status: u16) -> serde_json::Value {
    in_time(async {
        loop {
            let (answered, answer) = sim.answer(request).await;
            if answered == status {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

#[tokio::test]
async fn until_a_late_key_is_stored_a_repeat_acts_again() {
    for (face, request) in [
        ("resend", resend(&key(1), "Hi")),
        ("mastodon", mastodon(&key(1), "Hi")),
        ("webhook", webhook(&key(1))),
    ] {
        let sim = RunningSim::with(&[]).await;
        sim.put_rules(&json!([{ "fault": "key_late", "delay_ms": NEVER, "times": 1 }])).await;
        assert!(sim.ask(&request).await.is_err(), "{face}: the answer is lost");
        assert_eq!(sim.answer(&request).await.0, 200, "{face}");
        let keys: Vec<_> = sim.actions().iter().map(|receipt| receipt["key"].clone()).collect();
        assert_eq!(keys, [key(1), key(1)], "{face}");
        assert_eq!(sim.counts("").await["duplicate_keys"], 1, "{face}");
        sim.stop().await;
    }
}

#[tokio::test]
async fn a_repeat_of_a_late_key_or_a_late_request_is_not_refused() {
    for fault in ["key_late", "act_late"] {
        let sim = RunningSim::with(&[]).await;
        let rules = json!([{ "fault": fault, "delay_ms": NEVER, "times": 1 }, { "fault": "refuse" }]);
        sim.put_rules(&rules).await;
        assert!(sim.ask(&resend(&key(1), "Hi")).await.is_err());
        assert_eq!(sim.answer(&resend(&key(1), "Hi")).await.0, 200, "{fault}");
        assert_eq!(sim.answer(&resend(&key(2), "Hi")).await.0, 422, "{fault}: the key is new");
        sim.stop().await;
    }
}

#[tokio::test]
async fn once_a_late_key_is_stored_a_repeat_is_answered_from_memory() {
    let sim = RunningSim::with(&["--key-late-ms", "0", "--fault", "key_late=1"]).await;
    assert!(sim.ask(&resend(&key(1), "Hi")).await.is_err());
    assert_eq!(sim.answer(&resend(&key(1), "Hi")).await.0, 200);
    assert_eq!(sim.actions().len(), 1);

    let rule = json!([{ "fault": "key_late", "delay_ms": 0, "ending": "well" }]);
    sim.put_rules(&rule).await;
    let (status, first) = sim.answer(&resend(&key(2), "Hi")).await;
    assert_eq!((status, sim.answer(&resend(&key(2), "Hi")).await.1), (200, first));
    sim.stop().await;
}

#[tokio::test]
async fn an_early_look_up_finds_nothing() {
    let sim = RunningSim::with(&["--lookup-early-ms", SOON]).await;
    let session = sim.session().await;
    sim.put_faults(r#"{"lookup_early": 1}"#).await;
    for (_, request) in one_of_each(&key(1), &session) {
        assert!(sim.ask(&request).await.is_err(), "the answer is lost");
    }
    assert_eq!(sim.actions().len(), 9);
    let answer = wait_for_status(&sim, &find_message(&key(1)), 200).await;
    assert_eq!(answer["id"], sim.actions()[0]["message_id"]);
    wait_for_status(&sim, &get(&key(1)), 200).await;
    sim.stop().await;

    let sim = RunningSim::with(&["--lookup-early-ms", &NEVER.to_string()]).await;
    let session = sim.session().await;
    sim.put_faults(r#"{"lookup_early": 1}"#).await;
    for (_, request) in one_of_each(&key(1), &session) {
        assert!(sim.ask(&request).await.is_err());
    }
    assert_eq!(sim.answer(&find_message(&key(1))).await, (404, json!({ "error": "unknown key" })));
    assert_eq!(sim.answer(&get(&key(1))).await.1["error"], "RecordNotFound");
    let basic = "authorization: Basic QUMxOnNlY3JldA==\r\n";
    assert_eq!(sim.answer(&request("GET", TWILIO, basic, "")).await.1["calls"], json!([]));
    let bearer = "authorization: Bearer token\r\n";
    let me = sim.answer(&request("GET", "/mastodon/api/v1/accounts/verify_credentials", bearer, "")).await.1;
    let path = format!("/mastodon/api/v1/accounts/{}/statuses", me["id"].as_str().unwrap());
    assert_eq!(sim.answer(&request("GET", &path, bearer, "")).await, (200, json!([])));
    let history = request("GET", "/slack/conversations.history?channel=C1", SLACK, "{}");
    assert_eq!(sim.answer(&history).await.1["messages"], json!([]));
    sim.put_faults("{}").await;
    assert_eq!(
        sim.answer(&mastodon(&key(1), "Hi")).await.0,
        200,
        "the key is recognised before look-ups find the action"
    );
    assert_eq!(sim.actions().len(), 9);
    sim.stop().await;
}

#[tokio::test]
async fn the_sim_acts_on_a_delayed_request_later() {
    let sim = RunningSim::with(&["--act-late-ms", SOON]).await;
    let session = sim.session().await;
    sim.put_faults(r#"{"act_late": 1}"#).await;
    let requests = one_of_each(&key(1), &session);
    for (face, request) in &requests {
        assert!(sim.ask(request).await.is_err(), "{face}");
    }
    let counts = sim.counts("?accepted=9").await;
    assert_eq!([&counts["accepted"], &counts["received"], &counts["by_fault"]["act_late"]], [9, 18, 9]);
    for (face, _) in requests {
        let mine: Vec<_> =
            on_disk(&sim.receipts).into_iter().filter(|receipt| receipt["provider"] == face).collect();
        let [cut, late] = mine.as_slice() else { panic!("{mine:?}") };
        assert_eq!(
            (&cut["fault"], &cut["acted"], cut.get("message_id")),
            (&json!("act_late"), &json!(false), None)
        );
        assert_eq!((&late["acted"], &late["delayed_ms"]), (&json!(true), &json!(50)));
        assert_eq!([&late["fault"], &late["answered"]], [&json!(null), &json!(null)]);
        let known = if face == "telegram" { json!(null) } else { json!(key(1)) };
        assert_eq!(late["key"], known, "{face}");
    }
    sim.stop().await;
}

#[tokio::test]
async fn faces_with_a_memory_take_a_late_request_as_a_repeat_and_the_others_act_again() {
    let sim = RunningSim::with(&["--act-late-ms", SOON]).await;
    let session = sim.session().await;
    sim.put_rules(&json!([{ "fault": "act_late", "times": 9 }])).await;
    let requests = one_of_each(&key(1), &session);
    for (_, request) in &requests {
        assert!(sim.ask(request).await.is_err());
    }
    for (face, request) in &requests {
        // A repeat during the first request gets 409 and is retried.
        let mut status = sim.answer(request).await.0;
        while status == 409 {
            status = sim.answer(request).await.0;
        }
        assert!(status < 300, "{face}: {status}");
    }
    // In either order of the two requests, each of the four faces with a memory has one repeat.
    sim.counts("?accepted=14").await;
    in_time(async {
        while sim.counts("").await["replays"] != 4 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for (face, _) in requests {
        let times = sim.actions().iter().filter(|receipt| receipt["provider"] == face).count();
        assert_eq!(times, if remembers(face) { 1 } else { 2 }, "{face}");
    }
    sim.stop().await;
}

#[tokio::test]
async fn a_delayed_request_is_lost_when_the_sim_stops() {
    let sim = RunningSim::with(&["--fault", "act_late=1", "--act-late-ms", &NEVER.to_string()]).await;
    assert!(sim.ask(&twilio("http://127.0.0.1:9/k")).await.is_err());
    let sim = RunningSim::in_dir(sim.stop().await, &[]).await;
    assert_eq!((sim.actions().len(), on_disk(&sim.receipts).len()), (0, 1));
    sim.stop().await;
}

#[tokio::test]
async fn look_ups_have_their_own_faults() {
    let sim = RunningSim::with(&[]).await;
    let rules =
        json!([{ "provider": "bluesky", "on": "lookup", "fault": "fail", "times": 1 }, { "fault": "busy" }]);
    sim.put_rules(&rules).await;
    assert_eq!(sim.answer(&get("a")).await.0, 500);
    assert_eq!(
        sim.answer(&get("a")).await.1["error"],
        "RecordNotFound",
        "a rule for sends does not apply to look-ups"
    );
    sim.put_faults(r#"{"refuse": 1}"#).await;
    let (status, answer) = sim.answer(&get("a")).await;
    assert_eq!(
        (status, &answer["error"]),
        (400, &json!("InvalidRequest")),
        "a refusal differs from a record that is not found"
    );
    sim.put_faults(r#"{"half": 1}"#).await;
    assert!(sim.ask(&find_message("k")).await.unwrap().starts_with("HTTP/1.1 404"));
    sim.put_faults(r#"{"key_late": 1}"#).await;
    assert_eq!(sim.answer(&find_message("k")).await.0, 404);
    assert!(on_disk(&sim.receipts).is_empty(), "a look-up has no receipt");
    sim.stop().await;
}

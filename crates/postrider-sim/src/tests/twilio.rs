//! Calls, their list, and their callbacks.

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::common_behavior::{TWILIO, key, request, twilio};
use super::receiver::Receiver;
use super::*;

const BASIC: &str = "authorization: Basic QUMxOnNlY3JldA==\r\n";

impl Receiver {
    /// Checks the signature of a callback and returns its fields.
    async fn verified(&self, status: u16) -> Value {
        let (head, body) = self.next(status).await;
        let mut form: Vec<(String, String)> =
            url::form_urlencoded::parse(body.as_bytes()).into_owned().collect();
        form.sort();
        let signed = form.iter().fold(self.url.clone(), |signed, (name, value)| signed + name + value);
        let mut mac = Hmac::<sha1::Sha1>::new_from_slice(b"secret").unwrap();
        mac.update(signed.as_bytes());
        let expected = STANDARD.encode(mac.finalize().into_bytes());
        assert!(head.contains(&format!("x-twilio-signature: {expected}")), "{head}");
        assert!(head.contains("content-type: application/x-www-form-urlencoded"), "{head}");
        form.into_iter().map(|(name, value)| (name, json!(value))).collect::<serde_json::Map<_, _>>().into()
    }
}

async fn list(sim: &RunningSim, query: &str) -> Value {
    let (status, answer) = sim.answer(&request("GET", &format!("{TWILIO}?{query}"), BASIC, "")).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

#[tokio::test]
async fn a_call_is_made_each_time_and_listed() {
    let sim = RunningSim::with(&[]).await;
    let (status, first) = sim.answer(&twilio(&format!("http://127.0.0.1:9/cb/{}", key(1)))).await;
    assert_eq!((status, &first["status"]), (201, &json!("queued")));
    assert_eq!([&first["to"], &first["from"]], ["+491701234567", "+15005550006"]);
    let sid = first["sid"].as_str().unwrap();
    assert!(sid.len() == 34 && sid.starts_with("CA"), "{sid}");
    assert!(first["date_created"].as_str().unwrap().ends_with(" +0000"));
    let (_, second) = sim.answer(&twilio(&format!("http://127.0.0.1:9/cb/{}", key(1)))).await;

    let counts = sim.counts("").await;
    assert_eq!([&counts["accepted"], &counts["duplicate_keys"]], [2, 1]);
    let listed = list(&sim, "To=%2B491701234567&From=%2B15005550006").await;
    let sids: Vec<_> = listed["calls"].as_array().unwrap().iter().map(|call| &call["sid"]).collect();
    assert_eq!(sids, [&second["sid"], &first["sid"]], "newest first");
    assert_eq!(listed["calls"][1]["date_created"], first["date_created"]);
    assert_eq!(list(&sim, "To=%2B1").await["calls"], json!([]));

    let page = list(&sim, "PageSize=1&Page=0").await;
    assert_eq!((page["calls"].as_array().unwrap().len(), page["next_page_uri"].is_string()), (1, true));
    let page = list(&sim, "PageSize=1&Page=1").await;
    assert_eq!((&page["calls"][0]["sid"], &page["next_page_uri"]), (&first["sid"], &Value::Null));
    sim.stop().await;
}

#[tokio::test]
async fn callbacks_are_signed_and_sent_although_the_answer_was_lost() {
    for fault in ["reset", "stall", "fail_after", "half", "act_late"] {
        let receiver = Receiver::new(&format!("/cb/twilio/{}", key(1))).await;
        let sim = RunningSim::with(&["--fault", &format!("{fault}=1"), "--act-late-ms", "1"]).await;
        let mut stream = sim.connect().await;
        stream.write_all(&twilio(&receiver.url)).await.unwrap();

        let initiated = receiver.verified(200).await;
        let completed = receiver.verified(200).await;
        let action = sim.actions().pop().unwrap();
        for (callback, status) in [(&initiated, "initiated"), (&completed, "completed")] {
            assert_eq!([&callback["CallStatus"], &callback["To"]], [status, "+491701234567"], "{fault}");
            assert_eq!(
                [&callback["CallSid"], &callback["AccountSid"]],
                [&action["message_id"], &json!("AC1")]
            );
        }
        assert_eq!(action["key"], key(1), "{fault}");
        sim.stop().await;
    }
}

#[tokio::test]
async fn a_callback_that_is_not_accepted_is_retried() {
    let receiver = Receiver::new("/cb/k").await;
    let sim = RunningSim::with(&[]).await;
    sim.answer(&twilio(&receiver.url)).await;
    let refused = receiver.verified(503).await;
    let accepted = receiver.verified(204).await;
    assert_eq!(refused, accepted);
    assert_eq!(receiver.verified(200).await["CallStatus"], "completed");
    sim.stop().await;
}

#[tokio::test]
async fn a_request_that_was_not_accepted_sends_no_callbacks() {
    let receiver = Receiver::new("/cb/k").await;
    let sim = RunningSim::with(&[]).await;
    for fault in ["fail", "refuse", "busy"] {
        sim.put_rules(&json!([{ "fault": fault, "times": 1 }])).await;
        assert!(sim.answer(&twilio(&receiver.url)).await.0 >= 400);
    }
    let (_, made) = sim.answer(&twilio(&receiver.url)).await;
    assert_eq!(
        receiver.verified(200).await["CallSid"],
        made["sid"],
        "the first callback is that of the call"
    );
    sim.stop().await;
}

#[tokio::test]
async fn a_call_ends_as_the_rule_for_its_number_says() {
    for (result, status, answered_by) in [
        ("success", "completed", None),
        ("busy", "busy", None),
        ("no_answer", "no-answer", None),
        ("failed", "failed", None),
        ("canceled", "canceled", None),
        ("machine", "completed", Some("machine_start")),
    ] {
        let receiver = Receiver::new("/cb/k").await;
        let sim = RunningSim::with(&[]).await;
        let rules = json!([{ "result": "busy" }, { "to": "+491701234567", "result": result }]);
        assert_eq!(status_of(&sim.put("/callbacks/results", &rules.to_string()).await), 200);
        sim.answer(&twilio(&receiver.url)).await;
        assert_eq!(receiver.verified(200).await["CallStatus"], "initiated");
        let ended = receiver.verified(200).await;
        assert_eq!((&ended["CallStatus"], ended["AnsweredBy"].as_str()), (&json!(status), answered_by));
        sim.stop().await;
    }
}

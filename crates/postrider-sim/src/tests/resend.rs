//! Resend's idempotency.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::common_behavior::{key, resend};
use super::late_effects::wait_for_status;
use super::receiver::Receiver;
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

const WEBHOOK: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

impl Receiver {
    /// Checks the signature of an event by the reference implementation, and returns the event.
    async fn event(&self, answer: u16) -> Value {
        let (head, body) = self.next(answer).await;
        let mut headers = hyper::HeaderMap::new();
        for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
            // Svix writes the headers of Standard Webhooks under its own names.
            let name = name.replace("svix-", "webhook-");
            headers.insert(hyper::header::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        standardwebhooks::Webhook::new(WEBHOOK).unwrap().verify(body.as_bytes(), &headers).unwrap();
        serde_json::from_str(&body).unwrap()
    }
}

#[tokio::test]
async fn events_are_signed_and_say_how_the_mail_ended() {
    let receiver = Receiver::new("/hook").await;
    let sim = RunningSim::with(&[]).await;
    let webhook = json!({ "url": receiver.url, "webhook_secret": WEBHOOK });
    assert_eq!(status_of(&sim.put("/callbacks/resend", &webhook.to_string()).await), 200);
    assert_eq!(json_of(&sim.get("/callbacks/resend").await), json!({ "url": receiver.url }));
    for (n, (result, kind, part)) in [
        ("success", "email.delivered", "tags"),
        ("bounced", "email.bounced", "bounce"),
        ("soft_bounced", "email.bounced", "bounce"),
        ("complained", "email.complained", "tags"),
        ("delayed", "email.delivery_delayed", "tags"),
        ("failed", "email.failed", "failed"),
    ]
    .into_iter()
    .enumerate()
    {
        let rules = json!([{ "to": "a@example.com", "result": result, "times": 2, "reversed": true }]);
        assert_eq!(status_of(&sim.put("/callbacks/results", &rules.to_string()).await), 200);
        assert_eq!(sim.answer(&resend(&key(u8::try_from(n).unwrap()), "Hi")).await.0, 200);
        for expected in [kind, "email.sent", kind, "email.sent"] {
            let event = receiver.event(200).await;
            assert_eq!(event["type"], expected, "{result}");
            let has_part = event["data"][part].is_object() || expected == "email.sent";
            assert!(event["data"]["to"] == json!(["a@example.com"]) && has_part, "{event}");
        }
    }
    for bad in [
        "[]",
        r#"{"url": "here", "webhook_secret": "whsec_AAAA"}"#,
        r#"{"url": "http://127.0.0.1:1/", "webhook_secret": "x"}"#,
    ] {
        assert_eq!(status_of(&sim.put("/callbacks/resend", bad).await), 400, "{bad}");
    }
    for bad in ["{}", r#"[{"result": "lost"}]"#, r#"[{"result": "busy", "times": 0}]"#] {
        assert_eq!(status_of(&sim.put("/callbacks/results", bad).await), 400, "{bad}");
    }
    sim.stop().await;
}

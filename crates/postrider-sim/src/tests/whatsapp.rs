//! Messages to numbers, and their status reports.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::common_behavior::{key, request, whatsapp};
use super::receiver::Receiver;
use super::*;

impl Receiver {
    /// Checks the signature of a report and returns its status.
    async fn status(&self, app_secret: &str, answer: u16) -> Value {
        let (head, body) = self.next(answer).await;
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(app_secret.as_bytes()).unwrap();
        mac.update(body.as_bytes());
        let expected = format!("x-hub-signature-256: sha256={}", hex::encode(mac.finalize().into_bytes()));
        assert!(head.contains(&expected), "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["object"], "whatsapp_business_account");
        let change = &answer["entry"][0]["changes"][0];
        assert_eq!(
            (&change["field"], &change["value"]["messaging_product"]),
            (&json!("messages"), &json!("whatsapp"))
        );
        assert_eq!(change["value"]["metadata"]["phone_number_id"], "1055");
        change["value"]["statuses"][0].clone()
    }
}

async fn set_webhooks(sim: &RunningSim, webhooks: &Value) {
    let answer = sim.put("/callbacks/whatsapp", &webhooks.to_string()).await;
    assert_eq!(status_of(&answer), 200, "{answer}");
}

#[tokio::test]
async fn a_message_is_sent_each_time() {
    let sim = RunningSim::with(&[]).await;
    let (status, first) = sim.answer(&whatsapp(&key(1), "Hi")).await;
    assert_eq!((status, &first["messaging_product"]), (200, &json!("whatsapp")));
    assert_eq!(first["contacts"], json!([{ "input": "+491701234567", "wa_id": "491701234567" }]));
    let id = first["messages"][0]["id"].as_str().unwrap();
    assert!(id.starts_with("wamid."), "{id}");
    let (_, second) = sim.answer(&whatsapp(&key(1), "Hi")).await;
    assert_ne!(first["messages"], second["messages"]);

    let receipt = &sim.actions()[0];
    assert_eq!([&receipt["from"], &receipt["to"], &receipt["text"]], ["1055", "+491701234567", "Hi"]);
    assert_eq!([&receipt["key"], &receipt["message_id"]], [&json!(key(1)), &json!(id)]);
    assert_eq!(sim.counts("").await["duplicate_keys"], 1);
    sim.stop().await;
}

#[tokio::test]
async fn reports_are_signed_and_sent_although_the_answer_was_lost() {
    for fault in ["latency", "reset", "stall", "fail_after", "half", "act_late"] {
        let receiver = Receiver::new("/api/v2/tenants/1/channels/whatsapp/1/webhook").await;
        let sim = RunningSim::with(&["--fault", &format!("{fault}=1"), "--act-late-ms", "1"]).await;
        set_webhooks(&sim, &json!([{ "url": receiver.url, "app_secret": "shh" }])).await;
        let mut stream = sim.connect().await;
        stream.write_all(&whatsapp(&key(1), "Hi")).await.unwrap();

        for status in ["sent", "delivered"] {
            let change = receiver.status("shh", 200).await;
            assert_eq!([&change["status"], &change["recipient_id"]], [status, "491701234567"], "{fault}");
            assert_eq!(change["biz_opaque_callback_data"], key(1), "{fault}");
            assert_eq!(change["id"], sim.actions()[0]["message_id"], "{fault}");
            assert!(change["timestamp"].as_str().unwrap().parse::<u64>().is_ok());
        }
        sim.stop().await;
    }
}

#[tokio::test]
async fn a_report_that_is_not_accepted_is_retried_and_unsent_messages_have_no_reports() {
    let receiver = Receiver::new("/hook").await;
    let sim = RunningSim::with(&[]).await;
    set_webhooks(&sim, &json!([{ "url": receiver.url, "app_secret": "shh" }])).await;
    for fault in ["fail", "refuse", "busy"] {
        sim.put_rules(&json!([{ "fault": fault, "times": 1 }])).await;
        let (status, answer) = sim.answer(&whatsapp(&key(1), "Hi")).await;
        assert!(status >= 400 && answer["error"]["code"].is_u64(), "{answer}");
        assert_eq!(answer["error"]["type"], "OAuthException");
    }
    let (_, sent) = sim.answer(&whatsapp(&key(2), "Hi")).await;
    let refused = receiver.status("shh", 503).await;
    assert_eq!(refused["id"], sent["messages"][0]["id"], "the first report is that of the message");
    assert_eq!(receiver.status("shh", 204).await, refused);
    assert_eq!(receiver.status("shh", 200).await["status"], "delivered");
    sim.stop().await;
}

#[tokio::test]
async fn each_number_has_its_webhook_and_secrets_are_not_shown() {
    let (mine, others) = (Receiver::new("/mine").await, Receiver::new("/others").await);
    let sim = RunningSim::with(&[]).await;
    let webhooks = json!([
        { "url": others.url, "app_secret": "theirs" },
        { "phone_number_id": "1055", "url": mine.url, "app_secret": "mine" },
    ]);
    set_webhooks(&sim, &webhooks).await;
    sim.answer(&whatsapp(&key(1), "Hi")).await;
    assert_eq!(mine.status("mine", 200).await["biz_opaque_callback_data"], key(1));
    let shown = json_of(&sim.get("/callbacks/whatsapp").await);
    assert_eq!(shown, json!([{ "url": others.url }, { "phone_number_id": "1055", "url": mine.url }]));

    for bad in ["{}", r#"[{"url": "http://127.0.0.1:1/"}]"#, r#"[{"url": "here", "app_secret": "s"}]"#] {
        assert_eq!(status_of(&sim.put("/callbacks/whatsapp", bad).await), 400, "{bad}");
    }
    assert_eq!(json_of(&sim.get("/callbacks/whatsapp").await), shown);
    sim.stop().await;
}

#[tokio::test]
async fn errors_have_the_codes_of_the_graph_api() {
    let sim = RunningSim::with(&[]).await;
    let bearer = "authorization: Bearer EAA\r\n";
    let good = json!({ "messaging_product": "whatsapp", "to": "491701234567", "text": { "body": "Hi" } });
    let post = |path: &str, body: &Value| request("POST", path, bearer, &body.to_string());
    assert_eq!(sim.answer(&post("/whatsapp/1055/messages", &good)).await.0, 200);
    for (field, value) in [
        ("messaging_product", json!("sms")),
        ("to", json!("4917")),
        ("type", json!("image")),
        ("text", json!({ "body": "x".repeat(4097) })),
        ("text", json!({ "body": "" })),
        ("biz_opaque_callback_data", json!("k".repeat(513))),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let (status, answer) = sim.answer(&post("/whatsapp/1055/messages", &body)).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(100)), "{field}");
        let details = answer["error"]["error_data"]["details"].as_str().unwrap();
        assert!(details.contains(field), "{details}");
        assert!(answer["error"]["fbtrace_id"].is_string());
    }
    let (status, answer) = sim.answer(&post("/whatsapp/shop/messages", &good)).await;
    assert_eq!(
        (status, &answer["error"]["code"], &answer["error"]["error_subcode"]),
        (400, &json!(100), &json!(33))
    );
    sim.stop().await;
}

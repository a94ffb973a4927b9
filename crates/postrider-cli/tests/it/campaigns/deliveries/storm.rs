//! A storm of callbacks: ten thousand at once, out of order, repeated, forged, and about items that do not exist.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use standardwebhooks::Webhook;

use super::{Scene, WEBHOOK_SECRET};
use crate::{
    api::{client::Call, material},
    campaigns::stream::bounds::resident_mb,
    sql::{number, texts},
};

const ITEMS: usize = 1000;
/// Connections of the vendor at the same time.
const AT_ONCE: usize = 250;

/// A callback, and the status of its answer.
#[derive(Clone)]
struct Sent {
    body: String,
    secret: &'static str,
    answer: u16,
}

fn event(kind: &str, key: &str, n: usize) -> String {
    let bounce =
        json!({ "type": "Permanent", "subType": "NoEmail", "message": "m", "diagnosticCode": ["550 5.1.1"] });
    // As large as those of a mail with many headers.
    let headers: Vec<Value> =
        (0..20).map(|h| json!({ "name": format!("X-{h}"), "value": "v".repeat(100) })).collect();
    let mut data = json!({ "email_id": format!("mail-{n}"), "to": [], "tags": { "postrider_key": key }, "headers": headers });
    if kind == "email.bounced" {
        data["bounce"] = bounce;
    }
    json!({ "type": kind, "created_at": "2026-02-02T02:40:00Z", "data": data }).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_callbacks_at_once_leave_the_right_statuses_and_little_memory() -> anyhow::Result<()> {
    let mut scene = Scene::new().await?;
    let account = scene.resend(&json!({})).await?;
    scene.put("/callbacks/resend", &Value::Null)?;
    scene.people(ITEMS)?;
    let run = scene.start("news", "email", "resend")?;
    scene.work()?;
    crate::world::eventually("everything is sent", async || {
        Ok(number(&scene.api.admin, "select count(*) from execution.channel_outbox where status = 'sent'")
            .await?
            == ITEMS as i64)
    })
    .await?;
    let keys =
        texts(&scene.api.admin, "select idempotency_key from execution.channel_outbox order by 1").await?;

    // Each item ends in one of four ways, by two or three events; each event comes three times. And there are others.
    let ends = [
        ("delivered", vec!["email.sent", "email.delivered"]),
        ("bounced", vec!["email.sent", "email.delivery_delayed", "email.bounced"]),
        ("complained", vec!["email.sent", "email.delivered", "email.complained"]),
        ("delayed", vec!["email.sent", "email.delivery_delayed"]),
    ];
    let (mut storm, mut expected) = (Vec::new(), BTreeMap::new());
    for (n, key) in keys.iter().enumerate() {
        let (status, events) = &ends[n % ends.len()];
        *expected.entry((*status).to_owned()).or_insert(0) += 1;
        for kind in events {
            let sent = Sent { body: event(kind, key, n), secret: WEBHOOK_SECRET, answer: 204 };
            storm.extend(std::iter::repeat_n(sent, 3));
        }
        // Signed with another secret: it would change the status.
        let forged = event("email.complained", key, n);
        storm.push(Sent { body: forged, secret: "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", answer: 403 });
        let unknown = event("email.bounced", &format!("{n:064x}"), n);
        storm.push(Sent { body: unknown, secret: WEBHOOK_SECRET, answer: 204 });
        let theirs = event("email.bounced", key, n).replace("postrider_key", "theirs");
        storm.push(Sent { body: theirs, secret: WEBHOOK_SECRET, answer: 204 });
    }
    anyhow::ensure!(storm.len() >= 10_000, "{}", storm.len());
    // Out of order: a step through all of them that meets each once.
    let len = storm.len();
    let step = (len / 3..).find(|step| gcd(*step, len) == 1).unwrap_or(1);
    let shuffled: Vec<Sent> = (0..len).map(|n| storm[(n * step) % len].clone()).collect();

    let pid = scene.api.server.process.child.id();
    let before = resident_mb(pid)?;
    let (url, path) = (scene.api.server.http_url.clone(), scene.address("resend", &account));
    let senders = shuffled.chunks(len.div_ceil(AT_ONCE)).map(|part| {
        let (url, path, part) = (url.clone(), path.clone(), part.to_vec());
        tokio::task::spawn_blocking(move || part.iter().try_for_each(|sent| deliver(&url, &path, sent)))
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.await??;
    }
    let grown = resident_mb(pid)? - before;
    assert!(grown < 64.0, "the server grew by {grown} MB");

    let counts = "select status || ' ' || count(*) from execution.deliveries group by status order by 1";
    let counts = texts(&scene.api.admin, counts).await?;
    assert_eq!(
        counts,
        expected.iter().map(|(status, count)| format!("{status} {count}")).collect::<Vec<_>>()
    );
    for (n, key) in keys.iter().enumerate() {
        let sql = format!(
            "select delivery.status || ' ' || message_id from execution.deliveries as delivery
                    join execution.channel_outbox as item on item.id = delivery.outbox_id where idempotency_key = '{key}'"
        );
        if n % 50 < ends.len() {
            assert_eq!(texts(&scene.api.admin, sql).await?, [format!("{} mail-{n}", ends[n % ends.len()].0)]);
        }
    }
    let suppressed = "select suppression_reason || ' ' || count(*) from execution.leads where suppressed_at is not null group by suppression_reason order by 1";
    assert_eq!(texts(&scene.api.admin, suppressed).await?, ["complaint 250", "hard bounce 250"]);
    assert_eq!(
        scene.api.count("select count(*) from execution.channel_outbox where status <> 'sent'").await?,
        0
    );
    let metrics = crate::http::get(&scene.api.server.http_url, "/metrics")?.body;
    assert!(
        metrics.contains(&format!(r#"postrider_callbacks_refused_total{{provider="resend"}} {ITEMS}"#)),
        "{metrics}"
    );
    let shown = scene.api.get(&scene.api.acme.viewer, &format!("/runs/{run}"))?.expect(200)?;
    assert_eq!(shown["deliveries"]["statuses"].as_array().map(Vec::len), Some(4));
    Ok(())
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn deliver(url: &str, path: &str, sent: &Sent) -> anyhow::Result<()> {
    let now = jiff::Timestamp::now().as_second();
    let signature = Webhook::new(sent.secret)?.sign("msg_1", now, sent.body.as_bytes())?;
    let reply = Call::new(url, "POST", path)
        .header("svix-id", "msg_1")
        .header("svix-timestamp", &now.to_string())
        .header("svix-signature", &signature)
        .bytes("application/json", sent.body.as_bytes())
        .send()?;
    anyhow::ensure!(
        reply.status == sent.answer,
        "{} instead of {}: {}",
        reply.status,
        sent.answer,
        reply.text()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_webhook_is_refused_with_the_reason_and_changes_nothing() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    let account = scene.resend(&json!({})).await?;
    let twilio = scene.twilio().await?;
    let api = &scene.api;
    let beta = api.tenant("beta").await?;
    let path = scene.address("resend", &account);
    let body = event("email.complained", "key", 1);
    let now = jiff::Timestamp::now().as_second();
    let sign = |secret: &str, at: i64| -> anyhow::Result<String> {
        Ok(Webhook::new(secret)?.sign("msg_1", at, body.as_bytes())?)
    };
    let good = sign(WEBHOOK_SECRET, now)?;
    let call = |path: &str, at: i64, signature: &str| {
        Call::new(&api.server.http_url, "POST", path)
            .header("svix-id", "msg_1")
            .header("svix-timestamp", &at.to_string())
            .header("svix-signature", signature)
            .bytes("application/json", body.as_bytes())
            .send()
    };
    assert_eq!(call(&path, now, &good)?.status, 204, "about no item of ours");
    let old = now - 3600;
    let (theirs, unknown) = (
        path.replace(&api.acme.id.0.to_string(), &beta.id.0.to_string()),
        path.replace(&account, material::UNKNOWN),
    );
    for (path, at, signature, status, says) in [
        (path.clone(), now, "".to_owned(), 403, "not Resend's"),
        (path.clone(), now, sign("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", now)?, 403, "not Resend's"),
        (path.clone(), now - 1, good.clone(), 403, "not Resend's"),
        (path.clone(), old, sign(WEBHOOK_SECRET, old)?, 403, "five minutes too old"),
        (theirs, now, good.clone(), 404, "no such callback address"),
        (unknown, now, good.clone(), 404, "no such callback address"),
        (scene.address("sim", &account), now, good.clone(), 404, "no such callback address"),
        (scene.address("twilio", &twilio), now, good.clone(), 404, "no such callback address"),
        (format!("{path}/some-key"), now, good.clone(), 404, "no such callback address"),
    ] {
        let problem = call(&path, at, &signature)?.problem(status)?;
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(says)), "{path}: {problem}");
    }
    let large =
        Call::new(&api.server.http_url, "POST", &path).bytes("application/json", &vec![b'a'; 100_000]);
    large.send()?.problem(413)?;
    assert_eq!(api.count("select count(*) from execution.provider_callbacks").await?, 0);
    assert_eq!(api.count("select count(*) from execution.leads where suppressed_at is not null").await?, 0);
    Ok(())
}

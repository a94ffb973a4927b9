//! A webhook is accepted only for its signature.

use std::io::Write;

use serde_json::{Value, json};

use super::{
    agent::says,
    stage::Stage,
    vendors::{Headers, Vendor, Webhooked, whatsapp, whsec},
};
use crate::{
    api::{Call, tenant},
    world::PATIENCE,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_each_vendor_is_executed_once_and_its_reply_waits_in_the_outbox() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.agent.at("/agent", says("a canary answers"));
    for (n, vendor) in Vendor::ALL.into_iter().enumerate() {
        let bot = stage.bot(vendor).await?;
        let webhook = vendor.message(1, "a canary sings");
        let answer = stage.deliver(&bot, &webhook)?.expect(200)?;
        let message_id = answer["messages"][0]["message_id"].as_str().unwrap();
        assert_eq!(
            answer,
            json!({ "messages": [{ "message_id": message_id, "status": "executed" }] }),
            "{vendor:?}"
        );

        // The agent has heard what was written, and who wrote it.
        let asked = stage.agent.asked("/agent");
        assert_eq!(asked.len(), n + 1, "{vendor:?}");
        assert_eq!(asked[n].headers["webhook-id"], message_id);
        let correlation_id = &asked[n].body["data"]["correlation_id"];
        let (to, thread) = vendor.place();
        assert_eq!(asked[n].body["type"], "message.received");
        assert_eq!(
            asked[n].body["data"],
            json!({
                "message_id": message_id, "provider": vendor.name(), "account_id": bot.account.0, "sender_id": vendor.sender(),
                "user_id": format!("user-{}", vendor.sender()), "role": "operator", "conversation_id": to, "thread": thread,
                "text": "a canary sings", "correlation_id": correlation_id,
            })
        );

        // The reply waits.
        let sql = format!(
            "select jsonb_build_object('to', recipient_id, 'payload', payload, 'status', status, 'provider', provider, 'correlation_id', correlation_id)::text from channels.channel_outbox where channel_message_id = '{message_id}'"
        );
        let rows = stage.texts(&sql).await?;
        let mut payload = json!({ "text": "a canary answers" });
        if let Some(thread) = thread {
            payload["thread"] = thread.into();
        }
        assert_eq!(rows.len(), 1);
        assert_eq!(
            serde_json::from_str::<Value>(&rows[0])?,
            json!({ "to": to, "payload": payload, "status": "pending", "provider": vendor.name(), "correlation_id": correlation_id })
        );

        // Delivered again, it is answered and not executed.
        let again = stage.deliver(&bot, &webhook)?.expect(200)?;
        assert_eq!(again, json!({ "messages": [{ "message_id": message_id, "status": "duplicate" }] }));
        assert_eq!(stage.agent.asked("/agent").len(), n + 1);

        // The log ties it together, and repeats nothing of it.
        let line: Value = serde_json::from_str(
            &stage.server.process.wait_for_line(&format!("message {message_id} was executed"))?,
        )?;
        assert_eq!(
            (&line["channel_message_id"], &line["correlation_id"]),
            (&json!(message_id), correlation_id)
        );
    }
    stage.check().await?;
    let said = stage.server.process.lines().join("\n");
    for secret in
        ["canary", "slack-own", "telegram-own", "app-own", "verify-own", &whsec("own"), &whsec("agent")]
    {
        assert!(!said.contains(secret), "the log repeats `{secret}`");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_without_the_vendors_signature_is_refused_and_leaves_no_row() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for vendor in Vendor::ALL {
        let (bot, other) = (stage.bot(vendor).await?, stage.bot_of(&stage.acme, vendor, "other").await?);
        let webhook = vendor.message(1, "open the vault");
        let good = webhook.signed("own");
        let mut hostile: Vec<(&str, Vec<u8>, Headers)> = vec![
            ("nothing is signed", webhook.body.clone(), Vec::new()),
            ("the secret is another account's", webhook.body.clone(), webhook.signed("other")),
            (
                "the secret is empty",
                webhook.body.clone(),
                good.iter().map(|(name, _)| (*name, String::new())).collect(),
            ),
            ("each header is there twice", webhook.body.clone(), [good.clone(), good.clone()].concat()),
            (
                "one of two headers is not even text",
                webhook.body.clone(),
                [good.clone(), good.iter().map(|(name, _)| (*name, "\u{ff}".to_owned())).collect()].concat(),
            ),
        ];
        for left_out in 0..good.len() {
            let mut less = good.clone();
            less.remove(left_out);
            hostile.push(("a header is missing", webhook.body.clone(), less));
        }
        // Telegram knows its caller, and does not sign what it says.
        if vendor != Vendor::Telegram {
            let another = vendor.message(1, "open the other vault");
            hostile.push(("a signature is kept, and the body is another", another.body, good.clone()));
            let pretty = serde_json::to_vec_pretty(&serde_json::from_slice::<Value>(&webhook.body)?)?;
            hostile.push(("the body says the same in other bytes", pretty, good.clone()));
            hostile.push(("the body is cut", webhook.body[..webhook.body.len() - 1].to_vec(), good.clone()));
        }
        if matches!(vendor, Vendor::Slack | Vendor::Webhook) {
            hostile.push(("the signature is too old", webhook.body.clone(), webhook.signed_at("own", -301)));
            // A busy machine may take its time between the signature and the look at it.
            hostile.push((
                "the signature is of the future",
                webhook.body.clone(),
                webhook.signed_at("own", 301 + 60),
            ));
            let mut renewed = webhook.signed_at("own", -301);
            let time = good.iter().position(|(name, _)| name.ends_with("timestamp")).unwrap();
            renewed[time] = good[time].clone();
            hostile.push(("an old signature has a new time", webhook.body.clone(), renewed));
        }
        for (what, body, headers) in hostile {
            stage
                .webhook(&bot, &body, &headers)
                .send()?
                .problem(403)
                .map_err(|error| error.context(format!("{vendor:?}: {what}")))?;
        }
        // The right signature at the wrong door.
        stage.webhook(&other, &webhook.body, &good).send()?.problem(403)?;
    }
    assert_eq!(stage.statuses().await?, Vec::<String>::new());
    assert_eq!(stage.agent.asked("/agent").len(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_or_compressed_body_is_refused_before_it_is_read() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Webhook).await?;
    let large = Webhooked { body: vec![b' '; 10 << 20], ..Vendor::Webhook.message(1, "") };
    stage.deliver(&bot, &large)?.problem(413)?;

    let webhook = Vendor::Webhook.message(1, "hello");
    for encodings in [&["gzip"][..], &["deflate"], &["br"], &["identity", "gzip"], &["gzip, identity"], &[""]]
    {
        let mut headers = webhook.signed("own");
        headers.extend(encodings.iter().map(|encoding| ("content-encoding", (*encoding).to_owned())));
        stage.webhook(&bot, &webhook.body, &headers).send()?.problem(415)?;
    }
    // A bomb is refused for what it says it is, while not a byte of it has come.
    let mut head = format!(
        "POST {} HTTP/1.1\r\nhost: a\r\ncontent-encoding: gzip\r\ncontent-length: 1000000\r\n",
        bot.path()
    );
    for (name, value) in webhook.signed("own") {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let (mut stream, _) = crate::http::connect(&stage.server.http_url)?;
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut status = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut status)?;
    assert_eq!(&status, b"HTTP/1.1 415");

    assert_eq!(stage.statuses().await?, Vec::<String>::new());
    let mut headers = webhook.signed("own");
    headers.push(("content-encoding", "identity".to_owned()));
    stage.webhook(&bot, &webhook.body, &headers).send()?.expect(200)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_address_that_does_not_exist_is_the_same_404() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (slack, telegram) = (stage.bot(Vendor::Slack).await?, stage.bot(Vendor::Telegram).await?);
    let beta = stage.bot_of(&tenant(&stage.admin, "beta").await?, Vendor::Slack, "own").await?;
    let webhook = Vendor::Slack.message(1, "hello");
    let id = slack.account.0.to_string();
    let (own, nobody) = (slack.tenant.0.to_string(), "019a0000-0000-7000-8000-000000000000".to_owned());
    let (nil, other) = (uuid::Uuid::nil().to_string(), beta.tenant.0.to_string());
    let mut answers = Vec::new();
    for (tenant, provider, account) in [
        (&own, "slack", &nobody),
        (&own, "slack", &"not-an-id".to_owned()),
        (&own, "slack", &telegram.account.0.to_string()),
        (&own, "telegram", &id),
        (&own, "nobody", &id),
        (&own, "SLACK", &id),
        (&own, "slack%00", &id),
        // The account of another tenant, whatever its secret.
        (&other, "slack", &id),
        (&own, "slack", &beta.account.0.to_string()),
        (&nobody, "slack", &id),
        (&nil, "slack", &id),
        (&"not-an-id".to_owned(), "slack", &id),
        (&"%00".to_owned(), "slack", &id),
    ] {
        for method in ["POST", "GET"] {
            let path = format!("/api/v2/tenants/{tenant}/channels/{provider}/{account}/webhook");
            let mut call =
                Call::new(&stage.server.http_url, method, &path).bytes("application/json", &webhook.body);
            for (name, value) in webhook.signed("own") {
                call = call.header(name, &value);
            }
            answers.push(call.send()?.problem(404)?["detail"].clone());
        }
    }
    assert!(answers.iter().all(|answer| answer == "there is no such webhook address"), "{answers:?}");
    assert_eq!(stage.statuses().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_confirmed_to_who_knows_its_secret() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let slack = stage.bot(Vendor::Slack).await?;
    let question = json!({ "token": "t", "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P", "type": "url_verification" });
    let question = Webhooked { body: question.to_string().into_bytes(), ..Vendor::Slack.message(1, "") };
    let answer = stage.deliver(&slack, &question)?;
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P")
    );
    assert!(
        answer.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")),
        "{:?}",
        answer.headers
    );
    stage.webhook(&slack, &question.body, &[]).send()?.problem(403)?;
    stage.webhook(&slack, &question.body, &question.signed("other")).send()?.problem(403)?;

    let whatsapp = stage.bot(Vendor::Whatsapp).await?;
    let ask = |bot: &super::stage::Bot, query: &str| {
        Call::new(&stage.server.http_url, "GET", &format!("{}{query}", bot.path())).send()
    };
    let answer = ask(&whatsapp, "?hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=verify-own")?;
    assert_eq!((answer.status, answer.text().as_str()), (200, "1158201444"));
    assert!(
        answer.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")),
        "{:?}",
        answer.headers
    );
    for query in [
        "",
        "?hub.mode=subscribe&hub.challenge=1&hub.verify_token=verify-other",
        "?hub.mode=subscribe&hub.challenge=1&hub.verify_token=verify-own&hub.verify_token=verify-own",
        "?hub.mode=unsubscribe&hub.challenge=1&hub.verify_token=verify-own",
        "?hub.mode=subscribe&hub.challenge=1",
    ] {
        ask(&whatsapp, query)?.problem(403)?;
    }
    // No other vendor verifies its webhook like this.
    for vendor in [Vendor::Slack, Vendor::Telegram, Vendor::Webhook] {
        let bot = stage.bot_of(&stage.acme, vendor, "asked").await?;
        ask(&bot, "?hub.mode=subscribe&hub.challenge=1&hub.verify_token=verify-own")?.problem(404)?;
    }
    assert_eq!(stage.statuses().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_webhook_is_refused_if_malformed_and_not_stored_if_irrelevant() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for vendor in Vendor::ALL {
        let bot = stage.bot(vendor).await?;
        let with = |body: &str| Webhooked { body: body.as_bytes().to_vec(), ..vendor.message(1, "") };
        for nonsense in ["", "hello", "[1, 2", "[]", r#"{"type": 7}"#] {
            // WhatsApp's shape is so loose that some of it could be about anything.
            let answer = stage.deliver(&bot, &with(nonsense))?;
            assert!(
                answer.status == 400 || vendor == Vendor::Whatsapp && answer.status == 200,
                "{vendor:?}: {nonsense}: {}",
                answer.text()
            );
        }
    }
    let slack = stage.bot_of(&stage.acme, Vendor::Slack, "second").await?;
    for event in [
        json!({ "type": "message", "subtype": "bot_message", "channel": "C1", "user": "U1", "text": "hi", "ts": "1.0" }),
        json!({ "type": "message", "bot_id": "B1", "channel": "C1", "user": "U1", "text": "hi", "ts": "1.0" }),
        json!({ "type": "reaction_added", "user": "U1" }),
    ] {
        let body = json!({ "type": "event_callback", "event": event }).to_string();
        let webhook = Webhooked { body: body.into_bytes(), ..Vendor::Slack.message(1, "") };
        assert_eq!(stage.deliver(&slack, &webhook)?.expect(200)?, json!({ "messages": [] }));
    }
    assert_eq!(stage.statuses().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_counts_for_replies_of_its_own_account_only() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (bot, other) =
        (stage.bot(Vendor::Whatsapp).await?, stage.bot_of(&stage.acme, Vendor::Whatsapp, "other").await?);
    assert_eq!(stage.say(&bot, 1, "hello")?, "executed");
    let reply = stage.texts("select id::text from channels.channel_outbox").await?.remove(0);
    let report = json!({ "statuses": [{ "id": "wamid.reply", "status": "delivered", "timestamp": "1518694235", "recipient_id": "16315551181", "biz_opaque_callback_data": reply }] });
    let report =
        Webhooked { body: whatsapp(&report).to_string().into_bytes(), ..Vendor::Whatsapp.message(1, "") };
    let sql =
        "select concat_ws(' ', status, delivery_status, provider_message_id) from channels.channel_outbox";
    // Another account of the same tenant cannot speak of it.
    assert_eq!(stage.deliver(&other, &report)?.expect(200)?, json!({ "messages": [] }));
    assert_eq!(stage.texts(sql).await?, ["pending"]);
    assert_eq!(stage.deliver(&bot, &report)?.expect(200)?, json!({ "messages": [] }));
    assert_eq!(stage.texts(sql).await?, ["pending delivered wamid.reply"]);
    Ok(())
}

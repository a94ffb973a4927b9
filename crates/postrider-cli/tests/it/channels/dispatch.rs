//! The dispatcher from outside: what it makes of what vendors do, by the sim's own receipts.

use std::time::Duration;

use jiff::Timestamp;
use postrider_model::{IdempotencyKey, ids::OutboxId};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    bots::{
        Bots, MARK, OFTEN, Row, Serving, VENDORS, acted, control, deliver, lookups, received, strike, text,
    },
    ingress::vendors::Vendor,
};
use crate::{
    sql::{execute, texts},
    world::{Sim, eventually},
};

/// A failed reply is due again at once.
const SOON: &str = "poll_interval_seconds = 0.05\nbase_retry_seconds = 0.05\n";

async fn stage(sim_args: &[&str]) -> anyhow::Result<(Sim, Bots)> {
    let sim = Sim::start(sim_args)?;
    let bots = Bots::new(&sim.http_url).await?;
    Ok((sim, bots))
}

/// The notes that were made about a reply.
async fn audited(bots: &Bots, reply: Uuid) -> anyhow::Result<Vec<String>> {
    let sql = format!("select action || ': ' || note from tenancy.audit_log where subject = 'reply:{reply}'");
    Ok(texts(&bots.admin, sql).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_the_vendor_accepted_is_sent_once_under_the_vendors_id() -> anyhow::Result<()> {
    let (sim, bots) = stage(&[]).await?;
    let dispatcher = Serving::start(&bots.world, "dispatcher", OFTEN)?;
    for vendor in VENDORS {
        let reply = bots.reply(vendor, 1).await?;
        let row = bots.ends(reply, "sent").await?;
        assert_eq!((row.attempt_count, row.claims, row.is_in_doubt), (0, 1, false), "{row:?}");
        let receipts = received(&sim, vendor, 1)?;
        assert_eq!(receipts.len(), 1, "{receipts:?}");
        assert_eq!(receipts[0]["message_id"].as_str(), row.provider_message_id.as_deref(), "{receipts:?}");
        let key = match vendor {
            Vendor::Slack => json!(IdempotencyKey::of_reply(OutboxId(reply)).as_str()),
            Vendor::Whatsapp => json!(reply),
            _ => Value::Null,
        };
        assert_eq!(receipts[0].get("key").unwrap_or(&Value::Null), &key);
        bots.told(&dispatcher, "a reply was claimed", &row)?;
        eventually("it is told", async || Ok(bots.told(&dispatcher, "a reply was sent", &row).is_ok()))
            .await?;
        let provider = format!("provider=\"{}\"", vendor.name());
        let sent = dispatcher.metric("postrider_replies_total", &[&provider, "as=\"sent\""])?;
        let calls =
            dispatcher.metric("postrider_reply_attempts_total", &[&provider, "outcome=\"delivered\""])?;
        assert_eq!((sent, calls), (Some(1.0), Some(1.0)), "{vendor:?}");
        for latency in ["postrider_reply_commit_to_call_seconds_count", "postrider_reply_call_seconds_count"]
        {
            assert_eq!(dispatcher.metric(latency, &[&provider])?, Some(1.0), "{vendor:?}: {latency}");
        }
    }
    dispatcher.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_dead_at_once_and_everybody_is_told() -> anyhow::Result<()> {
    let (sim, bots) = stage(&[]).await?;
    let dispatcher = Serving::start(&bots.world, "dispatcher", SOON)?;
    for vendor in VENDORS {
        strike(&sim, vendor, "refuse", 1)?;
        let reply = bots.reply(vendor, 1).await?;
        let row = bots.ends(reply, "dead").await?;
        assert_eq!((row.attempt_count, row.claims, row.is_in_doubt), (1, 1, false), "{row:?}");
        let error = row.last_error.clone().unwrap_or_default();
        assert!(!error.is_empty());
        assert_eq!(audited(&bots, reply).await?, [format!("reply.dead: {error}")]);
        eventually("it is told", async || Ok(bots.told(&dispatcher, "a reply is dead", &row).is_ok()))
            .await?;
        let line = bots.told(&dispatcher, "a reply is dead", &row)?;
        assert_eq!((line["level"].as_str(), line["reason"].as_str()), (Some("ERROR"), Some(&*error)));
        let provider = format!("provider=\"{}\"", vendor.name());
        let dead = dispatcher.metric("postrider_replies_total", &[&provider, "as=\"dead\""])?;
        assert_eq!(dead, Some(1.0), "{vendor:?}");
    }
    // Nothing of it is tried again, while others are.
    let next = bots.reply(Vendor::Telegram, 2).await?;
    bots.ends(next, "sent").await?;
    for vendor in VENDORS {
        assert_eq!(received(&sim, vendor, 1)?.len(), 1, "{vendor:?}");
    }
    dispatcher.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vendor_that_asks_for_patience_is_left_alone_for_so_long() -> anyhow::Result<()> {
    const PATIENCE_SECONDS: i64 = 2;
    let (sim, bots) = stage(&["--retry-after-seconds", "2"]).await?;
    let dispatcher = Serving::start(&bots.world, "dispatcher", SOON)?;
    for (n, vendor) in (1..).zip(VENDORS) {
        strike(&sim, vendor, "busy", 1)?;
        let reply = bots.reply(vendor, n).await?;
        let row = bots.until(reply, "it waits", |row| row.claims == 1 && row.status == "pending").await?;
        // Nothing is counted: whoever is asked to wait has not failed.
        assert_eq!((row.attempt_count, row.is_in_doubt), (0, false), "{row:?}");
        assert!((2.0..2.5).contains(&row.waits_seconds), "{row:?}");
        // The account, too: another reply does not come before.
        let other = bots.reply(vendor, n + 10).await?;
        bots.ends(reply, "sent").await?;
        bots.ends(other, "sent").await?;
        let asked = received(&sim, vendor, n)?;
        assert_eq!((asked.len(), asked[0]["acted"].as_bool()), (2, Some(false)), "{asked:?}");
        let at = |receipt: &Value| receipt["at"].as_str().unwrap().parse::<Timestamp>();
        let first = at(&asked[0])?;
        for later in [&asked[1], &received(&sim, vendor, n + 10)?[0]] {
            let waited = at(later)?.duration_since(first);
            assert!(waited.as_secs() >= PATIENCE_SECONDS, "it came after {waited:?}");
        }
        bots.told(&dispatcher, "a reply waits for", &row)?;
    }
    dispatcher.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_never_gets_through_is_dead_after_its_attempts() -> anyhow::Result<()> {
    let (sim, bots) = stage(&[]).await?;
    // No server listens: provably nothing was sent.
    execute(
        &bots.admin,
        "update tenancy.provider_accounts set settings = settings || '{\"url\": \"http://127.0.0.1:1\"}' where provider = 'telegram'",
    )
    .await?;
    let dispatcher = Serving::start(&bots.world, "dispatcher", SOON)?;
    let reply = bots.reply_with(Vendor::Telegram, 1, 3).await?;
    let row = bots.ends(reply, "dead").await?;
    assert_eq!((row.attempt_count, row.claims, row.is_in_doubt), (3, 3, false), "{row:?}");
    let error = row.last_error.clone().unwrap_or_default();
    assert_eq!(audited(&bots, reply).await?, [format!("reply.dead: {error}")]);
    eventually("it is told", async || Ok(bots.told(&dispatcher, "a reply is dead", &row).is_ok())).await?;
    bots.told(&dispatcher, "a reply failed and is tried again", &row)?;
    let retried = dispatcher.process.lines();
    let retried = retried.iter().filter(|line| line.contains("a reply failed and is tried again")).count();
    assert_eq!((retried, sim.receipts()?.len()), (2, 0));

    // A connection that the sim breaks puts the reply in doubt, and the reply is dead in the same way.
    strike(&sim, Vendor::Whatsapp, "fail", 10)?;
    let doubtful = bots.reply_with(Vendor::Whatsapp, 1, 2).await?;
    bots.until(doubtful, "it is in doubt", |row| row.is_in_doubt && row.status == "pending").await?;
    bots.make_due().await?;
    let row = bots.ends(doubtful, "dead").await?;
    assert_eq!((row.attempt_count, row.is_in_doubt), (2, true), "{row:?}");
    assert_eq!(received(&sim, Vendor::Whatsapp, 1)?.len(), 2);
    dispatcher.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn how_often_a_reply_may_be_tried_is_set_by_the_environment() -> anyhow::Result<()> {
    let (sim, bots) = stage(&[]).await?;
    let environment = [
        ("POSTRIDER_CHANNELS__OUTBOX__MAX_ATTEMPTS", "2"),
        ("POSTRIDER_CHANNELS__OUTBOX__BASE_RETRY_SECONDS", "0.05"),
    ];
    let server = Serving::with(&bots.world, "api,dispatcher", &environment)?;
    strike(&sim, Vendor::Telegram, "fail", 10)?;
    assert_eq!(deliver(&bots, &server.http_url, Vendor::Telegram, 1), Some(200));
    let reply = bots.count("select count(*) from channels.channel_outbox where max_attempts = 2").await?;
    assert_eq!(reply, 1);
    let id = sqlx::query_scalar("select id from channels.channel_outbox").fetch_one(&bots.admin).await?;
    let row = bots.ends(id, "dead").await?;
    assert_eq!((row.attempt_count, received(&sim, Vendor::Telegram, 1)?.len()), (2, 2), "{row:?}");
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_may_have_arrived_is_in_doubt_and_is_retried() -> anyhow::Result<()> {
    let (sim, bots) = stage(&[]).await?;
    let dispatcher = Serving::start(&bots.world, "dispatcher", SOON)?;
    for vendor in VENDORS {
        // It says that something broke, and has done nothing.
        strike(&sim, vendor, "fail", 1)?;
        let reply = bots.reply(vendor, 1).await?;
        let row = bots.until(reply, "it was tried", |row| row.attempt_count == 1).await?;
        assert!(row.is_in_doubt || row.status == "sent", "{row:?}");
        if vendor == Vendor::Whatsapp {
            // It is given time to tell.
            assert!(row.waits_seconds >= 60.0, "{row:?}");
            bots.make_due().await?;
        }
        let row = bots.ends(reply, "sent").await?;
        assert_eq!((row.attempt_count, row.claims, row.is_in_doubt), (1, 2, false), "{row:?}");
        assert_eq!((received(&sim, vendor, 1)?.len(), acted(&sim, vendor, 1)?), (2, 1), "{vendor:?}");
    }
    assert_eq!(lookups(&sim)?, 1, "Slack alone can be asked, and was asked before the second call");
    dispatcher.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn slack_is_asked_before_a_second_call_so_one_message_is_one() -> anyhow::Result<()> {
    let (sim, bots) = stage(&["--stall-seconds", "30"]).await?;
    let settings = format!("{SOON}call_timeout_seconds = 2\n");
    let dispatcher = Serving::start(&bots.world, "dispatcher", &settings)?;
    // Acted, and the answer was lost, in every way there is. Some are in a thread.
    for (n, fault) in (1..).zip(["reset", "half", "fail_after", "stall"]) {
        strike(&sim, Vendor::Slack, fault, 1)?;
        let reply = bots.reply(Vendor::Slack, n).await?;
        let row = bots.ends(reply, "sent").await?;
        assert_eq!((row.attempt_count, row.claims, row.is_in_doubt), (1, 2, false), "{fault}: {row:?}");
        let receipts = received(&sim, Vendor::Slack, n)?;
        assert_eq!(receipts.len(), 1, "{fault}: {receipts:?}");
        assert_eq!(receipts[0]["message_id"].as_str(), row.provider_message_id.as_deref(), "{fault}");
        assert_eq!(lookups(&sim)?, u64::from(n), "{fault}");
    }
    // If the vendor cannot be asked at the moment, the dispatcher asks again and does not call.
    control(
        &sim,
        "/faults/rules",
        &json!([{ "provider": "slack", "fault": "reset", "times": 1, "on": "send" },
                { "provider": "slack", "fault": "fail", "times": 1, "on": "lookup" }]),
    )?;
    let reply = bots.reply(Vendor::Slack, 9).await?;
    let row = bots.ends(reply, "sent").await?;
    assert_eq!((row.attempt_count, row.claims), (1, 3), "{row:?}");
    assert_eq!(received(&sim, Vendor::Slack, 9)?.len(), 1);
    // If the lookup never answers, an operator decides after a day. The dispatcher does not call on its own.
    control(
        &sim,
        "/faults/rules",
        &json!([{ "provider": "slack", "fault": "reset", "times": 1, "on": "send" },
                { "provider": "slack", "fault": "fail", "on": "lookup" }]),
    )?;
    let reply = bots.reply(Vendor::Slack, 10).await?;
    bots.until(reply, "it was looked up several times", |row| row.claims > 4).await?;
    let days_old = "update channels.channel_outbox set in_doubt_since = in_doubt_since - interval '25 hours',
                           next_attempt_at = now() where status = 'pending'";
    eventually("it is left to an operator", async || {
        execute(&bots.admin, days_old).await?;
        Ok(bots.row(reply).await?.status == "dead")
    })
    .await?;
    let row = bots.row(reply).await?;
    assert!(
        row.is_in_doubt && row.last_error.as_ref().is_some_and(|error| error.contains("requeue it")),
        "{row:?}"
    );
    assert_eq!(received(&sim, Vendor::Slack, 10)?.len(), 1, "{row:?}");
    // The operator sends it again, and the dispatcher calls although the look-up is unclear again.
    bots.requeue(reply).await?;
    let row = bots.ends(reply, "sent").await?;
    assert_eq!(received(&sim, Vendor::Slack, 10)?.len(), 2, "{row:?}");
    dispatcher.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_of_whatsapp_ends_a_doubt_without_a_second_call() -> anyhow::Result<()> {
    let (sim, bots) = stage(&[]).await?;
    let server = Serving::start(&bots.world, "api,dispatcher", SOON)?;
    bots.report_to(&sim, &server.http_url)?;
    strike(&sim, Vendor::Whatsapp, "reset", 1)?;
    let reply = bots.reply(Vendor::Whatsapp, 1).await?;
    let row = bots
        .until(reply, "WhatsApp tells of it", |row| {
            row.attempt_count == 1 && row.delivery_status.as_deref() == Some("delivered")
        })
        .await?;
    if row.status == "pending" {
        // The answer was lost before anything was told.
        assert!(row.is_in_doubt && row.provider_message_id.is_some(), "{row:?}");
        bots.make_due().await?;
    }
    let row = bots.ends(reply, "sent").await?;
    let receipts = received(&sim, Vendor::Whatsapp, 1)?;
    assert_eq!((receipts.len(), row.is_in_doubt), (1, false), "{receipts:?}");
    assert_eq!(receipts[0]["message_id"].as_str(), row.provider_message_id.as_deref(), "{row:?}");
    assert_eq!(row.delivery_status.as_deref(), Some("delivered"));

    // A delivery report about a sent reply is stored, and the reply stays sent.
    let reply = bots.reply(Vendor::Whatsapp, 2).await?;
    let row = bots
        .until(reply, "WhatsApp tells of it", |row| row.delivery_status.as_deref() == Some("delivered"))
        .await?;
    assert_eq!((row.status.as_str(), row.claims), ("sent", 1));
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn telegram_may_be_called_twice_when_the_answer_is_lost() -> anyhow::Result<()> {
    let (sim, bots) = stage(&[]).await?;
    let dispatcher = Serving::start(&bots.world, "dispatcher", SOON)?;
    strike(&sim, Vendor::Telegram, "reset", 1)?;
    let reply = bots.reply(Vendor::Telegram, 1).await?;
    let row = bots.ends(reply, "sent").await?;
    // At least once: the message is there twice, and each call had a claim of its own.
    assert_eq!((acted(&sim, Vendor::Telegram, 1)?, row.claims), (2, 2), "{row:?}");
    assert_eq!((row.attempt_count, row.is_in_doubt, lookups(&sim)?), (1, false, 0), "{row:?}");
    dispatcher.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_of_a_removed_account_is_dead_and_says_so() -> anyhow::Result<()> {
    let (sim, bots) = stage(&[]).await?;
    let dispatcher = Serving::start(&bots.world, "dispatcher", SOON)?;
    let before = bots.reply(Vendor::Telegram, 1).await?;
    bots.ends(before, "sent").await?;
    execute(
        &bots.admin,
        "alter table channels.channel_outbox alter column next_attempt_at set default now() + interval '1 hour'",
    )
    .await?;
    // One that the dispatcher has used before, and one that it never has.
    for (vendor, n) in [(Vendor::Telegram, 2), (Vendor::Slack, 2)] {
        let reply = bots.reply(vendor, n).await?;
        bots.remove(vendor).await?;
        bots.make_due().await?;
        let row = bots.ends(reply, "dead").await?;
        assert_eq!(row.last_error.as_deref(), Some("its account was removed"));
        assert_eq!(audited(&bots, reply).await?, ["reply.dead: its account was removed"]);
        assert_eq!(received(&sim, vendor, n)?.len(), 0);
    }
    dispatcher.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_costs_no_attempt_and_the_right_one_is_used_at_once() -> anyhow::Result<()> {
    for (vendor, token) in
        [(Vendor::Slack, "xoxb-right"), (Vendor::Whatsapp, "right"), (Vendor::Telegram, "123:right")]
    {
        let (sim, bots) = stage(&["--token", token]).await?;
        let dispatcher = Serving::start(&bots.world, "dispatcher", SOON)?;
        let reply = bots.reply_with(vendor, 1, 1000).await?;
        let row = bots.until(reply, "it was tried", |row| row.last_error.is_some()).await?;
        assert_eq!((&*row.status, row.attempt_count, row.is_in_doubt), ("pending", 0, false), "{row:?}");
        let other = bots.reply(vendor, 2).await?;
        let error = row.last_error.unwrap_or_default();
        assert!(error.starts_with("the account is refused"), "{error}");
        let (_, secret) = vendor.account(MARK);
        let mut secret: Value = serde_json::from_str(&secret)?;
        let name = if vendor == Vendor::Whatsapp { "access_token" } else { "bot_token" };
        assert!(secret[name].is_string(), "{secret}");
        secret[name] = json!(token);
        bots.rotate(vendor, &secret.to_string()).await?;
        let row = bots.ends(reply, "sent").await?;
        bots.ends(other, "sent").await?;
        assert_eq!(acted(&sim, vendor, 1)?, 1, "{row:?}");
        let tries = received(&sim, vendor, 1)?.len() + received(&sim, vendor, 2)?.len();
        assert!(tries <= 4, "the account was called {tries} times");
        dispatcher.stop()?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_that_cannot_open_the_secret_spends_no_attempts() -> anyhow::Result<()> {
    let (sim, bots) = stage(&[]).await?;
    let stranger = Serving::start(&bots.world, "dispatcher", SOON)?;
    // As if the secret had been sealed under another key.
    let accounts = "tenancy.provider_accounts";
    let spoiled = format!(
        "create table kept as select id, sealed_secret from {accounts};
         update {accounts} set sealed_secret = '\\x00', updated_at = now()"
    );
    execute(&bots.admin, spoiled).await?;
    let reply = bots.reply(Vendor::Telegram, 1).await?;
    let is_back = |row: &Row| row.claims > 0 && row.status == "pending";
    let row = bots.until(reply, "it was given back", is_back).await?;
    assert_eq!((row.attempt_count, row.is_in_doubt), (0, false), "{row:?}");
    assert!(row.last_error.is_some(), "{row:?}");
    stranger.stop()?;
    let restored = format!(
        "update {accounts} as account set sealed_secret = kept.sealed_secret from kept where kept.id = account.id"
    );
    execute(&bots.admin, restored).await?;
    bots.make_due().await?;
    let right = Serving::start(&bots.world, "dispatcher", SOON)?;
    bots.ends(reply, "sent").await?;
    assert_eq!(acted(&sim, Vendor::Telegram, 1)?, 1);
    right.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_that_is_told_to_stop_holds_nothing_and_repeats_nothing() -> anyhow::Result<()> {
    const REPLIES: u32 = 200;
    let (sim, bots) = stage(&["--fault", "latency=1", "--latency-ms", "300"]).await?;
    for n in 0..REPLIES {
        bots.reply(VENDORS[n as usize % 3], n).await?;
    }
    let narrow = format!("{OFTEN}account_concurrency = 5\n");
    let first = Serving::start(&bots.world, "dispatcher", &narrow)?;
    eventually("calls are under way", async || Ok(sim.receipts()?.len() >= 20)).await?;
    first.stop()?;
    let sent = bots.count("select count(*) from channels.channel_outbox where status = 'sent'").await?;
    assert_eq!(sent, sim.receipts()?.len() as i64, "what was called was written down");
    assert!(sent < i64::from(REPLIES), "void: nothing was left");
    let touched = "select count(*) from channels.channel_outbox where status <> 'sent'
                    and (status <> 'pending' or in_doubt_since is not null or attempt_count > 0)";
    assert_eq!(bots.count(touched).await?, 0);

    let second = Serving::start(&bots.world, "dispatcher", OFTEN)?;
    eventually("everything is sent", async || {
        let left = "select count(*) from channels.channel_outbox where status <> 'sent'";
        Ok(bots.count(left).await? == 0)
    })
    .await?;
    let receipts = sim.receipts()?;
    for n in 0..REPLIES {
        let text = text(VENDORS[n as usize % 3], n);
        assert_eq!(receipts.iter().filter(|receipt| receipt["text"] == text).count(), 1, "{text}");
    }
    second.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_is_not_left_to_the_poll() -> anyhow::Result<()> {
    let (sim, bots) = stage(&[]).await?;
    let seldom = "poll_interval_seconds = 60\n";
    let server = Serving::start(&bots.world, "api", seldom)?;
    let dispatcher = Serving::start(&bots.world, "dispatcher", seldom)?;
    for n in 1..=5 {
        assert_eq!(deliver(&bots, &server.http_url, Vendor::Slack, n), Some(200));
        eventually("it is sent", async || Ok(acted(&sim, Vendor::Slack, n)? == 1)).await?;
        let unsettled = "select count(*) from channels.channel_outbox where status <> 'sent'";
        eventually("it is settled", async || Ok(bots.count(unsettled).await? == 0)).await?;
    }
    // Each reply came after the one before it was sent, so polls would have needed four minutes.
    let polled = "select (max(sent_at) - min(created_at) > interval '2 minutes')::int::bigint from channels.channel_outbox";
    assert_eq!(bots.count(polled).await?, 0);
    dispatcher.stop()?;
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_wait_where_nothing_sends_them() -> anyhow::Result<()> {
    let (sim, bots) = stage(&[]).await?;
    let reply = bots.reply(Vendor::Slack, 1).await?;
    let idle = Serving::start(&bots.world, "api,dispatcher", "enabled = false\n")?;
    assert_eq!(deliver(&bots, &idle.http_url, Vendor::Slack, 2), Some(200));
    idle.stop()?;
    assert_eq!((bots.row(reply).await?.claims, sim.receipts()?.len()), (0, 0));
    let dispatcher = Serving::start(&bots.world, "dispatcher", OFTEN)?;
    bots.ends(reply, "sent").await?;
    dispatcher.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_say_what_waits_and_for_how_long() -> anyhow::Result<()> {
    let (_sim, bots) = stage(&[]).await?;
    for n in 0..10 {
        bots.reply(Vendor::Telegram, n).await?;
    }
    // Of ages between nothing and two hours, not due, some tried before, some in doubt, and one dead.
    execute(
        &bots.admin,
        "begin;
         set local session_replication_role = replica;
         with numbered as (select id, row_number() over (order by id) as n from channels.channel_outbox)
         update channels.channel_outbox as reply
            set next_attempt_at = now() + interval '1 hour',
                created_at = now() - case when n <= 2 then interval '2 hours' when n <= 5 then interval '20 minutes'
                                          when n <= 9 then interval '2 minutes' else interval '0' end,
                attempt_count = case when n <= 4 then 2 else 0 end,
                in_doubt_since = case when n <= 3 then now() end,
                status = case when n = 9 then 'dead' else 'pending' end
           from numbered where numbered.id = reply.id;
         commit",
    )
    .await?;
    let dispatcher = Serving::start(&bots.world, "dispatcher", OFTEN)?;
    let gauges = [
        ("postrider_replies_pending", "older_than_seconds=\"0\"", 9.0),
        ("postrider_replies_pending", "older_than_seconds=\"60\"", 8.0),
        ("postrider_replies_pending", "older_than_seconds=\"600\"", 5.0),
        ("postrider_replies_pending", "older_than_seconds=\"3600\"", 2.0),
        ("postrider_replies_due", "", 0.0),
        ("postrider_replies_retrying", "", 4.0),
        ("postrider_replies_in_doubt", "", 3.0),
        ("postrider_replies_dead", "", 1.0),
        ("postrider_messages_unfinished", "", 0.0),
    ];
    eventually("they are measured", async || {
        Ok(dispatcher.metric("postrider_messages_unfinished", &[])?.is_some())
    })
    .await?;
    for (name, label, expected) in gauges {
        assert_eq!(dispatcher.metric(name, &[label])?, Some(expected), "{name} {label}");
    }
    let oldest = dispatcher.metric("postrider_replies_oldest_seconds", &[])?.unwrap_or_default();
    assert!((7200.0..7200.0 + Duration::from_secs(600).as_secs_f64()).contains(&oldest), "{oldest}");
    dispatcher.stop()
}

//! One vendor is away while ten thousand replies wait for it: it is knocked at now and then, the others do not notice, and afterwards
//! everything arrives, once.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use anyhow::Context;
use jiff::Timestamp;
use serde_json::json;

use super::{
    bots::{Bots, Serving, control},
    ingress::vendors::Vendor,
};
use crate::{
    sql::execute,
    world::{PATIENCE, Sim},
};

const REPLIES: u32 = 10_000;
const DISPATCHERS: usize = 2;
/// Knocks are counted in windows of so many seconds.
const WINDOW_SECONDS: i64 = 4;
/// Before anybody knows that the vendor is away, as many call as may. That is the first burst, and it is over after so long.
const BURST_SECONDS: i64 = 6;
/// Replies of other vendors that are sent during an outage, at least.
const OTHERS_MIN: u32 = 10;

/// How the vendor is away, and for how long.
struct Outage {
    kind: &'static str,
    seconds: i64,
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_replies_outlive_an_outage() -> anyhow::Result<()> {
    outlives(&Outage { kind: "unavailable", seconds: 20 }).await
}

/// Part of `make crash-replies`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: make crash-replies"]
async fn ten_thousand_replies_outlive_every_outage_of_a_minute() -> anyhow::Result<()> {
    for kind in ["unavailable", "reset", "silence"] {
        outlives(&Outage { kind, seconds: 60 }).await.with_context(|| kind.to_owned())?;
    }
    Ok(())
}

async fn outlives(outage: &Outage) -> anyhow::Result<()> {
    let sim = Sim::start(&["--stall-seconds", "600"])?;
    let bots = Bots::new(&sim.http_url).await?;
    control(&sim, "/outages", &json!({ "slack": outage.kind }))?;
    enqueue(&bots).await?;
    // A call that is never answered is given up within a window.
    let settings = "call_timeout_seconds = 2\npoll_interval_seconds = 0.2\n";
    let dispatchers = (0..DISPATCHERS)
        .map(|_| Serving::start(&bots.world, "dispatcher", settings))
        .collect::<Result<Vec<_>, _>>()?;
    // Starting takes its time, and each dispatcher has a first burst.
    let began = Timestamp::now();

    // Others go on meanwhile: each is sent before the next one is written. A slow machine needs longer for them.
    let (mut others, last) = (0, Duration::from_secs(outage.seconds.unsigned_abs()));
    while others < OTHERS_MIN || Timestamp::now().duration_since(began).unsigned_abs() < last {
        let reply = bots.reply(Vendor::Telegram, others).await?;
        bots.ends(reply, "sent").await?;
        others += 1;
    }
    anyhow::ensure!(sent_by_slack(&bots).await? == 0, "void: there was no outage");
    let over = Timestamp::now();
    control(&sim, "/outages", &json!({}))?;
    everything_arrives(&bots).await?;
    dispatchers.into_iter().try_for_each(Serving::stop)?;

    let knocks = knocks(&sim, began, over)?;
    let (peak, mean) =
        (*knocks.iter().max().unwrap_or(&0), knocks.iter().sum::<usize>() as f64 / knocks.len() as f64);
    eprintln!(
        "{} for {} s: {} knocks, {knocks:?} in each {WINDOW_SECONDS} s after the first burst, {:.1} a second; {others} others sent meanwhile",
        outage.kind,
        outage.seconds,
        turned_away(&sim)?.len(),
        mean / WINDOW_SECONDS as f64,
    );
    anyhow::ensure!(knocks.len() >= 3 && mean >= 1.0, "void: nobody knocked: {knocks:?}");
    // Each dispatcher knocks once a second at most. A machine that stands still for a while knocks less, and that is no burst afterwards.
    let (steady, most) = (DISPATCHERS as i64 * WINDOW_SECONDS, DISPATCHERS as i64 * (WINDOW_SECONDS + 1));
    let is_even = peak as f64 <= 2.0 * mean || peak as i64 <= steady;
    anyhow::ensure!(is_even, "the peak is {peak}, the mean {mean}: {knocks:?}");
    anyhow::ensure!(peak as i64 <= most, "{peak} knocks in {WINDOW_SECONDS} s, at most {most}: {knocks:?}");
    once_each(&bots, &sim, others).await
}

/// Messages that were executed, with replies that are due.
async fn enqueue(bots: &Bots) -> anyhow::Result<()> {
    let (tenant, account) = (bots.tenant.0, bots.account(Vendor::Slack).0);
    let sql = format!(
        "begin;
         set local session_replication_role = replica;
         create temporary table made on commit drop as
             select gen_random_uuid() as id, gen_random_uuid() as reply, gen_random_uuid() as correlation, n
               from generate_series(1, {REPLIES}) as n;
         insert into channels.channel_messages
                (id, tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, text, status, executions,
                 correlation_id)
         select id, '{tenant}', '{account}', 'slack', 'bulk ' || n, 'ada', 'C' || n, 'bulk ' || n, 'executed', 1, correlation
           from made;
         insert into channels.channel_outbox
                (id, tenant_id, channel_message_id, account_id, provider, recipient_id, payload, correlation_id)
         select reply, '{tenant}', id, '{account}', 'slack', 'C' || n, jsonb_build_object('text', 'bulk ' || n), correlation
           from made;
         commit;
         analyze channels.channel_messages, channels.channel_outbox"
    );
    Ok(execute(&bots.admin, sql).await?)
}

async fn sent_by_slack(bots: &Bots) -> anyhow::Result<i64> {
    bots.count("select count(*) from channels.channel_outbox where provider = 'slack' and status = 'sent'")
        .await
}

/// Waits for as long as more and more is sent.
async fn everything_arrives(bots: &Bots) -> anyhow::Result<()> {
    let (mut seen, mut last) = (-1, Instant::now());
    loop {
        let sent = sent_by_slack(bots).await?;
        if sent == i64::from(REPLIES) {
            return Ok(());
        }
        if sent > seen {
            (seen, last) = (sent, Instant::now());
        }
        let dead = bots.count("select count(*) from channels.channel_outbox where status = 'dead'").await?;
        anyhow::ensure!(dead == 0, "{dead} replies are dead");
        anyhow::ensure!(last.elapsed() < PATIENCE, "it does not end: {seen} are sent");
        tokio::time::sleep(Duration::from_millis(100)).await; // between two looks, never instead of one
    }
}

/// When the vendor that was away was knocked at, by its own record.
fn turned_away(sim: &Sim) -> anyhow::Result<Vec<Timestamp>> {
    let receipts = sim.receipts()?;
    let away =
        receipts.iter().filter(|receipt| receipt["provider"] == "slack" && receipt["outage"].is_string());
    away.map(|receipt| Ok(receipt["at"].as_str().context("no time")?.parse()?)).collect()
}

/// How often in each whole window between the first burst and the end.
fn knocks(sim: &Sim, began: Timestamp, over: Timestamp) -> anyhow::Result<Vec<usize>> {
    let times = turned_away(sim)?;
    let since = |time: Timestamp| time.duration_since(began).as_millis() - i128::from(BURST_SECONDS) * 1000;
    let window = i128::from(WINDOW_SECONDS) * 1000;
    let mut counts = vec![0; usize::try_from(since(over).max(0) / window)?];
    for time in times.into_iter().filter(|time| since(*time) >= 0) {
        if let Some(count) = counts.get_mut(usize::try_from(since(time) / window)?) {
            *count += 1;
        }
    }
    Ok(counts)
}

/// Every reply has one receipt, and nothing else has.
async fn once_each(bots: &Bots, sim: &Sim, others: u32) -> anyhow::Result<()> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for receipt in sim.receipts()?.iter().filter(|receipt| receipt["acted"] == true) {
        *counts.entry(receipt["text"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
    }
    let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).take(5).collect();
    anyhow::ensure!(twice.is_empty(), "some arrived more than once: {twice:?}");
    let missing: Vec<_> = (1..=REPLIES)
        .map(|n| format!("bulk {n}"))
        .filter(|text| !counts.contains_key(text))
        .take(5)
        .collect();
    anyhow::ensure!(missing.is_empty(), "some never arrived: {missing:?}");
    anyhow::ensure!(counts.len() == (REPLIES + others) as usize, "{} arrived", counts.len());
    let left = bots.count("select count(*) from channels.channel_outbox where status <> 'sent'").await?;
    anyhow::ensure!(left == 0, "{left} replies are not sent");
    Ok(())
}

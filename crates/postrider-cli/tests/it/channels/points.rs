//! A process dies at every place that a message passes on its way in and a reply on its way out, or panics there, alone, and the next
//! process finishes what it left.
#![cfg(debug_assertions)]

use postrider_store::postgres::crash::{RECEIVING_POINTS, REPLY_POINTS};
use uuid::Uuid;

use super::{
    bots::{Bots, OFTEN, Serving, acted, deliver, launch},
    ingress::vendors::Vendor::{self, Slack, Telegram, Whatsapp},
};
use crate::{
    exits::{Exit, all, all_are_tried},
    world::{Sim, eventually},
};

/// Where whoever receives dies, and how often the message is executed.
const RECEIVING: &[(&str, i64)] = &[
    ("receive.before", 1),
    ("receive.after_statement", 1),
    // It was written down, and its time runs.
    ("receive.after_commit", 2),
    ("enqueue.before", 2),
    ("enqueue.after_statement", 2),
    // The reply is in the outbox, and only the answer was lost.
    ("enqueue.after_commit", 1),
];

/// How often it is claimed and how often the vendor acts.
type Ends = [(Vendor, i32, usize); 3];

/// Where the dispatcher dies, and what follows for each vendor. Only between the call and the commit of what became of it is there
/// anything to be called twice: Slack is asked, WhatsApp tells, and Telegram can do neither. A reply that may have been sent and was not is
/// claimed once more where the vendor has time to report.
const REPLYING: &[(&str, Ends)] = &[
    ("reply.before_claim", [(Slack, 1, 1), (Telegram, 1, 1), (Whatsapp, 1, 1)]),
    ("reply.claimed", [(Slack, 1, 1), (Telegram, 1, 1), (Whatsapp, 1, 1)]),
    ("reply.after_claim", [(Slack, 2, 1), (Telegram, 2, 1), (Whatsapp, 3, 1)]),
    ("reply.before_call", [(Slack, 2, 1), (Telegram, 2, 1), (Whatsapp, 3, 1)]),
    ("reply.after_call", [(Slack, 2, 1), (Telegram, 2, 2), (Whatsapp, 2, 1)]),
    ("reply.before_settling", [(Slack, 2, 1), (Telegram, 2, 2), (Whatsapp, 2, 1)]),
    ("reply.settled", [(Slack, 2, 1), (Telegram, 2, 2), (Whatsapp, 2, 1)]),
    ("reply.after_settling", [(Slack, 1, 1), (Telegram, 1, 1), (Whatsapp, 1, 1)]),
];

/// The only reply there is.
async fn reply_of(bots: &Bots) -> anyhow::Result<Uuid> {
    Ok(sqlx::query_scalar("select id from channels.channel_outbox").fetch_one(&bots.admin).await?)
}

/// Invariants at the end, after the death of any process.
async fn check(bots: &Bots) -> anyhow::Result<()> {
    let message =
        "select count(*) from channels.channel_messages where status = 'executed' and leased_until is null";
    anyhow::ensure!(bots.count(message).await? == 1, "the message is not executed");
    anyhow::ensure!(bots.count("select count(*) from channels.channel_messages").await? == 1);
    anyhow::ensure!(bots.count("select count(*) from channels.channel_outbox").await? == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_message_is_executed_and_answered_wherever_its_receiver_dies() -> anyhow::Result<()> {
    all_are_tried(RECEIVING_POINTS, RECEIVING.iter().map(|(point, _)| *point));
    receivers(Exit::Kill).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_message_is_executed_and_answered_wherever_its_receiver_panics() -> anyhow::Result<()> {
    receivers(Exit::PanicOfOne).await
}

async fn receivers(by: Exit) -> anyhow::Result<()> {
    let cases = RECEIVING.iter().flat_map(|(point, executions)| {
        // The vendor delivers it again, or has better things to do; what was not written down was not promised.
        let is_known = !["receive.before", "receive.after_statement"].contains(point);
        [Some(true), is_known.then_some(false)].into_iter().flatten().map(move |comes_again| {
            (format!("{point}, again: {comes_again}"), receiver_dies(point, by, *executions, comes_again))
        })
    });
    all(cases).await
}

async fn receiver_dies(
    point: &'static str,
    by: Exit,
    executions: i64,
    comes_again: bool,
) -> anyhow::Result<()> {
    let sim = Sim::start(&[])?;
    let bots = Bots::new(&sim.http_url).await?;
    let (victim, config) = launch(&bots.world, "api", OFTEN, &by.environment(point))?;
    let mut victim = Serving::of(victim, config)?;
    let answer = deliver(&bots, &victim.http_url, Slack, 1);
    anyhow::ensure!(answer == (by != Exit::Kill).then_some(500), "{answer:?}");
    by.ended(&mut victim.process)?;

    let next = Serving::start(&bots.world, "api,dispatcher", OFTEN)?;
    if comes_again {
        anyhow::ensure!(deliver(&bots, &next.http_url, Slack, 1) == Some(200));
    }
    bots.age().await?;
    eventually("there is a reply", async || {
        Ok(bots.count("select count(*) from channels.channel_outbox").await? == 1)
    })
    .await?;
    bots.ends(reply_of(&bots).await?, "sent").await?;
    check(&bots).await?;
    anyhow::ensure!(deliver(&bots, &next.http_url, Slack, 1) == Some(200), "it is known");
    let counted = bots.count("select executions::bigint from channels.channel_messages").await?;
    anyhow::ensure!(counted == executions, "executed {counted} times, expected {executions}");
    next.stop()?;
    anyhow::ensure!(acted(&sim, Slack, 1)? == 1);
    check(&bots).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_reply_is_sent_wherever_its_dispatcher_dies() -> anyhow::Result<()> {
    all_are_tried(REPLY_POINTS, REPLYING.iter().map(|(point, _)| *point));
    dispatchers(|_| Exit::Kill).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_reply_is_sent_wherever_its_dispatcher_panics() -> anyhow::Result<()> {
    dispatchers(|point| if point.ends_with("_call") { Exit::PanicOfOne } else { Exit::Panic }).await
}

async fn dispatchers(by: fn(&str) -> Exit) -> anyhow::Result<()> {
    let cases = REPLYING.iter().flat_map(|(point, ends)| {
        ends.iter().map(move |(vendor, claims, acts)| {
            (format!("{point}, {vendor:?}"), dispatcher_dies(point, by(point), *vendor, *claims, *acts))
        })
    });
    all(cases).await
}

async fn dispatcher_dies(
    point: &'static str,
    by: Exit,
    vendor: Vendor,
    claims: i32,
    acts: usize,
) -> anyhow::Result<()> {
    let sim = Sim::start(&[])?;
    let bots = Bots::new(&sim.http_url).await?;
    let ear = if vendor == Whatsapp { Some(Serving::start(&bots.world, "api", OFTEN)?) } else { None };
    if let Some(ear) = &ear {
        bots.report_to(&sim, &ear.http_url)?;
    }
    let reply = bots.reply(vendor, 1).await?;
    let (mut victim, _config) = launch(&bots.world, "dispatcher", OFTEN, &by.environment(point))?;
    by.ended(&mut victim)?;
    bots.no_dispatcher_runs().await?;
    let called = acted(&sim, vendor, 1)?;
    if ear.is_some() && called > 0 {
        bots.until(reply, "WhatsApp tells", |row| row.delivery_status.as_deref() == Some("delivered"))
            .await?;
    }
    bots.age().await?;
    let next = Serving::start(&bots.world, "dispatcher", OFTEN)?;
    if claims == 3 {
        bots.until(reply, "it waits", |row| row.claims == 2 && row.status == "pending").await?;
        bots.make_due().await?;
    }
    let row = bots.ends(reply, "sent").await?;
    anyhow::ensure!(row.claims == claims && !row.is_in_doubt, "{row:?}, expected {claims} claims");
    next.stop()?;
    let acted = acted(&sim, vendor, 1)?;
    anyhow::ensure!(acted == acts, "{vendor:?} acted {acted} times, expected {acts}");
    check(&bots).await
}

//! A dispatcher that stood still for too long: what it has to say afterwards changes nothing.

use postrider_testkit::crash::freeze;
use serde_json::{Value, json};

use crate::{
    channels::{
        bots::{Bots, OFTEN, Serving, acted, received, snapshot},
        ingress::vendors::Vendor,
    },
    world::{PATIENCE, Sim, eventually},
};

const LATE: (&str, &str) = ("postrider_replies_total", "as=\"late\"");

/// A rule for the next call at this vendor.
fn next_call(vendor: Vendor, fault: &str) -> Value {
    json!({ "provider": vendor.name(), "fault": fault, "times": 1, "on": "send" })
}

/// A rule for the next call: its answer is held until the rules are set again.
fn held(vendor: Vendor) -> Value {
    let mut rule = next_call(vendor, "latency");
    rule["hold"] = json!(true);
    rule
}

#[tokio::test(flavor = "multi_thread")]
async fn the_late_result_of_a_stale_dispatcher_changes_nothing() -> anyhow::Result<()> {
    // It hears that all went well, or that nobody knows; and its successor has called again, or has only asked.
    for (vendor, rule, acts) in
        [(Vendor::Telegram, held(Vendor::Telegram), 2), (Vendor::Slack, next_call(Vendor::Slack, "stall"), 1)]
    {
        // Longer than the dispatcher waits.
        let sim = Sim::start(&["--stall-seconds", "600"])?;
        let bots = Bots::new(&sim.http_url).await?;
        sim.set_rules(&json!([rule]))?;
        let stale = Serving::start(&bots.world, "dispatcher", OFTEN)?;
        let reply = bots.reply(vendor, 1).await?;
        eventually("the call is held", async || Ok(received(&sim, vendor, 1)?.len() == 1)).await?;
        tokio::task::block_in_place(|| freeze(&stale.process))?;
        let held = bots.row(reply).await?;
        assert_eq!(
            (held.status.as_str(), held.claims),
            ("sending", 1),
            "void: it was over before it was stopped"
        );

        bots.age().await?;
        let fresh = Serving::start(&bots.world, "dispatcher", OFTEN)?;
        let sent = bots.ends(reply, "sent").await?;
        assert_eq!((sent.claims, acted(&sim, vendor, 1)?), (2, acts), "{sent:?}");
        fresh.stop()?;
        let before = snapshot(&bots.admin, "channels.channel_outbox").await?;
        sim.release()?;
        stale.process.signal("CONT")?;
        eventually("it tells what it knows", async || Ok(stale.metric(LATE.0, &[LATE.1])? == Some(1.0)))
            .await?;
        let after = snapshot(&bots.admin, "channels.channel_outbox").await?;
        assert_eq!(before, after, "{vendor:?}");
        bots.told(&stale, "the result of an attempt came too late", &sent)?;
        stale.stop()?;
        assert_eq!(acted(&sim, vendor, 1)?, acts);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_counts_for_its_own_claim_and_not_for_the_next_one() -> anyhow::Result<()> {
    // The same dispatcher takes the reply up again while its first call is still under way.
    let sim = Sim::start(&[])?;
    let bots = Bots::new(&sim.http_url).await?;
    let longer = 2 * u64::try_from(PATIENCE.as_millis())?;
    let mut second = next_call(Vendor::Telegram, "latency");
    second["delay_ms"] = json!(longer);
    sim.set_rules(&json!([held(Vendor::Telegram), second]))?;
    let settings = format!("{OFTEN}call_timeout_seconds = 120\nlock_timeout_seconds = 250\n");
    let dispatcher = Serving::start(&bots.world, "dispatcher", &settings)?;
    let reply = bots.reply(Vendor::Telegram, 1).await?;
    eventually("the first call is held", async || Ok(received(&sim, Vendor::Telegram, 1)?.len() == 1))
        .await?;
    bots.age().await?;
    eventually("the second call is held", async || Ok(received(&sim, Vendor::Telegram, 1)?.len() == 2))
        .await?;
    let held = bots.row(reply).await?;
    assert_eq!((held.status.as_str(), held.claims), ("sending", 2), "{held:?}");
    sim.release()?;
    eventually("the first call ends", async || Ok(dispatcher.metric(LATE.0, &[LATE.1])? == Some(1.0)))
        .await?;
    assert_eq!(bots.row(reply).await?, held, "the second is still under way");
    Ok(())
}

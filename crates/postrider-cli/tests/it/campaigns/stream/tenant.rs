//! The stream of a tenant: its overview, and the events of several campaigns.

use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Stage, bounds::resident_mb, campaign, client::Message, client::Reading, write};
use crate::{
    api::{Tenant, material},
    sql::execute,
    world::eventually,
};

/// A stream of the tenant that follows campaigns after these numbers.
async fn open(stage: &Stage, tenant: &Tenant, campaigns: &[(Uuid, i64)]) -> anyhow::Result<Reading> {
    let query: Vec<String> = campaigns.iter().map(|(id, after)| format!("campaign={id}:{after}")).collect();
    let path = format!("/api/v2/stream?{}", query.join("&"));
    Reading::open(stage.url(), &path, &tenant.viewer, &[]).await
}

/// The next message with this name; others are passed over.
async fn named(reading: &mut Reading, name: &str) -> anyhow::Result<Value> {
    loop {
        let message = reading.next().await?.context("the stream has ended")?;
        anyhow::ensure!(message.id.is_none(), "a message of this stream has no id: {message:?}");
        if message.event.as_deref() == Some(name) {
            return message.json();
        }
    }
}

/// The next event of some campaign: its id and its sequence.
async fn event(reading: &mut Reading) -> anyhow::Result<(Uuid, i64)> {
    let event = named(reading, "campaign").await?;
    let id = event["campaignId"].as_str().context("no campaign")?.parse()?;
    Ok((id, event["sequence"].as_i64().context("no sequence")?))
}

#[tokio::test]
async fn a_stream_begins_with_a_greeting_and_the_overview() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let mut reading = open(&stage, &stage.api.acme, &[]).await?;
    assert_eq!(reading.status, 200);
    assert_eq!(reading.header("content-type"), Some("text/event-stream"));
    let hello = reading.next().await?.unwrap();
    let greeting = hello.json()?;
    assert_eq!(hello.event.as_deref(), Some("hello"));
    assert_eq!(greeting["version"], env!("CARGO_PKG_VERSION"));
    assert!(greeting["time"].as_str().is_some_and(|time| time.parse::<jiff::Timestamp>().is_ok()));
    assert_eq!(greeting["retry"].as_u64(), hello.retry);
    assert!(hello.retry.is_some_and(|retry| (1000..=3000).contains(&retry)), "{hello:?}");

    let first = reading.next().await?.unwrap();
    assert_eq!(first.event.as_deref(), Some("overview"));
    let mut streamed = first.json()?;
    let mut asked = stage.api.get(&stage.api.acme.viewer, "/overview")?.expect(200)?;
    assert_eq!(streamed["late"], false);
    assert_eq!(streamed["phases"]["not_started"], 1);
    for overview in [&mut streamed, &mut asked] {
        overview.as_object_mut().unwrap().remove("late");
        overview["at"] = Value::Null;
    }
    assert_eq!(streamed, asked);

    let mut second = open(&stage, &stage.api.acme, &[]).await?;
    named(&mut second, "hello").await?;
    named(&mut second, "overview").await?;
    Ok(())
}

#[tokio::test]
async fn a_change_comes_with_the_lists_that_have_changed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let acme = &stage.api.acme;
    let mut reading = open(&stage, acme, &[]).await?;
    assert_eq!(named(&mut reading, "overview").await?["phases"]["in_progress"], 0);
    stage.write(1).await?;
    let overview = named(&mut reading, "overview").await?;
    assert_eq!(
        (&overview["phases"]["in_progress"], &overview["phases"]["not_started"]),
        (&json!(1), &json!(0))
    );
    // A change of a campaign is published as a domain event, too.
    assert_eq!(named(&mut reading, "changed").await?["topics"], json!(["campaigns", "events"]));

    material::account(&stage.api, acme).await?;
    assert_eq!(named(&mut reading, "overview").await?["accounts"]["total"], 1);
    assert_eq!(named(&mut reading, "changed").await?["topics"], json!(["accounts"]));
    let (_, item) = material::doubt(&stage.api, acme, "doubted").await?;
    loop {
        let changed = named(&mut reading, "changed").await?;
        if changed["topics"].as_array().is_some_and(|topics| topics.contains(&json!("in_doubt"))) {
            break;
        }
    }
    let overview = stage.api.get(&acme.viewer, "/overview")?.expect(200)?;
    assert_eq!(overview["items"]["in_doubt"], 1);
    let path = format!("/in-doubt/{item}/resolve");
    stage.api.post(&acme.operator, &path, &json!({ "as": "sent", "note": "it is there" }))?.expect(200)?;
    while named(&mut reading, "overview").await?["items"]["in_doubt"] != 0 {}
    assert!(named(&mut reading, "changed").await?["topics"].to_string().contains("in_doubt"));
    Ok(())
}

#[tokio::test]
async fn the_events_of_several_campaigns_are_exact_after_every_reconnect() -> anyhow::Result<()> {
    const EVENTS: i64 = 300;
    let stage = Stage::new().await?;
    let acme = &stage.api.acme;
    let other = campaign(&stage.app, acme, "autumn").await?;
    let campaigns = [stage.campaign, other];
    let writing = async {
        for n in 0..EVENTS {
            // More than a page at once, now and then.
            write(&stage.app, acme, campaigns[usize::try_from(n % 2)?], if n % 50 == 0 { 140 } else { 1 })
                .await?;
        }
        anyhow::Ok(())
    };
    let mut known = [0, 0];
    let reading = async {
        let mut read = 0;
        loop {
            let positions: Vec<_> = campaigns.into_iter().zip(known).collect();
            let mut reading = open(&stage, acme, &positions).await?;
            for _ in 0..(7 + read % 60) {
                let (id, sequence) = event(&mut reading).await?;
                let at = usize::from(id == other);
                assert_eq!((id, sequence), (campaigns[at], known[at] + 1));
                known[at] = sequence;
                read += 1;
                if known.iter().sum::<i64>() == EVENTS / 50 * 140 + EVENTS - EVENTS / 50 {
                    return anyhow::Ok(());
                }
            }
        }
    };
    tokio::try_join!(writing, reading)?;
    Ok(())
}

#[tokio::test]
async fn a_campaign_that_needs_a_snapshot_leaves_the_stream_which_goes_on() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let acme = &stage.api.acme;
    let other = campaign(&stage.app, acme, "autumn").await?;
    let third = campaign(&stage.app, acme, "winter").await?;
    stage.write_at_once(30).await?;
    stage.prune(10).await?;
    write(&stage.app, acme, other, 3).await?;
    let mut reading = open(&stage, acme, &[(stage.campaign, 4), (other, 0), (third, 9)]).await?;
    let mut lost = Vec::new();
    for _ in 0..2 {
        let message = named(&mut reading, "snapshot_required").await?;
        lost.push((message["campaignId"].clone(), message["reason"].clone()));
    }
    assert_eq!(lost, [(json!(stage.campaign), json!("pruned")), (json!(third), json!("ahead"))]);
    for expected in 1..=3 {
        assert_eq!(event(&mut reading).await?, (other, expected));
    }
    // The history of the other one is put back by a restored copy; what follows is about the tenant alone.
    let put_back = format!(
        "begin;
         set local session_replication_role = replica;
         delete from execution.campaign_events where campaign_id = '{other}' and sequence > 1;
         update execution.campaigns set sequence = 1 where id = '{other}';
         commit"
    );
    execute(&stage.api.admin, put_back).await?;
    let message = named(&mut reading, "snapshot_required").await?;
    assert_eq!((&message["campaignId"], &message["reason"]), (&json!(other), &json!("ahead")));
    write(&stage.app, acme, third, 1).await?;
    // The first overview may be of the time before the change.
    let mut in_progress = Value::Null;
    for _ in 0..5 {
        in_progress = named(&mut reading, "overview").await?["phases"]["in_progress"].clone();
        if in_progress == 2 {
            break;
        }
    }
    assert_eq!(in_progress, 2);
    Ok(())
}

#[tokio::test]
async fn no_stream_is_silent_for_longer_than_fifteen_seconds() -> anyhow::Result<()> {
    let stage = Stage::with("keep_alive_seconds = 3600").await?;
    let mut reading = open(&stage, &stage.api.acme, &[(stage.campaign, 0)]).await?;
    named(&mut reading, "overview").await?;
    let since = Instant::now();
    let next: Message = reading.next().await?.context("it has ended")?;
    assert_eq!(next.event.as_deref(), Some("overview"));
    assert!(since.elapsed() < Duration::from_secs(17), "{:?}", since.elapsed());
    // Without a change there was no reason to send one before.
    assert!(since.elapsed() > Duration::from_secs(10), "{:?}", since.elapsed());
    Ok(())
}

#[tokio::test]
async fn numbers_that_cannot_be_read_in_time_are_marked_as_late() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let acme = &stage.api.acme;
    let mut reading = open(&stage, acme, &[]).await?;
    let first = named(&mut reading, "overview").await?;
    let mut lock = stage.api.admin.begin().await?;
    execute(&mut *lock, "lock table jobs.sync_errors in access exclusive mode").await?;
    let late = named(&mut reading, "overview").await?;
    assert_eq!((&late["late"], &late["phases"]), (&json!(true), &first["phases"]));
    stage.api.get(&acme.viewer, "/overview")?.problem(503)?;
    lock.rollback().await?;
    let fresh = named(&mut reading, "overview").await?;
    assert_eq!(fresh["late"], false);
    assert!(fresh["at"].as_str() > late["at"].as_str());
    Ok(())
}

#[tokio::test]
async fn a_thousand_readers_cost_one_overview_per_interval() -> anyhow::Result<()> {
    const READERS: usize = 1000;
    const READ: &str = "postrider_stream_overviews_total{result=\"read\"}";
    let stage = Stage::with("readers_per_tenant_max = 2000\nkeep_alive_seconds = 1").await?;
    let acme = &stage.api.acme;
    let pid = stage.api.server.process.child.id();
    let idle = resident_mb(pid)?;
    let mut readings = Vec::new();
    for _ in 0..READERS {
        readings.push(open(&stage, acme, &[(stage.campaign, 0)]).await?);
    }
    for reading in &mut readings {
        named(reading, "overview").await?;
    }
    let (before, since) = (stage.meter(READ)?, Instant::now());
    for round in 1..=3 {
        stage.write(1).await?;
        for reading in &mut readings {
            assert_eq!(event(reading).await?, (stage.campaign, round));
        }
        // Each reader gets the newest overview, at least every second.
        for reading in &mut readings {
            named(reading, "overview").await?;
        }
    }
    let read = stage.meter(READ)? - before;
    let intervals = since.elapsed().as_secs_f64() / 2.0;
    assert!(read <= intervals + 1.0, "{read} overviews were read in {intervals} intervals");
    assert_eq!(stage.meter("postrider_stream_readers")?, READERS as f64);
    let grown = resident_mb(pid)? - idle;
    assert!(grown < 100.0, "{READERS} readers took {grown} MB");
    drop(readings);
    eventually("they have left", async || Ok(stage.meter("postrider_stream_readers")? == 0.0)).await?;
    // Without readers there are no queries: the next reader causes the next one.
    let left = stage.meter(READ)?;
    let mut last = open(&stage, acme, &[]).await?;
    named(&mut last, "overview").await?;
    assert!(stage.meter(READ)? <= left + 2.0);
    Ok(())
}

#[tokio::test]
async fn a_tenant_s_stream_is_about_its_own_things_and_ends_with_its_key() -> anyhow::Result<()> {
    let stage = Stage::with("keep_alive_seconds = 1").await?;
    let other = stage.api.tenant("globex").await?;
    stage.write(3).await?;
    let answer_to = |campaign: &str| -> anyhow::Result<(u16, Value)> {
        let reply = stage.api.get(&other.admin, &format!("/stream?campaign={campaign}"))?;
        let mut body = reply.json()?;
        body.as_object_mut().unwrap().remove("request_id");
        Ok((reply.status, body))
    };
    let unknown = answer_to(&format!("{}:0", Uuid::now_v7()))?;
    assert_eq!(unknown.0, 404);
    for position in ["0", "3", "9223372036854775807"] {
        assert_eq!(answer_to(&format!("{}:{position}", stage.campaign))?, unknown, "{position}");
    }
    assert_eq!(answer_to("no-id:0")?, unknown);

    let mut theirs = open(&stage, &other, &[]).await?;
    assert_eq!(named(&mut theirs, "overview").await?["phases"]["in_progress"], 0);
    let mut own = open(&stage, &stage.api.acme, &[(stage.campaign, 0)]).await?;
    assert_eq!(named(&mut own, "overview").await?["phases"]["in_progress"], 1);
    let revoke = "update tenancy.api_keys set revoked_at = now() where role = 'viewer'";
    execute(&stage.api.admin, revoke).await?;
    for reading in [&mut own, &mut theirs] {
        assert_eq!(named(reading, "bye").await?["reason"], "key");
        assert_eq!(reading.next().await?, None);
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_ends_says_goodbye_to_readers_of_the_tenant_s_stream() -> anyhow::Result<()> {
    let mut stage = Stage::new().await?;
    let mut reading = open(&stage, &stage.api.acme, &[(stage.campaign, 0)]).await?;
    named(&mut reading, "overview").await?;
    stage.api.server.process.signal("TERM")?;
    assert_eq!(named(&mut reading, "bye").await?["reason"], "shutdown");
    assert_eq!(stage.api.server.process.wait()?.code(), Some(0));
    Ok(())
}

#[tokio::test]
async fn a_position_that_cannot_be_read_is_refused_and_named() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let key = &stage.api.acme.viewer;
    let id = stage.campaign;
    let twice = format!("{id}:0&campaign={id}:1");
    let many = vec![format!("{id}:0"); 21].join("&campaign=");
    let cases = ["", "x", ":", &id.to_string(), &format!("{id}:"), &format!("{id}:-1"), &format!("{id}:1.5")];
    for wrong in cases.into_iter().chain([twice.as_str(), many.as_str()]) {
        let reply = stage.api.get(key, &format!("/stream?campaign={wrong}"))?;
        assert_eq!(reply.problem(400)?["errors"][0]["field"], "campaign", "{wrong}");
    }
    let reply = stage.api.get(key, &format!("/stream?campaign={id}:0&after=1"))?;
    assert_eq!(reply.problem(400)?["errors"][0]["field"], "after");
    Ok(())
}

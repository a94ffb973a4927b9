//! Order, positions, and what is refused.

use serde_json::Value;
use uuid::Uuid;

use super::{Stage, campaign, client::Reading, path, sequence};
use crate::world::eventually;

#[tokio::test]
async fn every_event_comes_once_in_order_as_it_happens() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let mut reading = stage.read(None).await?;
    assert_eq!(reading.status, 200);
    assert_eq!(reading.header("content-type"), Some("text/event-stream"));
    assert_eq!(reading.header("cache-control"), Some("no-cache, no-transform"));
    assert_eq!(reading.header("x-accel-buffering"), Some("no"));
    assert_eq!(reading.header("content-encoding"), None);
    let hello = reading.next().await?.unwrap();
    assert!(hello.retry.is_some_and(|retry| (1000..=3000).contains(&retry)), "{hello:?}");
    assert_eq!((&hello.id, &hello.event, hello.data.as_str()), (&None, &None, ""));

    let mut read = Vec::new();
    for round in 0..20 {
        // One by one, and several in one transaction.
        let newest = if round % 3 == 0 { stage.write_at_once(7).await? } else { stage.write(1).await? };
        while read.len() < newest as usize {
            let message = reading.event().await?;
            assert_eq!(sequence(&message)?, read.len() as i64 + 1);
            let mut event = message.json()?;
            let at = event.as_object_mut().unwrap().remove("timestamp").unwrap();
            assert!(
                at.as_str().is_some_and(|at| at.ends_with('Z') && at.parse::<jiff::Timestamp>().is_ok()),
                "{at}"
            );
            read.push(event);
        }
    }
    assert_eq!(read, stage.history().await?);
    assert_eq!((&read[0]["type"], &read[1]["type"]), (&"phase_started".into(), &"phase_paused".into()));
    Ok(())
}

#[tokio::test]
async fn reading_goes_on_after_every_position() -> anyhow::Result<()> {
    const BEFORE: i64 = 200;
    let stage = Stage::new().await?;
    // More than a feed holds and a page has is there before anybody reads; more comes while they do.
    stage.write_at_once(BEFORE).await?;
    let mut readings = Vec::new();
    for after in 0..=BEFORE {
        let reading = match after % 3 {
            0 => stage.read(Some(after)).await?,
            1 => {
                let header = [("last-event-id", after.to_string())];
                let header = header.each_ref().map(|(name, value)| (*name, value.as_str()));
                Reading::open(stage.url(), &stage.path(), &stage.api.acme.viewer, &header).await?
            }
            // The header counts: this is how an `EventSource` comes back to the address that it was given.
            _ => {
                let header = [("last-event-id", after.to_string())];
                let header = header.each_ref().map(|(name, value)| (*name, value.as_str()));
                let path = format!("{}?after=0", stage.path());
                Reading::open(stage.url(), &path, &stage.api.acme.viewer, &header).await?
            }
        };
        readings.push((after, reading));
        stage.write(1).await?;
    }
    let newest = stage.write(1).await?;
    for (after, mut reading) in readings {
        for expected in after + 1..=newest {
            assert_eq!(sequence(&reading.event().await?)?, expected, "after {after}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_reader_that_joins_amid_a_storm_misses_nothing() -> anyhow::Result<()> {
    const EVENTS: i64 = 3000;
    let stage = Stage::new().await?;
    stage.write(1).await?;
    let writing = async {
        while stage.write_at_once(37).await? < EVENTS {}
        anyhow::Ok(())
    };
    let reading = async {
        let mut joined = tokio::task::JoinSet::new();
        for after in (0..40).map(|n| n % 2) {
            let mut reading = stage.read(Some(after)).await?;
            joined.spawn(async move {
                for expected in after + 1..=EVENTS {
                    assert_eq!(sequence(&reading.event().await?)?, expected, "after {after}");
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = joined.join_next().await {
            ended??;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(writing, reading)?;
    Ok(())
}

#[tokio::test]
async fn without_a_position_only_what_is_new_comes() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.write(5).await?;
    let mut reading = stage.read(None).await?;
    stage.write(1).await?;
    assert_eq!(sequence(&reading.event().await?)?, 6);
    Ok(())
}

#[tokio::test]
async fn pruned_history_cannot_be_read_and_is_not_skipped() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.write_at_once(30).await?;
    stage.prune(10).await?;
    assert_eq!(stage.history().await?.len(), 20);
    for after in [0, 9] {
        let mut reading = stage.read(Some(after)).await?;
        let messages = reading.rest().await?;
        let last = messages.last().unwrap();
        assert_eq!((last.event.as_deref(), &last.id), (Some("snapshot_required"), &None), "{messages:?}");
        assert_eq!(last.json()?["reason"], "pruned");
        assert_eq!(last.json()?["campaignId"], stage.campaign.to_string());
        assert!(messages.iter().all(|message| message.id.is_none()), "{messages:?}");
    }
    for after in [10, 11, 29] {
        let mut reading = stage.read(Some(after)).await?;
        assert_eq!(sequence(&reading.event().await?)?, after + 1);
    }
    // A number that nothing has is from another history.
    for after in [31, i64::MAX] {
        let messages = stage.read(Some(after)).await?.rest().await?;
        assert_eq!(messages.last().unwrap().json()?["reason"], "ahead", "{messages:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_reader_learns_that_the_history_was_put_back() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.write_at_once(8).await?;
    let mut reading = stage.read(Some(0)).await?;
    for expected in 1..=8 {
        assert_eq!(sequence(&reading.event().await?)?, expected);
    }
    let put_back = "begin;
        set local session_replication_role = replica;
        delete from execution.campaign_events where sequence > 3;
        update execution.campaigns set sequence = 3;
        commit;";
    crate::sql::execute(&stage.api.admin, put_back).await?;
    let last = reading.rest().await?.pop().unwrap();
    assert_eq!(
        (last.event.as_deref(), &last.json()?["reason"]),
        (Some("snapshot_required"), &"ahead".into())
    );
    Ok(())
}

#[tokio::test]
async fn a_malformed_position_is_refused_and_named() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let key = &stage.api.acme.viewer;
    for wrong in ["", "-1", "x", "1.5", "%2B1", "9223372036854775808", "1%00"] {
        let reply = stage.api.get(key, &format!("/campaigns/{}/events?after={wrong}", stage.campaign))?;
        assert_eq!(reply.status, 400, "after={wrong}");
    }
    let reply = stage.api.get(key, &format!("/campaigns/{}/events?after=x", stage.campaign))?;
    assert_eq!(reply.json()?["errors"][0]["field"], "after");
    let reply = stage.api.get(key, &format!("/campaigns/{}/events?before=1", stage.campaign))?;
    assert_eq!((reply.status, &reply.json()?["errors"][0]["field"]), (400, &"before".into()));
    for wrong in ["-1", "x", "1 2"] {
        let reading = Reading::open(stage.url(), &stage.path(), key, &[("last-event-id", wrong)]).await?;
        assert_eq!(reading.status, 400, "Last-Event-ID: {wrong}");
        assert_eq!(reading.header("content-type"), Some("application/problem+json"));
    }
    Ok(())
}

#[tokio::test]
async fn the_stream_of_another_tenant_is_not_there() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.api.tenant("globex").await?;
    stage.write(3).await?;
    let answer_to = |key: &str, campaign: &str, more: &str| -> anyhow::Result<(u16, Value)> {
        let reply = stage.api.get(key, &format!("/campaigns/{campaign}/events{more}"))?;
        let mut body = reply.json()?;
        body.as_object_mut().unwrap().remove("request_id");
        Ok((reply.status, body))
    };
    let unknown = answer_to(&other.admin, &Uuid::now_v7().to_string(), "")?;
    assert_eq!(unknown.0, 404);
    let theirs = stage.campaign.to_string();
    for more in ["", "?after=0", "?after=3", "?after=4", "?after=9223372036854775807"] {
        assert_eq!(answer_to(&other.admin, &theirs, more)?, unknown, "{more}");
        assert_eq!(answer_to(&stage.api.acme.viewer, "not-an-id", more)?, unknown, "{more}");
    }
    assert_eq!(answer_to("pr_wrong", &theirs, "")?.0, 401);

    // Two tenants at once, each with its own.
    let own = campaign(&stage.app, &other, "autumn").await?;
    let mut reading = Reading::open(stage.url(), &path(own), &other.viewer, &[]).await?;
    stage.write(2).await?;
    super::write(&stage.app, &other, own, 1).await?;
    let event = reading.event().await?.json()?;
    assert_eq!((&event["campaignId"], &event["sequence"]), (&own.to_string().into(), &1.into()));
    Ok(())
}

#[tokio::test]
async fn readers_that_leave_make_room() -> anyhow::Result<()> {
    let stage = Stage::with("readers_per_tenant_max = 3\nreaders_max = 5").await?;
    let other = stage.api.tenant("globex").await?;
    let own = campaign(&stage.app, &other, "autumn").await?;
    let mut readings = Vec::new();
    for _ in 0..3 {
        readings.push(stage.read(None).await?);
    }
    let refused = stage.read(None).await?;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("30")));
    for _ in 0..2 {
        let reading = Reading::open(stage.url(), &path(own), &other.viewer, &[]).await?;
        assert_eq!(reading.status, 200);
        readings.push(reading);
    }
    let refused = Reading::open(stage.url(), &path(own), &other.viewer, &[]).await?;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("30")));
    assert_eq!(stage.meter("postrider_stream_readers")?, 5.0);
    drop(readings);
    eventually("they have left", async || Ok(stage.meter("postrider_stream_readers")? == 0.0)).await?;
    assert_eq!(stage.read(None).await?.status, 200);
    Ok(())
}

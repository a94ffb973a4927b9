//! The cost of many readers, and readers that do not read.

use std::time::{Duration, Instant};

use super::{
    Stage,
    client::{Reading, ask},
    sequence,
};
use crate::{
    sql::number,
    world::{PATIENCE, eventually},
};

#[tokio::test]
async fn three_hundred_readers_cost_one_listener_and_no_connection_each() -> anyhow::Result<()> {
    const READERS: usize = 300;
    let stage = Stage::new().await?;
    let connections = "select count(*) from pg_stat_activity
                        where datname = current_database() and application_name = 'postrider' and usename <> 'postgres'";
    let listeners = format!("{connections} and query ilike 'listen%postrider_campaign_events%'");
    assert_eq!(number(&stage.api.admin, &listeners).await?, 0, "nobody reads, so nobody listens");
    let mut readings = Vec::new();
    for n in 0..READERS {
        // Half of them catch up first.
        readings.push(stage.read((n % 2 == 0).then_some(0)).await?);
    }
    for round in 1..=3 {
        stage.write(1).await?;
        for reading in &mut readings {
            assert_eq!(sequence(&reading.event().await?)?, round);
        }
        assert_eq!(number(&stage.api.admin, &listeners).await?, 1);
        let all = number(&stage.api.admin, connections).await?;
        assert!(
            all <= 4 + 1 + 2,
            "{all} connections: a pool of four, one for imports, a listener for all readers and one for the ends of runs",
        );
    }
    assert_eq!(stage.meter("postrider_stream_readers")?, READERS as f64);
    assert_eq!(stage.meter("postrider_stream_events_sent_total")?, 3.0 * READERS as f64);
    drop(readings);
    eventually("nobody listens any more", async || Ok(number(&stage.api.admin, &listeners).await? == 0)).await
}

#[tokio::test]
async fn a_reader_that_is_too_slow_must_begin_again() -> anyhow::Result<()> {
    const MAY_LAG: Duration = Duration::from_secs(10);
    const FAR_BEHIND: f64 = 2000.0;
    let stage = Stage::new().await?;
    let slow = ask(stage.url(), &stage.path(), &stage.api.acme.viewer, &[], None).await?;
    // Its head is there, so it is up to date; from here on it does not read.
    eventually("it is read", async || Ok(stage.meter("postrider_stream_readers")? == 1.0)).await?;
    let mut quick = stage.read(None).await?;
    let (mut newest, mut read) = (0, 0);
    // Long enough, and until the systems on the way hold no more: whatever was sent beyond what the quick one has went to the slow one.
    let behind =
        |newest: i64| anyhow::Ok(2.0 * newest as f64 - stage.meter("postrider_stream_events_sent_total")?);
    // It counts as slow from the moment at which it falls behind.
    let mut fell_behind = None;
    while fell_behind.is_none_or(|at: Instant| at.elapsed() < MAY_LAG * 3 / 2) {
        newest = stage.write_at_once(200).await?;
        fell_behind = fell_behind.or((behind(newest)? > FAR_BEHIND).then(Instant::now));
        while read < newest {
            read = sequence(&quick.event().await?)?;
        }
    }
    let mut slow = tokio::time::timeout(PATIENCE, Reading::of(slow)).await??;
    let messages = slow.rest().await?;
    let (last, before) = messages.split_last().unwrap();
    assert_eq!((last.event.as_deref(), &last.id), (Some("snapshot_required"), &None), "{last:?}");
    assert_eq!(last.json()?["reason"], "too_slow");
    // The client received the beginning of the history, without a hole.
    let got: Vec<i64> =
        before.iter().filter(|message| message.id.is_some()).map(sequence).collect::<anyhow::Result<_>>()?;
    assert!(!got.is_empty() && (got.len() as i64) < newest, "{} of {newest}", got.len());
    assert!(got.iter().zip(1..).all(|(got, expected)| *got == expected));
    assert_eq!(stage.meter("postrider_stream_readers_too_slow_total")?, 1.0);
    // The one beside it has lost nothing.
    stage.write(1).await?;
    assert_eq!(sequence(&quick.event().await?)?, newest + 1);
    Ok(())
}

#[tokio::test]
async fn readers_that_do_not_read_cost_no_memory_and_are_cut_off() -> anyhow::Result<()> {
    const READERS: usize = 200;
    const EVENTS: i64 = 12_000;
    let stage = Stage::with("write_timeout_seconds = 5").await?;
    let mut watching = stage.read(None).await?;
    let mut silent = Vec::new();
    for n in 0..READERS {
        // Half of them ask for everything from the beginning.
        let path = if n % 2 == 0 { stage.path() } else { format!("{}?after=0", stage.path()) };
        silent.push(ask(stage.url(), &path, &stage.api.acme.viewer, &[], Some(4096)).await?);
    }
    eventually(
        "all are there",
        async || Ok(stage.meter("postrider_stream_readers")? == READERS as f64 + 1.0),
    )
    .await?;
    let pid = stage.api.server.process.child.id();
    let (before, mut most) = (resident_mb(pid)?, 0.0_f64);
    let (mut newest, mut read) = (0, 0);
    while newest < EVENTS {
        newest = stage.write_at_once(200).await?;
        while read < newest {
            read = sequence(&watching.event().await?)?;
        }
        most = most.max(resident_mb(pid)?);
    }
    // All of it for all of them would be most of a gigabyte; what they may have in flight is a few kilobytes each.
    assert!(most - before < 100.0, "grew from {before} MB to {most} MB");
    eventually("they are cut off", async || Ok(stage.meter("postrider_stream_readers")? == 1.0)).await?;
    assert!(stage.meter("postrider_connections_stalled_total")? > 0.0);
    stage.write(1).await?;
    assert_eq!(sequence(&watching.event().await?)?, newest + 1);
    drop(silent);
    Ok(())
}

pub fn resident_mb(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

//! Many schedulers whose clocks differ, and schedulers that come back after hours: due is what the database's clock says.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use futures::future::try_join_all;
use jiff::Timestamp;
use postrider_engine::{Health, Hints, Scheduler, SchedulerSettings};
use postrider_model::jobs::{Target, lock_key::Grain};
use postrider_store::{
    jobs::runs::{ENDS_CHANNEL, HINT_CHANNEL},
    postgres::wakeups::Waker,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::processes::{Schedule, TenantDatabase, soon, stop};
use crate::{
    sql::{execute, texts},
    world::{Process, eventually},
};

/// A firing that is late by two minutes is late; these tests do not take so long.
const GRACE: &str = "[jobs]\npoll_interval_ms = 100\nmisfire_grace_seconds = 120\n";

/// How far the clock of each process is from the true one, in seconds.
const OFFSETS: [i64; 8] = [-600, -420, -240, -60, 60, 240, 420, 600];

/// Schedules of each kind.
const SCHEDULES: usize = 12;

/// A library that moves the clock of a process, and leaves its timers alone.
fn faketime() -> anyhow::Result<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib")?.filter_map(Result::ok).map(|entry| entry.path());
    let mut found =
        folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).filter(|path| path.exists());
    found.next().context("libfaketime is missing; run: scripts/setup tests")
}

fn launch_at(
    database: &TenantDatabase,
    library: &str,
    offset: i64,
) -> anyhow::Result<(Process, tempfile::NamedTempFile)> {
    let offset = format!("{offset:+}s");
    database.launch(
        GRACE,
        &[("LD_PRELOAD", library), ("FAKETIME", &offset), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")],
    )
}

async fn set_up() -> anyhow::Result<TenantDatabase> {
    let database = TenantDatabase::new().await?;
    database.function("tick", &Target::Builtin("noop".to_owned()), Grain::FiveMinutes, soon(3)).await?;
    Ok(database)
}

async fn schedule(database: &TenantDatabase, cron: &str, misfire: &str, first: &str) -> anyhow::Result<Uuid> {
    let schedule = Schedule { function: "tick", cron, misfire, input: &json!({}), depends_on: &[], first };
    database.schedule(&schedule).await
}

/// Waits until nothing is due and everything has run.
async fn all_has_run(database: &TenantDatabase) -> anyhow::Result<()> {
    let open = "select (select count(*) from jobs.schedules where next_fire_at <= now())
                     + (select count(*) from jobs.job_runs where status <> 'completed')";
    eventually("everything that was due has run", async || Ok(database.count(open).await? == 0)).await
}

/// By how many seconds the clock of a process is ahead, by the line in which it says that it serves.
fn ahead(process: &Process, now: Timestamp) -> anyhow::Result<i64> {
    let line: Value = serde_json::from_str(&process.wait_for_line("postrider is serving at ")?)?;
    let said: Timestamp = line["timestamp"].as_str().context("no timestamp")?.parse()?;
    Ok(said.as_second() - now.as_second())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn eight_schedulers_whose_clocks_differ_fire_each_time_once_and_none_early() -> anyhow::Result<()> {
    let library = faketime()?;
    let library = library.to_str().context("no UTF-8")?;
    let database = set_up().await?;
    let begun = Timestamp::now();
    let mut launched = Vec::new();
    for offset in OFFSETS {
        launched.push((offset, launch_at(&database, library, offset)?));
    }
    for (offset, (process, _)) in &launched {
        let ahead = tokio::task::block_in_place(|| ahead(process, begun))?;
        // It took a while to start.
        anyhow::ensure!((*offset - 1..=*offset + 59).contains(&ahead), "{ahead} s ahead, not {offset}");
    }

    // Some have been late for an hour, and each of their times runs; others are due in this minute, and would not run were it later.
    let minute = "date_trunc('minute', now(), 'UTC')";
    let hour_ago = "date_bin('5 minutes', now() - interval '1 hour', '2000-01-01Z')";
    let mut kinds = Vec::new();
    for _ in 0..SCHEDULES {
        kinds.push(("*/5 * * * *", 5, "all", hour_ago));
        kinds.push(("* * * * *", 1, "skip", minute));
        kinds.push(("* * * * *", 1, "once", minute));
    }
    let set = kinds.iter().map(async |(cron, step, misfire, first)| {
        anyhow::Ok((schedule(&database, cron, misfire, first).await?, *step))
    });
    let sown: Vec<(Uuid, i32)> = try_join_all(set).await?;
    // All at once.
    execute(&database.admin, format!("notify {ENDS_CHANNEL}")).await?;
    all_has_run(&database).await?;
    for (_, (process, _config)) in launched {
        stop(process)?;
    }

    // Each time from the first to the last once, in order; a run for each grain.
    for (id, step) in &sown {
        let sql = format!(
            "select format('%s: %s of %s firings, %s runs in %s grains', schedule.id, count(*), expected.firings,
                           count(*) filter (where outcome = 'started'), count(distinct jobs.grain_start('5min', fire_at)))
               from jobs.schedules as schedule
               join jobs.schedule_firings as firing on firing.schedule_id = schedule.id
              cross join lateral (select (extract(epoch from schedule.next_fire_at - min(fire_at)) / 60 / {step})::bigint as firings
                                    from jobs.schedule_firings where schedule_id = schedule.id) as expected
              where schedule.id = '{id}'
              group by schedule.id, expected.firings
             having count(*) <> expected.firings
                 or count(*) filter (where outcome = 'started') <> count(distinct jobs.grain_start('5min', fire_at))
                 or count(*) filter (where outcome = 'skipped' and job_run_id is null) > 0"
        );
        assert_eq!(texts(&database.admin, sql).await?, [""; 0]);
    }
    let fired = "select count(distinct schedule_id) from jobs.schedule_firings";
    assert_eq!(database.count(fired).await?, i64::try_from(sown.len())?, "every schedule has fired");
    let early =
        "select count(*) from jobs.job_runs where scheduled_for > created_at or scheduled_for is null";
    assert_eq!(database.count(early).await?, 0, "no run is early");
    let early = "select count(*) from jobs.schedule_firings where fire_at > created_at";
    assert_eq!(database.count(early).await?, 0, "no firing is early");
    let firsts = "select count(*) from jobs.schedule_firings as first
                   where fire_at = (select min(fire_at) from jobs.schedule_firings as firing where firing.schedule_id = first.schedule_id)
                     and first.outcome = 'started'";
    assert_eq!(database.count(firsts).await?, i64::try_from(sown.len())?, "each began with its first time");
    let runs = "select count(*) from jobs.job_runs";
    let started = "select count(distinct job_run_id) from jobs.schedule_firings where outcome = 'started'";
    assert_eq!(database.count(runs).await?, database.count(started).await?, "no run without a firing");
    assert!(database.count(runs).await? >= i64::try_from(SCHEDULES * (12 + 2))?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_three_hours_without_a_scheduler_each_policy_runs_what_it_says() -> anyhow::Result<()> {
    let database = set_up().await?;
    // Five-minute schedules of two kinds: the last time was three to four minutes ago, which is late, or in this minute, which is not.
    let minute = database.count("select extract(minute from now() at time zone 'UTC')::bigint").await?;
    let mut expected = Vec::new();
    for (since, on_time) in [(3, 0), (0, 1)] {
        let phase = (minute - since).rem_euclid(5);
        let cron = format!("{phase}-59/5 * * * *");
        let last_late = format!(
            "date_bin('5 minutes', now(), timestamptz '2000-01-01Z' + interval '{phase} minutes') - interval '{} minutes'",
            5 * on_time
        );
        let first = format!("{last_late} - interval '175 minutes'");
        for (misfire, late) in [("skip", 0), ("once", 1), ("all", 36)] {
            let id = schedule(&database, &cron, misfire, &first).await?;
            let skipped = if misfire == "all" { 0 } else { 1 };
            expected.push((id, misfire, late + on_time, skipped, 36 - late));
        }
    }
    let (process, _config) = database.launch(GRACE, &[])?;
    all_has_run(&database).await?;
    stop(process)?;
    for (id, misfire, runs, skipped, skipped_times) in expected {
        let counted = format!(
            "select concat_ws(' ', count(*) filter (where outcome = 'started'), count(*) filter (where outcome = 'skipped'),
                              string_agg(reason, ', '))
               from jobs.schedule_firings where schedule_id = '{id}'"
        );
        let counted = texts(&database.admin, counted).await?.join("");
        let said = format!("{runs} {skipped}");
        assert!(counted.starts_with(&said), "{misfire}: {counted}, expected {said}");
        let reason = format!("missed {skipped_times} firings from ");
        assert!(skipped == 0 || counted.contains(&reason), "{misfire}: {counted}, expected {reason}");
        let of_it =
            format!("select count(*) from jobs.job_runs where schedule_id = '{id}' and status = 'completed'");
        assert_eq!(database.count(of_it).await?, runs, "{misfire}");
        // The last that ran is the newest that was due.
        let newest = format!(
            "select count(*) from jobs.schedules as schedule
              where id = '{id}' and next_fire_at > now()
                and (misfire = 'skip' or next_fire_at = (select max(scheduled_for) + interval '5 minutes' from jobs.job_runs
                                                          where schedule_id = schedule.id))"
        );
        assert_eq!(database.count(newest).await?, 1, "{misfire}");
    }
    Ok(())
}

#[tokio::test]
async fn every_due_schedule_of_one_tenant_fires_at_the_first_poll() -> anyhow::Result<()> {
    const DUE: i64 = 50;
    let database = set_up().await?;
    for _ in 0..DUE {
        schedule(&database, "0 0 1 1 *", "once", "now() - interval '1 second'").await?;
    }
    let shutdown = CancellationToken::new();
    let scheduler = Scheduler {
        pool: database.world.pool("postrider_worker").await?,
        ends: Waker::default().subscribe(),
        runs: Hints::new(HINT_CHANNEL),
        settings: SchedulerSettings {
            // Longer than the test has patience.
            poll_interval: Duration::from_secs(3600),
            misfire_grace: Duration::from_secs(120),
            dependency_patience: Duration::from_secs(3600),
        },
        health: Health::new("scheduler"),
    };
    let firing = tokio::spawn(scheduler.run(shutdown.clone()));
    eventually("all have fired", async || {
        Ok(database.count("select count(*) from jobs.job_runs").await? == DUE)
    })
    .await?;
    shutdown.cancel();
    Ok(firing.await?)
}

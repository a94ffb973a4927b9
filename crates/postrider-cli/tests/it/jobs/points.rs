//! A process dies at every place that a firing and a run pass, or panics there, alone, and what it left is finished: by the next
//! process, or by itself where only one attempt panicked.
#![cfg(debug_assertions)]

use postrider_model::jobs::{Target, lock_key::Grain};
use postrider_store::postgres::crash::JOB_POINTS;
use serde_json::{Value, json};
use uuid::Uuid;

use super::processes::{OFTEN, SECRET, Schedule, TenantDatabase, launch, soon, stop};
use crate::{
    exits::{Exit, all, all_are_tried},
    sql::execute,
    world::{Sim, eventually},
};

/// How often the run was tried again, and which attempts got through to the function.
type End = (i64, &'static [i64]);

/// Where the process dies, and what follows: for a function behind a URL, and for one in the database. That one ends with what it did in
/// one commit, so no attempt of it is ever repeated that has done anything.
const DYING: &[(&str, End, Option<End>)] = &[
    ("schedule.before_fire", (0, &[1]), None),
    ("schedule.fired", (0, &[1]), None),
    ("schedule.after_fire", (0, &[1]), None),
    ("run.before_claim", (0, &[1]), Some((0, &[1]))),
    ("run.claimed", (0, &[1]), Some((0, &[1]))),
    ("run.after_claim", (1, &[2]), Some((1, &[2]))),
    ("run.before_call", (1, &[2]), Some((1, &[2]))),
    // Only the function knows its effect; the database does not.
    ("run.after_call", (1, &[1, 2]), Some((0, &[1]))),
    // A function in the database does not pass here: there is nothing left to be written down.
    ("run.before_end", (1, &[1, 2]), None),
    ("run.ended", (1, &[1, 2]), Some((1, &[2]))),
    ("run.after_end", (0, &[1]), Some((0, &[1]))),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_run_ends_once_wherever_its_process_dies() -> anyhow::Result<()> {
    all_are_tried(JOB_POINTS, DYING.iter().map(|(point, ..)| *point));
    runs(|_, _| Exit::Kill).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_run_ends_once_wherever_its_process_panics() -> anyhow::Result<()> {
    runs(|point, kind| match point {
        "run.before_call" | "run.after_call" => Exit::PanicOfOne,
        // It ends with what it did, so whoever performs it writes that down.
        "run.ended" | "run.after_end" if kind == "sql" => Exit::PanicOfOne,
        _ => Exit::Panic,
    })
    .await
}

async fn runs(by: fn(&str, &str) -> Exit) -> anyhow::Result<()> {
    let cases = DYING.iter().flat_map(|(point, http, sql)| {
        [Some(("http", *http)), sql.map(|end| ("sql", end))]
            .into_iter()
            .flatten()
            .map(move |(kind, end)| (format!("{point}, {kind}"), dies(point, by(point, kind), kind, end)))
    });
    all(cases).await
}

async fn dies(point: &'static str, by: Exit, kind: &'static str, end: End) -> anyhow::Result<()> {
    let (retries, attempts) = end;
    let sim = if kind == "http" { Some(Sim::start(&["--secret", SECRET])?) } else { None };
    let database = TenantDatabase::new().await?;
    put(&database, sim.as_ref().map(|sim| sim.http_url.as_str()), 3).await?;
    let is_firing = point.starts_with("schedule.");
    if is_firing {
        let (cron, first) = ("*/5 * * * *", "jobs.grain_start('5min', now())");
        let input = json!({});
        let schedule =
            Schedule { function: "f", cron, misfire: "all", input: &input, depends_on: &[], first };
        database.schedule(&schedule).await?;
    } else {
        database.invoke("f", 1, &json!({}), false).await?;
    }
    // Only a process that lives on takes up what it lost. The others must not hear between a commit and their death that the run is over.
    let lease = if by == Exit::PanicOfOne { 12 } else { 60 };
    let config = database.world.config(&format!("{OFTEN}lease_seconds = {lease}\n"))?;
    if is_firing {
        // The process that dies while it fires must not have claimed the run as well.
        execute(&database.admin, "revoke execute on function jobs.claim_runs from postrider_worker").await?;
    }
    let mut victim = launch(&config, &by.environment(point))?;
    if by == Exit::PanicOfOne {
        // It lives, and takes up by itself what it has let go.
        eventually("the run has ended", async || {
            Ok(database.count(ENDED).await? > 0 && database.count(OPEN).await? == 0)
        })
        .await?;
    }
    by.ended(&mut victim)?;
    if is_firing {
        execute(&database.admin, "grant execute on function jobs.claim_runs to postrider_worker").await?;
    }

    let run = finish(&database).await?;
    anyhow::ensure!(run.status == "completed", "{run:?}");
    anyhow::ensure!(run.retry_count == retries, "{run:?}, expected {retries} retries");
    let calls = match &sim {
        Some(sim) => calls(sim, run.id)?,
        // A row is as good as the attempt whose result stands in the run: both are one commit.
        None => {
            let effects = database.count("select count(*) from work.effects").await?;
            anyhow::ensure!(effects == 1, "{effects} effects");
            vec![run.retry_count + 1]
        }
    };
    anyhow::ensure!(calls == attempts, "it was called for {calls:?}, expected {attempts:?}");
    anyhow::ensure!(database.count("select count(*) from jobs.sync_errors").await? == 0);
    if is_firing {
        let started = "select count(*) from jobs.schedule_firings as firing join jobs.job_runs as run on run.id = firing.job_run_id
                        where outcome = 'started' and fire_at = scheduled_for";
        anyhow::ensure!(
            database.count(started).await? == database.count("select count(*) from jobs.job_runs").await?
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_only_try_killed_its_process_is_a_dead_letter() -> anyhow::Result<()> {
    let sim = Sim::start(&["--secret", SECRET])?;
    for (point, attempts) in [("run.after_claim", &[][..]), ("run.ended", &[1])] {
        let database = TenantDatabase::new().await?;
        put(&database, Some(&sim.http_url), 0).await?;
        database.invoke("f", 1, &json!({ "a": 1 }), false).await?;
        let (mut victim, _config) = database.launch(OFTEN, &Exit::Kill.environment(point))?;
        Exit::Kill.ended(&mut victim)?;

        let run = finish(&database).await?;
        assert_eq!((run.status.as_str(), run.retry_count), ("failed", 0), "{point}");
        assert_eq!(calls(&sim, run.id)?, attempts, "{point}");
        let letter = "select count(*) from jobs.sync_errors join jobs.job_runs as run on run.id = source_entity_id
                       where not is_resolved and error_code = 'MAX_RETRIES_EXCEEDED' and sync_errors.error_message = run.error_message
                         and run.error_message = 'the process that ran it went away'
                         and error_details @> jsonb_build_object('function_name', 'f', 'lock_key', run.lock_key,
                                                                 'input_params', run.input_params, 'retry_count', 0)
                         and (error_details ->> 'last_attempt_at')::timestamptz is not null";
        assert_eq!(database.count(letter).await?, 1, "{point}");
        assert_eq!(database.count("select count(*) from jobs.sync_errors").await?, 1, "{point}");
    }
    Ok(())
}

/// Sets the function `f`: at the sim, or in the database.
async fn put(database: &TenantDatabase, sim_url: Option<&str>, max_retries: u32) -> anyhow::Result<()> {
    let target = match sim_url {
        Some(url) => Target::Http(format!("{url}/functions/f")),
        None => Target::Sql("work.effect".parse()?),
    };
    database.function("f", &target, Grain::FiveMinutes, soon(max_retries)).await
}

#[derive(Debug, sqlx::FromRow)]
struct Run {
    id: Uuid,
    status: String,
    retry_count: i64,
}

const ENDED: &str = "select count(*) from jobs.job_runs where status <> 'running' and retry_at is null";
const OPEN: &str = "select count(*) from jobs.job_runs where status = 'running' or retry_at is not null";

/// Lets another process finish what the dead left, and tells how the first run ended.
async fn finish(database: &TenantDatabase) -> anyhow::Result<Run> {
    // A COMMIT may still be on its way.
    let connected = "select count(*) from pg_stat_activity
                      where datname = current_database() and usename = 'postrider_worker'";
    eventually("every connection of the dead is gone", async || Ok(database.count(connected).await? == 0))
        .await?;
    execute(
        &database.admin,
        "update jobs.job_runs set heartbeat_at = heartbeat_at - interval '1 hour' where heartbeat_at is not null",
    )
    .await?;
    let (next, _config) = database.launch(OFTEN, &[])?;
    // Where nothing is left to do it would be told to stop before it can hear that.
    next.wait_for_line("postrider is serving at ")?;
    let ended = eventually("everything has ended", async || {
        Ok(database.count(ENDED).await? > 0 && database.count(OPEN).await? == 0)
    });
    if let Err(error) = ended.await {
        return Err(error.context(next.lines().join("\n")));
    }
    stop(next)?;
    let sql = "select id, status, retry_count::bigint from jobs.job_runs order by created_at limit 1";
    Ok(sqlx::query_as(sql).fetch_one(&database.admin).await?)
}

/// Which attempts of a run came to the function, in order.
fn calls(sim: &Sim, run: Uuid) -> anyhow::Result<Vec<i64>> {
    let id = json!(run);
    let of_run = |receipt: &&Value| receipt["webhook_id"] == id;
    Ok(sim.receipts()?.iter().filter(of_run).filter_map(|receipt| receipt["attempt"].as_i64()).collect())
}

//! Whole campaigns with a provider that accepts every call at once, compared with the raw writes of an item.
//!
//! Our side is a worker in its own process: it claims send jobs, reads leads, renders and hashes messages, reserves, calls,
//! settles and completes, with all checks. The raw side only reserves and settles rows with the same columns. The
//! time of a campaign is measured by the database: from the start of its run to the end.

mod controls;
mod lives;
mod null;
mod stage;

use std::time::{Duration, Instant};

use postrider_model::ids::RunId;
use postrider_store::{
    campaigns::{JOB_SIZE, runs},
    postgres::pool,
};
use sqlx::Connection;
use uuid::Uuid;

pub(crate) use self::{controls::measure as measure_controls, null::work};
use self::{lives::WINDOW, null::Worker, stage::Stage};
use crate::{
    Scale,
    meter::{Cost, Meter},
    place::{Database, Place},
    report::{Report, count, median},
};

const BAR: f64 = 0.60;
const BAR_BESIDE_FINISHED: f64 = 0.80;
const BAR_WITH_SNAPSHOT: f64 = 0.80;
const BAR_WITH_LIMITS: f64 = 0.95;
/// Even, so that each side is first in half of the rounds.
const LIMIT_ROUNDS: usize = 8;
const COMMITS_BAR: f64 = 3.0;
const MEMORY_BAR_MB: f64 = 128.0;
const DEPLOY_BAR: Duration = Duration::from_secs(20);

/// Number of write connections on every side.
const CONNECTIONS: u32 = 2;
const BATCH: usize = 1000;
const POLL_EVERY: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(600);

const LIMIT: &str = "What limits campaigns: the processor, which server and worker share here. The guards around the same row \
                     changes are in the contract's functions; the rest is what a campaign is beside them: claiming and \
                     completing jobs, reading leads, rendering messages, and asking and answering in between.";

pub(crate) async fn measure(place: &Place, scale: Scale, report: &mut Report) -> anyhow::Result<()> {
    let mut memory = Vec::new();
    let set = place.fresh("bench_stage").await?;
    let stage = Stage::set(&set, scale.items).await?;
    measure_lives(&set, stage, scale, report, &mut memory).await?;
    measure_limits(&set, stage, scale, report, &mut memory).await?;
    measure_beside_finished(&set, stage, scale, report, &mut memory).await?;
    set.remove().await?;

    let large = place.fresh("bench_audience").await?;
    let stage = Stage::set(&large, scale.audience).await?;
    measure_deploying(&large, stage, scale, report).await?;
    measure_with_snapshot(&large, stage, scale, report, &mut memory).await?;
    large.remove().await?;

    let peak = memory.into_iter().fold(0.0, f64::max);
    report.single(
        "the campaign worker's peak memory (VmHWM)",
        &format!("{peak:.1} MB"),
        Some((&format!("< {MEMORY_BAR_MB} MB"), peak < MEMORY_BAR_MB)),
    );
    Ok(())
}

/// The compared programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Raw,
    RawByWindows,
    Functions,
    OneProcess,
    TwoProcesses,
}

impl Side {
    const ALL: [Self; 5] =
        [Self::Raw, Self::OneProcess, Self::Functions, Self::RawByWindows, Self::TwoProcesses];

    const fn name(self) -> &'static str {
        match self {
            Self::Raw => "Raw, batches of 1,000",
            Self::RawByWindows => "Raw, batches of 64",
            Self::Functions => "The contract's functions",
            Self::OneProcess => "Campaigns, 1 process",
            Self::TwoProcesses => "Campaigns, 2 processes",
        }
    }
}

/// Measures every side, alternately.
async fn measure_lives(
    set: &Database<'_>,
    stage: Stage,
    scale: Scale,
    report: &mut Report,
    memory: &mut Vec<f64>,
) -> anyhow::Result<()> {
    let mut found: Vec<(Side, Measured)> = Vec::new();
    for round in 0..scale.rounds {
        for side in Side::ALL {
            let database = set.copy(&format!("bench_lives_{round}_{}", side as usize)).await?;
            let lived = match side {
                Side::Raw => raw_lives(&database, scale.items, BATCH).await?,
                Side::RawByWindows => raw_lives(&database, scale.items, WINDOW).await?,
                Side::Functions => function_lives(&database, stage, scale.items).await?,
                Side::OneProcess => campaign(&database, stage, scale.items, &[CONNECTIONS], memory).await?,
                Side::TwoProcesses => campaign(&database, stage, scale.items, &[1, 1], memory).await?,
            };
            database.remove().await?;
            found.push((side, lived));
        }
    }
    let of = |side: Side| found.iter().filter(move |one| one.0 == side).map(|one| one.1);
    let against = |raw: Side, ours: Side| {
        of(raw).map(|one| one.rate).zip(of(ours).map(|one| one.rate)).collect::<Vec<_>>()
    };
    report.compare(
        "reserve + settle by the contract's functions, 2 connections",
        &against(Side::Raw, Side::Functions),
        Some(BAR),
    );
    report.compare(
        "whole campaigns, 1 process with 2 write connections",
        &against(Side::Raw, Side::OneProcess),
        Some(BAR),
    );
    report.compare("the same (raw: batches of 64)", &against(Side::RawByWindows, Side::OneProcess), None);
    report.compare(
        "the same, 2 processes with 1 write connection each (raw: 1 process)",
        &against(Side::OneProcess, Side::TwoProcesses),
        None,
    );
    let commits = median(of(Side::OneProcess).map(|one| one.commits));
    report.single(
        "commits that reserve and settle, per 1,000 items",
        &format!("{commits:.1}"),
        Some((&format!("<= {COMMITS_BAR}"), commits <= COMMITS_BAR)),
    );
    for side in Side::ALL {
        let costs: Vec<Cost> = of(side).map(|one| one.cost).collect();
        report.note(format!("{}: {}.", side.name(), Cost::median(&costs).words("item")));
    }
    report.note(LIMIT.to_owned());
    Ok(())
}

/// The cost of rate limits: our side on an account whose limit is never reached, so that the worker requests a call token for every call,
/// compared with our side on an account without limits, where it requests none.
///
/// The cost is processor time. The rate is shown as well; it varies by more than the bar between two runs of the same work,
/// and many rounds with alternating order only narrow that.
async fn measure_limits(
    set: &Database<'_>,
    stage: Stage,
    scale: Scale,
    report: &mut Report,
    memory: &mut Vec<f64>,
) -> anyhow::Result<()> {
    let mut rates = Vec::new();
    let mut work = Vec::new();
    for round in 0..LIMIT_ROUNDS {
        let mut lived = [None; 2]; // without limits, with them
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let database = set.copy(&format!("bench_limits_{round}_{side}")).await?;
            if side == 1 {
                stage.limit(&database).await?;
            }
            lived[side] = Some(campaign(&database, stage, scale.items, &[CONNECTIONS], memory).await?);
            database.remove().await?;
        }
        if let [Some(none), Some(some)] = lived {
            rates.push((none.rate, some.rate));
            work.push((none.cost.items_per_second(), some.cost.items_per_second()));
        }
    }
    report.compare("campaigns on an account with a rate of 1,000,000/s (raw: without limits)", &rates, None);
    report.compare("the same, items per second of the processor's time", &work, Some(BAR_WITH_LIMITS));
    Ok(())
}

/// Our side with very many finished items in the table, compared with none.
async fn measure_beside_finished(
    set: &Database<'_>,
    stage: Stage,
    scale: Scale,
    report: &mut Report,
    memory: &mut Vec<f64>,
) -> anyhow::Result<()> {
    let full = set.copy("bench_finished").await?;
    stage.add_finished(&full, scale.finished).await?;
    let mut rounds = Vec::new();
    let mut costs = Vec::new();
    for round in 0..scale.rounds {
        let empty = set.copy(&format!("bench_unfinished_{round}")).await?;
        let none = campaign(&empty, stage, scale.items, &[CONNECTIONS], memory).await?;
        empty.remove().await?;
        // A copy begins with a checkpoint, and after it the first change of each index page writes the whole page to the log. The
        // empty database has no such pages, so this campaign is not measured.
        campaign(&full, stage, scale.items, &[CONNECTIONS], memory).await?;
        let many = campaign(&full, stage, scale.items, &[CONNECTIONS], memory).await?;
        costs.push(many.cost);
        rounds.push((none.rate, many.rate));
    }
    report.compare(
        &format!("campaigns with {} finished items beside (raw: none)", count(scale.finished as f64)),
        &rounds,
        Some(BAR_BESIDE_FINISHED),
    );
    report.note(format!(
        "Campaigns, {} finished items beside: {}.",
        count(scale.finished as f64),
        Cost::median(&costs).words("item")
    ));
    full.remove().await
}

async fn measure_deploying(
    database: &Database<'_>,
    stage: Stage,
    scale: Scale,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut rounds = Vec::new();
    let mut times = Vec::new();
    let items = scale.audience as f64;
    for round in 0..scale.rounds {
        let raw = raw_deploy(database, stage).await?;
        let (_, ours) = stage.deploy(database, &format!("bench {round}")).await?;
        rounds.push((items / raw.as_secs_f64(), items / ours.as_secs_f64()));
        times.push(ours.as_secs_f64());
    }
    let took = median(times.into_iter());
    report.compare("deploying, items; raw: the same jobs by insert … select", &rounds, None);
    report.single(
        &format!("deploying {} items", count(items)),
        &format!("{took:.1} s"),
        Some((&format!("< {} s", DEPLOY_BAR.as_secs()), took < DEPLOY_BAR.as_secs_f64())),
    );
    Ok(())
}

async fn raw_deploy(database: &Database<'_>, stage: Stage) -> anyhow::Result<Duration> {
    let mut admin = database.admin().await?;
    let begun = Instant::now();
    sqlx::query(include_str!("../../sql/campaigns/raw_deploy.sql"))
        .bind(stage.tenant.0)
        .bind(stage.workspace.0)
        .bind(Uuid::now_v7())
        .bind(i64::from(JOB_SIZE))
        .bind(stage.list.0)
        .execute(&mut admin)
        .await?;
    let took = begun.elapsed();
    admin.close().await?;
    Ok(took)
}

/// Our side before and while another session holds a snapshot, which prevents the removal of dead rows and index entries.
async fn measure_with_snapshot(
    database: &Database<'_>,
    stage: Stage,
    scale: Scale,
    report: &mut Report,
    memory: &mut Vec<f64>,
) -> anyhow::Result<()> {
    let window = scale.hold / 8;
    let mut worker = Worker::start(database, CONNECTIONS)?;
    let warm = rate_for(&mut worker, window).await?;
    // One and a half times as many, in case the rate increases.
    let needed = warm * (scale.hold + window).as_secs_f64() * 1.5;
    while items_waiting(database).await? < needed {
        stage.deploy(database, &format!("bench {}", Uuid::now_v7())).await?;
    }
    let before = rate_for(&mut worker, window).await?;
    let mut holder = database.admin().await?;
    sqlx::raw_sql("begin isolation level repeatable read; select count(*) from pg_class")
        .execute(&mut holder)
        .await?;
    rate_for(&mut worker, scale.hold - window).await?; // dead rows accumulate
    let during = rate_for(&mut worker, window).await?;
    anyhow::ensure!(
        items_waiting(database).await? > 0.0,
        "the worker sent all items before the end of the measurement"
    );
    holder.close().await?;
    memory.push(worker.peak_memory_mb()?);
    worker.stop().await?;
    report.compare(
        &format!("campaigns, a snapshot held elsewhere for {} s (raw: before)", scale.hold.as_secs()),
        &[(before, during)],
        Some(BAR_WITH_SNAPSHOT),
    );
    Ok(())
}

/// Number of items in queued send jobs.
async fn items_waiting(database: &Database<'_>) -> anyhow::Result<f64> {
    let mut admin = database.admin().await?;
    let waiting = "select coalesce(sum(cardinality(item_ids)), 0)::float8 from execution.job_queue where status = 'queued'";
    let waiting = sqlx::query_scalar(waiting).fetch_one(&mut admin).await?;
    admin.close().await?;
    Ok(waiting)
}

/// Calls per second of a worker during this time.
async fn rate_for(worker: &mut Worker, how_long: Duration) -> anyhow::Result<f64> {
    let (before, begun) = worker.progress();
    tokio::time::sleep(how_long).await;
    worker.must_run()?;
    let (after, ended) = worker.progress();
    Ok((after.calls - before.calls) as f64 / (ended - begun).as_secs_f64())
}

/// The result of a measurement.
#[derive(Debug, Clone, Copy)]
struct Measured {
    rate: f64,
    /// Commits that reserve and settle, per 1,000 items.
    commits: f64,
    cost: Cost,
}

async fn raw_lives(database: &Database<'_>, items: i64, batch_size: usize) -> anyhow::Result<Measured> {
    let before = Meter::of_this_process(database).await?;
    let rate = lives::raw(database, items, batch_size, CONNECTIONS as usize).await?;
    lived_here(database, before, items, rate).await
}

async fn function_lives(database: &Database<'_>, stage: Stage, items: i64) -> anyhow::Result<Measured> {
    stage.deploy(database, "functions").await?;
    let clients = lives::ours(database, BATCH.div_ceil(WINDOW), CONNECTIONS as usize).await?;
    let before = Meter::of_this_process(database).await?;
    let rate = clients.live().await?;
    lived_here(database, before, items, rate).await
}

async fn lived_here(
    database: &Database<'_>,
    before: Meter,
    items: i64,
    rate: f64,
) -> anyhow::Result<Measured> {
    let after = Meter::of_this_process(database).await?;
    let cost = after.since(before, items, Duration::from_secs_f64(items as f64 / rate));
    Ok(Measured { rate, commits: cost.commits, cost })
}

/// Sends one campaign with one process per entry of `processes`, which is its number of connections.
async fn campaign(
    database: &Database<'_>,
    stage: Stage,
    items: i64,
    processes: &[u32],
    memory: &mut Vec<f64>,
) -> anyhow::Result<Measured> {
    let (run, _) = stage.deploy(database, &format!("bench {}", Uuid::now_v7())).await?;
    let before = Meter::read(database, Duration::ZERO).await?;
    let mut workers = processes
        .iter()
        .map(|connections| Worker::start(database, *connections))
        .collect::<Result<Vec<_>, _>>()?;
    let took = ended(database, run, &mut workers).await?;
    let mut client = Duration::ZERO;
    let mut commits = 0;
    for worker in &workers {
        client += worker.processor_time()?;
        commits += worker.progress().0.commits;
        memory.push(worker.peak_memory_mb()?);
    }
    let after = Meter::read(database, client).await?;
    for worker in workers {
        worker.stop().await?;
    }
    must_be_launched(database, stage, run).await?;
    Ok(Measured {
        rate: items as f64 / took.as_secs_f64(),
        commits: commits as f64 / items as f64 * 1000.0,
        cost: after.since(before, items, took),
    })
}

/// Waits for the end of a run. Returns its duration by the database's clock.
async fn ended(database: &Database<'_>, run: RunId, workers: &mut [Worker]) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let mut admin = database.admin().await?;
    let took = loop {
        anyhow::ensure!(begun.elapsed() < PATIENCE, "the campaign does not come to an end");
        workers.iter_mut().try_for_each(Worker::must_run)?;
        let took: Option<f64> = sqlx::query_scalar(
            "select extract(epoch from finished_at - started_at)::float8 from execution.campaign_runs where id = $1",
        )
        .bind(run.0)
        .fetch_one(&mut admin)
        .await?;
        match took {
            Some(took) => break Duration::from_secs_f64(took),
            None => tokio::time::sleep(POLL_EVERY).await, // poll interval
        }
    };
    admin.close().await?;
    Ok(took)
}

/// Fails unless every item was sent.
async fn must_be_launched(database: &Database<'_>, stage: Stage, run: RunId) -> anyhow::Result<()> {
    let mut admin = database.admin().await?;
    let mut transaction = admin.begin().await?;
    pool::act_as(&mut transaction, stage.tenant).await?;
    let certificate = runs::verify(&mut transaction, stage.tenant, run).await?;
    transaction.commit().await?;
    admin.close().await?;
    let is_whole = certificate.launched && certificate.sent == certificate.intended;
    anyhow::ensure!(is_whole, "the campaign was not launched: {certificate:?}");
    Ok(())
}

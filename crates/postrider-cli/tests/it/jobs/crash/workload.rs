//! Job runs under faults: callers invoke functions, schedules fire, and processes run what is due.

use std::{collections::BTreeSet, time::Duration};

use postrider_testkit::crash::{
    Audit, Count, Fault, Launch, Member, Processes, Progress, SeededRandom, Workload, pause,
};

use super::{
    audit::audit,
    facts,
    plan::{FREEZE, KILL, Plan},
    report::Report,
    sources::{self, Sources},
    watch::Watch,
};
use crate::{
    channels::bots::control,
    jobs::processes::{SECRET, TenantDatabase},
    sql::{execute, texts},
    world::Sim,
};

/// A process without a heartbeat for so long counts as dead.
const LEASE: Duration = Duration::from_secs(2);
/// How long it may take until another process has time to take its runs.
const ALLOWANCE: Duration = Duration::from_secs(15);

const SETTINGS: &str = "[outbound]
                        allow_private = true
                        [jobs]
                        poll_interval_ms = 100
                        lease_seconds = 2
                        concurrency = 8
                        sql_concurrency = 3
                        sql_schemas = ['work']\n";

/// Counts the runs that have not ended.
const OPEN: &str = "select count(*) from jobs.job_runs where status = 'running' or retry_at is not null";

pub struct Jobs<'a> {
    plan: &'a Plan,
    sim: Sim,
    database: TenantDatabase,
    runners: Processes,
    sources: Sources,
    watch: Option<Watch>,
    _config: tempfile::NamedTempFile,
}

impl<'a> Jobs<'a> {
    pub async fn start(plan: &'a Plan) -> anyhow::Result<Self> {
        let mut arguments: Vec<String> =
            ["--secret", SECRET, "--stall-seconds", "3", "--latency-ms", "500"].map(str::to_owned).into();
        arguments.extend(plan.faults.sim_arguments());
        let sim = Sim::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
        let database = TenantDatabase::new().await?;
        facts::record_changes(&database.admin).await?;
        sources::set_functions(&database, &sim.http_url).await?;
        let config = database.world.config(SETTINGS)?;
        let launch = Launch::role(config.path().to_owned(), "scheduler");
        let runners = Processes::start(launch, plan.processes).await?;
        let watch = Some(Watch::start(&database.admin, LEASE + ALLOWANCE));
        Ok(Self { plan, sim, database, runners, sources: Sources::default(), watch, _config: config })
    }

    /// How many runs have ended.
    async fn ended(&self) -> anyhow::Result<usize> {
        let sql = "select count(*) from jobs.job_runs where status <> 'running' and retry_at is null";
        Ok(usize::try_from(self.database.count(sql).await?)?)
    }

    /// Waits until so many runs have ended.
    async fn until_ended(&mut self, runs: usize) -> anyhow::Result<()> {
        let mut progress = Progress::default();
        loop {
            let now = self.ended().await?;
            if now >= runs || (now > 0 && self.database.count(OPEN).await? == 0) {
                return Ok(());
            }
            anyhow::ensure!(progress.goes_on(now), "nothing goes on: {now} of {runs} have ended");
            self.complete_starts().await?;
            pause().await;
        }
    }

    /// Adds the processes that have started, and continues frozen ones whose runs were taken from them. At least one process must be
    /// left.
    async fn complete_starts(&mut self) -> anyhow::Result<()> {
        self.runners.complete_starts(1).await?;
        let holders = self.holders().await?;
        // A process that was frozen in the middle of a statement keeps its runs.
        self.runners
            .thaw(|one| !holders.contains(&one.member.name) || one.since.elapsed() >= LEASE * 2)
            .map(drop)
    }

    /// The processes that hold runs.
    async fn holders(&self) -> anyhow::Result<BTreeSet<String>> {
        let sql = "select distinct locked_by from jobs.job_runs where locked_by is not null";
        Ok(texts(&self.database.admin, sql).await?.into_iter().collect())
    }
}

impl Workload for Jobs<'_> {
    type Report = Report;

    async fn advance(&mut self, random: &mut SeededRandom) -> anyhow::Result<()> {
        let ended = self.ended().await?;
        let added = self.sources.add(&self.database, random, self.plan.invocations).await?;
        // The rest is under way when the fault is injected.
        self.until_ended(ended + added * 3 / 4).await
    }

    async fn inject(&mut self, fault: Fault, random: &mut SeededRandom) -> anyhow::Result<bool> {
        self.complete_starts().await?;
        let holders = self.holders().await?;
        let is_holder = |one: &Member| holders.contains(&one.name);
        let victim = match fault {
            KILL => self.runners.kill_one(random, is_holder)?,
            FREEZE => self.runners.freeze_one(random, is_holder, 0)?,
            other => anyhow::bail!("jobs have no {other}"),
        };
        Ok(self.holders().await?.contains(&victim))
    }

    /// Ends the faults, stops the schedules, and waits until everything has ended.
    async fn finish(&mut self) -> anyhow::Result<Audit<Report>> {
        control(&self.sim, "/faults", &serde_json::json!({}))?;
        // No firing stays behind that is due or that waits for another.
        let stop = "update jobs.schedules as schedule set enabled = false
                     where enabled and next_fire_at > now()
                       and not exists (select from jobs.schedule_firings as firing
                                        where firing.schedule_id = schedule.id and firing.outcome = 'waiting')";
        let enabled = "select count(*) from jobs.schedules where enabled";
        let mut progress = Progress::default();
        loop {
            execute(&self.database.admin, stop).await?;
            let (schedules, open) = (self.database.count(enabled).await?, self.database.count(OPEN).await?);
            if schedules == 0 && open == 0 && self.runners.frozen.is_empty() {
                break;
            }
            let now = (self.ended().await?, schedules);
            anyhow::ensure!(progress.goes_on(now), "it does not end: {open} runs, {schedules} schedules");
            self.complete_starts().await?;
            pause().await;
        }
        let seen = match self.watch.take() {
            Some(watch) => watch.end().await?,
            None => anyhow::bail!("the run has finished before"),
        };
        self.runners.drain().await?;

        let acquired = std::mem::take(&mut self.sources.acquired);
        let (mut facts, provider_faults) =
            facts::gather(&self.database, &self.sim, acquired, &self.sources.schedules).await?;
        (facts.lease, facts.allowance) = (micros(LEASE)?, micros(ALLOWANCE)?);
        facts.seen = seen.wrong;
        let report = audit(&facts);
        let (runs, kills) = (self.plan.runs, self.plan.faults.count(KILL));
        let scheduled = facts.runs.iter().filter(|run| run.schedule_id.is_some()).count();
        let counts = vec![
            Count::new("runs", facts.runs.len(), runs),
            Count::new("runs of schedules", scheduled, runs / 4),
            Count::new("firings", facts.firings.len(), runs / 4),
            Count::new("receipts", facts.receipts.len(), runs / 5),
            Count::new("effects", facts.effects.len(), runs / 8),
            Count::new("retries", report.retries, kills),
            Count::new("runs recovered", report.recovered, kills / 2),
            Count::new("dead letters", report.dead_letters, 3),
            Count::new("observations", seen.looks, kills),
        ];
        Ok(Audit { report, counts, provider_faults })
    }
}

fn micros(time: Duration) -> anyhow::Result<i64> {
    Ok(i64::try_from(time.as_micros())?)
}

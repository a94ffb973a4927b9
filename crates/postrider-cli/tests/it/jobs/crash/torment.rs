//! The tormentor: kills while schedules fire and functions run, then lets everything finish and asks the auditor.
//!
//! Nothing is timed. A kill falls when so much has been done since the last one, so a slow machine takes longer and meets the same.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use super::{
    audit::audit,
    facts,
    plan::Plan,
    report::Report,
    sowing::{self, Sowing},
    watch::Watch,
};
use crate::{
    campaigns::crash::Dice,
    channels::{
        bots::control,
        crash::crew::{Crew, Member},
    },
    jobs::works::{SECRET, Works},
    sql::{execute, texts},
    world::{PATIENCE, Sim},
};

/// A process that is not heard of for so long is dead.
const LEASE: Duration = Duration::from_secs(2);
/// How long it may take until somebody who is not dead has time to see it.
const ALLOWANCE: Duration = Duration::from_secs(15);

const SETTINGS: &str = "[outbound]
                        allow_private = true
                        [jobs]
                        poll_interval_ms = 100
                        lease_seconds = 2
                        concurrency = 8
                        sql_concurrency = 3
                        sql_schemas = ['work']\n";

/// What is not over.
const OPEN: &str = "select count(*) from jobs.job_runs where status = 'running' or retry_at is not null";

/// What was done, and what came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    pub seed: u64,
    pub seconds: u64,
    pub kills: usize,
    /// Of those who held runs.
    pub kills_in_flight: usize,
    /// Processes that were stopped while they held runs, and went on.
    pub stops: usize,
    pub runs: usize,
    pub scheduled: usize,
    pub firings: usize,
    pub effects: usize,
    pub receipts: usize,
    pub looks: usize,
    pub faults: BTreeMap<String, usize>,
    pub report: Report,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}, {} s, {} kills ({} with runs in flight), {} stopped for a while, {} runs ({} of {} firings), {} receipts, {} effects, {} looks; faults {:?}",
            self.seed,
            self.seconds,
            self.kills,
            self.kills_in_flight,
            self.stops,
            self.runs,
            self.scheduled,
            self.firings,
            self.receipts,
            self.effects,
            self.looks,
            self.faults
        )?;
        write!(f, "{}", self.report)
    }
}

impl Outcome {
    /// A run that was not as hard as its plan says nothing about the system.
    pub fn void(&self, plan: &Plan) -> Option<String> {
        let at_least = [
            ("kills", self.kills, plan.kills),
            ("those with runs in flight", self.kills_in_flight, plan.kills / 2),
            ("processes stopped for a while", self.stops, plan.kills / plan.kills_per_stop / 2),
            ("runs", self.runs, plan.runs),
            ("runs of schedules", self.scheduled, plan.runs / 4),
            ("firings", self.firings, plan.runs / 4),
            ("receipts", self.receipts, plan.runs / 5),
            ("effects", self.effects, plan.runs / 8),
            ("retries", self.report.retries, plan.kills),
            ("runs recovered", self.report.recovered, plan.kills / 2),
            ("dead letters", self.report.dead_letters, 3),
            ("looks", self.looks, plan.kills),
        ];
        let strikes = plan
            .faults
            .iter()
            .map(|(name, _)| (*name, self.faults.get(*name).copied().unwrap_or_default(), plan.strikes_min));
        let too_few = at_least.into_iter().chain(strikes).find(|(_, count, least)| count < least);
        too_few.map(|(what, count, least)| format!("{what}: {count}, at least {least} are needed"))
    }
}

/// The whole of it.
pub async fn run(plan: &Plan) -> anyhow::Result<Outcome> {
    let begun = Instant::now();
    let mut dice = Dice(plan.seed);
    let mut outcome = Outcome { seed: plan.seed, ..Outcome::default() };
    let sim = start_sim(plan)?;
    let works = Works::new().await?;
    facts::record_changes(&works.admin).await?;
    sowing::set_functions(&works, &sim.http_url).await?;
    let config = works.world.config(SETTINGS)?;
    let crew = Crew::new(config.path().to_owned(), "scheduler", plan.processes).await?;
    let watch = Watch::start(&works.admin, LEASE + ALLOWANCE);
    let mut rig = Rig { works, crew, stopped: Vec::new() };
    let mut sowing = Sowing::default();

    loop {
        for n in 1..=plan.kills {
            let ended = rig.ended().await?;
            let sown = sowing.sow(&rig.works, &mut dice, plan.invocations).await?;
            // While the rest is under way.
            rig.until_ended(ended + sown * 3 / 4).await?;
            if n % plan.kills_per_stop == 0 {
                rig.stop_one(&mut dice, &mut outcome).await?;
            }
            rig.kill(&mut dice, &mut outcome).await?;
        }
        if begun.elapsed() >= plan.time {
            break;
        }
    }
    control(&sim, "/faults", &serde_json::json!({}))?;
    rig.finish().await?;
    let seen = watch.end().await?;
    let Rig { works, crew, .. } = rig;
    crew.drain().await?;

    let (mut facts, faults) = facts::gather(&works, &sim, sowing.acquired, &sowing.schedules).await?;
    (facts.lease, facts.allowance) = (micros(LEASE)?, micros(ALLOWANCE)?);
    facts.seen = seen.wrong;
    outcome.report = audit(&facts);
    (outcome.runs, outcome.receipts) = (facts.runs.len(), facts.receipts.len());
    outcome.scheduled = facts.runs.iter().filter(|run| run.schedule_id.is_some()).count();
    (outcome.firings, outcome.effects) = (facts.firings.len(), facts.effects.len());
    (outcome.looks, outcome.faults) = (seen.looks, faults);
    outcome.seconds = begun.elapsed().as_secs();
    Ok(outcome)
}

fn micros(time: Duration) -> anyhow::Result<i64> {
    Ok(i64::try_from(time.as_micros())?)
}

fn start_sim(plan: &Plan) -> anyhow::Result<Sim> {
    let seed = plan.seed.to_string();
    let mut args: Vec<String> =
        ["--secret", SECRET, "--seed", &seed, "--stall-seconds", "3", "--latency-ms", "500"]
            .map(str::to_owned)
            .into();
    args.extend(plan.faults.iter().flat_map(|(name, rate)| ["--fault".to_owned(), format!("{name}={rate}")]));
    Sim::start(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

struct Rig {
    works: Works,
    crew: Crew,
    /// Who was stopped, and when.
    stopped: Vec<(Member, Instant)>,
}

impl Rig {
    /// How many runs are over.
    async fn ended(&self) -> anyhow::Result<usize> {
        let sql = "select count(*) from jobs.job_runs where status <> 'running' and retry_at is null";
        Ok(usize::try_from(self.works.count(sql).await?)?)
    }

    /// Waits until so many runs are over.
    async fn until_ended(&mut self, runs: usize) -> anyhow::Result<()> {
        let (mut seen, mut last) = (0, Instant::now());
        loop {
            let now = self.ended().await?;
            if now >= runs || (now > 0 && self.works.count(OPEN).await? == 0) {
                return Ok(());
            }
            if now != seen {
                (seen, last) = (now, Instant::now());
            }
            anyhow::ensure!(last.elapsed() < PATIENCE, "nothing goes on: {now} of {runs} have ended");
            self.take_in().await?;
            tokio::time::sleep(Duration::from_millis(20)).await; // between two looks, never instead of one
        }
    }

    /// Who has started is put to work, and who was stopped goes on when its runs were taken from it. Somebody must be left.
    async fn take_in(&mut self) -> anyhow::Result<()> {
        self.crew.complete_starts(1).await?;
        for (member, since) in std::mem::take(&mut self.stopped) {
            // Unless nobody can take them: it may have been in the middle of a statement.
            if self.held(&member).await? > 0 && since.elapsed() < LEASE * 2 {
                self.stopped.push((member, since));
            } else {
                member.process.signal("CONT")?;
                self.crew.ready.push(member);
            }
        }
        Ok(())
    }

    /// How many runs somebody holds.
    async fn held(&self, member: &Member) -> anyhow::Result<i64> {
        let name = member.name.as_deref().unwrap_or_default();
        self.works.count(format!("select count(*) from jobs.job_runs where locked_by = '{name}'")).await
    }

    /// One of those at work, and rather one that holds runs.
    async fn pick(&mut self, dice: &mut Dice) -> anyhow::Result<Member> {
        self.take_in().await?;
        let holders = "select distinct locked_by from jobs.job_runs where locked_by is not null";
        let holders = texts(&self.works.admin, holders).await?;
        Ok(self.crew.pick(dice, |one| one.name.as_ref().is_some_and(|name| holders.contains(name))))
    }

    async fn kill(&mut self, dice: &mut Dice, outcome: &mut Outcome) -> anyhow::Result<()> {
        let mut victim = self.pick(dice).await?;
        self.crew.kill(&mut victim)?;
        outcome.kills += 1;
        outcome.kills_in_flight += usize::from(self.held(&victim).await? > 0);
        Ok(())
    }

    async fn stop_one(&mut self, dice: &mut Dice, outcome: &mut Outcome) -> anyhow::Result<()> {
        let victim = self.pick(dice).await?;
        victim.process.signal("STOP")?;
        outcome.stops += usize::from(self.held(&victim).await? > 0);
        self.stopped.push((victim, Instant::now()));
        Ok(())
    }

    /// Waits until everything has ended, for as long as something changes, and stops the schedules.
    async fn finish(&mut self) -> anyhow::Result<()> {
        // Nothing that is due stays behind, nor what waits for another.
        let stop = "update jobs.schedules as schedule set enabled = false
                     where enabled and next_fire_at > now()
                       and not exists (select from jobs.schedule_firings as firing
                                        where firing.schedule_id = schedule.id and firing.outcome = 'waiting')";
        let enabled = "select count(*) from jobs.schedules where enabled";
        let (mut seen, mut last) = ((usize::MAX, i64::MAX), Instant::now());
        loop {
            execute(&self.works.admin, stop).await?;
            let (schedules, open) = (self.works.count(enabled).await?, self.works.count(OPEN).await?);
            if schedules == 0 && open == 0 && self.stopped.is_empty() {
                return Ok(());
            }
            let now = (self.ended().await?, schedules);
            if now != seen {
                (seen, last) = (now, Instant::now());
            }
            anyhow::ensure!(last.elapsed() < PATIENCE, "it does not end: {open} runs, {schedules} schedules");
            self.take_in().await?;
            tokio::time::sleep(Duration::from_millis(50)).await; // between two looks, never instead of one
        }
    }
}

//! The tormentor: deals blows while items are on their way, then lets everything finish and asks the auditor.
//!
//! Nothing is timed. A blow falls when the provider has seen so many requests since the last one, so a slow machine takes
//! longer and meets the same.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use super::{
    audit::{Report, audit},
    crew::{Crew, Start, Worker},
    facts,
    plan::{Blow, Dice, Plan},
    rig::Rig,
};
use crate::world::PATIENCE;

/// What was done, and what came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    pub seed: u64,
    pub seconds: u64,
    pub intended: usize,
    pub ended: usize,
    pub kills: usize,
    /// Kills of workers that had items reserved.
    pub kills_in_flight: usize,
    pub freezes: usize,
    /// Jobs that were taken from workers that were only stopped.
    pub taken_over: usize,
    /// Items that were in doubt until their answer came after all.
    pub settled_late: usize,
    pub cuts: usize,
    pub crashes: usize,
    pub requests: usize,
    pub faults: BTreeMap<String, usize>,
    pub report: Report,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {} s", self.seed, self.seconds)?;
        writeln!(
            f,
            "{} kills ({} with items in flight), {} freezes ({} jobs taken over, {} items settled late), {} connections cut, {} Postgres crashes",
            self.kills,
            self.kills_in_flight,
            self.freezes,
            self.taken_over,
            self.settled_late,
            self.cuts,
            self.crashes
        )?;
        writeln!(
            f,
            "{} items intended, {} ended; {} requests, faults {:?}",
            self.intended, self.ended, self.requests, self.faults
        )?;
        write!(f, "{}", self.report)
    }
}

impl Outcome {
    /// A run that was not as hard as its plan says nothing about the system.
    pub fn void(&self, plan: &Plan) -> Option<String> {
        let at_least = [
            ("kills", self.kills, plan.kills),
            ("kills with items in flight", self.kills_in_flight, plan.kills / 2),
            ("freezes", self.freezes, plan.freezes),
            ("jobs taken from stopped workers", self.taken_over, plan.freezes / 2),
            ("connections cut", self.cuts, plan.cuts / 2),
            ("Postgres crashes", self.crashes, plan.crashes),
            ("items intended", self.intended, plan.items),
            ("items ended", self.ended, self.intended / 2),
        ];
        let strikes = plan.rates.iter().filter(|(_, rate)| *rate > 0.0).map(|(name, _)| {
            (name.as_str(), self.faults.get(name).copied().unwrap_or_default(), plan.strikes_min)
        });
        let too_few = at_least.into_iter().chain(strikes).find(|(_, count, least)| count < least);
        too_few.map(|(what, count, least)| format!("{what}: {count}, at least {least} are needed"))
    }
}

/// The whole of it. `start` makes the workers.
pub async fn run(plan: &Plan, rig: &mut Rig, start: Start) -> anyhow::Result<Outcome> {
    let begun = Instant::now();
    let mut dice = Dice(plan.seed);
    let mut outcome = Outcome { seed: plan.seed, ..Outcome::default() };
    rig.keep_busy(plan.items / 10).await?;
    let mut crew = Crew::new(start.clone(), plan.workers).await?;
    let mut round = 0;
    loop {
        let blows = plan.blows(&mut dice);
        // The blows are spread over most of the work; requests go on while one falls.
        let step = (plan.items * 3 / 5 / blows.len().max(1)).max(1);
        for blow in blows {
            round += 1;
            thaw(round, rig, &mut crew, &mut outcome).await?;
            rig.keep_busy(plan.items / 10).await?;
            progress(rig, &mut crew, step).await?;
            strike(blow, round, rig, &mut crew, &mut dice, &mut outcome).await?;
        }
        if begun.elapsed() >= plan.time {
            break;
        }
    }
    while rig.intended < plan.items {
        rig.deploy().await?;
    }
    thaw(usize::MAX, rig, &mut crew, &mut outcome).await?;
    let struck = finish(plan, rig, crew, &start).await?;

    let (facts, faults) = facts::gather(rig, struck).await?;
    outcome.report = audit(&facts);
    outcome.settled_late = facts::settled_late(rig).await?;
    outcome.intended = rig.intended;
    outcome.ended = facts.items.iter().filter(|item| item.status != "queued").count();
    outcome.requests = facts.receipts.len();
    outcome.faults = faults;
    outcome.seconds = begun.elapsed().as_secs();
    Ok(outcome)
}

async fn strike(
    blow: Blow,
    round: usize,
    rig: &mut Rig,
    crew: &mut Crew,
    dice: &mut Dice,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    // Somebody must be left who can go on.
    crew.complete_starts(2).await?;
    let holders = rig.holders().await?;
    match blow {
        Blow::Kill => {
            let victim = crew.kill_one(dice, &holders)?;
            outcome.kills += 1;
            outcome.kills_in_flight += usize::from(rig.left_by(&victim).await? > 0);
        }
        Blow::Freeze => {
            let until = round + 2 + dice.below(4);
            crew.freeze_one(dice, &holders, until)?;
            outcome.freezes += 1;
        }
        Blow::Cut => outcome.cuts += usize::from(rig.cut(dice).await?),
        Blow::Crash => {
            rig.crash().await?;
            outcome.crashes += 1;
        }
    }
    Ok(())
}

/// Lets those go on who were stopped long enough. What was taken from them was taken from the living.
async fn thaw(round: usize, rig: &Rig, crew: &mut Crew, outcome: &mut Outcome) -> anyhow::Result<()> {
    while let Some(name) = crew.thaw_one(round)? {
        outcome.taken_over += rig.taken_from(&name).await?;
    }
    Ok(())
}

/// Waits until the provider has seen so many more requests. The locks of those who are silent grow old meanwhile.
async fn progress(rig: &mut Rig, crew: &mut Crew, requests: usize) -> anyhow::Result<()> {
    let enough = rig.outside.written()? + requests;
    let (mut seen, mut last) = (0, Instant::now());
    loop {
        let written = rig.outside.written()?;
        if written >= enough {
            return Ok(());
        }
        if written > seen {
            (seen, last) = (written, Instant::now());
        }
        let workers = crew.at_work();
        anyhow::ensure!(
            last.elapsed() < PATIENCE,
            "nothing goes on: {workers} workers, {} items wait, {} jobs are restless",
            rig.waiting().await?,
            rig.restless().await?
        );
        crew.complete_starts(1).await?;
        rig.age_locks_of(&crew.silent()).await?;
        tokio::time::sleep(Duration::from_millis(20)).await; // between two looks, never instead of one
    }
}

/// Ends the faults, lets everybody finish, and brings every job to its end. Says who was struck how often.
async fn finish(
    plan: &Plan,
    rig: &mut Rig,
    crew: Crew,
    start: &Start,
) -> anyhow::Result<BTreeMap<String, usize>> {
    rig.outside.end_faults()?;
    let dead: Vec<String> = crew.dead.iter().cloned().collect();
    settle(rig, &dead, "every job is at rest", async |rig| rig.restless().await).await?;
    if plan.settles {
        settle(rig, &dead, "every doubt is settled", async |rig| rig.open_doubts().await).await?;
    }
    let struck = crew.struck.clone();
    crew.drain().await?;

    // Whatever is still in doubt has no answer under way any more.
    rig.make_the_next_attempt_the_last().await?;
    let last = tokio::task::spawn_blocking({
        let start = start.clone();
        move || Worker::start(&start)
    });
    let last = last.await??;
    settle(rig, &dead, "every run has ended", async |rig| rig.open_runs().await).await?;
    tokio::task::spawn_blocking(move || last.drain()).await??;
    Ok(struck)
}

/// Waits until nothing is left, for as long as something changes.
async fn settle(
    rig: &mut Rig,
    dead: &[String],
    what: &str,
    left: impl AsyncFn(&Rig) -> anyhow::Result<i64>,
) -> anyhow::Result<()> {
    let (mut seen, mut last) = ((i64::MAX, 0, 0), Instant::now());
    loop {
        let now = (left(rig).await?, rig.waiting().await?, rig.outside.written()?);
        if now.0 == 0 {
            return Ok(());
        }
        if now != seen {
            (seen, last) = (now, Instant::now());
        }
        anyhow::ensure!(last.elapsed() < PATIENCE, "it never came true: {what}; {seen:?} are left");
        rig.age_locks_of(dead).await?;
        rig.age_forgotten_locks().await?;
        rig.make_due().await?;
        tokio::time::sleep(Duration::from_millis(50)).await; // between two looks, never instead of one
    }
}

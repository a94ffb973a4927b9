//! Crash proofs: a workload runs while processes are killed and frozen, connections are cut and Postgres crashes; then an
//! auditor compares what providers recorded with what the database says.
//!
//! | module | content |
//! |---|---|
//! | `plan` | which faults a run injects, how often, and its settings `CRASH_*` |
//! | `random` | numbers that follow from a seed |
//! | `processes` | the processes of a run: ready, starting, frozen and dead ones |
//! | `progress` | waits that end when nothing changes any more |
//! | `outcome` | the counts, the findings of the auditor, and the verdict |
//!
//! An area brings its [`Workload`]: what is done, by which processes, and what its auditor compares.
//!
//! No fault is timed. It is injected when enough work was done since the last one, so a slow machine takes longer and meets
//! the same faults.

mod outcome;
mod plan;
mod processes;
mod progress;
mod random;

use std::time::Instant;

pub use outcome::{Audit, Count, Findings, Outcome, provider_faults};
pub use plan::{Fault, Plan, setting};
pub use processes::{Frozen, Launch, Member, Processes, freeze};
pub use progress::{Progress, pause};
pub use random::SeededRandom;

/// The work of one area under faults.
#[expect(async_fn_in_trait, reason = "tests await it in the task that calls it")]
pub trait Workload {
    type Report: Findings;

    /// Adds work, and waits until enough of it was done for the next fault.
    async fn advance(&mut self, random: &mut SeededRandom) -> anyhow::Result<()>;

    /// Injects a fault. Returns whether it hit work in flight.
    async fn inject(&mut self, fault: Fault, random: &mut SeededRandom) -> anyhow::Result<bool>;

    /// Ends the faults of the providers, waits until all work has ended, and audits it.
    async fn finish(&mut self) -> anyhow::Result<Audit<Self::Report>>;
}

/// Injects every fault of the plan, once or for as long as the plan says, and audits the result.
pub async fn run<W: Workload>(plan: &Plan, workload: &mut W) -> anyhow::Result<Outcome<W::Report>> {
    let begun = Instant::now();
    let mut random = SeededRandom(plan.seed);
    let mut injected = Vec::new();
    loop {
        for fault in plan.shuffled(&mut random) {
            workload.advance(&mut random).await?;
            injected.push((fault, workload.inject(fault, &mut random).await?));
        }
        if begun.elapsed() >= plan.time {
            break;
        }
    }
    let audit = workload.finish().await?;
    Ok(Outcome::new(plan, begun.elapsed(), &injected, audit))
}

/// Runs a workload, prints the outcome, and fails unless the verdict is that all guarantees held.
pub async fn prove<W: Workload>(
    plan: &Plan,
    workload: &mut W,
    guarantee: &str,
) -> anyhow::Result<Outcome<W::Report>> {
    let outcome = run(plan, workload).await?;
    eprintln!("{outcome}");
    outcome.verdict()?;
    eprintln!("verdict: {guarantee}");
    Ok(outcome)
}

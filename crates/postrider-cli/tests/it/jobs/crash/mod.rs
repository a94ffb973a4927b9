//! Crash proof of jobs: processes that fire schedules and run functions are killed and frozen under load while functions fail in every
//! way they can; then an auditor compares the receipts of the functions with the database.

mod audit;
mod audit_tests;
mod facts;
mod plan;
mod report;
mod sources;
mod watch;
mod workload;

use plan::Plan;
use postrider_testkit::crash::prove;
use workload::Jobs;

async fn proof(plan: &Plan) -> anyhow::Result<()> {
    let mut jobs = Jobs::start(plan).await?;
    let guarantee = "every run has ended, every firing had its run, and every retry was counted";
    prove(&plan.faults, &mut jobs, guarantee).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_run_ends_and_every_firing_has_one() -> anyhow::Result<()> {
    proof(&Plan::short()).await
}

/// `make crash-jobs`. Takes CRASH_SECONDS, CRASH_SEED, CRASH_KILLS and CRASH_RATES.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: make crash-jobs"]
async fn the_long_run() -> anyhow::Result<()> {
    let plan = Plan::from_environment()?;
    eprintln!("{plan:?}");
    proof(&plan).await
}

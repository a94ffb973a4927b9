//! Crash proof of campaigns: workers are killed, frozen and cut off, Postgres crashes, the provider fails in every way it can,
//! and an auditor compares the provider's receipts with the database.

mod applications;
mod audit;
mod audit_tests;
mod broken;
mod broken_guards;
mod facts;
mod plan;
mod provider;
mod settling;
mod setup;
mod workload;

use plan::Plan;
use postrider_testkit::crash::prove;
use setup::Setup;
use workload::Campaigns;

/// A run of healthy workers.
async fn proof(plan: &Plan) -> anyhow::Result<()> {
    let mut setup = Setup::new(plan).await?;
    let launch = setup.workers();
    let mut campaigns = Campaigns::start(plan, &mut setup, launch).await?;
    let outcome =
        prove(&plan.faults, &mut campaigns, "no item was called twice, and none was forgotten").await?;
    let report = &outcome.report;
    anyhow::ensure!(report.waiting + report.given_up == 0, "items have no result: {outcome}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_item_is_called_twice_and_none_is_forgotten() -> anyhow::Result<()> {
    proof(&Plan::short()).await
}

/// `make crash`. Takes CRASH_SECONDS, CRASH_SEED, CRASH_KILLS, CRASH_ITEMS and CRASH_RATES.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: make crash"]
async fn the_long_run() -> anyhow::Result<()> {
    let plan = Plan::from_environment()?;
    eprintln!("{plan:?}");
    proof(&plan).await
}

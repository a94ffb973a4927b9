//! Jobs under fire: those who fire and run are killed under load while functions fail in every way they can; then an auditor compares
//! what the functions saw with the database.

mod audit;
mod audit_tests;
mod facts;
mod plan;
mod report;
mod sowing;
mod torment;
mod watch;

use plan::Plan;

async fn proof(plan: &Plan) -> anyhow::Result<()> {
    let outcome = torment::run(plan).await?;
    eprintln!("{outcome}");
    // What was found is found, however little was tried.
    anyhow::ensure!(outcome.report.is_clean(), "a promise was broken: {outcome}");
    if let Some(why) = outcome.void(plan) {
        anyhow::bail!("void: this run proves nothing. {why}\n{outcome}");
    }
    eprintln!("verdict: every run has ended, every firing had its run, and every retry was counted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_run_ends_and_every_firing_has_one() -> anyhow::Result<()> {
    proof(&Plan::short()).await
}

/// `make crash-jobs`. Takes CRASH_SECONDS and CRASH_SEED.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "as long as one likes: make crash-jobs"]
async fn the_long_run() -> anyhow::Result<()> {
    let plan = Plan::from_environment()?;
    eprintln!("{plan:?}");
    proof(&plan).await
}

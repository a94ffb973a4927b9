//! Chat under fire: those who receive and those who reply are killed under load while the vendors fail in every way they can; then an
//! auditor compares the vendors' own book with the database.

mod audit;
mod audit_tests;
pub mod crew;
mod driver;
mod facts;
mod front;
mod late;
mod plan;
mod torment;

use plan::Plan;

async fn proof(plan: &Plan) -> anyhow::Result<()> {
    let outcome = torment::run(plan).await?;
    eprintln!("{outcome}");
    // What was found is found, however little was tried.
    anyhow::ensure!(outcome.report.is_clean(), "a promise was broken: {outcome}");
    if let Some(why) = outcome.void(plan) {
        anyhow::bail!("void: this run proves nothing. {why}\n{outcome}");
    }
    eprintln!("verdict: whatever was taken was answered, and nothing came twice without a reason");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_was_taken_is_answered() -> anyhow::Result<()> {
    proof(&Plan::short()).await
}

/// `make crash-replies`. Takes CRASH_SECONDS and CRASH_SEED.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "as long as one likes: make crash-replies"]
async fn the_long_run() -> anyhow::Result<()> {
    let plan = Plan::from_environment()?;
    eprintln!("{plan:?}");
    proof(&plan).await
}

//! The promise under fire: workers are killed, stopped and cut off, Postgres crashes, the provider fails in every way it
//! can, and an auditor compares the provider's own book with the database.

mod audit;
mod audit_tests;
mod broken;
mod crew;
mod facts;
mod outside;
mod plan;
mod rig;
mod settling;
mod torment;
mod twins;

pub use outside::send;
pub use plan::Dice;
use plan::Plan;
use rig::Rig;
use torment::Outcome;

/// A run of healthy workers.
async fn proof(plan: &Plan) -> anyhow::Result<Outcome> {
    let mut rig = Rig::new(plan).await?;
    let start = rig.server();
    let outcome = torment::run(plan, &mut rig, start).await?;
    eprintln!("{outcome}");
    // What was found is found, however little was tried.
    let report = &outcome.report;
    anyhow::ensure!(
        report.is_clean() && report.waiting + report.given_up == 0,
        "a promise was broken: {outcome}"
    );
    if let Some(why) = outcome.void(plan) {
        anyhow::bail!("void: this run proves nothing. {why}\n{outcome}");
    }
    eprintln!("verdict: nobody was called twice, and nobody was forgotten");
    Ok(outcome)
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_called_twice_and_nobody_is_forgotten() -> anyhow::Result<()> {
    proof(&Plan::short()).await.map(drop)
}

/// `make crash`. Takes CRASH_SECONDS, CRASH_SEED, CRASH_KILLS, CRASH_ITEMS and CRASH_RATES.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "as long as one likes: make crash"]
async fn the_long_run() -> anyhow::Result<()> {
    let plan = Plan::from_environment()?;
    eprintln!("{plan:?}");
    proof(&plan).await.map(drop)
}

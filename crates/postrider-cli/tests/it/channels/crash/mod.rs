//! Crash proof of chat: processes that receive messages and processes that send replies are killed under load while the vendors fail
//! in every way they can; then an auditor compares the receipts of the vendors with the database.

mod audit;
mod audit_tests;
mod driver;
mod facts;
mod front;
mod late;
mod plan;
mod workload;

use plan::Plan;
use postrider_testkit::crash::prove;
use workload::Chat;

async fn proof(plan: &Plan) -> anyhow::Result<()> {
    let mut chat = Chat::start(plan).await?;
    let guarantee = "every message that was taken was answered, and no reply came twice without a reason";
    prove(&plan.faults, &mut chat, guarantee).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_that_was_taken_is_answered() -> anyhow::Result<()> {
    proof(&Plan::short()).await
}

/// `make crash-replies`. Takes CRASH_SECONDS, CRASH_SEED, CRASH_KILLS and CRASH_RATES.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: make crash-replies"]
async fn the_long_run() -> anyhow::Result<()> {
    let plan = Plan::from_environment()?;
    eprintln!("{plan:?}");
    proof(&plan).await
}

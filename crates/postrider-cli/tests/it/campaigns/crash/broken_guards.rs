//! Copies of the system with one broken guard each. The auditor must find each of them under the same faults.

use postrider_testkit::crash::{self, Launch};

use super::{
    broken,
    plan::{KILL, Plan},
    setup::{Setup, launch},
    workload::Campaigns,
};
use crate::sql::{execute, texts};

/// Runs a copy with a broken guard, and returns the number of keys that were called twice.
async fn duplicates(copy: &str, setup: &mut Setup, launch: Launch) -> anyhow::Result<usize> {
    let plan = Plan::small();
    let mut campaigns = Campaigns::start(&plan, setup, launch).await?;
    let outcome = crash::run(&plan.faults, &mut campaigns).await?;
    eprintln!("{copy}: {outcome}");
    let kills = outcome.counts.iter().find(|count| count.what == KILL.to_string());
    anyhow::ensure!(kills.is_some_and(|kills| kills.count >= kills.min), "void: {outcome}");
    Ok(outcome.report.duplicates.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_unique_key_the_auditor_reports_duplicates() -> anyhow::Result<()> {
    let mut setup = Setup::new(&Plan::small()).await?;
    // Statements that rely on the key must run without it: the copy no longer notices a conflict.
    let clause = "on conflict (tenant_id, workspace_id, idempotency_key) do nothing";
    let functions = format!(
        "select pg_get_functiondef(oid) from pg_proc
          where pronamespace = 'execution'::regnamespace and strpos(prosrc, '{clause}') > 0"
    );
    let functions = texts(&setup.admin, functions).await?;
    anyhow::ensure!(
        functions.iter().any(|definition| definition.contains("execution.begin_windows(")),
        "begin_windows reads otherwise now"
    );
    let unguarded = "alter table execution.channel_outbox drop constraint channel_outbox_one_row_per_key";
    execute(&setup.admin, unguarded).await?;
    for definition in functions {
        execute(&setup.admin, definition.replace(clause, "")).await?;
    }
    let launch = setup.workers();
    assert!(duplicates("without the unique key", &mut setup, launch).await? > 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_taken_for_a_refusal_makes_duplicates() -> anyhow::Result<()> {
    let mut setup = Setup::new(&Plan::small()).await?;
    let launch = helper("takes silence for a refusal", &setup);
    assert!(duplicates("a timeout taken for a refusal", &mut setup, launch).await? > 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_after_the_call_makes_duplicates() -> anyhow::Result<()> {
    let mut setup = Setup::new(&Plan::small()).await?;
    let launch = helper("calls before it reserves", &setup);
    assert!(duplicates("a reservation after the call", &mut setup, launch).await? > 0);
    Ok(())
}

/// This program again, as a worker that is broken in this way.
fn helper(how: &'static str, setup: &Setup) -> Launch {
    let (database, provider) = (setup.postgres.url("postrider_worker"), setup.provider.http_url.clone());
    launch(move || broken::command(how, &database, &provider))
}

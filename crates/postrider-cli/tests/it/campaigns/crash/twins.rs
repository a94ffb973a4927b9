//! Twins of the system that are broken on purpose, each in one place. The same torment must find them out.

use std::sync::Arc;

use super::{broken, crew::Start, plan::Plan, rig::Rig, torment};
use crate::sql::{execute, texts};

/// Runs a twin and says how many keys were called twice.
async fn duplicates(twin: &str, rig: &mut Rig, start: Start) -> anyhow::Result<usize> {
    let plan = Plan::small();
    let outcome = torment::run(&plan, rig, start).await?;
    eprintln!("{twin}: {outcome}");
    anyhow::ensure!(outcome.kills >= plan.kills, "void: {} kills", outcome.kills);
    Ok(outcome.report.duplicates.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_unique_key_the_auditor_reports_duplicates() -> anyhow::Result<()> {
    let mut rig = Rig::new(&Plan::small()).await?;
    // Whatever relies on the key must run without it: a conflict is not noticed any more.
    let clause = "on conflict (tenant_id, workspace_id, idempotency_key) do nothing";
    let functions = format!(
        "select pg_get_functiondef(oid) from pg_proc
          where pronamespace = 'execution'::regnamespace and strpos(prosrc, '{clause}') > 0"
    );
    let functions = texts(&rig.admin, functions).await?;
    anyhow::ensure!(
        functions.iter().any(|definition| definition.contains("execution.begin_windows(")),
        "begin_windows reads otherwise now"
    );
    let unguarded = "alter table execution.channel_outbox drop constraint channel_outbox_one_row_per_key";
    execute(&rig.admin, unguarded).await?;
    for definition in functions {
        execute(&rig.admin, definition.replace(clause, "")).await?;
    }
    let start = rig.server();
    assert!(duplicates("without the unique key", &mut rig, start).await? > 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_taken_for_a_refusal_makes_duplicates() -> anyhow::Result<()> {
    let mut rig = Rig::new(&Plan::small()).await?;
    let start = helper("takes silence for a refusal", &rig);
    assert!(duplicates("a timeout taken for a refusal", &mut rig, start).await? > 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_after_the_call_makes_duplicates() -> anyhow::Result<()> {
    let mut rig = Rig::new(&Plan::small()).await?;
    let start = helper("calls before it reserves", &rig);
    assert!(duplicates("a reservation after the call", &mut rig, start).await? > 0);
    Ok(())
}

/// This program again, as a worker that is broken in this way.
fn helper(how: &'static str, rig: &Rig) -> Start {
    let (database, provider) = (rig.postgres.url("postrider_worker"), rig.outside.http_url.clone());
    Arc::new(move || broken::command(how, &database, &provider))
}

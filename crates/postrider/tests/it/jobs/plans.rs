//! The statements of a run's life find what they need through indexes, however many runs there were: what the functions read is
//! counted while they run.

use sqlx::{PgConnection, types::Uuid};

use super::stage::{Claimed, End, Room, Stage, acquire, claim, ends};
use crate::sql::{acting_as, execute, number};

/// Fails when the step read whole tables, or many more rows than it needs.
async fn frugal<T>(
    client: &mut PgConnection,
    role: &str,
    step: &str,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
) -> anyhow::Result<T> {
    let read = "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables
                 where schemaname = 'jobs' and relname in ('job_runs', 'sync_errors')";
    let before = number(&mut *client, read).await?;
    execute(&mut *client, format!("set local role postrider_{role}")).await?;
    let done = work(&mut *client).await?;
    execute(&mut *client, "reset role").await?;
    let rows = number(&mut *client, read).await? - before;
    anyhow::ensure!(rows <= 25, "{step} read {rows} rows");
    Ok(done)
}

/// The whole life of a run, and of one that fails for good; it leaves no trace.
async fn live(stage: &Stage, client: &mut PgConnection) -> anyhow::Result<()> {
    execute(&mut *client, format!("begin; {}", acting_as(stage.own))).await?;
    let told = async |client: &mut PgConnection, force: bool| -> anyhow::Result<(String, Option<Uuid>)> {
        let step = if force { "forcing" } else { "invoking" };
        frugal(client, "app", step, async |client| acquire(client, "f", None, force).await).await
    };
    let held = async |client: &mut PgConnection| -> anyhow::Result<Claimed> {
        let mut claimed =
            frugal(client, "worker", "claiming", async |client| claim(client, "w", &Room::of(1)).await)
                .await?;
        anyhow::ensure!(claimed.len() == 1, "{claimed:?}");
        Ok(claimed.remove(0))
    };
    let ended = async |client: &mut PgConnection, run: &Claimed, end: End| -> anyhow::Result<Vec<String>> {
        frugal(client, "worker", "ending", async |client| ends(client, "w", &[(run, end)]).await).await
    };
    anyhow::ensure!(told(&mut *client, false).await?.0 == "acquired");
    anyhow::ensure!(told(&mut *client, false).await?.0 == "running");
    let first = held(&mut *client).await?;
    let beat = format!(
        "select jobs.heartbeat_runs(array['{}']::uuid[], array['{}']::uuid[], array[{}], 'w')",
        stage.own, first.id, first.claims
    );
    frugal(&mut *client, "worker", "the heartbeat", async |client| execute(client, beat).await).await?;
    let stale = "select jobs.tenants_with_stale_runs('1 hour')";
    frugal(&mut *client, "worker", "looking for stale runs", async |client| execute(client, stale).await)
        .await?;
    let recover = format!("select jobs.recover_runs('{}', '1 hour')", stage.own);
    frugal(&mut *client, "worker", "recovering", async |client| execute(client, recover).await).await?;
    anyhow::ensure!(ended(&mut *client, &first, End::Refused).await? == ["failed"]);
    anyhow::ensure!(told(&mut *client, false).await?.0 == "acquired");
    let retry = format!("select jobs.retry_run(tenancy.current_tenant_id(), '{}', 'me')", first.id);
    frugal(&mut *client, "app", "retrying what is taken", async |client| execute(client, &retry).await)
        .await?;
    let second = held(&mut *client).await?;
    anyhow::ensure!(ended(&mut *client, &second, End::Done).await? == ["completed"]);
    anyhow::ensure!(told(&mut *client, false).await?.0 == "completed");
    frugal(&mut *client, "app", "retrying what has completed", async |client| execute(client, &retry).await)
        .await?;
    anyhow::ensure!(told(&mut *client, true).await?.0 == "acquired");
    let cancel = format!("select jobs.cancel_run(tenancy.current_tenant_id(), '{}', null, 'me')", first.id);
    frugal(&mut *client, "app", "cancelling", async |client| execute(client, cancel).await).await?;
    execute(&mut *client, "rollback").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_lives_by_indexes_however_many_there_were() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    execute(&stage.admin, "alter table jobs.job_runs set (autovacuum_enabled = off)").await?;
    let mut session = stage.admin.acquire().await?;
    // Often enough that a session keeps its plans.
    for _ in 0..7 {
        live(&stage, &mut session).await?;
    }
    stage.fill(stage.own, 10_000, "status, completed_at", "'completed', now()").await?;
    stage.fill(stage.own, 1_000, "status, completed_at", "'failed', now()").await?;
    live(&stage, &mut session).await?;
    let mut new_session = stage.admin.acquire().await?;
    live(&stage, &mut new_session).await?;
    execute(&stage.admin, "vacuum analyze jobs.job_runs").await?;
    let mut new_session = stage.admin.acquire().await?;
    live(&stage, &mut session).await?;
    live(&stage, &mut new_session).await
}

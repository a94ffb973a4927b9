//! The statements of a run's life find what they need through indexes, however many runs there were: what the functions read is
//! counted while they run.

use anyhow::Context;
use sqlx::{PgConnection, types::Uuid};

use super::stage::{Capacity, Claimed, End, Stage, acquire, claim, ends};
use crate::sql::{acting_as, execute, number};

/// Fails when the step read whole tables, or many more rows than it needs.
async fn frugal<T>(
    client: &mut PgConnection,
    role: &str,
    step: &str,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
) -> anyhow::Result<T> {
    let read = "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables
                 where schemaname = 'jobs' and relname <> 'functions'";
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
            frugal(client, "worker", "claiming", async |client| claim(client, "w", &Capacity::of(1)).await)
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
    fire(stage, client).await?;
    sweep(stage, client).await?;
    execute(&mut *client, "rollback").await?;
    Ok(())
}

/// A schedule that is due, fires, and whose firing waits.
async fn fire(stage: &Stage, client: &mut PgConnection) -> anyhow::Result<()> {
    let (own, schedule, run) = (stage.own, Uuid::now_v7(), Uuid::now_v7());
    let put = format!(
        "select jobs.put_schedule('{own}', '{schedule}', 'f', '0 0 * * *', 'UTC', 'hour', null, null, null, '{{g}}', 'once', true,
                                  now(), 'me')"
    );
    frugal(&mut *client, "app", "making a schedule", async |client| execute(client, put).await).await?;
    let fire_at = "array[now()]";
    for (step, sql) in [
        ("looking for due schedules", "select jobs.due_schedules(10, 10, '{}', '{}')".to_owned()),
        (
            "firing",
            format!(
                "select jobs.fire_schedule('{own}', '{schedule}', now(), 1, {fire_at}, array['{run}'::uuid], null, null,
                                           now() + interval '1 day')"
            ),
        ),
        ("looking for waiting firings", "select jobs.tenants_with_waiting_firings(10)".to_owned()),
        ("firing what waited", format!("select jobs.fire_waiting('{own}', 10, '1 day')")),
    ] {
        frugal(&mut *client, "worker", step, async |client| execute(client, &sql).await).await?;
    }
    let waiting = format!(
        "select count(*) from jobs.schedule_firings where schedule_id = '{schedule}' and outcome = 'waiting'"
    );
    anyhow::ensure!(number(&mut *client, waiting).await? == 1, "the firing does not wait");
    Ok(())
}

/// The statements that run every few seconds or minutes and find nothing.
async fn sweep(stage: &Stage, client: &mut PgConnection) -> anyhow::Result<()> {
    let own = stage.own;
    for sql in [
        format!("select jobs.reserve_notifications('{own}', 10)"),
        format!("select jobs.claim_doubtful_notifications('{own}', '10 minutes', 10)"),
        "select jobs.tenants_with_old_runs('1000 days')".to_owned(),
        format!("select jobs.prune_runs('{own}', '1000 days', 10)"),
    ] {
        frugal(&mut *client, "worker", &sql, async |client| execute(client, &sql).await).await?;
    }
    Ok(())
}

/// Everything a tenant has that is over: runs, dead letters, firings and notifications.
async fn fill_ended(stage: &Stage, tenant: Uuid) -> anyhow::Result<()> {
    stage.fill(tenant, 10_000, "status, completed_at", "'completed', now()").await?;
    stage.fill(tenant, 1_000, "status, completed_at", "'failed', now()").await?;
    let (schedule, alert) = (Uuid::now_v7(), Uuid::now_v7());
    let sql = format!(
        "insert into jobs.sync_errors (tenant_id, error_type, error_code, error_message, error_details, source_entity_type,
                                       source_entity_id, is_resolved, resolved_at, resolved_by)
         select '{tenant}', 'job_failure', 'EXECUTION_ERROR', 'e', '{{}}', 'job_run', gen_random_uuid(), true, now(), 'me'
           from generate_series(1, 3000);
         insert into jobs.schedules (id, tenant_id, function_name, cron, timezone, enabled)
         values ('{schedule}', '{tenant}', 'f', '0 0 * * *', 'UTC', false);
         insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome, decided_at)
         select '{tenant}', '{schedule}', now() - at * interval '1 second', 'skipped', now() from generate_series(1, 5000) as at;
         insert into jobs.alert_instances (id, tenant_id, alert_config_id, title) values ('{alert}', '{tenant}', 'a', 'a');
         insert into jobs.alert_notifications (tenant_id, alert_instance_id, account_id, recipient, about, subject, body, status)
         select '{tenant}', '{alert}', '{alert}', at::text, 'raised', 's', 'b', 'sent' from generate_series(1, 3000) as at"
    );
    Ok(execute(&stage.admin, sql).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_lives_by_indexes_on_drained_tables_and_for_a_tenant_without_statistics() -> anyhow::Result<()>
{
    let stage = Stage::new().await?;
    stage.function(stage.own, "g").await?;
    let other = stage.another("other").await?;
    for table in ["job_runs", "sync_errors", "schedule_firings", "alert_notifications", "schedules"] {
        execute(&stage.admin, format!("alter table jobs.{table} set (autovacuum_enabled = off)")).await?;
    }
    let mut session = stage.admin.acquire().await?;
    fill_ended(&stage, other).await?;
    execute(&stage.admin, "vacuum analyze").await?;
    let live_often = async |session: &mut PgConnection| -> anyhow::Result<()> {
        for _ in 0..7 {
            live(&stage, session).await?;
        }
        let mut new_session = stage.admin.acquire().await?;
        live(&stage, &mut new_session).await
    };
    live_often(&mut session).await.context("the tenant is not in the statistics")?;
    fill_ended(&stage, stage.own).await?;
    live_often(&mut session).await.context("many rows of the tenant that is not in the statistics")?;
    // The statistics are of the fullest hour, and of the emptiest.
    stage.fill_due(other, 8_000).await?;
    execute(&stage.admin, "vacuum analyze").await?;
    let drain =
        "update jobs.job_runs set status = 'completed', completed_at = now() where status = 'running'";
    execute(&stage.admin, drain).await?;
    live_often(&mut session).await.context("drained")?;
    execute(&stage.admin, "vacuum analyze").await?;
    live_often(&mut session).await.context("drained and analyzed")?;
    stage.fill(other, 8_000, "locked_by, heartbeat_at", "'v', now()").await?;
    live_often(&mut session).await.context("filled again")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_lives_by_indexes_however_many_there_were() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.function(stage.own, "g").await?;
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

//! Retention of runs: the certificate of an old run is frozen, and then its send jobs and items are deleted in small steps.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::ids::{JobId, RunId, TenantId};
use sqlx::PgConnection;

use crate::{StoreError, postgres::unprepared::unprepared};

/// A run that ended long ago and still has its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldRun {
    /// Its id.
    pub id: RunId,
    /// Whether its certificate is frozen already.
    pub is_archived: bool,
}

/// Chooses the tenants with runs that ended before a time and still have their rows. It locks nothing.
pub async fn tenants_with_old(
    connection: &mut PgConnection,
    before: Timestamp,
) -> Result<Vec<TenantId>, StoreError> {
    let tenants = sqlx::query_scalar!(
        r#"select tenant_id as "tenant_id!" from execution.tenants_with_old_runs($1)"#,
        before.to_sqlx() as _,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("choosing tenants with old runs"))?;
    Ok(tenants.into_iter().map(TenantId).collect())
}

/// The runs of a tenant that ended before a time and still have their rows, oldest first, without those that have an item in doubt.
pub async fn old(
    connection: &mut PgConnection,
    tenant: TenantId,
    before: Timestamp,
) -> Result<Vec<OldRun>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select run_id as "run_id!",
               is_archived as "is_archived!"
          from execution.old_runs($1, $2)
        "#,
        tenant.0,
        before.to_sqlx() as _,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the old runs"))?;
    Ok(rows.into_iter().map(|row| OldRun { id: RunId(row.run_id), is_archived: row.is_archived }).collect())
}

/// Freezes the certificate of a run that ended before a time. False if it is archived already.
pub async fn archive(
    connection: &mut PgConnection,
    tenant: TenantId,
    run: RunId,
    before: Timestamp,
    exported_to: Option<&str>,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(
        r#"select execution.archive_run($1, $2, $3, $4, $5) as "archived!""#,
        tenant.0,
        run.0,
        before.to_sqlx() as _,
        exported_to,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("archiving the run"))
}

/// Deletes send jobs or items of an archived run, about so many at most, and returns their number. 0: none is left.
pub async fn prune(
    connection: &mut PgConnection,
    tenant: TenantId,
    run: RunId,
    limit: i32,
) -> Result<i64, StoreError> {
    sqlx::query_scalar!(r#"select execution.prune_run($1, $2, $3) as "removed!""#, tenant.0, run.0, limit)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("deleting the items of an archived run"))
}

/// The run, its certificate and its send jobs for an export: the lines, and the ids of the send jobs in their order.
pub async fn export_head(
    connection: &mut PgConnection,
    tenant: TenantId,
    run: RunId,
) -> Result<(Vec<String>, Vec<JobId>), StoreError> {
    let mut lines = sqlx::query_scalar!(
        r#"
        select jsonb_build_object('kind', 'run', 'row', to_jsonb(run))::text as "line!"
          from execution.campaign_runs as run
         where run.tenant_id = $1
           and run.id = $2
         union all
        select jsonb_build_object('kind', 'certificate', 'row', to_jsonb(launch))::text
          from execution.verify_launch($1, $2) as launch
        "#,
        tenant.0,
        run.0,
    )
    .fetch_all(unprepared(&mut *connection))
    .await
    .map_err(StoreError::on("exporting the run"))?;
    let rows = sqlx::query!(
        r#"
        select job.id,
               jsonb_build_object('kind', 'job', 'row', to_jsonb(job))::text as "line!"
          from execution.job_queue as job
         where job.tenant_id = $1
           and job.run_id = $2
         order by job.position
        "#,
        tenant.0,
        run.0,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("exporting the send jobs of the run"))?;
    let jobs = rows.iter().map(|row| JobId(row.id)).collect();
    lines.extend(rows.into_iter().map(|row| row.line));
    Ok((lines, jobs))
}

/// The items of a send job, their single messages and their callbacks for an export, one line each.
pub async fn export_job(
    connection: &mut PgConnection,
    tenant: TenantId,
    job: JobId,
) -> Result<Vec<String>, StoreError> {
    sqlx::query_scalar!(
        r#"
        with items as (
            select item.*
              from execution.channel_outbox as item
             where item.tenant_id = $1
               and item.job_id = $2
             order by item.id
        )
        select jsonb_build_object('kind', 'item', 'row', to_jsonb(items))::text as "line!"
          from items
         union all
        select jsonb_build_object('kind', 'message', 'row', to_jsonb(message))::text
          from items
               join execution.messages as message on message.tenant_id = $1 and message.id = items.recipient_id
         union all
        select jsonb_build_object('kind', 'callback', 'row', to_jsonb(callback))::text
          from items
               cross join (select account.id from tenancy.provider_accounts as account where account.tenant_id = $1) as account
               join execution.provider_callbacks as callback
                 on callback.tenant_id = $1
                and callback.account_id = account.id
                and callback.idempotency_key = items.idempotency_key
        "#,
        tenant.0,
        job.0,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("exporting the items of the run"))
}

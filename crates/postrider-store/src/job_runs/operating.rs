//! Runs for people: how they stand, retrying and cancelling them, how jobs are doing.

use std::time::Duration;

use jiff::Timestamp;
use postrider_model::{
    ids::{JobRunId, ScheduleId, TenantId},
    job::JobRunStatus,
    lock_key::Grain,
};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;

use super::{RunRef, arrays};
use crate::{StoreError, campaigns::word, jobs::interval, unnamed::unnamed};

/// A run as it stands.
#[derive(Debug, Clone, Serialize)]
pub struct RunState {
    /// Its id.
    pub id: JobRunId,
    /// What it runs.
    pub function_name: String,
    /// What no other run has.
    pub lock_key: String,
    /// How it stands.
    pub status: JobRunStatus,
    /// What the function was given.
    pub input_params: Option<Value>,
    /// What it answered.
    pub result: Option<Value>,
    /// What went wrong last.
    pub error_message: Option<String>,
    /// How often it was tried again.
    pub retry_count: i32,
    /// When it is tried again.
    pub retry_at: Option<Timestamp>,
    /// When its last attempt began.
    pub started_at: Timestamp,
    /// When that ended.
    pub completed_at: Option<Timestamp>,
    /// How long that took.
    pub duration_ms: Option<i32>,
    /// When its runner was heard of last.
    pub heartbeat_at: Option<Timestamp>,
    /// Who runs it.
    pub locked_by: Option<String>,
    /// What made it, if that was a schedule.
    pub schedule_id: Option<ScheduleId>,
    /// For which time.
    pub scheduled_for: Option<Timestamp>,
    /// Within what time it runs once.
    pub grain: Grain,
    /// When that began.
    pub grain_start: Timestamp,
    /// Whether it ran although its grain was done.
    pub is_forced: bool,
    /// When it was invoked.
    pub created_at: Timestamp,
}

/// Which runs are asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunFilter<'a> {
    /// One of them.
    pub id: Option<JobRunId>,
    /// Of this function.
    pub function: Option<&'a str>,
    /// In this state.
    pub status: Option<JobRunStatus>,
    /// Made by this schedule.
    pub schedule: Option<ScheduleId>,
}

/// Up to so many runs of a tenant, newest first, below this one.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    filter: RunFilter<'_>,
    below: Option<JobRunId>,
    limit: i64,
) -> Result<Vec<RunState>, StoreError> {
    let rows = sqlx::query_file!(
        "sql/list_job_runs.sql",
        tenant.0,
        filter.id.map(|id| id.0),
        filter.function,
        filter.status.map(JobRunStatus::as_str),
        filter.schedule.map(|id| id.0),
        below.map(|id| id.0),
        limit,
    )
    .fetch_all(unnamed(connection))
    .await
    .map_err(StoreError::on("listing the runs"))?;
    let time = jiff_sqlx::Timestamp::to_jiff;
    rows.into_iter()
        .map(|row| {
            Ok(RunState {
                id: JobRunId(row.id),
                function_name: row.function_name,
                lock_key: row.lock_key,
                status: word(&row.status)?,
                input_params: row.input_params,
                result: row.result,
                error_message: row.error_message,
                retry_count: row.retry_count,
                retry_at: row.retry_at.map(time),
                started_at: time(row.started_at),
                completed_at: row.completed_at.map(time),
                duration_ms: row.duration_ms,
                heartbeat_at: row.heartbeat_at.map(time),
                locked_by: row.locked_by,
                schedule_id: row.schedule_id.map(ScheduleId),
                scheduled_for: row.scheduled_for.map(time),
                grain: word(&row.grain)?,
                grain_start: time(row.grain_start),
                is_forced: row.is_forced,
                created_at: time(row.created_at),
            })
        })
        .collect()
}

/// One run of a tenant.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: JobRunId,
) -> Result<Option<RunState>, StoreError> {
    let filter = RunFilter { id: Some(id), ..RunFilter::default() };
    Ok(page(connection, tenant, filter, None, 1).await?.pop())
}

/// What became of the wish to run something again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retried {
    /// It runs again.
    Retried,
    /// Only what failed is run again, and it stands otherwise.
    NotFailed(JobRunStatus),
    /// Another run has its lock key.
    KeyTaken(JobRunId),
}

/// Runs a failed run of a tenant again, at once. `None` when there is no such run. Wake the runners after the commit.
pub async fn retry(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: JobRunId,
    actor: &str,
) -> Result<Option<Retried>, StoreError> {
    let row = sqlx::query!(
        r#"select outcome as "outcome!", run_id as "run_id!" from jobs.retry_run($1, $2, $3)"#,
        tenant.0,
        id.0,
        actor,
    )
    .fetch_optional(unnamed(connection))
    .await
    .map_err(StoreError::on("retrying the run"))?;
    row.map(|row| {
        Ok(match row.outcome.as_str() {
            "retried" => Retried::Retried,
            "taken" => Retried::KeyTaken(JobRunId(row.run_id)),
            status => Retried::NotFailed(word(status)?),
        })
    })
    .transpose()
}

/// What became of the wish to give something up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It is cancelled, or was before.
    Cancelled,
    /// It is completed: there is nothing left to cancel.
    Completed,
}

/// Cancels a run of a tenant. `None` when there is no such run. Wake the runners after the commit.
pub async fn cancel(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: JobRunId,
    note: Option<&str>,
    actor: &str,
) -> Result<Option<Cancelled>, StoreError> {
    let status = sqlx::query_scalar!("select jobs.cancel_run($1, $2, $3, $4)", tenant.0, id.0, note, actor)
        .fetch_one(unnamed(connection))
        .await
        .map_err(StoreError::on("cancelling the run"))?;
    Ok(status.map(|status| if status == "completed" { Cancelled::Completed } else { Cancelled::Cancelled }))
}

/// Which of these runs, of any tenants, are over.
pub async fn which_ended(connection: &mut PgConnection, runs: &[RunRef]) -> Result<Vec<RunRef>, StoreError> {
    let (tenants, ids) = arrays(runs.iter().copied());
    let rows = sqlx::query!(
        r#"select tenant_id as "tenant_id!", id as "id!" from jobs.which_ended($1, $2)"#,
        &tenants,
        &ids,
    )
    .fetch_all(unnamed(connection))
    .await
    .map_err(StoreError::on("asking which runs are over"))?;
    let ended = rows.into_iter();
    Ok(ended.map(|row| RunRef { tenant: TenantId(row.tenant_id), id: JobRunId(row.id) }).collect())
}

/// A row of the health table: runs of one function in one state, of the last day.
#[derive(Debug, Clone, Serialize)]
pub struct Health {
    /// Which function.
    pub function_name: String,
    /// In which state.
    pub status: JobRunStatus,
    /// How many.
    pub count: i64,
    /// How long they took on average.
    pub avg_duration_ms: Option<f64>,
    /// How long the longest took.
    pub max_duration_ms: Option<i32>,
    /// How many were tried again.
    pub retried_count: i64,
}

/// How the jobs of the transaction's tenant are doing.
pub async fn health(connection: &mut PgConnection, tenant: TenantId) -> Result<Vec<Health>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select function_name as "function_name!",
               status as "status!",
               count as "count!",
               avg_duration_ms::double precision as avg_duration_ms,
               max_duration_ms,
               retried_count as "retried_count!"
          from jobs.job_health
         where tenant_id = $1
        "#,
        tenant.0,
    )
    .fetch_all(unnamed(connection))
    .await
    .map_err(StoreError::on("reading how jobs are doing"))?;
    rows.into_iter()
        .map(|row| {
            Ok(Health {
                function_name: row.function_name,
                status: word(&row.status)?,
                count: row.count,
                avg_duration_ms: row.avg_duration_ms,
                max_duration_ms: row.max_duration_ms,
                retried_count: row.retried_count,
            })
        })
        .collect()
}

/// What the thresholds of alerts are held against: runs of the last day, and runs that take long.
#[derive(Debug, Clone, Copy)]
pub struct Day {
    /// How many are failed.
    pub failed: i64,
    /// How many were tried again.
    pub retried: i64,
    /// How many there are.
    pub total: i64,
    /// How many have been running for longer, whenever they were invoked.
    pub long_running: i64,
}

impl Day {
    /// The share that was tried again.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "numbers of runs are far smaller")]
    pub fn retry_rate(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.retried as f64 / self.total as f64 }
    }
}

/// The last day of the transaction's tenant. A run takes long when it takes longer than this.
pub async fn day(
    connection: &mut PgConnection,
    tenant: TenantId,
    running_max: Duration,
) -> Result<Day, StoreError> {
    sqlx::query_as!(
        Day,
        r#"
        select count(*) filter (where run.status = 'failed') as "failed!",
               count(*) filter (where run.retry_count > 0) as "retried!",
               count(*) as "total!",
               (select count(*)
                  from jobs.job_runs as running
                 where running.tenant_id = $1
                   and running.status = 'running'
                   and running.started_at < now() - $2::interval) as "long_running!"
          from jobs.job_runs as run
         where run.tenant_id = $1
           and run.created_at > now() - interval '24 hours'
        "#,
        tenant.0,
        interval(running_max),
    )
    .fetch_one(unnamed(connection))
    .await
    .map_err(StoreError::on("reading how the last day was"))
}

/// How jobs stand, over all tenants.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Runs that wait for a runner.
    pub waiting: i64,
    /// Runs that somebody is at.
    pub running: i64,
    /// Runs that wait for their next try.
    pub retry_pending: i64,
    /// Runs of the last day that are failed.
    pub failed_day: i64,
    /// Runs of the last day that were tried again.
    pub retried_day: i64,
    /// Runs of the last day.
    pub total_day: i64,
    /// Runs that have been running for half an hour.
    pub long_running: i64,
    /// The age of the oldest heartbeat.
    pub oldest_heartbeat_seconds: f64,
    /// How late the latest schedule is.
    pub overdue_seconds: f64,
    /// Firings that wait for what they depend on.
    pub waiting_firings: i64,
    /// Dead letters that nobody has resolved.
    pub open_errors: i64,
    /// Alerts that hold.
    pub open_alerts: i64,
    /// Notifications of which nobody knows whether they arrived.
    pub doubtful_notifications: i64,
}

/// Measures how jobs stand.
pub async fn measure(connection: &mut PgConnection) -> Result<Standing, StoreError> {
    sqlx::query_as!(
        Standing,
        r#"
        select waiting as "waiting!", running as "running!", retry_pending as "retry_pending!", failed_day as "failed_day!",
               retried_day as "retried_day!", total_day as "total_day!", long_running as "long_running!",
               oldest_heartbeat_seconds as "oldest_heartbeat_seconds!", overdue_seconds as "overdue_seconds!",
               waiting_firings as "waiting_firings!", open_errors as "open_errors!", open_alerts as "open_alerts!",
               doubtful_notifications as "doubtful_notifications!"
          from jobs.measure_jobs()
        "#,
    )
    .fetch_one(unnamed(connection))
    .await
    .map_err(StoreError::on("measuring the jobs"))
}

/// The tenants with runs, or what belongs to runs, that [`prune`] may remove.
pub async fn tenants_with_old(
    connection: &mut PgConnection,
    older_than: Duration,
) -> Result<Vec<TenantId>, StoreError> {
    let tenants = sqlx::query_scalar!(
        r#"select tenant_id as "tenant_id!" from jobs.tenants_with_old_runs($1) as old (tenant_id)"#,
        interval(older_than),
    )
    .fetch_all(unnamed(connection))
    .await
    .map_err(StoreError::on("looking for tenants with old runs"))?;
    Ok(tenants.into_iter().map(TenantId).collect())
}

/// Removes up to so many runs of a tenant that are over and older than this, and what belongs to them. Returns at most `limit`; less
/// means that nothing is left.
pub async fn prune(
    connection: &mut PgConnection,
    tenant: TenantId,
    older_than: Duration,
    limit: i32,
) -> Result<i64, StoreError> {
    let removed =
        sqlx::query_scalar!("select jobs.prune_runs($1, $2, $3)", tenant.0, interval(older_than), limit)
            .fetch_one(unnamed(connection))
            .await
            .map_err(StoreError::on("removing old runs"))?;
    Ok(removed.unwrap_or_default())
}

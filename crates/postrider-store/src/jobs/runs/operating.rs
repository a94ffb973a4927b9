//! Runs of functions for people: list, show, retry, cancel, and the health of jobs.

use std::time::Duration;

use jiff::Timestamp;
use postrider_model::{
    ids::{JobRunId, ScheduleId, TenantId},
    jobs::{JobRunStatus, lock_key::Grain},
};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;

use super::{RunRef, arrays};
use crate::{
    StoreError,
    postgres::{
        unprepared::unprepared,
        values::{interval, word},
    },
};

/// A run and its state.
#[derive(Debug, Clone, Serialize)]
pub struct RunState {
    /// Its id.
    pub id: JobRunId,
    /// Name of its function.
    pub function_name: String,
    /// Lock key, which only one active run has.
    pub lock_key: String,
    /// Its state.
    pub status: JobRunStatus,
    /// Input of the function.
    pub input_params: Option<Value>,
    /// Result of the function.
    pub result: Option<Value>,
    /// The last error.
    pub error_message: Option<String>,
    /// Number of retries.
    pub retry_count: i32,
    /// Time of the next retry.
    pub retry_at: Option<Timestamp>,
    /// When its last attempt began.
    pub started_at: Timestamp,
    /// When its last attempt ended.
    pub completed_at: Option<Timestamp>,
    /// Duration of its last attempt.
    pub duration_ms: Option<i32>,
    /// Time of the worker's last heartbeat.
    pub heartbeat_at: Option<Timestamp>,
    /// The worker that runs it.
    pub locked_by: Option<String>,
    /// The schedule that made it, if any.
    pub schedule_id: Option<ScheduleId>,
    /// Time of the schedule's firing.
    pub scheduled_for: Option<Timestamp>,
    /// Grain within which it runs once.
    pub grain: Grain,
    /// Start of that grain.
    pub grain_start: Timestamp,
    /// Whether it was forced although a run of its grain was completed.
    pub is_forced: bool,
    /// When it was invoked.
    pub created_at: Timestamp,
}

/// Filters for the list of runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunFilter<'a> {
    /// Only the run with this id.
    pub id: Option<JobRunId>,
    /// Only of this function.
    pub function: Option<&'a str>,
    /// Only in this state.
    pub status: Option<JobRunStatus>,
    /// Only made by this schedule.
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
        "sql/jobs/list_runs.sql",
        tenant.0,
        filter.id.map(|id| id.0),
        filter.function,
        filter.status.map(JobRunStatus::as_str),
        filter.schedule.map(|id| id.0),
        below.map(|id| id.0),
        limit,
    )
    .fetch_all(unprepared(connection))
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

/// Result of a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retried {
    /// The run is running again.
    Retried,
    /// The run is in this state; only a failed run can be retried.
    NotFailed(JobRunStatus),
    /// Another run has its lock key.
    KeyTaken(JobRunId),
}

/// Retries a failed run of a tenant at once. `None` when there is no such run. Wake the runners after the commit.
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
    .fetch_optional(unprepared(connection))
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

/// Result of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The run is cancelled, or was before.
    Cancelled,
    /// The run is completed: there is nothing left to cancel.
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
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("cancelling the run"))?;
    Ok(status.map(|status| if status == "completed" { Cancelled::Completed } else { Cancelled::Cancelled }))
}

/// The ended runs among these, of any tenants.
pub async fn which_ended(connection: &mut PgConnection, runs: &[RunRef]) -> Result<Vec<RunRef>, StoreError> {
    let (tenants, ids) = arrays(runs.iter().copied());
    let rows = sqlx::query!(
        r#"select tenant_id as "tenant_id!", id as "id!" from jobs.which_ended($1, $2)"#,
        &tenants,
        &ids,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("looking for ended runs"))?;
    let ended = rows.into_iter();
    Ok(ended.map(|row| RunRef { tenant: TenantId(row.tenant_id), id: JobRunId(row.id) }).collect())
}

/// A row of the health table: runs of one function in one state, of the last day.
#[derive(Debug, Clone, Serialize)]
pub struct Health {
    /// The function.
    pub function_name: String,
    /// The state.
    pub status: JobRunStatus,
    /// Number of runs.
    pub count: i64,
    /// Average duration.
    pub avg_duration_ms: Option<f64>,
    /// Longest duration.
    pub max_duration_ms: Option<i32>,
    /// Number of runs that were retried.
    pub retried_count: i64,
}

/// The health of the jobs of the transaction's tenant.
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
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the health of jobs"))?;
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

/// The numbers that alerts compare with their thresholds: runs of the last day, and runs that take long.
#[derive(Debug, Clone, Copy)]
pub struct Day {
    /// Number of failed runs.
    pub failed: i64,
    /// Number of runs that were retried.
    pub retried: i64,
    /// Number of runs.
    pub total: i64,
    /// Number of runs that have been running for longer, whenever they were invoked.
    pub long_running: i64,
}

impl Day {
    /// The share of runs that were retried.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "numbers of runs are far smaller")]
    pub fn retry_rate(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.retried as f64 / self.total as f64 }
    }
}

/// The last day of the transaction's tenant. A run takes long from `running_max` on.
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
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the runs of the last day"))
}

/// Numbers of jobs by state, over all tenants.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Runs that wait for a runner.
    pub waiting: i64,
    /// Runs that a worker is running.
    pub running: i64,
    /// Runs that wait for their retry.
    pub retry_pending: i64,
    /// Runs of the last day that are failed.
    pub failed_day: i64,
    /// Runs of the last day that were retried.
    pub retried_day: i64,
    /// Runs of the last day.
    pub total_day: i64,
    /// Runs that have been running for half an hour.
    pub long_running: i64,
    /// The age of the oldest heartbeat.
    pub oldest_heartbeat_seconds: f64,
    /// Delay of the schedule that is overdue longest.
    pub overdue_seconds: f64,
    /// Firings that wait for their dependencies.
    pub waiting_firings: i64,
    /// Unresolved dead letters.
    pub open_errors: i64,
    /// Open alerts.
    pub open_alerts: i64,
    /// Notifications in doubt.
    pub doubtful_notifications: i64,
}

/// Measures the jobs.
pub async fn measure(connection: &mut PgConnection) -> Result<Summary, StoreError> {
    sqlx::query_as!(
        Summary,
        r#"
        select waiting as "waiting!", running as "running!", retry_pending as "retry_pending!", failed_day as "failed_day!",
               retried_day as "retried_day!", total_day as "total_day!", long_running as "long_running!",
               oldest_heartbeat_seconds as "oldest_heartbeat_seconds!", overdue_seconds as "overdue_seconds!",
               waiting_firings as "waiting_firings!", open_errors as "open_errors!", open_alerts as "open_alerts!",
               doubtful_notifications as "doubtful_notifications!"
          from jobs.measure_jobs()
        "#,
    )
    .fetch_one(unprepared(connection))
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
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("looking for tenants with old runs"))?;
    Ok(tenants.into_iter().map(TenantId).collect())
}

/// Removes up to so many runs of a tenant that have ended and are older than this, and what belongs to them. Returns at most `limit`;
/// less means that nothing is left.
pub async fn prune(
    connection: &mut PgConnection,
    tenant: TenantId,
    older_than: Duration,
    limit: i32,
) -> Result<i64, StoreError> {
    let removed =
        sqlx::query_scalar!("select jobs.prune_runs($1, $2, $3)", tenant.0, interval(older_than), limit)
            .fetch_one(unprepared(connection))
            .await
            .map_err(StoreError::on("removing old runs"))?;
    Ok(removed.unwrap_or_default())
}

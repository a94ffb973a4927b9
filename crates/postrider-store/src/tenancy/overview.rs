//! The numbers of a tenant's overview, and the workers that hold work of the tenant.

use jiff::Timestamp;
use postrider_model::ids::TenantId;
use sqlx::{PgConnection, types::Uuid};

use crate::{
    Pool, StoreError,
    postgres::{pool, unprepared::unprepared},
};

/// The row of `tenancy.read_overview`. Each number stops at [`ROWS_MAX`]; ages are in seconds.
#[derive(Debug, Clone)]
pub struct Counts {
    /// Time of the transaction, by the database's clock.
    pub at: Timestamp,
    /// Phases that have not started.
    pub phases_not_started: i64,
    /// Phases in progress.
    pub phases_in_progress: i64,
    /// Paused phases.
    pub phases_paused: i64,
    /// Failed phases.
    pub phases_failed: i64,
    /// Age of the oldest of them.
    pub phases_oldest_failed_seconds: Option<f64>,
    /// Items that are reserved, and not in doubt.
    pub items_in_flight: i64,
    /// Items that were read to find those.
    pub items_begun: i64,
    /// Items in doubt.
    pub items_in_doubt: i64,
    /// Those that a person must settle.
    pub items_in_doubt_for_person: i64,
    /// Age of the oldest doubt.
    pub items_oldest_doubt_seconds: Option<f64>,
    /// Campaigns with items in doubt, most doubts first.
    pub doubted_campaigns: Vec<Uuid>,
    /// The doubts of each of them.
    pub doubts_by_campaign: Vec<i64>,
    /// Queued send jobs that are due.
    pub jobs_waiting: i64,
    /// Send jobs that a worker holds.
    pub jobs_locked: i64,
    /// Age of the oldest heartbeat among them.
    pub jobs_oldest_lock_seconds: Option<f64>,
    /// Send jobs that are not due yet.
    pub jobs_put_off: i64,
    /// Provider accounts.
    pub accounts_total: i64,
    /// Accounts whose circuit breaker is not closed.
    pub accounts_circuit_open: i64,
    /// Accounts whose provider asked for no calls.
    pub accounts_waiting: i64,
    /// Pending replies.
    pub replies_pending: i64,
    /// Those that are due.
    pub replies_due: i64,
    /// Replies that were tried before.
    pub replies_retrying: i64,
    /// Replies in doubt.
    pub replies_in_doubt: i64,
    /// Age of the oldest reply that is not sent.
    pub replies_oldest_seconds: Option<f64>,
    /// Replies that were read to find those.
    pub replies_unsent: i64,
    /// Dead replies.
    pub replies_dead: i64,
    /// Time since the oldest dead reply died.
    pub replies_oldest_dead_seconds: Option<f64>,
    /// Messages whose execution has not ended.
    pub messages_unfinished: i64,
    /// Messages whose execution failed.
    pub messages_dispatch_failed: i64,
    /// Age of the oldest of them.
    pub messages_oldest_failed_seconds: Option<f64>,
    /// Events that are not processed.
    pub events_pending: i64,
    /// Stuck events.
    pub events_stuck: i64,
    /// Age of the oldest ready event.
    pub events_oldest_ready_seconds: Option<f64>,
    /// Job runs that a runner holds.
    pub job_runs_running: i64,
    /// Job runs that wait for a runner.
    pub job_runs_waiting: i64,
    /// Job runs that wait for their retry.
    pub job_runs_retry_pending: i64,
    /// Job runs that were read to find those two.
    pub job_runs_unfinished: i64,
    /// Failed job runs among the newest of the last 24 hours.
    pub job_runs_failed_24h: i64,
    /// Retried job runs among them.
    pub job_runs_retried_24h: i64,
    /// Their number.
    pub job_runs_total_24h: i64,
    /// Job runs that have been running for too long.
    pub job_runs_long_running: i64,
    /// Enabled schedules.
    pub schedules_enabled: i64,
    /// Time since the oldest firing that is due.
    pub schedules_overdue_seconds: Option<f64>,
    /// Firings that wait for other functions.
    pub schedules_firings_waiting: i64,
    /// Open dead letters.
    pub sync_errors: i64,
    /// Age of the oldest of them.
    pub oldest_sync_error_seconds: Option<f64>,
    /// Open alerts.
    pub alerts: i64,
    /// Cards that wait for a decision.
    pub decision_cards: i64,
    /// Age of the oldest of them.
    pub oldest_decision_card_seconds: Option<f64>,
    /// The newest rows.
    pub marks: Marks,
}

/// The newest row of each list. When one differs from before, the list has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks {
    /// Time of the newest run.
    pub run: Option<Timestamp>,
    /// Time of the newest campaign.
    pub campaign: Option<Timestamp>,
    /// Time of the newest message.
    pub message: Option<Timestamp>,
    /// Id of the newest event.
    pub event: Option<i64>,
    /// Time of the newest job run.
    pub job_run: Option<Timestamp>,
    /// Time of the last change of an account.
    pub account: Option<Timestamp>,
    /// Time of the last change of a schedule.
    pub schedule: Option<Timestamp>,
    /// Time of the last change of an open alert.
    pub alert: Option<Timestamp>,
    /// Time of the last change of an open card.
    pub card: Option<Timestamp>,
}

/// Number of rows at which a number stops.
pub const ROWS_MAX: i64 = 10_000;

/// Reads the numbers of a tenant in one statement, within a second. `stuck_after` is the number of failures from which on an event
/// is stuck, and `settled_without_person` names the providers whose items in doubt need no person.
pub async fn read(
    pool: &Pool,
    tenant: TenantId,
    stuck_after: i32,
    settled_without_person: &[String],
) -> Result<Counts, StoreError> {
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let counts = read_in(&mut transaction, tenant, stuck_after, settled_without_person).await?;
    pool::commit(transaction).await?;
    Ok(counts)
}

/// The same in the caller's transaction, whose later statements keep the time limit of this one.
pub async fn read_in(
    connection: &mut PgConnection,
    tenant: TenantId,
    stuck_after: i32,
    settled_without_person: &[String],
) -> Result<Counts, StoreError> {
    let failed = StoreError::on("reading the overview");
    sqlx::raw_sql("set local statement_timeout = '1s'").execute(&mut *connection).await.map_err(&failed)?;
    let row = sqlx::query_file!("sql/tenancy/overview.sql", tenant.0, stuck_after, settled_without_person)
        .fetch_one(unprepared(connection))
        .await
        .map_err(&failed)?;
    let time = jiff_sqlx::Timestamp::to_jiff;
    Ok(Counts {
        at: row.at.to_jiff(),
        phases_not_started: row.phases_not_started,
        phases_in_progress: row.phases_in_progress,
        phases_paused: row.phases_paused,
        phases_failed: row.phases_failed,
        phases_oldest_failed_seconds: row.phases_oldest_failed_seconds,
        items_in_flight: row.items_in_flight,
        items_begun: row.items_begun,
        items_in_doubt: row.items_in_doubt,
        items_in_doubt_for_person: row.items_in_doubt_for_person,
        items_oldest_doubt_seconds: row.items_oldest_doubt_seconds,
        doubted_campaigns: row.doubted_campaigns,
        doubts_by_campaign: row.doubts_by_campaign,
        jobs_waiting: row.jobs_waiting,
        jobs_locked: row.jobs_locked,
        jobs_oldest_lock_seconds: row.jobs_oldest_lock_seconds,
        jobs_put_off: row.jobs_put_off,
        accounts_total: row.accounts_total,
        accounts_circuit_open: row.accounts_circuit_open,
        accounts_waiting: row.accounts_waiting,
        replies_pending: row.replies_pending,
        replies_due: row.replies_due,
        replies_retrying: row.replies_retrying,
        replies_in_doubt: row.replies_in_doubt,
        replies_oldest_seconds: row.replies_oldest_seconds,
        replies_unsent: row.replies_unsent,
        replies_dead: row.replies_dead,
        replies_oldest_dead_seconds: row.replies_oldest_dead_seconds,
        messages_unfinished: row.messages_unfinished,
        messages_dispatch_failed: row.messages_dispatch_failed,
        messages_oldest_failed_seconds: row.messages_oldest_failed_seconds,
        events_pending: row.events_pending,
        events_stuck: row.events_stuck,
        events_oldest_ready_seconds: row.events_oldest_ready_seconds,
        job_runs_running: row.job_runs_running,
        job_runs_waiting: row.job_runs_waiting,
        job_runs_retry_pending: row.job_runs_retry_pending,
        job_runs_unfinished: row.job_runs_unfinished,
        job_runs_failed_24h: row.job_runs_failed_24h,
        job_runs_retried_24h: row.job_runs_retried_24h,
        job_runs_total_24h: row.job_runs_total_24h,
        job_runs_long_running: row.job_runs_long_running,
        schedules_enabled: row.schedules_enabled,
        schedules_overdue_seconds: row.schedules_overdue_seconds,
        schedules_firings_waiting: row.schedules_firings_waiting,
        sync_errors: row.sync_errors,
        oldest_sync_error_seconds: row.oldest_sync_error_seconds,
        alerts: row.alerts,
        decision_cards: row.decision_cards,
        oldest_decision_card_seconds: row.oldest_decision_card_seconds,
        marks: Marks {
            run: row.newest_run.map(time),
            campaign: row.newest_campaign.map(time),
            message: row.newest_message.map(time),
            event: row.newest_event,
            job_run: row.newest_job_run.map(time),
            account: row.account_changed.map(time),
            schedule: row.schedule_changed.map(time),
            alert: row.alert_changed.map(time),
            card: row.card_changed.map(time),
        },
    })
}

/// A worker that holds work of the tenant.
#[derive(Debug, Clone)]
pub struct Worker {
    /// Name of the worker.
    pub name: String,
    /// Send jobs that it holds.
    pub jobs: i64,
    /// Job runs that it holds.
    pub job_runs: i64,
    /// Replies that it holds.
    pub replies: i64,
    /// Time of the newest heartbeat or claim among them.
    pub last_heard_at: Timestamp,
}

/// Up to so many workers that hold work of the tenant, by name.
pub async fn workers(
    connection: &mut PgConnection,
    tenant: TenantId,
    limit: i64,
) -> Result<Vec<Worker>, StoreError> {
    let rows = sqlx::query_file!("sql/tenancy/workers.sql", tenant.0, limit)
        .fetch_all(unprepared(connection))
        .await
        .map_err(StoreError::on("listing the workers"))?;
    Ok(rows
        .into_iter()
        .map(|row| Worker {
            name: row.name,
            jobs: row.jobs,
            job_runs: row.job_runs,
            replies: row.replies,
            last_heard_at: row.last_heard_at.to_jiff(),
        })
        .collect())
}

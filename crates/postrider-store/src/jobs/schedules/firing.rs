//! Firing. There is no leader: a firing is a row under a unique key, made in the transaction that moves the schedule on.

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::ids::{JobRunId, ScheduleId, TenantId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Pool, StoreError, crash_point,
    postgres::{pool, unprepared::unprepared, values::interval},
};

/// A schedule whose time has come.
#[derive(Debug, Clone)]
pub struct DueSchedule {
    /// The tenant.
    pub tenant: TenantId,
    /// Id of the schedule.
    pub id: ScheduleId,
    /// Its expression.
    pub cron: String,
    /// Its zone.
    pub timezone: String,
    /// Policy for missed firings.
    pub misfire: String,
    /// The first firing that is due.
    pub due: Timestamp,
    /// The version of the schedule when it was read.
    pub version: i32,
    /// The database's time. Clocks of schedulers may differ, and decide nothing.
    pub now: Timestamp,
}

/// Up to so many schedules whose time has come, of one tenant no more than `per_tenant`, and none of those in `except`.
pub async fn due(
    pool: &Pool,
    limit: i32,
    per_tenant: i32,
    except: &[(TenantId, ScheduleId)],
) -> Result<Vec<DueSchedule>, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let due = due_on(&mut transaction, limit, per_tenant, except).await?;
    pool::commit(transaction).await?;
    Ok(due)
}

/// The same in the caller's transaction.
pub async fn due_on(
    connection: &mut PgConnection,
    limit: i32,
    per_tenant: i32,
    except: &[(TenantId, ScheduleId)],
) -> Result<Vec<DueSchedule>, StoreError> {
    let (except_tenants, except): (Vec<Uuid>, Vec<Uuid>) =
        except.iter().map(|(tenant, id)| (tenant.0, id.0)).unzip();
    let rows = sqlx::query!(
        r#"
        select tenant_id as "tenant_id!", id as "id!", cron as "cron!", timezone as "timezone!", misfire as "misfire!",
               next_fire_at as "next_fire_at!: jiff_sqlx::Timestamp", version as "version!", now as "now!: jiff_sqlx::Timestamp"
          from jobs.due_schedules($1, $2, $3, $4)
        "#,
        limit,
        per_tenant,
        &except_tenants,
        &except,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("looking for due schedules"))?;
    Ok(rows
        .into_iter()
        .map(|row| DueSchedule {
            tenant: TenantId(row.tenant_id),
            id: ScheduleId(row.id),
            cron: row.cron,
            timezone: row.timezone,
            misfire: row.misfire,
            due: row.next_fire_at.to_jiff(),
            version: row.version,
            now: row.now.to_jiff(),
        })
        .collect())
}

/// The firings of a due schedule.
#[derive(Debug, Clone)]
pub struct Fire<'a> {
    /// These firings run.
    pub run: &'a [Timestamp],
    /// The last of the firings that do not run, with the reason.
    pub skipped: Option<(Timestamp, String)>,
    /// When it is due next.
    pub next: Option<Timestamp>,
}

/// Fires a schedule and moves it on. Returns the number of new runs; `None` when another scheduler was faster, or it was changed.
pub async fn fire(pool: &Pool, schedule: &DueSchedule, fire: &Fire<'_>) -> Result<Option<i32>, StoreError> {
    crash_point!("schedule.before_fire");
    let times: Vec<jiff_sqlx::Timestamp> = fire.run.iter().map(|time| time.to_sqlx()).collect();
    let runs: Vec<Uuid> = fire.run.iter().map(|_| JobRunId::new().0).collect();
    let mut transaction = pool::begin(pool).await?;
    let started = sqlx::query_scalar!(
        "select jobs.fire_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        schedule.tenant.0,
        schedule.id.0,
        schedule.due.to_sqlx() as _,
        schedule.version,
        &times as _,
        &runs,
        fire.skipped.as_ref().map(|(last, _)| last.to_sqlx()) as _,
        fire.skipped.as_ref().map(|(_, why)| why.as_str()),
        fire.next.map(ToSqlx::to_sqlx) as _,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("firing a schedule"))?;
    if started.is_some() {
        crash_point!("schedule.fired");
    }
    pool::commit(transaction).await?;
    if started.is_some() {
        crash_point!("schedule.after_fire");
    }
    Ok(started)
}

/// The tenants of up to so many waiting firings, least recently checked first, and the number of these firings.
pub async fn waiting_tenants(pool: &Pool, limit: i32) -> Result<Vec<(TenantId, i32)>, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"select tenant_id as "tenant_id!", firings as "firings!" from jobs.tenants_with_waiting_firings($1)"#,
        limit,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("looking for tenants with waiting firings"))?;
    pool::commit(transaction).await?;
    Ok(rows.into_iter().map(|row| (TenantId(row.tenant_id), row.firings)).collect())
}

/// Checks up to so many waiting firings of a tenant: starts those whose dependencies completed, and skips those that have waited for
/// longer than `patience`. Returns the number of new runs.
pub async fn fire_waiting(
    pool: &Pool,
    tenant: TenantId,
    limit: i32,
    patience: Duration,
) -> Result<i32, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let started =
        sqlx::query_scalar!("select jobs.fire_waiting($1, $2, $3)", tenant.0, limit, interval(patience))
            .fetch_one(unprepared(&mut transaction))
            .await
            .map_err(StoreError::on("checking waiting firings"))?;
    pool::commit(transaction).await?;
    Ok(started.unwrap_or_default())
}

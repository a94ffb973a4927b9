//! Schedules for people: setting them, switching them, and the results of their firings.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    ids::{JobRunId, ScheduleId, TenantId},
    jobs::{
        FiringOutcome,
        lock_key::{EntityHash, Grain},
        schedule::{Misfire, Timing},
    },
};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use sqlx::PgConnection;

use crate::{
    StoreError,
    postgres::{unprepared::unprepared, values::word},
};

/// A schedule and its state.
#[derive(Debug, Serialize)]
pub struct ScheduleState {
    /// Its id.
    pub id: ScheduleId,
    /// Name of its function.
    pub function_name: String,
    /// Its cron expression.
    pub cron: String,
    /// Its time zone.
    pub timezone: String,
    /// Grain within which it runs once; the function's own grain if it is absent.
    pub grain: Option<Grain>,
    /// Input of the function.
    pub input: Option<Value>,
    /// Entities that it is about, as a part of the lock key.
    pub entities: Option<Value>,
    /// Functions that must have completed before, in the same grain.
    pub depends_on: Vec<String>,
    /// Policy for missed firings.
    pub misfire: Misfire,
    /// Whether it fires.
    pub enabled: bool,
    /// When it fires next.
    pub next_fire_at: Option<Timestamp>,
    /// When it fired last.
    pub last_fire_at: Option<Timestamp>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// The definition of a schedule.
#[derive(Debug)]
pub struct NewSchedule<'a> {
    /// Name of its function.
    pub function: &'a str,
    /// Its times.
    pub timing: &'a Timing,
    /// Grain within which it runs once; the function's own grain if it is absent.
    pub grain: Option<Grain>,
    /// Input of the function.
    pub input: Option<&'a Value>,
    /// Entities that it is about, as they were written, and their hash.
    pub entities: Option<(&'a RawValue, &'a EntityHash)>,
    /// Functions that must have completed before, in the same grain.
    pub depends_on: &'a [String],
    /// Policy for missed firings.
    pub misfire: Misfire,
    /// Whether it fires.
    pub enabled: bool,
}

/// The error about an input that is too large for the database.
pub const INPUT_TOO_LARGE: &str = "the input is too large";

/// The database's time.
pub async fn now(connection: &mut PgConnection) -> Result<Timestamp, StoreError> {
    let now = sqlx::query_scalar!(r#"select now() as "now!: jiff_sqlx::Timestamp""#)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("reading the time"))?;
    Ok(now.to_jiff())
}

/// Sets a schedule of a tenant. Its next firing is after this moment, unless its times stay as they were.
pub async fn put(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ScheduleId,
    schedule: &NewSchedule<'_>,
    actor: &str,
) -> Result<(), StoreError> {
    let next = schedule.timing.next_after(now(connection).await?);
    sqlx::query!(
        "select jobs.put_schedule($1, $2, $3, $4, $5, $6, $7, $8::text::json, $9, $10, $11, $12, $13, $14)",
        tenant.0,
        id.0,
        schedule.function,
        schedule.timing.cron.as_str(),
        schedule.timing.zone.as_str(),
        schedule.grain.map(Grain::as_str),
        schedule.input,
        schedule.entities.map(|(entities, _)| entities.get()),
        schedule.entities.map(|(_, hash)| hash.to_string()),
        schedule.depends_on,
        schedule.misfire.as_str(),
        schedule.enabled,
        next.map(ToSqlx::to_sqlx) as _,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(|error| match StoreError::constraint(&error) {
        Some("schedules_input_is_bounded") => {
            StoreError::Refused { message: INPUT_TOO_LARGE.to_owned(), hint: None }
        }
        _ => StoreError::on("setting the schedule")(error),
    })?;
    Ok(())
}

/// Switches a schedule of a tenant on or off. Missed firings are not made up for. False when there is no such
/// schedule.
pub async fn switch(
    connection: &mut PgConnection,
    tenant: TenantId,
    schedule: ScheduleId,
    timing: &Timing,
    enabled: bool,
    actor: &str,
) -> Result<bool, StoreError> {
    let next = timing.next_after(now(connection).await?);
    sqlx::query_scalar!(
        r#"select jobs.switch_schedule($1, $2, $3, $4, $5) as "known!""#,
        tenant.0,
        schedule.0,
        enabled,
        next.map(ToSqlx::to_sqlx) as _,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("switching the schedule"))
}

/// Removes a schedule. False when the tenant has no such schedule.
pub async fn remove(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ScheduleId,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(r#"select jobs.remove_schedule($1, $2, $3) as "known!""#, tenant.0, id.0, actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("removing the schedule"))
}

/// Up to so many schedules of a tenant, oldest first, after this one; of one function, if that is given.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    function: Option<&str>,
    after: Option<ScheduleId>,
    limit: i64,
) -> Result<Vec<ScheduleState>, StoreError> {
    select(connection, tenant, None, function, after, limit).await
}

/// One schedule of a tenant.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ScheduleId,
) -> Result<Option<ScheduleState>, StoreError> {
    Ok(select(connection, tenant, Some(id), None, None, 1).await?.pop())
}

async fn select(
    connection: &mut PgConnection,
    tenant: TenantId,
    only: Option<ScheduleId>,
    function: Option<&str>,
    after: Option<ScheduleId>,
    limit: i64,
) -> Result<Vec<ScheduleState>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id, function_name, cron, timezone, grain, input, entities, depends_on, misfire, enabled,
               next_fire_at as "next_fire_at: jiff_sqlx::Timestamp",
               last_fire_at as "last_fire_at: jiff_sqlx::Timestamp",
               created_at as "created_at: jiff_sqlx::Timestamp",
               updated_at as "updated_at: jiff_sqlx::Timestamp"
          from jobs.schedules
         where tenant_id = $1
           and ($2::uuid is null or id = $2)
           and ($3::text is null or function_name = $3)
           and ($4::uuid is null or id > $4)
         order by id
         limit $5
        "#,
        tenant.0,
        only.map(|id| id.0),
        function,
        after.map(|id| id.0),
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the schedules"))?;
    let time = jiff_sqlx::Timestamp::to_jiff;
    rows.into_iter()
        .map(|row| {
            Ok(ScheduleState {
                id: ScheduleId(row.id),
                function_name: row.function_name,
                cron: row.cron,
                timezone: row.timezone,
                grain: row.grain.as_deref().map(word).transpose()?,
                input: row.input,
                entities: row.entities,
                depends_on: row.depends_on,
                misfire: word(&row.misfire)?,
                // A schedule that is switched off has no next firing.
                next_fire_at: row.next_fire_at.map(time).filter(|_| row.enabled),
                enabled: row.enabled,
                last_fire_at: row.last_fire_at.map(time),
                created_at: time(row.created_at),
                updated_at: time(row.updated_at),
            })
        })
        .collect()
}

/// A firing and its result.
#[derive(Debug, Clone, Serialize)]
pub struct FiringState {
    /// The time it is for.
    pub fire_at: Timestamp,
    /// Its result.
    pub outcome: FiringOutcome,
    /// The run that was made, or that had the lock key.
    pub job_run_id: Option<JobRunId>,
    /// The reason why it waits, or why there is no run.
    pub reason: Option<String>,
    /// Time of that result.
    pub decided_at: Option<Timestamp>,
}

/// Up to so many firings of a schedule of the transaction's tenant, newest first, before this one.
pub async fn firings(
    connection: &mut PgConnection,
    tenant: TenantId,
    schedule: ScheduleId,
    before: Option<Timestamp>,
    limit: i64,
) -> Result<Vec<FiringState>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select firing.fire_at as "fire_at: jiff_sqlx::Timestamp",
               firing.outcome,
               firing.job_run_id,
               case when firing.outcome = 'waiting' then jobs.why_waiting(firing.tenant_id, firing.schedule_id, firing.fire_at)
                    else firing.reason end as reason,
               firing.decided_at as "decided_at: jiff_sqlx::Timestamp"
          from jobs.schedule_firings as firing
         where firing.tenant_id = $1
           and firing.schedule_id = $2
           and ($3::timestamptz is null or firing.fire_at < $3)
         order by firing.fire_at desc
         limit $4
        "#,
        tenant.0,
        schedule.0,
        before.map(ToSqlx::to_sqlx) as _,
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the firings"))?;
    let time = jiff_sqlx::Timestamp::to_jiff;
    rows.into_iter()
        .map(|row| {
            Ok(FiringState {
                fire_at: time(row.fire_at),
                outcome: word(&row.outcome)?,
                job_run_id: row.job_run_id.map(JobRunId),
                reason: row.reason,
                decided_at: row.decided_at.map(time),
            })
        })
        .collect()
}

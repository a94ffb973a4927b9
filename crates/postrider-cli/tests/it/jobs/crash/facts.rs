//! Reads what the auditor compares.

use std::collections::{BTreeMap, HashSet};

use postrider_testkit::crash::provider_faults;
use sqlx::PgPool;
use uuid::Uuid;

use super::report::{Facts, Receipt, Schedule};
use crate::{jobs::processes::TenantDatabase, sql::execute, world::Sim};

/// Keeps every change of a run as the database made it, beside the system under test.
pub async fn record_changes(admin: &PgPool) -> anyhow::Result<()> {
    let sql = "create table work.changes (
                   seq bigserial, run uuid, status_before text, status text, claims_before integer, claims integer, retry_count integer,
                   retry_at_before timestamptz, retry_at timestamptz, heartbeat_before timestamptz, error_message text,
                   at timestamptz default now(), xid bigint default pg_current_xact_id()::text::bigint);
               create function work.record_change() returns trigger language plpgsql security definer as $$
               begin
                   insert into work.changes (run, status_before, status, claims_before, claims, retry_count, retry_at_before, retry_at,
                                             heartbeat_before, error_message)
                   values (new.id, old.status, new.status, old.claims, new.claims, new.retry_count, old.retry_at, new.retry_at,
                           old.heartbeat_at, new.error_message);
                   return null;
               end $$;
               create trigger record_new after insert on jobs.job_runs for each row execute function work.record_change();
               create trigger record_changes after update on jobs.job_runs for each row
                   when (old.status <> new.status or old.claims <> new.claims) execute function work.record_change()";
    Ok(execute(admin, sql).await?)
}

/// A schedule as the test set it.
#[derive(Debug, Clone, Copy)]
pub struct Scheduled {
    pub id: Uuid,
    /// When it was due first, in microseconds.
    pub first: i64,
    pub step: i64,
}

/// Five minutes, which is the grain of whatever is scheduled.
const GRAIN: i64 = 300_000_000;

/// The facts, and how often each fault of the functions occurred.
pub async fn gather(
    database: &TenantDatabase,
    sim: &Sim,
    acquired: HashSet<Uuid>,
    scheduled: &[Scheduled],
) -> anyhow::Result<(Facts, BTreeMap<String, usize>)> {
    let lines = sim.receipts()?;
    let faults = provider_faults(lines.iter().map(|line| line["fault"].as_str()));
    let mut receipts = Vec::new();
    for line in lines {
        receipts.push(Receipt {
            run: line["webhook_id"].as_str().unwrap_or_default().to_owned(),
            attempt: line["attempt"].as_i64().unwrap_or_default().try_into()?,
            acted: line["acted"] == true,
            answered: line["answered"].as_i64(),
            verified: line["verified"] == true,
        });
    }
    let mut schedules = Vec::new();
    for Scheduled { id, first, step } in scheduled.iter().copied() {
        let sql =
            "select (extract(epoch from next_fire_at) * 1000000)::bigint from jobs.schedules where id = $1";
        let next = sqlx::query_scalar(sql).bind(id).fetch_one(&database.admin).await?;
        schedules.push(Schedule { id, first, next, step, grain: GRAIN });
    }
    let micros = |time: &str| format!("(extract(epoch from {time}) * 1000000)::bigint as {time}");
    let all = |columns: &str, times: &[&str], table: &str, order: &str| {
        let times: String = times.iter().map(|time| format!(", {}", micros(time))).collect();
        sqlx::AssertSqlSafe(format!("select {columns}{times} from {table} order by {order}"))
    };
    let admin = &database.admin;
    let facts = Facts {
        functions: sqlx::query_as("select * from jobs.functions").fetch_all(admin).await?,
        acquired,
        runs: sqlx::query_as(all(
            "id, function_name, lock_key, status, retry_at is not null as waits_for_retry, retry_count, claims, is_forced, input_params,
             result, error_message, schedule_id",
            &["scheduled_for", "grain_start", "created_at"],
            "jobs.job_runs",
            "job_runs.id",
        ))
        .fetch_all(admin)
        .await?,
        changes: sqlx::query_as(all(
            "run, status_before, status, claims_before, claims, retry_count, error_message, xid",
            &["retry_at_before", "retry_at", "heartbeat_before", "at"],
            "work.changes",
            "seq",
        ))
        .fetch_all(admin)
        .await?,
        letters: sqlx::query_as("select source_entity_id as run, * from jobs.sync_errors").fetch_all(admin).await?,
        effects: sqlx::query_as("select * from work.effects").fetch_all(admin).await?,
        receipts,
        schedules,
        firings: sqlx::query_as(all(
            "schedule_id, outcome, job_run_id, reason",
            &["fire_at"],
            "jobs.schedule_firings",
            "schedule_firings.fire_at",
        ))
        .fetch_all(admin)
        .await?,
        ..Facts::default()
    };
    Ok((facts, faults))
}

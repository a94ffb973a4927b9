//! Checks of the server: its version, durability and clock, and what blocks its work.

use jiff::Timestamp;
use sqlx::PgConnection;

use super::{Finding, Severity};
use crate::{
    StoreError,
    postgres::{pool::SERVER_MAJOR_MIN, unprepared::unprepared},
};

/// Minor releases from which on statistics no longer leak rows that row-level security hides (CVE-2025-8713).
const PATCHED: &[(i32, i32)] = &[(15, 14), (16, 10), (17, 6)];

pub(super) async fn version(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let number = sqlx::query_scalar!(r#"select current_setting('server_version_num')::int as "number!""#)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("reading the version"))?;
    let (major, minor) = (number / 10_000, number % 10_000);
    let found = format!("PostgreSQL {major}.{minor}");
    if major < SERVER_MAJOR_MIN {
        return Ok(Finding::failure("version", found, format!("upgrade to {SERVER_MAJOR_MIN} or newer")));
    }
    match PATCHED.iter().find(|(patched, needed)| major == *patched && minor < *needed) {
        Some((_, needed)) => Ok(Finding::warning(
            "version",
            found,
            format!(
                "update to {major}.{needed}: before it, planner statistics can show rows of other tenants"
            ),
        )),
        None => Ok(Finding::ok("version", found)),
    }
}

/// Settings without which an acknowledged commit can be lost.
const DURABLE: &[(&str, &str)] = &[("fsync", "on"), ("full_page_writes", "on")];

pub(super) async fn durability(connection: &mut PgConnection) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    for (setting, needed) in DURABLE {
        let value = setting_of(connection, setting).await?;
        findings.push(if value == *needed {
            Finding::ok("durability", format!("{setting} = {value}"))
        } else {
            Finding::failure(
                "durability",
                format!("{setting} = {value}"),
                format!("set {setting} = {needed} in postgresql.conf and restart: without it a crash loses what was acknowledged"),
            )
        });
    }
    let commit = setting_of(connection, "synchronous_commit").await?;
    findings.push(if commit == "off" {
        Finding::failure(
            "durability",
            "synchronous_commit = off",
            "set synchronous_commit = on: without it the last commits before a crash are lost",
        )
    } else {
        Finding::ok("durability", format!("synchronous_commit = {commit}"))
    });
    Ok(findings)
}

/// Refuses a server that may lose an acknowledged commit. Every `serve` begins with this.
pub async fn refuse_unsafe_server(connection: &mut PgConnection) -> Result<(), StoreError> {
    for finding in durability(connection).await? {
        if finding.severity == Severity::Failure {
            let advice = finding.advice.unwrap_or_default();
            return Err(StoreError::Unfit(format!("the database runs with {}; {advice}", finding.found)));
        }
    }
    Ok(())
}

async fn setting_of(connection: &mut PgConnection, name: &str) -> Result<String, StoreError> {
    sqlx::query_scalar!(r#"select current_setting($1) as "value!""#, name)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("reading a setting"))
}

pub(super) async fn clock(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let before = Timestamp::now();
    let server = sqlx::query_scalar!(r#"select clock_timestamp() as "at!: jiff_sqlx::Timestamp""#)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("reading the server's clock"))?
        .to_jiff();
    let after = Timestamp::now();
    // The server read its clock between the two readings of ours; a time outside of them is a real difference.
    let off = if server < before { before.duration_since(server) } else { server.duration_since(after) };
    let seconds = off.as_secs_f64().max(0.0);
    let found = format!("differs from this machine's by {seconds:.3} s at least");
    Ok(if seconds > 2.0 {
        Finding::warning(
            "clock",
            found,
            "synchronise both with NTP: signatures and expiries are judged by this machine's clock",
        )
    } else {
        Finding::ok("clock", found)
    })
}

pub(super) async fn notification_queue(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let usage = sqlx::query_scalar!(r#"select pg_notification_queue_usage() as "usage!""#)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("reading the notification queue"))?;
    let found = format!("{:.1} % full", usage * 100.0);
    Ok(if usage > 0.25 {
        Finding::warning(
            "notification queue",
            found,
            "a listening session sits in a transaction; end it before the queue fills and commits fail",
        )
    } else {
        Finding::ok("notification queue", found)
    })
}

pub(super) async fn oldest_transaction(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let oldest = sqlx::query!(
        r#"
        select pid as "pid!",
               coalesce(usename::text, '?') as "login!",
               coalesce(state, '?') as "state!",
               extract(epoch from clock_timestamp() - xact_start)::double precision as "seconds!"
          from pg_stat_activity
         where xact_start is not null
           and pid <> pg_backend_pid()
           and backend_type = 'client backend'
         order by xact_start
         limit 1
        "#
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the activity"))?;
    Ok(match oldest {
        Some(open) if open.seconds > 30.0 => Finding::warning(
            "oldest transaction",
            format!(
                "pid {} ({}, {}) has one open for {:.0} s",
                open.pid, open.login, open.state, open.seconds
            ),
            format!(
                "dead rows cannot be cleaned up meanwhile and claims slow down; end it with `select pg_terminate_backend({})`",
                open.pid
            ),
        ),
        Some(open) => Finding::ok("oldest transaction", format!("{:.1} s", open.seconds.max(0.0))),
        None => Finding::ok("oldest transaction", "none is open"),
    })
}

pub(super) async fn waiting_locks(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let waiting = sqlx::query!(
        r#"
        select pid as "pid!",
               pg_blocking_pids(pid) as "blockers!",
               extract(epoch from clock_timestamp() - waitstart)::double precision as "seconds!"
          from pg_locks
         where not granted
           and waitstart is not null
         order by waitstart
         limit 1
        "#
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the locks"))?;
    Ok(match waiting {
        Some(lock) if lock.seconds > 5.0 => Finding::warning(
            "oldest lock wait",
            format!("pid {} has waited {:.0} s for {:?}", lock.pid, lock.seconds, lock.blockers),
            "look at the blocking session in pg_stat_activity; end it if it is forgotten",
        ),
        Some(lock) => Finding::ok("oldest lock wait", format!("{:.1} s", lock.seconds.max(0.0))),
        None => Finding::ok("oldest lock wait", "no session waits"),
    })
}

//! Call tokens of accounts, their circuits, and send jobs that wait for them. All processes share them through the database, and times are
//! the database's.
//!
//! A function here acts for a send job that the worker holds, at the send job's own account or at the one that it fails over to.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use postrider_model::{
    Rate, Why,
    ids::{ProviderAccountId, RunId, TenantId},
};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Pool, StoreError,
    campaigns::outbox::{self, JobHold},
    postgres::{pool, unprepared::unprepared, values::interval},
};

/// An account as a held send job sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobAccount {
    /// The send job.
    pub hold: JobHold,
    /// Whether it is the account that the send job fails over to.
    pub is_failover: bool,
}

/// A request for call tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    /// The account.
    pub at: JobAccount,
    /// Number of call tokens.
    pub wanted: usize,
    /// Calls per second, where the account does not say.
    pub rate: Option<f64>,
    /// The quota beside the rate, where the account does not say.
    pub quota: Option<Rate>,
    /// For an item that was called before and provably not sent: only the rate holds it up.
    pub is_again: bool,
}

/// The answer to a request for call tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallTokens {
    /// Number of call tokens.
    pub granted: usize,
    /// How long to wait before they are used; or, when there are none, before it makes sense to ask again.
    pub wait: Duration,
    /// The reason for the wait.
    pub why: Option<Why>,
}

/// Takes call tokens.
pub async fn take_call_tokens(pool: &Pool, worker: &str, ask: Ask) -> Result<CallTokens, StoreError> {
    let hold = ask.at.hold;
    let mut transaction = pool::begin(pool).await?;
    let row = sqlx::query!(
        r#"
        select granted as "granted!",
               wait_seconds as "wait_seconds!",
               why
          from execution.take_call_tokens($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
        "#,
        hold.tenant_id.0,
        worker,
        hold.job_id.0,
        hold.attempt,
        i32::try_from(ask.wanted).unwrap_or(i32::MAX),
        ask.at.is_failover,
        ask.rate,
        ask.is_again,
        ask.quota.map(|quota| i32::try_from(quota.calls).unwrap_or(i32::MAX)),
        ask.quota.map(|quota| quota.per.as_secs_f64()),
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("taking call tokens of the account"))?;
    pool::commit(transaction).await?;
    Ok(CallTokens {
        granted: usize::try_from(row.granted).unwrap_or_default(),
        wait: seconds(row.wait_seconds),
        why: row.why.as_deref().and_then(Why::from_word),
    })
}

/// Makes every process stop calling the account for a while, because its provider asked for it.
pub async fn hold_account(
    pool: &Pool,
    worker: &str,
    at: JobAccount,
    wait: Duration,
    reason: &str,
) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    sqlx::query!(
        "select execution.hold_account($1, $2, $3, $4, $5, $6, $7)",
        at.hold.tenant_id.0,
        worker,
        at.hold.job_id.0,
        at.hold.attempt,
        at.is_failover,
        wait.as_secs_f64(),
        &*outbox::storable(reason),
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("holding the account"))?;
    pool::commit(transaction).await
}

/// Opens the account's circuit, and returns for how long. With `until_secret` it stays open until the secret is changed.
pub async fn open_circuit(
    pool: &Pool,
    worker: &str,
    at: JobAccount,
    reason: &str,
    until_secret: bool,
) -> Result<Duration, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let open_for = sqlx::query_scalar!(
        r#"select execution.open_circuit($1, $2, $3, $4, $5, $6, $7) as "seconds!""#,
        at.hold.tenant_id.0,
        worker,
        at.hold.job_id.0,
        at.hold.attempt,
        at.is_failover,
        &*outbox::storable(reason),
        until_secret,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("opening the account's circuit"))?;
    pool::commit(transaction).await?;
    Ok(seconds(open_for))
}

/// Closes the account's circuit, because a call was answered.
pub async fn close_circuit(pool: &Pool, worker: &str, at: JobAccount) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    sqlx::query!(
        "select execution.close_circuit($1, $2, $3, $4, $5)",
        at.hold.tenant_id.0,
        worker,
        at.hold.job_id.0,
        at.hold.attempt,
        at.is_failover,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("closing the account's circuit"))?;
    pool::commit(transaction).await
}

/// The shared state of an account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// How long its provider asked to wait.
    pub wait: Option<Duration>,
    /// Time for which its circuit stays open; zero when it is half open, `None` when it is closed.
    pub circuit: Option<Duration>,
}

impl Known {
    pub(crate) fn of(wait_seconds: Option<f64>, circuit_seconds: Option<f64>) -> Self {
        Self { wait: wait_seconds.map(seconds), circuit: circuit_seconds.map(seconds) }
    }
}

/// The shared state of these send jobs' accounts, where there is any.
pub async fn known(
    pool: &Pool,
    worker: &str,
    jobs: &[JobHold],
) -> Result<HashMap<(TenantId, ProviderAccountId), Known>, StoreError> {
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) =
        jobs.iter().map(|job| (job.tenant_id.0, job.job_id.0)).unzip();
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"
        select tenant_id as "tenant_id!",
               account_id as "account_id!",
               wait_seconds,
               circuit_seconds
          from execution.read_account_states($1, $2, $3)
        "#,
        &tenants,
        worker,
        &ids,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("reading how the accounts stand"))?;
    pool::commit(transaction).await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let account = (TenantId(row.tenant_id), ProviderAccountId(row.account_id));
            (account, Known::of(row.wait_seconds, row.circuit_seconds))
        })
        .collect())
}

/// How many circuits are not closed, by provider, over all tenants.
pub async fn measure_circuits(pool: &Pool) -> Result<HashMap<String, i64>, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let rows =
        sqlx::query!(r#"select provider as "provider!", open as "open!" from execution.measure_circuits()"#,)
            .fetch_all(unprepared(&mut transaction))
            .await
            .map_err(StoreError::on("counting the open circuits"))?;
    pool::commit(transaction).await?;
    Ok(rows.into_iter().map(|row| (row.provider, row.open)).collect())
}

/// The reason and the length of a send job's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutOff {
    /// The length.
    pub wait: Duration,
    /// The reason.
    pub why: Why,
    /// Whether the other send jobs of the run would wait for the same.
    pub whole_run: bool,
}

/// Releases a send job until it may go on, without using up an attempt. Returns the number of send jobs that wait now.
///
/// `limits` are those under which the send job must wait. If the account has others by now, the send job is due at once.
pub async fn put_off(
    pool: &Pool,
    worker: &str,
    job: JobHold,
    put_off: PutOff,
    limits: &serde_json::Value,
) -> Result<i32, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let jobs = sqlx::query_scalar!(
        r#"select execution.put_off_job($1, $2, $3, $4, $5, $6, $7, $8, $9) as "jobs!""#,
        job.tenant_id.0,
        job.job_id.0,
        worker,
        job.attempt,
        interval(put_off.wait),
        put_off.why.as_str(),
        put_off.why.sentence(),
        put_off.whole_run,
        limits,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("putting the send job off"))?;
    pool::commit(transaction).await?;
    Ok(jobs)
}

/// Waiting send jobs of a run, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Number of send jobs.
    pub jobs: i64,
    /// Reason of the send jobs that are due first.
    pub why: Why,
    /// Time until which they wait.
    pub until: Timestamp,
}

/// The waits of runs, where there are any.
pub async fn waiting(
    connection: &mut PgConnection,
    tenant: TenantId,
    runs: &[RunId],
) -> Result<HashMap<RunId, Waiting>, StoreError> {
    let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
    let rows = sqlx::query!(
        r#"
        select distinct on (job.run_id)
               job.run_id,
               job.waits_for as "waits_for!",
               job.run_after as "run_after: jiff_sqlx::Timestamp",
               count(*) over (partition by job.run_id) as "jobs!"
          from execution.job_queue as job
         where job.tenant_id = $1
           and job.run_id = any ($2)
           and job.status = 'queued'
           and job.waits_for is not null
           and job.run_after > now()
         order by job.run_id, job.run_after
        "#,
        tenant.0,
        &ids,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading what the runs wait for"))?;
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            let why = Why::from_word(&row.waits_for)?;
            let until = row.run_after.to_jiff();
            Some((RunId(row.run_id), Waiting { jobs: row.jobs, why, until }))
        })
        .collect())
}

/// Seconds of the database. A time that has passed is zero.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

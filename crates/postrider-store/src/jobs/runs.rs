//! Runs of functions: acquired under a lock key, claimed by a runner, ended under the claim.
//!
//! ```text
//! acquire ──commit──▶ running, without a runner ──claim──▶ ClaimedRun ──the function──▶ end ──▶ completed, or failed
//!                                                              └─ its runner dies: recovered when its heartbeat is too old
//! ```

mod operating;
mod sql_function;

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use jiff::Timestamp;
use postrider_model::{
    ids::{FunctionId, JobRunId, TenantId},
    jobs::{JobRunStatus, Target, lock_key::EntityHash},
    seal::MasterKey,
};
use secrecy::SecretString;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Pool, StoreError,
    campaigns::outbox::storable,
    crash_point,
    jobs::functions,
    postgres::{
        pool,
        unprepared::unprepared,
        values::{interval, word},
    },
    tenancy::accounts,
};

pub use self::{
    operating::{
        Cancelled, Day, Health, Retried, RunFilter, RunState, Summary, cancel, day, find, health, measure,
        page, prune, retry, tenants_with_old, which_ended,
    },
    sql_function::{SqlEnd, check_sql_function, check_sql_schema, perform_sql},
};

/// The channel for hints, sent after a commit, that there are runs to be claimed.
pub const HINT_CHANNEL: &str = "postrider_job_runs";
/// The channel for hints, sent after a commit, that a run was cancelled and its worker should release it.
pub const CANCEL_CHANNEL: &str = "postrider_job_cancels";
/// The channel for hints, sent after a commit, that runs have ended.
pub const ENDS_CHANNEL: &str = "postrider_job_ends";

/// Result of acquiring a lock key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// A run was made.
    Run(JobRunId),
    /// This run has the key, and is running.
    Running(JobRunId),
    /// This run has the key, and waits for its retry.
    RetryPending(JobRunId),
    /// This run was completed in this grain.
    Completed(JobRunId),
    /// There is no such function.
    UnknownFunction,
}

/// An invocation of a function.
#[derive(Debug, Clone, Copy)]
pub struct Invocation<'a> {
    /// Name of the function.
    pub function: &'a str,
    /// Its input.
    pub input: Option<&'a Value>,
    /// Entities that it is about, as a part of the lock key.
    pub entities: Option<&'a EntityHash>,
    /// Whether to run it although it was completed in this grain. Audited.
    pub force: bool,
}

/// Acquires the lock key of an invocation of a tenant, by the database's clock. Wake the runners after the commit.
pub async fn acquire(
    connection: &mut PgConnection,
    tenant: TenantId,
    invocation: Invocation<'_>,
    actor: &str,
) -> Result<Acquired, StoreError> {
    let row = sqlx::query!(
        r#"select outcome as "outcome!", run_id from jobs.acquire_run($1, $2, $3, $4, $5, $6, $7)"#,
        tenant.0,
        JobRunId::new().0,
        invocation.function,
        invocation.entities.map(ToString::to_string),
        invocation.input,
        invocation.force,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(|error| match StoreError::constraint(&error) {
        Some("job_runs_input_is_bounded") => {
            StoreError::Refused { message: "the input is too large".to_owned(), hint: None }
        }
        _ => StoreError::on("acquiring the lock key")(error),
    })?;
    let run = JobRunId(row.run_id.unwrap_or_default());
    match row.outcome.as_str() {
        "acquired" => Ok(Acquired::Run(run)),
        "running" => Ok(Acquired::Running(run)),
        "retry_pending" => Ok(Acquired::RetryPending(run)),
        "completed" => Ok(Acquired::Completed(run)),
        "unknown_function" => Ok(Acquired::UnknownFunction),
        other => Err(StoreError::Unfit(format!(
            "the database says `{other}` about a lock key, which this version does not know"
        ))),
    }
}

/// A run and its tenant. Ids of runs are unique within a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunRef {
    /// The tenant of the run.
    pub tenant: TenantId,
    /// The id of the run.
    pub id: JobRunId,
}

/// The two arrays in which statements take runs.
fn arrays(runs: impl Iterator<Item = RunRef>) -> (Vec<Uuid>, Vec<Uuid>) {
    runs.map(|run| (run.tenant.0, run.id.0)).unzip()
}

/// A run that a runner holds.
#[derive(Debug)]
pub struct ClaimedRun {
    /// Id of the run.
    pub id: JobRunId,
    /// The tenant.
    pub tenant: TenantId,
    /// Name of the function.
    pub function_name: String,
    /// Lock key, which only one active run has.
    pub lock_key: String,
    /// Input of the function.
    pub input: Value,
    /// Number of earlier attempts.
    pub retry_count: i32,
    /// The firing that it is for, if a schedule made it.
    pub scheduled_for: Option<Timestamp>,
    /// The function; `None` when it was removed.
    pub function: Option<ClaimedFunction>,
    claim: i32,
}

/// The function of a claimed run.
#[derive(Debug)]
pub struct ClaimedFunction {
    /// Its target; `None` when this version does not know it.
    pub target: Option<Target>,
    /// Its timeout.
    pub timeout: Duration,
    id: FunctionId,
    sealed_secret: Option<Vec<u8>>,
}

impl ClaimedRun {
    /// The run and its tenant.
    #[must_use]
    pub fn run(&self) -> RunRef {
        RunRef { tenant: self.tenant, id: self.id }
    }

    /// The number of the claim, which is the fencing token.
    #[must_use]
    pub fn claim(&self) -> i32 {
        self.claim
    }

    /// The secret that signs requests, opened.
    pub fn secret(&self, key: &MasterKey) -> Result<Option<SecretString>, StoreError> {
        let Some(ClaimedFunction { id, sealed_secret: Some(sealed), .. }) = &self.function else {
            return Ok(None);
        };
        accounts::open(key, functions::place(self.tenant, *id), sealed).map(Some)
    }

    /// Adds the result, to be recorded.
    pub fn end(&self, end: End) -> EndedRun {
        EndedRun { run: self.run(), claim: self.claim, end }
    }
}

/// Result of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The function succeeded, with this result.
    Completed(Value),
    /// The function failed.
    Failed {
        /// The error.
        error: String,
        /// Whether a retry may succeed.
        retryable: bool,
    },
}

/// The end of an attempt, to be recorded. It is kept until the database has it.
#[must_use = "an end that is not recorded is lost"]
#[derive(Debug)]
pub struct EndedRun {
    run: RunRef,
    claim: i32,
    end: End,
}

impl EndedRun {
    /// The run and its tenant.
    #[must_use]
    pub fn run(&self) -> RunRef {
        self.run
    }

    /// The number of the claim that it ends.
    #[must_use]
    pub fn claim(&self) -> i32 {
        self.claim
    }

    /// The result of the attempt.
    #[must_use]
    pub fn end(&self) -> &End {
        &self.end
    }

    /// The same run with another end, because the database does not take this one.
    pub fn instead(&self, end: End) -> Self {
        Self { end, ..*self }
    }
}

/// The capacity of a runner, and the functions that it can run.
#[derive(Debug, Default)]
pub struct Capacity {
    /// Maximum number of runs in total.
    pub limit: usize,
    /// Maximum number for a tenant that is not in `tenants`.
    pub per_tenant: usize,
    /// Maximum numbers for the tenants in it; 0 means none.
    pub tenants: HashMap<TenantId, usize>,
    /// The tenant that was served last; the others come first.
    pub after: Option<TenantId>,
    /// Kinds of functions.
    pub kinds: Vec<String>,
    /// Functions of the program itself.
    pub builtins: Vec<String>,
}

/// A tenant with due runs, and how many of them a runner should claim.
#[derive(Debug, Clone, Copy)]
pub struct DueRuns {
    /// The tenant of the runs.
    pub tenant: TenantId,
    /// The number of runs to claim.
    pub runs: i32,
}

/// Chooses the tenants whose due runs fill the capacity, in the order in which their runs are to be claimed. Locks nothing.
pub async fn choose(pool: &Pool, capacity: &Capacity) -> Result<Vec<DueRuns>, StoreError> {
    let (tenants, capacities): (Vec<Uuid>, Vec<i32>) =
        capacity.tenants.iter().map(|(tenant, capacity)| (tenant.0, number(*capacity))).unzip();
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"select tenant_id as "tenant_id!", runs as "runs!" from jobs.tenants_with_due_runs($1, $2, $3, $4, $5, $6, $7)"#,
        number(capacity.limit),
        number(capacity.per_tenant),
        &tenants,
        &capacities,
        &capacity.kinds,
        &capacity.builtins,
        capacity.after.map(|tenant| tenant.0),
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("looking for tenants with due runs"))?;
    pool::commit(transaction).await?;
    Ok(rows.into_iter().map(|row| DueRuns { tenant: TenantId(row.tenant_id), runs: row.runs }).collect())
}

/// Claims due runs of one tenant, and returns after the commit.
pub async fn claim(
    pool: &Pool,
    worker: &str,
    due: DueRuns,
    capacity: &Capacity,
) -> Result<Vec<ClaimedRun>, StoreError> {
    crash_point!("run.before_claim");
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"
        select id as "id!",
               tenant_id as "tenant_id!",
               function_name as "function_name!",
               lock_key as "lock_key!",
               input_params,
               retry_count as "retry_count!",
               claims as "claims!",
               scheduled_for as "scheduled_for: jiff_sqlx::Timestamp",
               function_id,
               kind,
               target,
               timeout_seconds,
               sealed_secret
          from jobs.claim_runs($1, $2, $3, $4, $5)
        "#,
        due.tenant.0,
        worker,
        due.runs,
        &capacity.kinds,
        &capacity.builtins,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("claiming runs"))?;
    if !rows.is_empty() {
        crash_point!("run.claimed");
    }
    pool::commit(transaction).await?;
    if !rows.is_empty() {
        crash_point!("run.after_claim");
    }
    Ok(rows
        .into_iter()
        .map(|row| ClaimedRun {
            id: JobRunId(row.id),
            tenant: TenantId(row.tenant_id),
            function_name: row.function_name,
            lock_key: row.lock_key,
            input: row.input_params.unwrap_or(Value::Null),
            retry_count: row.retry_count,
            scheduled_for: row.scheduled_for.map(jiff_sqlx::Timestamp::to_jiff),
            function: row.function_id.map(|id| ClaimedFunction {
                target: Target::from_parts(&row.kind.unwrap_or_default(), row.target.unwrap_or_default()),
                timeout: Duration::from_secs(
                    row.timeout_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default(),
                ),
                id: FunctionId(id),
                sealed_secret: row.sealed_secret,
            }),
            claim: row.claims,
        })
        .collect())
}

/// The state of a run after its end was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// Its state.
    pub status: JobRunStatus,
    /// Time of the next retry.
    pub retry_at: Option<Timestamp>,
}

/// Records ends, each under its claim. A run that is not in the result is held under another claim, and did not change.
pub async fn end(
    pool: &Pool,
    worker: &str,
    ended: &[EndedRun],
) -> Result<HashMap<RunRef, Ending>, StoreError> {
    crash_point!("run.before_end");
    let mut transaction = pool::begin(pool).await?;
    let endings = end_in(&mut transaction, worker, ended).await?;
    crash_point!("run.ended");
    pool::commit(transaction).await?;
    crash_point!("run.after_end");
    Ok(endings)
}

async fn end_in(
    connection: &mut PgConnection,
    worker: &str,
    ended: &[EndedRun],
) -> Result<HashMap<RunRef, Ending>, StoreError> {
    let (tenants, ids) = arrays(ended.iter().map(|ended| ended.run));
    let claims: Vec<i32> = ended.iter().map(|run| run.claim).collect();
    let mut results: Vec<Option<Value>> = Vec::with_capacity(ended.len());
    let mut errors: Vec<Option<String>> = Vec::with_capacity(ended.len());
    let mut are_retryable = Vec::with_capacity(ended.len());
    for run in ended {
        let (result, error, retryable) = match &run.end {
            End::Completed(result) => (Some(result.clone()), None, false),
            End::Failed { error, retryable } => (None, Some(shortened(error)), *retryable),
        };
        results.push(result);
        errors.push(error);
        are_retryable.push(retryable);
    }
    let rows = sqlx::query!(
        r#"
        select tenant_id as "tenant_id!", id as "id!", status as "status!", retry_at as "retry_at: jiff_sqlx::Timestamp"
          from jobs.end_runs($1, $2, $3, $4, $5::jsonb[], $6::text[], $7)
        "#,
        &tenants,
        &ids,
        &claims,
        worker,
        &results as _,
        &errors as _,
        &are_retryable,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("ending runs"))?;
    rows.into_iter()
        .map(|row| {
            let retry_at = row.retry_at.map(jiff_sqlx::Timestamp::to_jiff);
            let run = RunRef { tenant: TenantId(row.tenant_id), id: JobRunId(row.id) };
            Ok((run, Ending { status: word(&row.status)?, retry_at }))
        })
        .collect()
}

/// Records a worker's heartbeat. Returns the runs that it still holds; the others were cancelled or taken over.
pub async fn heartbeat(
    pool: &Pool,
    worker: &str,
    held: &[(RunRef, i32)],
) -> Result<HashSet<RunRef>, StoreError> {
    let (tenants, ids) = arrays(held.iter().map(|(run, _)| *run));
    let claims: Vec<i32> = held.iter().map(|(_, claim)| *claim).collect();
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"select tenant_id as "tenant_id!", id as "id!" from jobs.heartbeat_runs($1, $2, $3, $4)"#,
        &tenants,
        &ids,
        &claims,
        worker,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("keeping runs"))?;
    pool::commit(transaction).await?;
    let held = rows.into_iter();
    Ok(held.map(|row| RunRef { tenant: TenantId(row.tenant_id), id: JobRunId(row.id) }).collect())
}

/// A run whose worker died.
#[derive(Debug, Clone)]
pub struct Recovered {
    /// Id of the run.
    pub id: JobRunId,
    /// Name of its function.
    pub function_name: String,
    /// The worker that died.
    pub worker: String,
    /// Time of the next retry; `None` if there is none left.
    pub retry_at: Option<Timestamp>,
}

/// The tenants with runs whose last heartbeat is older than this, oldest heartbeat first.
pub async fn stale_tenants(pool: &Pool, lease: Duration) -> Result<Vec<TenantId>, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let tenants = sqlx::query_scalar!(
        r#"select tenant_id as "tenant_id!" from jobs.tenants_with_stale_runs($1) as stale (tenant_id)"#,
        interval(lease),
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("looking for tenants with stale runs"))?;
    pool::commit(transaction).await?;
    Ok(tenants.into_iter().map(TenantId).collect())
}

/// Fails up to so many runs of a tenant without a heartbeat for this time. They are retried like any other.
pub async fn recover(
    pool: &Pool,
    tenant: TenantId,
    lease: Duration,
    limit: i32,
) -> Result<Vec<Recovered>, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"
        select id as "id!", function_name as "function_name!", worker as "worker!", retry_at as "retry_at: jiff_sqlx::Timestamp"
          from jobs.recover_runs($1, $2, $3)
        "#,
        tenant.0,
        interval(lease),
        limit,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("recovering runs"))?;
    pool::commit(transaction).await?;
    Ok(rows
        .into_iter()
        .map(|row| Recovered {
            id: JobRunId(row.id),
            function_name: row.function_name,
            worker: row.worker,
            retry_at: row.retry_at.map(jiff_sqlx::Timestamp::to_jiff),
        })
        .collect())
}

/// Maximum length of a stored error, in characters.
const ERROR_MAX: usize = 2000;

fn shortened(error: &str) -> String {
    let end = error.char_indices().nth(ERROR_MAX).map_or(error.len(), |(at, _)| at);
    storable(&error[..end]).into_owned()
}

fn number(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

//! Send jobs of campaigns: claim, heartbeat, and end.

use std::{collections::HashSet, time::Duration};

use jiff::Timestamp;
use postrider_model::{
    Channel,
    campaigns::JobStatus,
    ids::{AssetId, JobId, LeadId, ProviderAccountId, RunId, TenantId, WorkspaceId},
    seal::{MasterKey, Place},
};
use secrecy::SecretString;
use serde_json::value::RawValue;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::{
    Pool, StoreError,
    campaigns::{
        limits::Known,
        messages,
        outbox::{self, JobHold, JobRef},
    },
    crash_point,
    postgres::{pool, unprepared::unprepared, values::interval, wakeups},
    tenancy::accounts,
};

/// The channel for hints, sent after a commit, that there are send jobs.
pub const HINT_CHANNEL: &str = "postrider_jobs";

/// A send job that this worker holds.
#[derive(Debug, Clone)]
pub struct ClaimedJob {
    /// Names the send job and the attempt in every write.
    pub hold: JobHold,
    /// Its workspace.
    pub workspace_id: WorkspaceId,
    /// Its run.
    pub run_id: RunId,
    /// Most attempts.
    pub max_attempts: i32,
    /// Its items, in order.
    pub item_ids: Vec<Uuid>,
    /// The asset that is sent. `None`: its items are single messages, each with its own content.
    pub asset_id: Option<AssetId>,
    /// The account.
    pub account_id: ProviderAccountId,
    /// The vendor.
    pub provider: String,
    /// The time that it was planned for.
    pub scheduled_for: Option<Timestamp>,
    /// Correlation id of its run in logs.
    pub correlation_id: Uuid,
}

/// A tenant of which send jobs are to be claimed, and how many.
struct Due {
    tenant: TenantId,
    jobs: i32,
    is_overdue: bool,
}

/// Groups single messages that are due into runs, and claims up to `limit` send jobs, tenant by tenant in turns, of other tenants than `except` and other runs than `except_runs`. Every
/// commit was seen. A tenant whose claim fails does not take the send jobs of the others from the worker: the error is logged.
pub async fn claim(
    pool: &Pool,
    worker: &str,
    limit: usize,
    except: &[TenantId],
    except_runs: &[(TenantId, RunId)],
) -> Result<Vec<ClaimedJob>, StoreError> {
    crash_point!("claim.before");
    messages::group_due(pool, worker).await?;
    let mut chosen = choose(pool, limit, except, except_runs).await?;
    if chosen.iter().any(|due| due.is_overdue) {
        for due in chosen.iter().filter(|due| due.is_overdue) {
            requeue_overdue(pool, worker, due.tenant).await?;
        }
        chosen = choose(pool, limit, except, except_runs).await?;
    }
    let mut claimed = Vec::new();
    for due in chosen.into_iter().filter(|due| due.jobs > 0) {
        let runs: Vec<Uuid> =
            except_runs.iter().filter(|(tenant, _)| *tenant == due.tenant).map(|(_, run)| run.0).collect();
        match claim_of_tenant(pool, worker, due.tenant, due.jobs, &runs).await {
            Ok(jobs) => claimed.extend(jobs),
            Err(error) if claimed.is_empty() => return Err(error),
            Err(error) => {
                tracing::error!(error = ?error, tenant.id = %due.tenant, "the send jobs of a tenant were not claimed: {error}");
                break;
            }
        }
    }
    Ok(claimed)
}

/// Chooses tenants with due send jobs, the one that was served longest ago first, without locking anything.
async fn choose(
    pool: &Pool,
    limit: usize,
    except: &[TenantId],
    except_runs: &[(TenantId, RunId)],
) -> Result<Vec<Due>, StoreError> {
    let (run_tenants, runs): (Vec<Uuid>, Vec<Uuid>) =
        except_runs.iter().map(|(tenant, run)| (tenant.0, run.0)).unzip();
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"
        select tenant_id as "tenant_id!",
               jobs as "jobs!",
               is_overdue as "is_overdue!"
          from execution.tenants_with_due_jobs($1, $2, $3, $4)
        "#,
        i32::try_from(limit).unwrap_or(i32::MAX),
        &except.iter().map(|tenant| tenant.0).collect::<Vec<_>>(),
        &run_tenants,
        &runs,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("choosing send jobs"))?;
    pool::commit(transaction).await?;
    let due = |(tenant, jobs, is_overdue)| Due { tenant: TenantId(tenant), jobs, is_overdue };
    Ok(rows.into_iter().map(|row| due((row.tenant_id, row.jobs, row.is_overdue))).collect())
}

/// Takes over a tenant's expired locks and queues its retries that are due.
async fn requeue_overdue(pool: &Pool, worker: &str, tenant: TenantId) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    sqlx::query!("select execution.requeue_overdue_jobs($1, $2)", tenant.0, worker)
        .fetch_one(unprepared(&mut transaction))
        .await
        .map_err(StoreError::on("requeuing overdue send jobs"))?;
    pool::commit(transaction).await
}

async fn claim_of_tenant(
    pool: &Pool,
    worker: &str,
    tenant: TenantId,
    limit: i32,
    except_runs: &[Uuid],
) -> Result<Vec<ClaimedJob>, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"
        select job_id as "job_id!",
               tenant_id as "tenant_id!",
               workspace_id as "workspace_id!",
               run_id as "run_id!",
               attempts as "attempts!",
               max_attempts as "max_attempts!",
               item_ids as "item_ids!",
               channel as "channel!",
               asset_id,
               provider_account_id as "provider_account_id!",
               provider as "provider!",
               scheduled_for as "scheduled_for: jiff_sqlx::Timestamp",
               correlation_id as "correlation_id!"
          from execution.claim_queued_jobs($1, $2, $3, $4)
        "#,
        tenant.0,
        worker,
        limit,
        except_runs,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("claiming send jobs"))?;
    crash_point!("claim.after_statement");
    outbox::commit(transaction, &[(!rows.is_empty()).then_some("claim.commit_sent")]).await?;
    if !rows.is_empty() {
        crash_point!("claim.after_commit");
    }
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            let Ok(channel) = row.channel.parse::<Channel>() else {
                tracing::error!(job.id = %row.job_id, channel = row.channel, "a send job is for a channel that this version does not know");
                return None;
            };
            Some(ClaimedJob {
                hold: JobHold {
                    job_id: JobId(row.job_id),
                    tenant_id: TenantId(row.tenant_id),
                    attempt: row.attempts,
                    channel,
                },
                workspace_id: WorkspaceId(row.workspace_id),
                run_id: RunId(row.run_id),
                max_attempts: row.max_attempts,
                item_ids: row.item_ids,
                asset_id: row.asset_id.map(AssetId),
                account_id: ProviderAccountId(row.provider_account_id),
                provider: row.provider,
                scheduled_for: row.scheduled_for.map(jiff_sqlx::Timestamp::to_jiff),
                correlation_id: row.correlation_id,
            })
        })
        .collect())
}

/// Renews locks, and returns those that are still held.
pub async fn heartbeat(pool: &Pool, worker: &str, jobs: &[JobHold]) -> Result<Vec<JobRef>, StoreError> {
    let tenants: Vec<Uuid> = jobs.iter().map(|job| job.tenant_id.0).collect();
    let (ids, attempts): (Vec<Uuid>, Vec<i32>) = jobs.iter().map(|job| (job.job_id.0, job.attempt)).unzip();
    let mut transaction = pool::begin(pool).await?;
    let held = sqlx::query!(
        r#"select tenant_id as "tenant_id!", id as "id!" from execution.heartbeat_jobs($1, $2, $3, $4)"#,
        &tenants,
        worker,
        &ids,
        &attempts,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("sending the heartbeat of send jobs"))?;
    pool::commit(transaction).await?;
    Ok(held.into_iter().map(|row| JobRef { tenant: TenantId(row.tenant_id), id: JobId(row.id) }).collect())
}

/// Ends a send job whose items have all been tried, and returns its new state.
pub async fn complete(
    pool: &Pool,
    worker: &str,
    job: JobHold,
    retry_after: Duration,
) -> Result<JobStatus, StoreError> {
    crash_point!("complete.before");
    let mut transaction = pool::begin(pool).await?;
    let status = sqlx::query_scalar!(
        r#"select execution.complete_job($1, $2, $3, $4, $5) as "status!""#,
        job.tenant_id.0,
        job.job_id.0,
        worker,
        job.attempt,
        interval(retry_after),
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("completing the send job"))?;
    crash_point!("complete.after_statement");
    outbox::commit(transaction, &[Some("complete.commit_sent")]).await?;
    crash_point!("complete.after_commit");
    known(&status)
}

/// Ends an attempt that could not go on, and returns the send job's new state.
pub async fn fail(
    pool: &Pool,
    worker: &str,
    job: JobHold,
    error: &str,
    retry_after: Duration,
) -> Result<JobStatus, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let status = sqlx::query_scalar!(
        r#"select execution.fail_job($1, $2, $3, $4, $5, $6) as "status!""#,
        job.tenant_id.0,
        job.job_id.0,
        worker,
        job.attempt,
        error,
        interval(retry_after),
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("putting the send job off"))?;
    pool::commit(transaction).await?;
    known(&status)
}

/// Releases a send job, to be claimed again after a while. It uses up no attempt.
pub async fn release(
    pool: &Pool,
    worker: &str,
    job: JobHold,
    retry_after: Duration,
) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    sqlx::query!(
        "select execution.release_job($1, $2, $3, $4, $5)",
        job.tenant_id.0,
        job.job_id.0,
        worker,
        job.attempt,
        interval(retry_after),
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("releasing the send job"))?;
    pool::commit(transaction).await
}

/// Numbers of send jobs and of items in doubt, over all tenants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backlog {
    /// Send jobs that wait for a worker.
    pub jobs_waiting: i64,
    /// Send jobs that a worker holds.
    pub jobs_locked: i64,
    /// Age of the oldest heartbeat among locked send jobs.
    pub oldest_lock_seconds: f64,
    /// Items in doubt.
    pub items_in_doubt: i64,
    /// Age of the oldest item in doubt.
    pub oldest_doubt_seconds: f64,
}

/// Measures the backlog.
pub async fn measure(pool: &Pool) -> Result<Backlog, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let backlog = sqlx::query_as!(
        Backlog,
        r#"
        select jobs_waiting as "jobs_waiting!",
               jobs_locked as "jobs_locked!",
               oldest_lock_seconds as "oldest_lock_seconds!",
               items_in_doubt as "items_in_doubt!",
               oldest_doubt_seconds as "oldest_doubt_seconds!"
          from execution.measure_jobs()
        "#,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("measuring the send jobs"))?;
    pool::commit(transaction).await?;
    Ok(backlog)
}

/// The data that a send job needs.
#[derive(Debug)]
pub struct Material {
    /// The content of the asset, if it was asked for.
    pub content: Option<serde_json::Value>,
    /// The contents of single messages.
    pub messages: Vec<messages::Content>,
    /// The account that it uses; `None` when it was removed.
    pub account: Option<OpenAccount>,
    /// The account that it fails over to, where it has one.
    pub failover: Option<OpenAccount>,
    /// The leads among its items, in no particular order.
    pub leads: Vec<Lead>,
    /// Items that have a row already, where that must be known before they are tried.
    pub begun: HashSet<Uuid>,
}

/// An account that a send job may use.
#[derive(Debug)]
pub struct OpenAccount {
    /// Its id.
    pub id: ProviderAccountId,
    /// The vendor.
    pub provider: String,
    /// Settings that are not secret.
    pub settings: serde_json::Value,
    /// The secret.
    pub secret: SecretString,
    /// Its limits.
    pub limits: serde_json::Value,
    /// Its shared state: the wait that its provider asked for, and its circuit.
    pub known: Known,
}

/// A lead, as far as a message needs it.
#[derive(Debug, Clone)]
pub struct Lead {
    /// Its id.
    pub id: LeadId,
    /// The tenant's id of it.
    pub external_id: Option<String>,
    /// Its e-mail address.
    pub email: Option<String>,
    /// Its phone number, E.164.
    pub phone: Option<String>,
    /// Its time zone.
    pub timezone: Option<String>,
    /// Its further attributes, as they are stored: a send job has hundreds of leads, and reads one at a time.
    pub attributes: Box<RawValue>,
    /// The reason why it is suppressed, if it is.
    pub suppression_reason: Option<String>,
}

/// The data of a send job to read, besides its leads and accounts.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Whether to read the asset's content. It never changes, so it may be known already.
    pub content: bool,
    /// Whether to read the items that have a row, even if nothing limits the account: its provider limits every one.
    pub begun: bool,
}

/// Reads the data that a send job needs. `None` when it is not held any more.
pub async fn material(
    pool: &Pool,
    worker: &str,
    key: &MasterKey,
    job: &ClaimedJob,
    wanted: Wanted,
) -> Result<Option<Material>, StoreError> {
    let hold = job.hold;
    let mut transaction = pool::begin(pool).await?;
    let mut content = None;
    let mut messages = Vec::new();
    if job.asset_id.is_none() {
        messages = messages::contents(&mut transaction, worker, hold).await?;
        if messages.is_empty() {
            return Ok(None);
        }
    } else if wanted.content {
        content = read_content(&mut transaction, worker, hold).await?;
        if content.is_none() {
            return Ok(None);
        }
    }
    let (account, failover) = read_accounts(&mut transaction, worker, key, hold).await?;
    // Where nothing is limited, an item that was begun before is found when it is reserved, at no cost.
    let is_limited =
        |account: &OpenAccount| account.limits.as_object().is_none_or(|limits| !limits.is_empty());
    let with_begun = wanted.begun || failover.is_some() || account.as_ref().is_some_and(is_limited);
    let Some((leads, begun)) = audience(&mut transaction, worker, hold, with_begun).await? else {
        return Ok(None);
    };
    pool::commit(transaction).await?;
    Ok(Some(Material { content, messages, account, failover, leads, begun }))
}

/// The content of a send job's asset. `None`: the send job is not held.
async fn read_content(
    connection: &mut PgConnection,
    worker: &str,
    hold: JobHold,
) -> Result<Option<serde_json::Value>, StoreError> {
    sqlx::query_scalar!(
        r#"select content as "content!" from execution.read_job($1, $2, $3, $4)"#,
        hold.tenant_id.0,
        worker,
        hold.job_id.0,
        hold.attempt,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the send job"))
}

/// The account of a send job, and the one that it fails over to.
async fn read_accounts(
    connection: &mut PgConnection,
    worker: &str,
    key: &MasterKey,
    hold: JobHold,
) -> Result<(Option<OpenAccount>, Option<OpenAccount>), StoreError> {
    let rows = sqlx::query!(
        r#"
        select account_id as "account_id!",
               is_failover as "is_failover!",
               provider as "provider!",
               settings as "settings!",
               sealed_secret as "sealed_secret!",
               limits as "limits!",
               wait_seconds,
               circuit_seconds
          from execution.read_accounts($1, $2, $3, $4)
        "#,
        hold.tenant_id.0,
        worker,
        hold.job_id.0,
        hold.attempt,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the accounts"))?;
    let (mut account, mut failover) = (None, None);
    for row in rows {
        let id = ProviderAccountId(row.account_id);
        let opened = OpenAccount {
            id,
            provider: row.provider,
            settings: row.settings,
            secret: accounts::open(key, Place { tenant: hold.tenant_id, account: id }, &row.sealed_secret)?,
            limits: row.limits,
            known: Known::of(row.wait_seconds, row.circuit_seconds),
        };
        *if row.is_failover { &mut failover } else { &mut account } = Some(opened);
    }
    Ok((account, failover))
}

/// The leads among a send job's items, and the items that have a row already, if `with_begun` is set. A lead counts as suppressed when any
/// lead with its address is. `None`: the send job is not held.
async fn audience(
    connection: &mut PgConnection,
    worker: &str,
    hold: JobHold,
    with_begun: bool,
) -> Result<Option<(Vec<Lead>, HashSet<Uuid>)>, StoreError> {
    type Texts = Vec<Option<String>>;
    let audience = sqlx::query!(
        r#"
        select ids,
               external_ids as "external_ids: Texts",
               emails as "emails: Texts",
               phones as "phones: Texts",
               timezones as "timezones: Texts",
               attributes as "attributes: Vec<Json<Box<RawValue>>>",
               suppression_reasons as "suppression_reasons: Texts",
               begun
          from execution.read_audience($1, $2, $3, $4, $5)
        "#,
        hold.tenant_id.0,
        worker,
        hold.job_id.0,
        hold.attempt,
        with_begun,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the leads"))?;
    let Some(ids) = audience.ids else { return Ok(None) };
    let texts = |texts: Option<Texts>| texts.unwrap_or_default().into_iter();
    let mut external_ids = texts(audience.external_ids);
    let (mut emails, mut phones) = (texts(audience.emails), texts(audience.phones));
    let mut timezones = texts(audience.timezones);
    let mut suppression_reasons = texts(audience.suppression_reasons);
    let attributes = audience.attributes.unwrap_or_default();
    let leads = ids.into_iter().zip(attributes).map(|(id, Json(attributes))| Lead {
        id: LeadId(id),
        external_id: external_ids.next().flatten(),
        email: emails.next().flatten(),
        phone: phones.next().flatten(),
        timezone: timezones.next().flatten(),
        attributes,
        suppression_reason: suppression_reasons.next().flatten(),
    });
    Ok(Some((leads.collect(), audience.begun.unwrap_or_default().into_iter().collect())))
}

/// Wakes the workers. Call it after the commit of a deployment, never inside it.
pub async fn hint(connection: &mut PgConnection) -> Result<(), StoreError> {
    wakeups::notify_on(connection, HINT_CHANNEL, "").await
}

/// Makes the locks of one worker look older, for drills that cannot wait for five minutes. For the owner of the schema alone.
pub async fn age_locks(connection: &mut PgConnection, worker: &str, by: Duration) -> Result<(), StoreError> {
    sqlx::query!(
        "update execution.job_queue set locked_at = locked_at - $2::interval where locked_by = $1",
        worker,
        interval(by),
    )
    .execute(unprepared(connection))
    .await
    .map_err(StoreError::on("making locks older"))?;
    Ok(())
}

fn known(status: &str) -> Result<JobStatus, StoreError> {
    status.parse().map_err(|unknown| StoreError::Unfit(format!("{unknown}")))
}

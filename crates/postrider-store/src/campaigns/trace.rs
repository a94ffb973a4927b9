//! The trace of a campaign, a run, a send job or an item: run, send jobs, items, and the log.

use std::collections::HashMap;

use jiff::Timestamp;
use postrider_model::{
    IdempotencyKey,
    campaigns::{ItemStatus, JobOutcome, JobStatus},
    ids::{CampaignId, JobId, OutboxId, RunId, SingleMessageId, TenantId},
};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    StoreError,
    campaigns::{
        self,
        runs::{self, Run},
    },
    postgres::{unprepared::unprepared, values::word},
};

/// The subject of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "id", rename_all = "snake_case")]
pub enum Subject {
    /// Every run of a campaign.
    Campaign(CampaignId),
    /// A run.
    Run(RunId),
    /// A send job, with its run.
    Job(JobId),
    /// An item, with its send job and its run.
    Item(OutboxId),
}

/// The subject that this text names in a tenant: an id with or without its prefix, an idempotency key, a correlation id, or the name
/// of a campaign.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: &str,
) -> Result<Option<Subject>, StoreError> {
    let is_key = wanted.len() == 64 && wanted.bytes().all(|byte| byte.is_ascii_hexdigit());
    let row = sqlx::query!(
        r#"
        select named.kind as "kind!",
               named.id as "id!"
          from (select 1 as precedence, 'run' as kind, run.id
                  from execution.campaign_runs as run
                 where run.tenant_id = $1 and run.id = $2
                 union all
                select 2, 'job', job.id
                  from execution.job_queue as job
                 where job.tenant_id = $1 and job.id = $3
                 union all
                select 3, 'item', item.id
                  from execution.channel_outbox as item
                 where item.tenant_id = $1 and item.id = $4
                 union all
                select 4, 'item', item.id
                  from execution.channel_outbox as item
                 where item.tenant_id = $1
                   and item.workspace_id in (select id from tenancy.workspaces where tenant_id = $1)
                   and item.idempotency_key = $5
                 union all
                select 5, 'item', item.id
                  from execution.messages as message
                       join execution.channel_outbox as item
                         on item.tenant_id = $1
                        and item.workspace_id = message.workspace_id
                        and item.idempotency_key = execution.outbox_key(null, message.id, 'message', null)
                 where message.tenant_id = $1 and message.id = $7
                 union all
                select 6, 'run', run.id
                  from execution.campaign_runs as run
                 where run.tenant_id = $1 and run.correlation_id = $6) as named
         order by named.precedence
         limit 1
        "#,
        tenant.0,
        wanted.parse::<RunId>().ok().map(|id| id.0),
        wanted.parse::<JobId>().ok().map(|id| id.0),
        wanted.parse::<OutboxId>().ok().map(|id| id.0),
        is_key.then(|| wanted.to_ascii_lowercase()),
        wanted.parse::<Uuid>().ok(),
        wanted.parse::<SingleMessageId>().ok().map(|id| id.0),
    )
    .fetch_optional(unprepared(&mut *connection))
    .await
    .map_err(StoreError::on("looking for the subject of the trace"))?;
    Ok(match row {
        Some(row) => Some(match row.kind.as_str() {
            "run" => Subject::Run(RunId(row.id)),
            "job" => Subject::Job(JobId(row.id)),
            _ => Subject::Item(OutboxId(row.id)),
        }),
        None => {
            campaigns::find(connection, tenant, wanted).await?.map(|campaign| Subject::Campaign(campaign.id))
        }
    })
}

/// A whole trace.
#[derive(Debug, Serialize)]
pub struct Trace {
    /// The subject.
    pub subject: Subject,
    /// The runs, oldest first. A campaign may have none.
    pub runs: Vec<TracedRun>,
    /// The log, oldest line first.
    pub audit: Vec<AuditLine>,
    /// Older lines that did not fit.
    pub audit_left_out: i64,
}

/// A run in a trace.
#[derive(Debug, Serialize)]
pub struct TracedRun {
    /// The run itself.
    #[serde(flatten)]
    pub run: Run,
    /// Its send jobs, in their order.
    pub jobs: Vec<TracedJob>,
    /// Send jobs that did not fit.
    pub jobs_left_out: i64,
}

/// A send job in a trace.
#[derive(Debug, Serialize)]
pub struct TracedJob {
    /// Its id.
    pub id: JobId,
    /// Its place in the run, from 1.
    pub position: i32,
    /// Type of the send job.
    pub job_type: String,
    /// Its state.
    pub status: JobStatus,
    /// Result of the send job.
    pub outcome: Option<JobOutcome>,
    /// Attempts that began.
    pub attempts: i32,
    /// Most attempts.
    pub max_attempts: i32,
    /// Earliest time at which a worker may claim it; absent while its phase is paused.
    pub run_after: Option<Timestamp>,
    /// The process that holds it.
    pub locked_by: Option<String>,
    /// Time of its worker's last heartbeat.
    pub locked_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Reason why it was put off.
    pub last_error: Option<String>,
    /// Items that it must bring to an end.
    pub intended: i64,
    /// Items sent, called or posted.
    pub succeeded: i64,
    /// Items that failed.
    pub failed: i64,
    /// Items left out on purpose.
    pub skipped: i64,
    /// Items that a worker is processing.
    pub in_flight: i64,
    /// Items in doubt.
    pub in_doubt: i64,
    /// Its items that were reserved, oldest first.
    pub items: Vec<TracedItem>,
    /// Items that did not fit.
    pub items_left_out: i64,
}

/// An item in a trace.
#[derive(Debug, Serialize)]
pub struct TracedItem {
    /// Its id.
    pub id: OutboxId,
    /// The lead, or the post.
    pub recipient_id: Option<Uuid>,
    /// The address.
    pub recipient: Option<String>,
    /// Idempotency key of the call.
    pub idempotency_key: IdempotencyKey,
    /// Its state.
    pub status: ItemStatus,
    /// The provider's id of the message, call or post.
    pub provider_message_id: Option<String>,
    /// Reason why it failed, was left out or is in doubt.
    pub error: Option<String>,
    /// Worker that reserved it.
    pub reserved_by: Option<String>,
    /// Attempt of its send job that reserved it.
    pub attempt: Option<i32>,
    /// The variables that the template used for this recipient.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<serde_json::Value>,
    /// The beginning of the provider's last response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
    /// When it was reserved.
    pub created_at: Timestamp,
    /// When it ended.
    pub finalized_at: Option<Timestamp>,
    /// Time since which it is in doubt, if it is.
    pub doubted_since: Option<Timestamp>,
}

/// A line of the log.
#[derive(Debug, Serialize)]
pub struct AuditLine {
    /// Its number.
    pub id: i64,
    /// Time of the action.
    pub at: Timestamp,
    /// The actor.
    pub actor: String,
    /// The action.
    pub action: String,
    /// Details.
    pub note: Option<String>,
    /// The run.
    pub run_id: Option<RunId>,
    /// The send job.
    pub job_id: Option<JobId>,
    /// The item.
    pub outbox_id: Option<OutboxId>,
}

/// Reads the trace of a subject that [`find`] found, with at most `limit` send jobs, items and lines each.
pub async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    subject: Subject,
    limit: i64,
) -> Result<Trace, StoreError> {
    let scope = Scope::of(&mut *connection, tenant, subject).await?;
    let runs = runs::read(&mut *connection, tenant, &scope.runs).await?;
    let (mut jobs, job_totals) = jobs(&mut *connection, tenant, &scope, limit).await?;
    hand_out_items(&mut *connection, tenant, &scope, &mut jobs, limit).await?;
    let (audit, audit_left_out) = audit(connection, tenant, &scope, limit).await?;

    let mut by_run: HashMap<RunId, Vec<TracedJob>> = HashMap::new();
    for (run, job) in jobs {
        by_run.entry(run).or_default().push(job);
    }
    let runs = runs
        .into_iter()
        .map(|run| {
            let jobs = by_run.remove(&run.id).unwrap_or_default();
            let total = job_totals.get(&run.id).copied().unwrap_or_default();
            TracedRun { jobs_left_out: (total - count(&jobs)).max(0), run, jobs }
        })
        .collect();
    Ok(Trace { subject, runs, audit, audit_left_out })
}

/// The objects that belong to a subject.
struct Scope {
    runs: Vec<RunId>,
    campaign: Option<CampaignId>,
    job: Option<JobId>,
    item: Option<OutboxId>,
}

impl Scope {
    async fn of(
        connection: &mut PgConnection,
        tenant: TenantId,
        subject: Subject,
    ) -> Result<Self, StoreError> {
        let mut scope = Self { runs: Vec::new(), campaign: None, job: None, item: None };
        match subject {
            Subject::Campaign(id) => {
                scope.campaign = Some(id);
                let runs = sqlx::query_scalar!(
                    "select id from execution.campaign_runs where tenant_id = $1 and campaign_id = $2",
                    tenant.0,
                    id.0,
                )
                .fetch_all(unprepared(connection))
                .await;
                let runs = runs.map_err(StoreError::on("reading the campaign's runs"))?;
                scope.runs = runs.into_iter().map(RunId).collect();
            }
            Subject::Run(id) => scope.runs.push(id),
            Subject::Job(id) => {
                scope.job = Some(id);
                let run = sqlx::query_scalar!(
                    "select run_id from execution.job_queue where tenant_id = $1 and id = $2",
                    tenant.0,
                    id.0,
                )
                .fetch_optional(unprepared(connection))
                .await;
                scope.runs.extend(run.map_err(StoreError::on("reading the send job"))?.map(RunId));
            }
            Subject::Item(id) => {
                scope.item = Some(id);
                let row = sqlx::query!(
                    "select run_id, job_id from execution.channel_outbox where tenant_id = $1 and id = $2",
                    tenant.0,
                    id.0,
                )
                .fetch_optional(unprepared(connection))
                .await
                .map_err(StoreError::on("reading the item"))?;
                scope.job = row.as_ref().map(|row| JobId(row.job_id));
                scope.runs.extend(row.map(|row| RunId(row.run_id)));
            }
        }
        Ok(scope)
    }

    fn run_ids(&self) -> Vec<Uuid> {
        self.runs.iter().map(|run| run.0).collect()
    }
}

async fn jobs(
    connection: &mut PgConnection,
    tenant: TenantId,
    scope: &Scope,
    limit: i64,
) -> Result<(Vec<(RunId, TracedJob)>, HashMap<RunId, i64>), StoreError> {
    let rows = sqlx::query_file!(
        "sql/campaigns/trace_send_jobs.sql",
        tenant.0,
        &scope.run_ids(),
        scope.job.map(|job| job.0),
        limit
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the send jobs"))?;
    let totals = rows.iter().map(|row| (RunId(row.run_id), row.total)).collect();
    let jobs: Result<Vec<(RunId, TracedJob)>, StoreError> = rows
        .into_iter()
        .map(|row| {
            let job = TracedJob {
                id: JobId(row.id),
                position: row.position,
                job_type: row.job_type,
                status: word(&row.status)?,
                outcome: row.outcome.as_deref().map(word).transpose()?,
                attempts: row.attempts,
                max_attempts: row.max_attempts,
                run_after: row.run_after.map(jiff_sqlx::Timestamp::to_jiff),
                locked_by: row.locked_by,
                locked_at: row.locked_at.map(jiff_sqlx::Timestamp::to_jiff),
                finished_at: row.finished_at.map(jiff_sqlx::Timestamp::to_jiff),
                last_error: row.last_error,
                intended: row.intended,
                succeeded: row.succeeded,
                failed: row.failed,
                skipped: row.skipped,
                in_flight: row.in_flight,
                in_doubt: row.in_doubt,
                items: Vec::new(),
                items_left_out: 0,
            };
            Ok((RunId(row.run_id), job))
        })
        .collect();
    Ok((jobs?, totals))
}

async fn hand_out_items(
    connection: &mut PgConnection,
    tenant: TenantId,
    scope: &Scope,
    jobs: &mut [(RunId, TracedJob)],
    limit: i64,
) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = jobs.iter().map(|(_, job)| job.id.0).collect();
    let rows = sqlx::query_file!(
        "sql/campaigns/trace_items.sql",
        tenant.0,
        &ids,
        scope.item.map(|item| item.0),
        limit
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the items"))?;
    let mut by_job: HashMap<JobId, Vec<TracedItem>> = HashMap::new();
    for row in rows {
        by_job.entry(JobId(row.job_id)).or_default().push(TracedItem {
            id: OutboxId(row.id),
            recipient_id: row.recipient_id,
            recipient: row.recipient,
            idempotency_key: IdempotencyKey::from_row(row.idempotency_key),
            status: word(&row.status)?,
            provider_message_id: row.provider_message_id,
            error: row.error,
            reserved_by: row.reserved_by,
            attempt: row.attempt,
            payload: row.payload,
            result: row.result,
            created_at: row.created_at.to_jiff(),
            finalized_at: row.finalized_at.map(jiff_sqlx::Timestamp::to_jiff),
            doubted_since: row.doubted_since.map(jiff_sqlx::Timestamp::to_jiff),
        });
    }
    for (_, job) in jobs {
        job.items = by_job.remove(&job.id).unwrap_or_default();
        // The trace of one item does not count the other items as left out.
        if scope.item.is_none() {
            let reserved = job.succeeded + job.failed + job.skipped + job.in_flight + job.in_doubt;
            job.items_left_out = (reserved - count(&job.items)).max(0);
        }
    }
    Ok(())
}

async fn audit(
    connection: &mut PgConnection,
    tenant: TenantId,
    scope: &Scope,
    limit: i64,
) -> Result<(Vec<AuditLine>, i64), StoreError> {
    let rows = sqlx::query_file!(
        "sql/campaigns/trace_audit.sql",
        tenant.0,
        &scope.run_ids(),
        scope.campaign.map(|campaign| campaign.0),
        scope.job.map(|job| job.0),
        scope.item.map(|item| item.0),
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the log"))?;
    let left_out = rows.first().map_or(0, |row| row.total - count(&rows));
    let lines = rows
        .into_iter()
        .map(|row| AuditLine {
            id: row.id,
            at: row.at.to_jiff(),
            actor: row.actor,
            action: row.action,
            note: row.note,
            run_id: row.run_id.map(RunId),
            job_id: row.job_id.map(JobId),
            outbox_id: row.outbox_id.map(OutboxId),
        })
        .collect();
    Ok((lines, left_out))
}

fn count<T>(values: &[T]) -> i64 {
    i64::try_from(values.len()).unwrap_or(i64::MAX)
}

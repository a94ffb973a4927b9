//! Runs: their details, their progress, and their launch certificates.

use std::collections::HashMap;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    Channel,
    campaigns::{RunCause, RunStatus},
    ids::{AssetId, CampaignId, PhaseId, RunId, TenantId},
};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    StoreError,
    postgres::{unprepared::unprepared, values::word},
};

/// One execution of a phase, or a run of single messages.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// Its campaign. A run of single messages has none.
    pub campaign_id: Option<CampaignId>,
    /// Name of the campaign.
    pub campaign: Option<String>,
    /// Its phase.
    pub phase_id: Option<PhaseId>,
    /// The name of the phase.
    pub phase: Option<String>,
    /// Its state.
    pub status: RunStatus,
    /// Cause of the run.
    pub cause: RunCause,
    /// How people are reached.
    pub channel: Channel,
    /// The vendor.
    pub provider: String,
    /// The asset that is sent. Each single message has its own.
    pub asset_id: Option<AssetId>,
    /// Not before this time.
    pub scheduled_for: Option<Timestamp>,
    /// Number of items to bring to an end.
    pub intended: i32,
    /// Leads that have the same address as another one, and were left out.
    pub same_address: i32,
    /// Correlation id in logs.
    pub correlation_id: Uuid,
    /// When it was deployed.
    pub created_at: Timestamp,
    /// When its first send job was taken.
    pub started_at: Option<Timestamp>,
    /// When its last send job ended.
    pub finished_at: Option<Timestamp>,
    /// Time since which retention deletes its send jobs and items; its certificate stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archived_at: Option<Timestamp>,
}

impl Run {
    /// The name of the phase, or a word for a run without one.
    #[must_use]
    pub fn phase_name(&self) -> &str {
        self.phase.as_deref().unwrap_or(SINGLE_MESSAGES)
    }

    /// The name of the campaign, or a word for a run without one.
    #[must_use]
    pub fn campaign_name(&self) -> &str {
        self.campaign.as_deref().unwrap_or(SINGLE_MESSAGES)
    }
}

/// The name under which a run of single messages is shown.
pub const SINGLE_MESSAGES: &str = "single messages";

/// Runs by their ids, oldest first. Those of other tenants are not there.
pub async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    ids: &[RunId],
) -> Result<Vec<Run>, StoreError> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let rows = sqlx::query!(
        r#"
        select run.id,
               run.campaign_id,
               campaign.name as "campaign?",
               run.phase_id,
               phase.phase as "phase?",
               run.status,
               run.cause,
               run.channel,
               run.provider,
               run.asset_id,
               run.scheduled_for as "scheduled_for: jiff_sqlx::Timestamp",
               run.intended,
               run.same_address,
               run.correlation_id,
               run.created_at as "created_at: jiff_sqlx::Timestamp",
               run.started_at as "started_at: jiff_sqlx::Timestamp",
               run.finished_at as "finished_at: jiff_sqlx::Timestamp",
               archive.archived_at as "archived_at?: jiff_sqlx::Timestamp"
          from execution.campaign_runs as run
               left join execution.campaigns as campaign
                 on campaign.tenant_id = run.tenant_id and campaign.id = run.campaign_id
               left join execution.campaign_phases as phase
                 on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
               left join execution.run_archives as archive
                      on archive.tenant_id = run.tenant_id and archive.run_id = run.id
         where run.tenant_id = $1
           and run.id = any ($2)
         order by run.created_at, run.id
        "#,
        tenant.0,
        &ids,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the runs"))?;
    rows.into_iter()
        .map(|row| {
            Ok(Run {
                id: RunId(row.id),
                campaign_id: row.campaign_id.map(CampaignId),
                campaign: row.campaign,
                phase_id: row.phase_id.map(PhaseId),
                phase: row.phase,
                status: word(&row.status)?,
                cause: word(&row.cause)?,
                channel: word(&row.channel)?,
                provider: row.provider,
                asset_id: row.asset_id.map(AssetId),
                scheduled_for: row.scheduled_for.map(jiff_sqlx::Timestamp::to_jiff),
                intended: row.intended,
                same_address: row.same_address,
                correlation_id: row.correlation_id,
                created_at: row.created_at.to_jiff(),
                started_at: row.started_at.map(jiff_sqlx::Timestamp::to_jiff),
                finished_at: row.finished_at.map(jiff_sqlx::Timestamp::to_jiff),
                archived_at: row.archived_at.map(jiff_sqlx::Timestamp::to_jiff),
            })
        })
        .collect()
}

/// One run. `None` when the tenant has no such run.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: RunId,
) -> Result<Option<Run>, StoreError> {
    Ok(read(connection, tenant, &[id]).await?.pop())
}

/// Filters for the list of runs.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only of this campaign.
    pub campaign: Option<CampaignId>,
    /// Only those in this state.
    pub status: Option<RunStatus>,
    /// Only on this channel.
    pub channel: Option<Channel>,
    /// Only at this vendor.
    pub provider: Option<String>,
    /// Only with this cause.
    pub cause: Option<RunCause>,
    /// Only those created at this time or later.
    pub created_after: Option<Timestamp>,
    /// Only those created before this time.
    pub created_before: Option<Timestamp>,
}

/// Runs of a tenant, newest first: those after a given one, or from the beginning.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    filter: &Filter,
    after: Option<(Timestamp, RunId)>,
    limit: i64,
) -> Result<Vec<Run>, StoreError> {
    let (at, id) = after.unzip();
    let ids = sqlx::query_scalar!(
        r#"
        select id
          from execution.campaign_runs
         where tenant_id = $1
           and ($2::timestamptz is null or (created_at, id) < ($2, $3::uuid))
           and ($4::uuid is null or campaign_id = $4)
           and ($5::text is null or status = $5)
           and ($7::text is null or channel = $7)
           and ($8::text is null or provider = $8)
           and ($9::text is null or cause = $9)
           and ($10::timestamptz is null or created_at >= $10)
           and ($11::timestamptz is null or created_at < $11)
         order by created_at desc, id desc
         limit $6
        "#,
        tenant.0,
        at.map(ToSqlx::to_sqlx) as _,
        id.map(|id| id.0),
        filter.campaign.map(|campaign| campaign.0),
        filter.status.map(RunStatus::as_str),
        limit,
        filter.channel.map(Channel::as_str),
        filter.provider.as_deref(),
        filter.cause.map(RunCause::as_str),
        filter.created_after.map(ToSqlx::to_sqlx) as _,
        filter.created_before.map(ToSqlx::to_sqlx) as _,
    )
    .fetch_all(unprepared(&mut *connection))
    .await
    .map_err(StoreError::on("listing the runs"))?;
    let ids: Vec<RunId> = ids.into_iter().map(RunId).collect();
    let mut runs = read(connection, tenant, &ids).await?;
    runs.reverse();
    Ok(runs)
}

/// The runs of a phase since its last run for the whole audience, oldest first: that run, and its retries.
pub async fn since_all(
    connection: &mut PgConnection,
    tenant: TenantId,
    phase: PhaseId,
) -> Result<Vec<Run>, StoreError> {
    let ids = sqlx::query_scalar!(
        r#"
        select run.id
          from execution.campaign_runs as run
         where run.tenant_id = $1
           and run.phase_id = $2
           and run.number >= (select max(whole.number)
                                from execution.campaign_runs as whole
                               where whole.tenant_id = $1
                                 and whole.phase_id = $2
                                 and whole.cause <> 'retry')
        "#,
        tenant.0,
        phase.0,
    )
    .fetch_all(unprepared(&mut *connection))
    .await
    .map_err(StoreError::on("reading the runs of the phase"))?;
    let ids: Vec<RunId> = ids.into_iter().map(RunId).collect();
    read(connection, tenant, &ids).await
}

/// Progress of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Items that must come to an end.
    pub intended: i64,
    /// Items sent, called or posted.
    pub succeeded: i64,
    /// Items that the provider refused, or that provably never left.
    pub failed: i64,
    /// Items left out on purpose.
    pub skipped: i64,
    /// Items in doubt.
    pub in_doubt: i64,
    /// Items reserved by a worker that is at work on them.
    pub in_flight: i64,
    /// Its send jobs.
    pub jobs: JobCounts,
}

/// Send jobs by their state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct JobCounts {
    /// They wait for a worker.
    pub queued: i64,
    /// A worker holds them.
    pub locked: i64,
    /// They come again later.
    pub retrying: i64,
    /// They have ended.
    pub completed: i64,
    /// They have ended with nothing left to try.
    pub dead: i64,
}

impl JobCounts {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> i64 {
        self.queued + self.locked + self.retrying + self.completed + self.dead
    }
}

impl Progress {
    /// Items that have come to an end.
    #[must_use]
    pub fn done(&self) -> i64 {
        self.succeeded + self.failed + self.skipped
    }
}

/// How far runs of the tenant are, by their ids.
pub async fn progress(
    connection: &mut PgConnection,
    tenant: TenantId,
    ids: &[RunId],
) -> Result<HashMap<RunId, Progress>, StoreError> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let rows = sqlx::query!(
        r#"
        select progress.run_id as "run_id!",
               progress.intended as "intended!",
               progress.jobs_queued as "jobs_queued!",
               progress.jobs_locked as "jobs_locked!",
               progress.jobs_retrying as "jobs_retrying!",
               progress.jobs_completed as "jobs_completed!",
               progress.jobs_dead as "jobs_dead!",
               progress.succeeded as "succeeded!",
               progress.failed as "failed!",
               progress.skipped as "skipped!",
               progress.in_doubt as "in_doubt!",
               progress.in_flight as "in_flight!"
          from execution.run_progress($1, $2) as progress
        "#,
        tenant.0,
        &ids,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the progress of the runs"))?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let jobs = JobCounts {
                queued: row.jobs_queued,
                locked: row.jobs_locked,
                retrying: row.jobs_retrying,
                completed: row.jobs_completed,
                dead: row.jobs_dead,
            };
            let progress = Progress {
                intended: row.intended,
                succeeded: row.succeeded,
                failed: row.failed,
                skipped: row.skipped,
                in_doubt: row.in_doubt,
                in_flight: row.in_flight,
                jobs,
            };
            (RunId(row.run_id), progress)
        })
        .collect())
}

/// The launch certificate of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// The run.
    pub run_id: RunId,
    /// Its state.
    pub run_status: RunStatus,
    /// Items that must have an end.
    pub intended: i64,
    /// E-mails that the provider took.
    pub sent: i64,
    /// Calls that the provider placed.
    pub called: i64,
    /// Posts that the provider published.
    pub posted: i64,
    /// Items that failed.
    pub failed: i64,
    /// Items left out on purpose.
    pub skipped: i64,
    /// Items reserved and without an end.
    pub in_doubt: i64,
    /// Items that were never reserved.
    pub missing: i64,
    /// The first condition.
    pub run_is_terminal: bool,
    /// The second.
    pub every_item_is_terminal: bool,
    /// The third: the guards against a second call are in place.
    pub duplicates_are_impossible: bool,
    /// All three.
    pub launched: bool,
    /// The evidence for the third condition.
    pub evidence: Evidence,
    /// When the items were counted, by the database's clock.
    pub verified_at: Timestamp,
}

/// The database that a certificate speaks of, and the comparison with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// The installation; `None` when no process ever sent from this database.
    pub installation_id: Option<Uuid>,
    /// The epoch: 1 since the first start, and one more with each adoption.
    pub epoch: Option<i32>,
    /// How it began: `enrolled`, `adopted` or `moved`.
    pub cause: Option<String>,
    /// When it began.
    pub epoch_began_at: Option<Timestamp>,
    /// The cluster.
    pub system_identifier: String,
    /// The database.
    pub database_name: String,
    /// When a sending process last found nothing missing.
    pub last_compared_at: Option<Timestamp>,
    /// The reason why this database is taken for a restored copy. Nothing is certified about second calls then.
    pub restored_copy: Option<String>,
    /// Items of the run that an adoption put in doubt.
    pub items_adopted: i64,
}

/// Verifies a run of the tenant, item by item.
pub async fn verify(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: RunId,
) -> Result<Certificate, StoreError> {
    let row = sqlx::query!(
        r#"
        select run_status as "run_status!",
               intended as "intended!",
               sent as "sent!",
               called as "called!",
               posted as "posted!",
               failed as "failed!",
               skipped as "skipped!",
               in_doubt as "in_doubt!",
               missing as "missing!",
               run_is_terminal as "run_is_terminal!",
               every_item_is_terminal as "every_item_is_terminal!",
               duplicates_are_impossible as "duplicates_are_impossible!",
               launched as "launched!",
               now() as "verified_at!: jiff_sqlx::Timestamp"
          from execution.verify_launch($1, $2)
        "#,
        tenant.0,
        id.0,
    )
    .fetch_one(unprepared(&mut *connection))
    .await
    .map_err(StoreError::on("verifying the launch"))?;
    let evidence = evidence(connection, tenant, id).await?;
    Ok(Certificate {
        run_id: id,
        run_status: word(&row.run_status)?,
        intended: row.intended,
        sent: row.sent,
        called: row.called,
        posted: row.posted,
        failed: row.failed,
        skipped: row.skipped,
        in_doubt: row.in_doubt,
        missing: row.missing,
        run_is_terminal: row.run_is_terminal,
        every_item_is_terminal: row.every_item_is_terminal,
        duplicates_are_impossible: row.duplicates_are_impossible,
        launched: row.launched,
        evidence,
        verified_at: row.verified_at.to_jiff(),
    })
}

async fn evidence(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: RunId,
) -> Result<Evidence, StoreError> {
    let row = sqlx::query!(
        r#"
        select installation_id,
               epoch,
               cause,
               epoch_began_at as "epoch_began_at: jiff_sqlx::Timestamp",
               system_identifier as "system_identifier!",
               database_name as "database_name!",
               refusal,
               last_mark_at as "last_mark_at: jiff_sqlx::Timestamp",
               items_adopted as "items_adopted!"
          from execution.launch_evidence($1, $2)
        "#,
        tenant.0,
        id.0,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the certificate's evidence"))?;
    Ok(Evidence {
        installation_id: row.installation_id,
        epoch: row.epoch,
        cause: row.cause,
        epoch_began_at: row.epoch_began_at.map(jiff_sqlx::Timestamp::to_jiff),
        system_identifier: row.system_identifier,
        database_name: row.database_name,
        last_compared_at: row.last_mark_at.map(jiff_sqlx::Timestamp::to_jiff),
        restored_copy: row.refusal,
        items_adopted: row.items_adopted,
    })
}

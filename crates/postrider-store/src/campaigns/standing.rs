//! The state of campaigns: their phases, and the runs of those.

use std::collections::HashMap;

use jiff::Timestamp;
use postrider_model::{
    Channel,
    campaigns::{PhaseKind, PhaseStatus},
    ids::{AssetId, CampaignId, PhaseId, RunId, TenantId},
};
use serde::Serialize;
use sqlx::PgConnection;

use crate::{
    Pool, StoreError,
    campaigns::{
        limits::{self, Waiting},
        runs::{self, Progress, Run},
    },
    postgres::{pool, unprepared::unprepared},
};
use {
    super::{Campaign, find},
    crate::postgres::values::word,
};

/// The state of a phase.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseState {
    /// Its id.
    pub id: PhaseId,
    /// Its name inside the campaign.
    pub phase: String,
    /// Its kind: Postrider delivers it, or another service carries it out.
    pub kind: PhaseKind,
    /// How people are reached.
    pub channel: Option<Channel>,
    /// Its state.
    pub status: PhaseStatus,
    /// Whether it failed because its newest run was canceled.
    pub canceled: bool,
    /// Its progress in percent.
    pub progress: f64,
    /// The asset that it sends.
    pub asset_id: Option<AssetId>,
    /// The same as `NAME@VERSION`.
    pub asset: Option<String>,
    /// The list that it addresses.
    pub list: Option<String>,
    /// The account that it uses.
    pub provider_account: Option<String>,
    /// The account that it fails over to.
    pub failover_account: Option<String>,
    /// The share of failed items with which it still counts as completed.
    pub failure_tolerance: f64,
    /// Not before this time.
    pub scheduled_for: Option<Timestamp>,
    /// How long after a call the provider's silence counts as "it was never sent".
    pub quiet_time_seconds: f64,
    /// Its newest run, if it was deployed.
    pub run: Option<RunState>,
}

/// The state of a run.
#[derive(Debug, Clone, Serialize)]
pub struct RunState {
    /// The run itself.
    #[serde(flatten)]
    pub run: Run,
    /// Its progress.
    pub progress: Progress,
    /// The reason why it waits, if its account's limits hold it up.
    pub waiting: Option<Waiting>,
}

/// The state of a campaign's phases, in their order.
pub async fn status(
    connection: &mut PgConnection,
    tenant: TenantId,
    campaign: CampaignId,
) -> Result<Vec<PhaseState>, StoreError> {
    let rows = sqlx::query_file!("sql/campaigns/phases.sql", tenant.0, campaign.0)
        .fetch_all(unprepared(&mut *connection))
        .await
        .map_err(StoreError::on("reading the campaign's phases"))?;
    let run_ids: Vec<RunId> = rows.iter().filter_map(|row| row.run_id).map(RunId).collect();
    let mut states = run_states(connection, tenant, &run_ids).await?;
    rows.into_iter()
        .map(|row| {
            Ok(PhaseState {
                id: PhaseId(row.id),
                phase: row.phase,
                kind: word(&row.kind)?,
                channel: row.channel.as_deref().map(word).transpose()?,
                status: word(&row.status)?,
                canceled: row.canceled,
                progress: row.progress,
                asset_id: row.asset_id.map(AssetId),
                asset: row.asset,
                list: row.list,
                provider_account: row.provider_account,
                failover_account: row.failover_account,
                failure_tolerance: row.failure_tolerance,
                scheduled_for: row.scheduled_for.map(jiff_sqlx::Timestamp::to_jiff),
                quiet_time_seconds: row.quiet_time_seconds,
                run: row.run_id.and_then(|id| states.remove(&RunId(id))),
            })
        })
        .collect()
}

/// The state of a campaign at one moment of its history.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The campaign itself.
    pub campaign: Campaign,
    /// The number of the last event that it includes.
    pub sequence: i64,
    /// When it was taken.
    pub taken_at: Timestamp,
    /// Whether a next phase is about to be started by itself.
    pub advancing: bool,
    /// Why a phase was not started by itself, if that happened last.
    pub not_advanced: Option<String>,
    /// Its phases, in order.
    pub phases: Vec<PhaseState>,
}

/// Takes a snapshot: states and sequence are those of one moment. `None` when the tenant has no such campaign.
pub async fn snapshot(
    pool: &Pool,
    tenant: TenantId,
    campaign: CampaignId,
) -> Result<Option<Snapshot>, StoreError> {
    let mut transaction = pool::begin_snapshot(pool, tenant).await?;
    let Some(found) = find(&mut transaction, tenant, &campaign.to_string()).await? else { return Ok(None) };
    let row = sqlx::query!(
        r#"
        select sequence,
               not_advanced,
               now() as "taken_at!: jiff_sqlx::Timestamp",
               exists (select
                         from execution.campaign_phases as phase
                        where phase.tenant_id = campaign.tenant_id
                          and phase.campaign_id = campaign.id
                          and phase.due = 'advance') as "advancing!"
          from execution.campaigns as campaign
         where tenant_id = $1
           and id = $2
        "#,
        tenant.0,
        found.id.0,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("reading the campaign"))?;
    let phases = status(&mut transaction, tenant, found.id).await?;
    pool::commit(transaction).await?;
    Ok(Some(Snapshot {
        campaign: found,
        sequence: row.sequence,
        taken_at: row.taken_at.to_jiff(),
        advancing: row.advancing,
        not_advanced: row.not_advanced,
        phases,
    }))
}

/// The state of runs, by their ids.
pub async fn run_states(
    connection: &mut PgConnection,
    tenant: TenantId,
    ids: &[RunId],
) -> Result<HashMap<RunId, RunState>, StoreError> {
    let runs = runs::read(&mut *connection, tenant, ids).await?;
    let mut progress = runs::progress(&mut *connection, tenant, ids).await?;
    let mut waiting = limits::waiting(connection, tenant, ids).await?;
    Ok(runs
        .into_iter()
        .filter_map(|run| {
            let progress = progress.remove(&run.id)?;
            let waiting = waiting.remove(&run.id);
            Some((run.id, RunState { run, progress, waiting }))
        })
        .collect())
}

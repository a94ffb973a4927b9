//! Campaigns: create, deploy, find, list, and their state.
//!
//! | module | what it does |
//! |---|---|
//! | [`assets`], [`leads`] | content in versions that never change; leads and lists of them |
//! | [`phases`], [`history`] | controls of phases, and the events of a campaign in order |
//! | [`runs`], [`items`], [`failures`], [`trace`] | runs: their progress, launch certificate, items, errors and trace |
//! | [`messages`] | messages outside a campaign, which are grouped into runs |
//! | [`item`] | one item with everything that is known about it |
//! | [`send_jobs`], [`outbox`] | the statements of workers: claim send jobs, reserve and settle items, end send jobs |
//! | [`failover`] | move reservations to another account |
//! | [`reservation`] | at most one provider call per idempotency key |
//! | [`limits`] | the rates of accounts, their circuits, and send jobs that wait for them |
//! | [`doubts`], [`resolving`] | items in doubt: list and resolve, by a person and by the resolver |
//! | [`callbacks`] | reports that providers send about their calls |
//!
//! Every function names the tenant. For a login that serves requests, the transaction must act for the same one.

pub mod archives;
pub mod assets;
pub mod callbacks;
pub mod doubts;
mod draft;
pub mod failover;
pub mod failures;
pub mod history;
pub mod item;
pub mod items;
pub mod leads;
pub mod limits;
mod listing;
pub mod messages;
pub mod outbox;
pub mod phases;
pub mod reservation;
pub mod resolving;
pub mod runs;
pub mod send_jobs;
mod standing;
pub mod trace;

use jiff::Timestamp;
use postrider_model::ids::{CampaignId, PhaseId, RunId, TenantId, WorkspaceId};
use serde::Serialize;
use sqlx::{PgConnection, types::Json};

use crate::{StoreError, postgres::unprepared::unprepared};

pub use self::{
    draft::{Mistake, NewCampaign, NewPhase},
    listing::{Filter, Listed, ListedPhase, list, page},
    standing::{PhaseState, RunState, Snapshot, run_states, snapshot, status},
};

/// Items per send job, unless said otherwise.
pub const JOB_SIZE: i32 = 500;
/// Most items per send job.
pub const JOB_SIZE_MAX: i32 = 10_000;

/// Makes a campaign of the tenant; all of it or nothing.
pub async fn create(
    connection: &mut PgConnection,
    tenant: TenantId,
    workspace: WorkspaceId,
    campaign: &NewCampaign,
    actor: &str,
) -> Result<CampaignId, StoreError> {
    #[derive(Serialize)]
    struct Row<'a> {
        id: PhaseId,
        #[serde(flatten)]
        phase: &'a NewPhase,
    }

    campaign.check()?;
    let id = CampaignId::new();
    let phases: Vec<Row<'_>> =
        campaign.phases.iter().map(|phase| Row { id: PhaseId::new(), phase }).collect();
    sqlx::query!(
        "select execution.create_campaign($1, $2, $3, $4, $5, $6, $7)",
        tenant.0,
        id.0,
        workspace.0,
        campaign.name,
        campaign.auto_advance,
        Json(&phases) as _,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(|error| match StoreError::constraint(&error) {
        Some("campaigns_one_per_name") => StoreError::Conflict {
            message: format!("a campaign called `{}` exists already; choose another name", campaign.name),
        },
        _ => StoreError::on("creating the campaign")(error),
    })?;
    Ok(id)
}

/// Result of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deployed {
    /// The run of the phase.
    pub run_id: RunId,
    /// Whether this deployment made the run. Otherwise the run was under way before, and nothing changed.
    pub is_new: bool,
}

/// Deploys a phase, or without a name the next one. Wake the workers with [`crate::campaigns::send_jobs::hint`] after the commit.
pub async fn deploy(
    connection: &mut PgConnection,
    tenant: TenantId,
    campaign: CampaignId,
    phase: Option<&str>,
    job_size: i32,
    actor: &str,
) -> Result<Deployed, StoreError> {
    let made = RunId::new();
    let run_id = sqlx::query_scalar!(
        r#"select execution.deploy_campaign($1, $2, $3, $4, $5, $6) as "id!""#,
        tenant.0,
        campaign.0,
        phase,
        actor,
        made.0,
        job_size,
    )
    .fetch_one(unprepared(connection))
    .await
    .map(RunId)
    .map_err(StoreError::on("deploying the campaign"))?;
    Ok(Deployed { run_id, is_new: run_id == made })
}

/// A campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Campaign {
    /// Its id.
    pub id: CampaignId,
    /// Its workspace.
    pub workspace_id: WorkspaceId,
    /// Its name in the tenant.
    pub name: String,
    /// Whether a phase that completes starts the next one.
    pub auto_advance: bool,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// A campaign by its name or its id.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    name_or_id: &str,
) -> Result<Option<Campaign>, StoreError> {
    let row = sqlx::query!(
        r#"
        select id,
               workspace_id,
               name,
               auto_advance,
               created_at as "created_at: jiff_sqlx::Timestamp"
          from execution.campaigns
         where tenant_id = $1
           and (id = $2 or name = $3)
         order by id = $2 desc nulls last, created_at desc
         limit 1
        "#,
        tenant.0,
        name_or_id.parse::<CampaignId>().ok().map(|id| id.0),
        name_or_id,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("looking for the campaign"))?;
    Ok(row.map(|row| Campaign {
        id: CampaignId(row.id),
        workspace_id: WorkspaceId(row.workspace_id),
        name: row.name,
        auto_advance: row.auto_advance,
        created_at: row.created_at.to_jiff(),
    }))
}

/// One campaign. `None` when the tenant has no such campaign.
pub async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: CampaignId,
) -> Result<Option<Campaign>, StoreError> {
    // A text that reads as an id may be the name of another campaign, which is not meant here.
    let found = find(connection, tenant, &id.0.to_string()).await?;
    Ok(found.filter(|campaign| campaign.id == id))
}

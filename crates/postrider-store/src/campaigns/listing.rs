//! The list of campaigns.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    Channel,
    campaigns::{PhaseKind, PhaseStatus},
    ids::{CampaignId, TenantId, WorkspaceId},
};
use serde::Serialize;
use sqlx::PgConnection;

use super::Campaign;
use crate::{
    StoreError,
    postgres::{pool, unprepared::unprepared, values::word},
};

/// A campaign in a list.
#[derive(Debug, Clone, Serialize)]
pub struct Listed {
    /// The campaign itself.
    #[serde(flatten)]
    pub campaign: Campaign,
    /// Its phases, in order.
    pub phases: Vec<ListedPhase>,
}

/// A phase in a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ListedPhase {
    /// Its name inside the campaign.
    pub phase: String,
    /// Its kind: Postrider delivers it, or another service carries it out.
    pub kind: PhaseKind,
    /// How people are reached.
    pub channel: Option<Channel>,
    /// Its state.
    pub status: PhaseStatus,
    /// Its progress in percent.
    pub progress: f64,
}

/// Filters for the list of campaigns.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only with this text in their name, in any case.
    pub name_contains: Option<String>,
    /// Only with a phase in one of these states. Empty: all.
    pub phase_statuses: Vec<PhaseStatus>,
}

/// The newest campaigns of a tenant.
pub async fn list(
    connection: &mut PgConnection,
    tenant: TenantId,
    limit: i64,
) -> Result<Vec<Listed>, StoreError> {
    page(connection, tenant, &Filter::default(), None, limit).await
}

/// The campaigns of a tenant, newest first: those after a given one, or from the beginning.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    filter: &Filter,
    after: Option<(Timestamp, CampaignId)>,
    limit: i64,
) -> Result<Vec<Listed>, StoreError> {
    let (at, id) = after.unzip();
    let statuses: Vec<&str> = filter.phase_statuses.iter().map(|status| status.as_str()).collect();
    // The planner takes every tenant for a small one, and would read and sort all of its campaigns for one page.
    pool::read_in_order_of_an_index(connection).await?;
    let rows = sqlx::query_file!(
        "sql/campaigns/list_campaigns.sql",
        tenant.0,
        limit,
        at.map(ToSqlx::to_sqlx) as _,
        id.map(|id| id.0),
        filter.name_contains.as_deref(),
        (!statuses.is_empty()).then_some(statuses) as Option<Vec<&str>>,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the campaigns"))?;
    rows.into_iter()
        .map(|row| {
            let phases = row.phases.into_iter().zip(row.kinds).zip(row.channels).zip(row.statuses);
            let phases = phases.zip(row.progress).map(|((((phase, kind), channel), status), progress)| {
                Ok(ListedPhase {
                    phase,
                    kind: word(&kind)?,
                    channel: channel.as_deref().map(word).transpose()?,
                    status: word(&status)?,
                    progress,
                })
            });
            Ok(Listed {
                campaign: Campaign {
                    id: CampaignId(row.id),
                    workspace_id: WorkspaceId(row.workspace_id),
                    name: row.name,
                    auto_advance: row.auto_advance,
                    created_at: row.created_at.to_jiff(),
                },
                phases: phases.collect::<Result<_, StoreError>>()?,
            })
        })
        .collect()
}

//! The history of a campaign: its events in order.

use jiff::Timestamp;
use postrider_model::{
    campaigns::EventType,
    ids::{CampaignId, TenantId},
};
use serde::Serialize;
use sqlx::{PgConnection, types::Json};

use crate::{
    StoreError,
    postgres::{unprepared::unprepared, values::word},
};

/// The channel for hints about new events of campaigns. A hint does not name the tenant, because every login may listen.
pub const HINT_CHANNEL: &str = "postrider_campaign_events";

/// One event, as every reader gets it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CampaignEvent {
    /// Type of the event.
    pub r#type: EventType,
    /// The campaign.
    pub campaign_id: CampaignId,
    /// The phase.
    pub phase: String,
    /// Its place in the history of the campaign, which has no gaps.
    pub sequence: i64,
    /// Time of the event.
    pub timestamp: Timestamp,
    /// Further data.
    pub payload: serde_json::Value,
}

/// The extent of a campaign's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The campaign.
    pub campaign: CampaignId,
    /// The number of the newest event; 0 when nothing has happened.
    pub newest: i64,
    /// Events up to this number were removed.
    pub pruned_through: i64,
}

/// The extents of campaigns' histories. Campaigns of other tenants are left out.
pub async fn extents(
    connection: &mut PgConnection,
    tenant: TenantId,
    campaigns: &[CampaignId],
) -> Result<Vec<Extent>, StoreError> {
    let ids: Vec<uuid::Uuid> = campaigns.iter().map(|campaign| campaign.0).collect();
    let rows = sqlx::query!(
        "select id, sequence, pruned_through from execution.campaigns where tenant_id = $1 and id = any ($2)",
        tenant.0,
        &ids,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the extent of the history"))?;
    let extent = |id, newest, pruned_through| Extent { campaign: CampaignId(id), newest, pruned_through };
    Ok(rows.into_iter().map(|row| extent(row.id, row.sequence, row.pruned_through)).collect())
}

/// The events of a campaign that follow a number, oldest first.
pub async fn after(
    connection: &mut PgConnection,
    tenant: TenantId,
    campaign: CampaignId,
    sequence: i64,
    limit: i64,
) -> Result<Vec<CampaignEvent>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select sequence,
               type,
               phase,
               at as "at: jiff_sqlx::Timestamp",
               payload as "payload: Json<serde_json::Value>"
          from execution.campaign_events
         where tenant_id = $1
           and campaign_id = $2
           and sequence > $3
         order by sequence
         limit $4
        "#,
        tenant.0,
        campaign.0,
        sequence,
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the history"))?;
    rows.into_iter()
        .map(|row| {
            Ok(CampaignEvent {
                r#type: word(&row.r#type)?,
                campaign_id: campaign,
                phase: row.phase,
                sequence: row.sequence,
                timestamp: row.at.to_jiff(),
                payload: row.payload.0,
            })
        })
        .collect()
}

/// The events of a campaign, newest first: those before a number, or from the newest. Without types, of every type.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    campaign: CampaignId,
    types: &[EventType],
    before: Option<i64>,
    limit: i64,
) -> Result<Vec<CampaignEvent>, StoreError> {
    let types: Vec<&str> = types.iter().map(|known| known.as_str()).collect();
    let rows = sqlx::query!(
        r#"
        select sequence,
               type,
               phase,
               at as "at: jiff_sqlx::Timestamp",
               payload as "payload: Json<serde_json::Value>"
          from execution.campaign_events
         where tenant_id = $1
           and campaign_id = $2
           and ($3::bigint is null or sequence < $3)
           and ($4::text[] is null or type = any ($4))
         order by sequence desc
         limit $5
        "#,
        tenant.0,
        campaign.0,
        before,
        (!types.is_empty()).then_some(types) as Option<Vec<&str>>,
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the history"))?;
    rows.into_iter()
        .map(|row| {
            Ok(CampaignEvent {
                r#type: word(&row.r#type)?,
                campaign_id: campaign,
                phase: row.phase,
                sequence: row.sequence,
                timestamp: row.at.to_jiff(),
                payload: row.payload.0,
            })
        })
        .collect()
}

/// Chooses the tenants with events from before a time. It locks nothing.
pub async fn tenants_with_old(
    connection: &mut PgConnection,
    before: Timestamp,
) -> Result<Vec<TenantId>, StoreError> {
    use jiff_sqlx::ToSqlx as _;
    let tenants = sqlx::query_scalar!(
        r#"select tenant_id as "tenant_id!" from execution.tenants_with_old_history($1)"#,
        before.to_sqlx() as _,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("choosing tenants with old events of campaigns"))?;
    Ok(tenants.into_iter().map(TenantId).collect())
}

/// Removes events of a tenant from before a time, about so many at most, and returns their number.
pub async fn prune(
    connection: &mut PgConnection,
    tenant: TenantId,
    before: Timestamp,
    limit: i32,
) -> Result<i64, StoreError> {
    use jiff_sqlx::ToSqlx as _;
    sqlx::query_scalar!(
        r#"select execution.prune_campaign_events($1, $2, $3) as "removed!""#,
        tenant.0,
        before.to_sqlx() as _,
        limit,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("removing old events"))
}

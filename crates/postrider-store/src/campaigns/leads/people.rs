//! One person: the leads with an address, their items, the end of a suppression, and erasure.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    IdempotencyKey,
    ids::{CampaignId, JobId, LeadId, OutboxId, RunId, TenantId},
};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Pool, StoreError,
    campaigns::{deliveries::Delivery, items::Item},
    postgres::{pool, unprepared::unprepared, values::word},
};

/// Number of runs that one page of items looks at, newest first.
pub const RUNS_MAX: i64 = 1_000;

/// The leads with this e-mail address (in upper or lower case), phone number or external id, oldest first.
pub async fn find_all(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: &str,
) -> Result<Vec<LeadId>, StoreError> {
    let ids =
        sqlx::query_scalar!(r#"select lead_id as "id!" from execution.find_leads($1, $2)"#, tenant.0, wanted)
            .fetch_all(unprepared(connection))
            .await
            .map_err(StoreError::on("looking for the person"))?;
    Ok(ids.into_iter().map(LeadId).collect())
}

/// An item of a lead, with its run.
#[derive(Debug, Clone)]
pub struct LeadItem {
    /// The campaign.
    pub campaign_id: CampaignId,
    /// Name of the campaign.
    pub campaign: String,
    /// The name of the phase.
    pub phase: String,
    /// The run.
    pub run_id: RunId,
    /// When the run was deployed.
    pub run_created_at: Timestamp,
    /// The item.
    pub item: Item,
}

/// The start of a page: after the item of this run.
pub type After = (Timestamp, RunId);

/// The items of a lead in the newest `runs` runs of its workspace, newest run first: those after a given run, or from the beginning.
///
/// The outbox has no index on recipients. The key of an item is a function of its run and its lead, so each run costs one lookup
/// by key. Items of archived runs were deleted.
pub async fn items(
    connection: &mut PgConnection,
    tenant: TenantId,
    lead: LeadId,
    after: Option<After>,
    runs: i64,
    limit: i64,
) -> Result<Vec<LeadItem>, StoreError> {
    let (at, id) = after.unzip();
    pool::read_in_order_of_an_index(connection).await?;
    let rows = sqlx::query_file!(
        "sql/campaigns/list_lead_items.sql",
        tenant.0,
        lead.0,
        at.map(ToSqlx::to_sqlx) as _,
        id.map(|id| id.0),
        runs,
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the items of the lead"))?;
    rows.into_iter()
        .map(|row| {
            Ok(LeadItem {
                campaign_id: CampaignId(row.campaign_id),
                campaign: row.campaign,
                phase: row.phase,
                run_id: RunId(row.run_id),
                run_created_at: row.run_created_at.to_jiff(),
                item: Item {
                    id: OutboxId(row.id),
                    job_id: JobId(row.job_id),
                    job_position: row.position,
                    recipient_id: row.recipient_id,
                    recipient: row.recipient,
                    idempotency_key: IdempotencyKey::from_row(row.idempotency_key),
                    status: word(&row.status)?,
                    provider: row.provider,
                    provider_message_id: row.provider_message_id,
                    error: row.error,
                    reserved_by: row.reserved_by,
                    attempt: row.attempt,
                    created_at: row.created_at.to_jiff(),
                    finalized_at: row.finalized_at.map(jiff_sqlx::Timestamp::to_jiff),
                    doubted_since: row.doubted_since.map(jiff_sqlx::Timestamp::to_jiff),
                    delivery: Delivery::of(
                        row.delivery_status.as_deref(),
                        row.delivery_detail,
                        row.delivery_at,
                    )?,
                },
            })
        })
        .collect()
}

/// Ends the suppression of a lead, with a note for the audit log. Doing it twice is the same as once. Returns the other suppressed leads
/// with its e-mail address or phone number, which still keep messages from it; `None` when there is no such lead.
pub async fn unsuppress(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: LeadId,
    note: &str,
    actor: &str,
) -> Result<Option<Vec<LeadId>>, StoreError> {
    let row = sqlx::query!(
        r#"
        select is_known as "is_known!",
               also_suppressed as "also_suppressed!"
          from execution.unsuppress_lead($1, $2, $3, $4)
        "#,
        tenant.0,
        id.0,
        note,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("ending the suppression of the lead"))?;
    Ok(row.is_known.then(|| row.also_suppressed.into_iter().map(LeadId).collect()))
}

/// The result of an erasure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Erasure {
    /// The person's data is gone.
    Done {
        /// When it was erased.
        erased_at: Timestamp,
        /// Items from which data was removed.
        items: i64,
        /// Chat messages from which data was removed, with their replies.
        messages: i64,
    },
    /// The lead is suppressed, and nothing was erased yet, because work on the person has not ended.
    Open {
        /// Items in flight or in doubt.
        open_items: i64,
        /// Chat messages that are being answered.
        open_messages: i64,
    },
}

/// Suppresses a lead and removes the person's data, in two transactions. Doing it twice is the same as once. `None` when there is no
/// such lead.
pub async fn erase(
    pool: &Pool,
    tenant: TenantId,
    id: LeadId,
    actor: &str,
) -> Result<Option<Erasure>, StoreError> {
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let is_known =
        sqlx::query_scalar!(r#"select execution.begin_erasure($1, $2) as "is_known!""#, tenant.0, id.0)
            .fetch_one(unprepared(&mut transaction))
            .await
            .map_err(StoreError::on("suppressing the lead before its erasure"))?;
    if !is_known {
        return Ok(None);
    }
    pool::commit(transaction).await?;

    let mut transaction = pool::begin_as(pool, tenant).await?;
    let row = sqlx::query!(
        r#"
        select is_known as "is_known!",
               erased_at as "erased_at: jiff_sqlx::Timestamp",
               items as "items!",
               messages as "messages!",
               open_items as "open_items!",
               open_messages as "open_messages!"
          from execution.erase_lead($1, $2, $3)
        "#,
        tenant.0,
        id.0,
        actor,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("erasing the lead"))?;
    pool::commit(transaction).await?;
    Ok(row.is_known.then(|| match row.erased_at {
        Some(at) => Erasure::Done { erased_at: at.to_jiff(), items: row.items, messages: row.messages },
        None => Erasure::Open { open_items: row.open_items, open_messages: row.open_messages },
    }))
}

/// Ids of leads as the database takes them.
pub(super) fn uuids(leads: &[LeadId]) -> Vec<Uuid> {
    leads.iter().map(|lead| lead.0).collect()
}

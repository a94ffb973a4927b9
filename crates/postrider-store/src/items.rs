//! The items of a run, page by page.

use jiff::Timestamp;
use postrider_model::{
    IdempotencyKey,
    campaign::ItemStatus,
    ids::{JobId, OutboxId, RunId, TenantId},
};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{StoreError, campaigns::word, unnamed::unnamed};

/// An item of a run: it was reserved, and perhaps has come to an end.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its id.
    pub id: OutboxId,
    /// Its job.
    pub job_id: JobId,
    /// The place of its job in the run, from 1.
    pub job_position: i32,
    /// The lead, or the post.
    pub recipient_id: Option<Uuid>,
    /// The address.
    pub recipient: Option<String>,
    /// The key that the provider may know it by.
    pub idempotency_key: IdempotencyKey,
    /// Where it stands.
    pub status: ItemStatus,
    /// Which vendor.
    pub provider: String,
    /// The provider's own name for it.
    pub provider_message_id: Option<String>,
    /// Why it failed, was left out or is in doubt.
    pub error: Option<String>,
    /// Who reserved it.
    pub reserved_by: Option<String>,
    /// Under which attempt of its job.
    pub attempt: Option<i32>,
    /// When it was reserved.
    pub created_at: Timestamp,
    /// When it ended.
    pub finalized_at: Option<Timestamp>,
    /// Since when nobody knows, if so.
    pub doubted_since: Option<Timestamp>,
}

/// In which state items are looked for. One that is in doubt is not at work, though its row says `queued` in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Where it stands; `queued` are those that a worker is at work on.
    Is(ItemStatus),
    /// Nobody knows what became of it.
    InDoubt,
}

/// Where a page begins: after an item of the job with this position.
pub type After = (i32, OutboxId);

/// The items of a run that were reserved, in the order of its jobs: those after a given one, or from the beginning.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    run: RunId,
    state: Option<State>,
    after: Option<After>,
    limit: i64,
) -> Result<Vec<Item>, StoreError> {
    let (position, id) = after.unzip();
    let state = state.map(|state| match state {
        State::Is(status) => status.as_str(),
        State::InDoubt => "in_doubt",
    });
    let rows = sqlx::query_file!(
        "sql/list_run_items.sql",
        tenant.0,
        run.0,
        position,
        id.map(|id| id.0),
        state,
        limit,
    )
    .fetch_all(unnamed(connection))
    .await
    .map_err(StoreError::on("listing the items of the run"))?;
    rows.into_iter()
        .map(|row| {
            Ok(Item {
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
            })
        })
        .collect()
}

/// Whether the tenant has such an item.
pub async fn exists(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: OutboxId,
) -> Result<bool, StoreError> {
    let found = sqlx::query_scalar!(
        "select id from execution.channel_outbox where tenant_id = $1 and id = $2",
        tenant.0,
        id.0,
    )
    .fetch_optional(unnamed(connection))
    .await
    .map_err(StoreError::on("looking for the item"))?;
    Ok(found.is_some())
}

//! The items of a run, page by page.

use std::time::Duration;

use jiff::Timestamp;
use postrider_model::{
    IdempotencyKey,
    campaigns::ItemStatus,
    ids::{JobId, OutboxId, RunId, TenantId},
};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    StoreError,
    campaigns::deliveries::Delivery,
    postgres::{pool, unprepared::unprepared, values::word},
};

/// An item of a run: it was reserved, and perhaps has come to an end.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its id.
    pub id: OutboxId,
    /// Its send job.
    pub job_id: JobId,
    /// The place of its send job in the run, from 1.
    pub job_position: i32,
    /// The lead, or the post.
    pub recipient_id: Option<Uuid>,
    /// The address.
    pub recipient: Option<String>,
    /// Idempotency key of the call.
    pub idempotency_key: IdempotencyKey,
    /// Its state.
    pub status: ItemStatus,
    /// The vendor.
    pub provider: String,
    /// The provider's id of the message, call or post.
    pub provider_message_id: Option<String>,
    /// Reason why it failed, was left out or is in doubt.
    pub error: Option<String>,
    /// Worker that reserved it.
    pub reserved_by: Option<String>,
    /// Attempt of its send job that reserved it.
    pub attempt: Option<i32>,
    /// When it was reserved.
    pub created_at: Timestamp,
    /// When it ended.
    pub finalized_at: Option<Timestamp>,
    /// Time since which it is in doubt, if it is.
    pub doubted_since: Option<Timestamp>,
    /// The delivery status, if the provider has reported one.
    pub delivery: Option<Delivery>,
}

/// The state to filter items by. An item in doubt is not being processed, though its row says `queued` in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// This state; `queued` are the items that a worker is processing.
    Is(ItemStatus),
    /// In doubt.
    InDoubt,
}

/// Filters for the items of a run.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only those in this state.
    pub state: Option<State>,
    /// Only to this address, letter for letter.
    pub recipient: Option<String>,
    /// Only of this send job.
    pub job: Option<JobId>,
    /// Only with this text in their error, in any case. A successful item has no error.
    pub error_contains: Option<String>,
}

/// The start of a page: after an item of the send job with this position.
pub type After = (i32, OutboxId);

/// How long the search for an address or an error may take.
const SEARCH_MAX: Duration = Duration::from_secs(5);

/// The items of a run that were reserved, in the order of its send jobs: those after a given one, or from the beginning. The error
/// [`StoreError::is_timeout`] means that the run has too many items to search.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    run: RunId,
    filter: &Filter,
    after: Option<After>,
    limit: i64,
) -> Result<Vec<Item>, StoreError> {
    let (position, id) = after.unzip();
    let state = filter.state.map(|state| match state {
        State::Is(status) => status.as_str(),
        State::InDoubt => "in_doubt",
    });
    // These filters may read every item of the run.
    if filter.recipient.is_some() || filter.error_contains.is_some() {
        pool::limit_statements(connection, SEARCH_MAX).await?;
    }
    // The statistics may take the send jobs of a run for scattered. A bitmap would then read and sort all of them for one page.
    pool::read_in_order_of_an_index(connection).await?;
    let rows = sqlx::query_file!(
        "sql/campaigns/list_run_items.sql",
        tenant.0,
        run.0,
        position,
        id.map(|id| id.0),
        state,
        limit,
        filter.recipient.as_deref(),
        filter.job.map(|job| job.0),
        filter.error_contains.as_deref(),
    )
    .fetch_all(unprepared(connection))
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
                delivery: Delivery::of(row.delivery_status.as_deref(), row.delivery_detail, row.delivery_at)?,
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
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("looking for the item"))?;
    Ok(found.is_some())
}

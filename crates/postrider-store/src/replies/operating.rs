//! Replies for people: how they stand, and queueing dead ones again.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    chat::ReplyStatus,
    ids::{ChannelMessageId, OutboxId, ProviderAccountId, TenantId},
};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{StoreError, campaigns::word, unnamed::unnamed};

/// A reply as it stands.
#[derive(Debug, Clone, Serialize)]
pub struct ReplyState {
    /// Its id.
    pub id: OutboxId,
    /// The message it answers.
    pub channel_message_id: ChannelMessageId,
    /// Through whom.
    pub account_id: ProviderAccountId,
    /// Which vendor.
    pub provider: String,
    /// Where it goes.
    pub recipient_id: String,
    /// What it says.
    pub payload: serde_json::Value,
    /// How it stands.
    pub status: ReplyStatus,
    /// How many attempts have failed.
    pub attempt_count: i32,
    /// How many may.
    pub max_attempts: i32,
    /// When it is tried next.
    pub next_attempt_at: Timestamp,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Since when somebody holds it.
    pub locked_at: Option<Timestamp>,
    /// Who.
    pub locked_by: Option<String>,
    /// Since when it may have arrived and nobody knows.
    pub in_doubt_since: Option<Timestamp>,
    /// The vendor's name for it.
    pub provider_message_id: Option<String>,
    /// What the vendor told about it.
    pub delivery_status: Option<String>,
    /// When that was so.
    pub delivery_status_at: Option<Timestamp>,
    /// What went wrong on the vendor's side.
    pub delivery_error: Option<String>,
    /// What ties everything about its message together in logs.
    pub correlation_id: Uuid,
    /// When the vendor took it.
    pub sent_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it changed last.
    pub updated_at: Timestamp,
}

/// Which replies are asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReplyFilter<'a> {
    /// One of them.
    pub id: Option<OutboxId>,
    /// In this state.
    pub status: Option<ReplyStatus>,
    /// Through this account.
    pub account: Option<ProviderAccountId>,
    /// Through this vendor.
    pub provider: Option<&'a str>,
}

/// Up to so many replies of a tenant, newest first, below this one.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    filter: ReplyFilter<'_>,
    below: Option<OutboxId>,
    limit: i64,
) -> Result<Vec<ReplyState>, StoreError> {
    let rows = sqlx::query_file!(
        "sql/list_replies.sql",
        tenant.0,
        filter.id.map(|id| id.0),
        filter.status.map(ReplyStatus::as_str),
        filter.account.map(|id| id.0),
        filter.provider,
        below.map(|id| id.0),
        limit,
    )
    .fetch_all(unnamed(connection))
    .await
    .map_err(StoreError::on("listing the replies"))?;
    let time = jiff_sqlx::Timestamp::to_jiff;
    rows.into_iter()
        .map(|row| {
            Ok(ReplyState {
                id: OutboxId(row.id),
                channel_message_id: ChannelMessageId(row.channel_message_id),
                account_id: ProviderAccountId(row.account_id),
                provider: row.provider,
                recipient_id: row.recipient_id,
                payload: row.payload,
                status: word(&row.status)?,
                attempt_count: row.attempt_count,
                max_attempts: row.max_attempts,
                next_attempt_at: time(row.next_attempt_at),
                last_error: row.last_error,
                locked_at: row.locked_at.map(time),
                locked_by: row.locked_by,
                in_doubt_since: row.in_doubt_since.map(time),
                provider_message_id: row.provider_message_id,
                delivery_status: row.delivery_status,
                delivery_status_at: row.delivery_status_at.map(time),
                delivery_error: row.delivery_error,
                correlation_id: row.correlation_id,
                sent_at: row.sent_at.map(time),
                created_at: time(row.created_at),
                updated_at: time(row.updated_at),
            })
        })
        .collect()
}

/// Which dead replies to queue again. Everything that is given must match.
#[derive(Debug, Clone, Copy, Default)]
pub struct Requeue<'a> {
    /// This one.
    pub id: Option<OutboxId>,
    /// Through this account.
    pub account: Option<ProviderAccountId>,
    /// Through this vendor.
    pub provider: Option<&'a str>,
    /// Whose last error says this, in any case.
    pub error_contains: Option<&'a str>,
    /// That died before.
    pub dead_before: Option<Timestamp>,
    /// That died then or later.
    pub dead_since: Option<Timestamp>,
}

/// Queues up to so many dead replies of the transaction's tenant again, and says which. Each is audited. Wake the dispatchers on
/// [`HINT_CHANNEL`](super::HINT_CHANNEL) after the commit.
pub async fn requeue(
    connection: &mut PgConnection,
    which: Requeue<'_>,
    limit: i32,
    actor: &str,
) -> Result<Vec<OutboxId>, StoreError> {
    let ids = sqlx::query_scalar!(
        r#"select id as "id!" from channels.requeue_replies($1, $2, $3, $4, $5, $6, $7, $8) as requeued (id)"#,
        which.id.map(|id| id.0),
        which.account.map(|id| id.0),
        which.provider,
        which.error_contains,
        which.dead_before.map(ToSqlx::to_sqlx) as _,
        which.dead_since.map(ToSqlx::to_sqlx) as _,
        limit,
        actor,
    )
    .fetch_all(unnamed(connection))
    .await
    .map_err(StoreError::on("queueing replies again"))?;
    Ok(ids.into_iter().map(OutboxId).collect())
}

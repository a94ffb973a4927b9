//! Replies for people: how they stand, and queueing dead ones again.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    channels::ReplyStatus,
    ids::{ChannelMessageId, OutboxId, ProviderAccountId, TenantId},
};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    StoreError,
    postgres::{unprepared::unprepared, values::word},
};

/// A reply and its state.
#[derive(Debug, Clone, Serialize)]
pub struct ReplyState {
    /// Its id.
    pub id: OutboxId,
    /// The message it answers.
    pub channel_message_id: ChannelMessageId,
    /// The account.
    pub account_id: ProviderAccountId,
    /// The vendor.
    pub provider: String,
    /// The recipient.
    pub recipient_id: String,
    /// Its content.
    pub payload: serde_json::Value,
    /// Its state.
    pub status: ReplyStatus,
    /// Number of failed attempts.
    pub attempt_count: i32,
    /// Number of failed attempts after which it is dead.
    pub max_attempts: i32,
    /// Time of the next attempt.
    pub next_attempt_at: Timestamp,
    /// The last error.
    pub last_error: Option<String>,
    /// Time since which a dispatcher holds it.
    pub locked_at: Option<Timestamp>,
    /// The dispatcher that holds it.
    pub locked_by: Option<String>,
    /// Time since which it is in doubt: it may have been delivered.
    pub in_doubt_since: Option<Timestamp>,
    /// The vendor's id of it.
    pub provider_message_id: Option<String>,
    /// State of the delivery, in the vendor's word.
    pub delivery_status: Option<String>,
    /// Time of that state.
    pub delivery_status_at: Option<Timestamp>,
    /// Error of the delivery, from the vendor.
    pub delivery_error: Option<String>,
    /// Correlation id of its message in logs.
    pub correlation_id: Uuid,
    /// When the vendor accepted it.
    pub sent_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// Filters for the list of replies.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReplyFilter<'a> {
    /// Only the reply with this id.
    pub id: Option<OutboxId>,
    /// Only in this state.
    pub status: Option<ReplyStatus>,
    /// Only through this account.
    pub account: Option<ProviderAccountId>,
    /// Only through this vendor.
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
        "sql/channels/list_replies.sql",
        tenant.0,
        filter.id.map(|id| id.0),
        filter.status.map(ReplyStatus::as_str),
        filter.account.map(|id| id.0),
        filter.provider,
        below.map(|id| id.0),
        limit,
    )
    .fetch_all(unprepared(connection))
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

/// The dead replies to queue again. A reply must match every filter that is set.
#[derive(Debug, Clone, Copy, Default)]
pub struct Requeue<'a> {
    /// Only the reply with this id.
    pub id: Option<OutboxId>,
    /// Only through this account.
    pub account: Option<ProviderAccountId>,
    /// Only through this vendor.
    pub provider: Option<&'a str>,
    /// Text that the last error contains, in any case.
    pub error_contains: Option<&'a str>,
    /// Replies that died before this time.
    pub dead_before: Option<Timestamp>,
    /// Replies that died at this time or later.
    pub dead_since: Option<Timestamp>,
}

/// Makes up to so many dead replies of a tenant pending again, and returns their ids. Each one is audited. Wake the dispatchers on
/// [`HINT_CHANNEL`](super::HINT_CHANNEL) after the commit.
pub async fn requeue(
    connection: &mut PgConnection,
    tenant: TenantId,
    which: Requeue<'_>,
    limit: i32,
    actor: &str,
) -> Result<Vec<OutboxId>, StoreError> {
    let ids = sqlx::query_scalar!(
        r#"select id as "id!" from channels.requeue_replies($1, $2, $3, $4, $5, $6, $7, $8, $9) as requeued (id)"#,
        tenant.0,
        which.id.map(|id| id.0),
        which.account.map(|id| id.0),
        which.provider,
        which.error_contains,
        which.dead_before.map(ToSqlx::to_sqlx) as _,
        which.dead_since.map(ToSqlx::to_sqlx) as _,
        limit,
        actor,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("queueing replies again"))?;
    Ok(ids.into_iter().map(OutboxId).collect())
}

//! Received messages: recorded, executed outside the database, and ended with their reply in the outbox.
//!
//! ```text
//! receive ──commit──▶ Execution ──execute──▶ finish: `executed` and the reply, in one transaction
//!                         │                    └─ that fails: fail, with the reply: `dispatch_failed`, the reply is stored
//!                         ├─ the sentinel objects: deny
//!                         └─ dropped, or its process dies: claimed again when its lease has expired
//! ```

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    channels::{DeliveryReport, InboundMessage, MessageStatus, Reply},
    ids::{ChannelMessageId, OutboxId, ProviderAccountId, TenantId},
};
use serde::Serialize;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::{
    Pool, StoreError,
    campaigns::outbox::storable,
    crash_point,
    postgres::{
        pool,
        unprepared::unprepared,
        values::{interval, word},
    },
};

/// The right to execute a message, until its lease expires. Ending the message consumes it.
#[must_use = "an execution that is dropped is repeated when its lease has expired"]
#[derive(Debug)]
pub struct Execution {
    /// Id of the message.
    pub message_id: ChannelMessageId,
    /// The tenant.
    pub tenant_id: TenantId,
    /// The account.
    pub account_id: ProviderAccountId,
    /// The vendor.
    pub provider: String,
    /// The message.
    pub message: InboundMessage,
    /// The product's id of the sender.
    pub user_id: String,
    /// Role of that user.
    pub role: String,
    /// Correlation id of the message in logs.
    pub correlation_id: Uuid,
    /// Number of the execution; only the newest may end the message.
    execution: i32,
}

/// The result of a delivery.
#[derive(Debug)]
pub enum Receipt {
    /// The message is to be executed now.
    Execute(Box<Execution>),
    /// The sender is not linked to a user, or its role is not sufficient.
    Denied(ChannelMessageId),
    /// The message was delivered before: nothing is to be done.
    Duplicate(ChannelMessageId),
    /// The message had been executed before, and its stored reply is in the outbox now.
    Enqueued(ChannelMessageId),
}

/// The parameters of receiving a message.
#[derive(Debug, Clone, Copy)]
pub struct Receiving {
    /// The lease of an execution, after which another process claims the message.
    pub lease: Duration,
    /// Maximum number of attempts of its reply.
    pub max_attempts: i32,
}

/// Records a message that a provider delivered, and returns after the commit.
pub async fn receive(
    pool: &Pool,
    tenant: TenantId,
    account: ProviderAccountId,
    provider: &str,
    message: InboundMessage,
    how: Receiving,
) -> Result<Receipt, StoreError> {
    crash_point!("receive.before");
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let row = sqlx::query!(
        r#"
        select message_id as "message_id!",
               verdict as "verdict!",
               execution as "execution!",
               user_id,
               role,
               correlation_id as "correlation_id!"
          from channels.receive_message($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
        "#,
        tenant.0,
        account.0,
        ChannelMessageId::new().0,
        OutboxId::new().0,
        message.provider_message_id,
        message.sender_id,
        message.recipient_id,
        message.thread,
        message.text,
        Uuid::now_v7(),
        interval(how.lease),
        how.max_attempts,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("recording the message"))?;
    crash_point!("receive.after_statement");
    pool::commit(transaction).await?;
    crash_point!("receive.after_commit");
    let message_id = ChannelMessageId(row.message_id);
    Ok(match row.verdict.as_str() {
        "execute" => Receipt::Execute(Box::new(Execution {
            message_id,
            tenant_id: tenant,
            account_id: account,
            provider: provider.to_owned(),
            message,
            user_id: row.user_id.unwrap_or_default(),
            role: row.role.unwrap_or_default(),
            correlation_id: row.correlation_id,
            execution: row.execution,
        })),
        "denied" => Receipt::Denied(message_id),
        "enqueued" => Receipt::Enqueued(message_id),
        _ => Receipt::Duplicate(message_id),
    })
}

/// Number of messages of the sender in the last minute, this one included.
pub async fn recent(pool: &Pool, execution: &Execution) -> Result<u32, StoreError> {
    let mut transaction = pool::begin_as(pool, execution.tenant_id).await?;
    let count = sqlx::query_scalar!(
        r#"select channels.recent_messages($1, $2, $3) as "count!""#,
        execution.tenant_id.0,
        execution.account_id.0,
        execution.message.sender_id,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("counting the sender's messages"))?;
    pool::commit(transaction).await?;
    Ok(u32::try_from(count).unwrap_or_default())
}

/// Ends a message with its reply, both or neither. False when another process has claimed the message. Returns after the commit; wake
/// the dispatchers with [`crate::postgres::wakeups::notify`].
pub async fn finish(
    pool: &Pool,
    execution: &Execution,
    reply: &Reply,
    max_attempts: i32,
) -> Result<bool, StoreError> {
    crash_point!("enqueue.before");
    let mut transaction = pool::begin_as(pool, execution.tenant_id).await?;
    let is_ours = sqlx::query_scalar!(
        r#"select channels.finish_message($1, $2, $3, $4, $5, $6) as "is_ours!""#,
        execution.tenant_id.0,
        execution.message_id.0,
        execution.execution,
        OutboxId::new().0,
        Json(reply) as _,
        max_attempts,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("enqueueing the reply"))?;
    crash_point!("enqueue.after_statement");
    pool::commit(transaction).await?;
    crash_point!("enqueue.after_commit");
    Ok(is_ours)
}

/// Ends a message that must not be executed. False when another process has claimed the message.
pub async fn deny(pool: &Pool, execution: Execution, reason: &str) -> Result<bool, StoreError> {
    let reason = storable(reason);
    let mut transaction = pool::begin_as(pool, execution.tenant_id).await?;
    let is_ours = sqlx::query_scalar!(
        r#"select channels.deny_message($1, $2, $3, $4) as "is_ours!""#,
        execution.tenant_id.0,
        execution.message_id.0,
        execution.execution,
        reason.as_ref(),
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("denying the message"))?;
    pool::commit(transaction).await?;
    Ok(is_ours)
}

/// Records that a message could not be executed, or that its reply could not be put into the outbox; then the reply is stored. False
/// when another process has claimed the message.
pub async fn fail(
    pool: &Pool,
    execution: Execution,
    reply: Option<&Reply>,
    error: &str,
) -> Result<bool, StoreError> {
    let error = storable(error);
    let mut transaction = pool::begin_as(pool, execution.tenant_id).await?;
    let is_ours = sqlx::query_scalar!(
        r#"select channels.fail_message($1, $2, $3, $4, $5) as "is_ours!""#,
        execution.tenant_id.0,
        execution.message_id.0,
        execution.execution,
        reply.map(Json) as _,
        error.as_ref(),
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("recording that the message failed"))?;
    pool::commit(transaction).await?;
    Ok(is_ours)
}

/// Chooses up to so many tenants with messages whose lease has expired, the oldest lease first.
pub async fn tenants_with_expired_leases(
    pool: &Pool,
    expired: Expired,
    limit: usize,
) -> Result<Vec<TenantId>, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let tenants = sqlx::query_scalar!(
        r#"select tenant_id as "tenant_id!" from channels.tenants_with_expired_leases($1, $2)"#,
        expired == Expired::KeptReply,
        i32::try_from(limit).unwrap_or(i32::MAX),
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("choosing tenants with unfinished messages"))?;
    pool::commit(transaction).await?;
    Ok(tenants.into_iter().map(TenantId).collect())
}

/// The two kinds of messages with an expired lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expired {
    /// The message keeps a reply that could not be enqueued.
    KeptReply,
    /// The message is to be executed.
    Execution,
}

/// Claims up to so many messages of a tenant whose lease has expired. Messages that are denied now are left out.
pub async fn claim_unfinished(
    pool: &Pool,
    tenant: TenantId,
    limit: i32,
    lease: Duration,
) -> Result<Vec<Execution>, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"
        select message_id as "message_id!",
               account_id as "account_id!",
               provider as "provider!",
               sender_id as "sender_id!",
               recipient_id as "recipient_id!",
               thread,
               text as "text!",
               verdict as "verdict!",
               execution as "execution!",
               user_id,
               role,
               correlation_id as "correlation_id!"
          from channels.claim_unfinished_messages($1, $2, $3)
        "#,
        tenant.0,
        limit,
        interval(lease),
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("claiming unfinished messages"))?;
    pool::commit(transaction).await?;
    Ok(rows
        .into_iter()
        .filter(|row| row.verdict == "execute")
        .map(|row| Execution {
            message_id: ChannelMessageId(row.message_id),
            tenant_id: tenant,
            account_id: ProviderAccountId(row.account_id),
            provider: row.provider,
            message: InboundMessage {
                // Only the row has it; nothing needs it from here on.
                provider_message_id: String::new(),
                sender_id: row.sender_id,
                recipient_id: row.recipient_id,
                thread: row.thread,
                text: row.text,
            },
            user_id: row.user_id.unwrap_or_default(),
            role: row.role.unwrap_or_default(),
            correlation_id: row.correlation_id,
            execution: row.execution,
        })
        .collect())
}

/// Puts up to so many stored replies of a tenant into the outbox. Returns their number.
pub async fn enqueue_kept(
    pool: &Pool,
    tenant: TenantId,
    limit: usize,
    max_attempts: i32,
) -> Result<i32, StoreError> {
    let ids: Vec<Uuid> = (0..limit).map(|_| OutboxId::new().0).collect();
    let mut transaction = pool::begin(pool).await?;
    let count = sqlx::query_scalar!(
        r#"select channels.enqueue_kept_replies($1, $2, $3) as "count!""#,
        tenant.0,
        &ids,
        max_attempts,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("enqueueing stored replies"))?;
    pool::commit(transaction).await?;
    Ok(count)
}

/// Makes a failed message of a tenant due now. False when the tenant has no such failed message, or the message is being
/// executed.
pub async fn retry(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ChannelMessageId,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(r#"select channels.retry_message($1, $2, $3) as "is_due!""#, tenant.0, id.0, actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("retrying the message"))
}

/// Records a provider's delivery report about a reply. False when the account has no such reply.
pub async fn record_delivery(
    connection: &mut PgConnection,
    tenant: TenantId,
    account: ProviderAccountId,
    report: &DeliveryReport,
) -> Result<bool, StoreError> {
    let Some(reply) = report.reply_id else { return Ok(false) };
    sqlx::query_scalar!(
        r#"select channels.record_delivery($1, $2, $3, $4, $5, $6, $7, $8) as "known!""#,
        tenant.0,
        account.0,
        reply.0,
        report.provider_message_id,
        report.status,
        report.proves_action,
        report.at.map(ToSqlx::to_sqlx) as _,
        report.error,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("recording the delivery"))
}

/// A message and its state.
#[derive(Debug, Clone, Serialize)]
pub struct ChannelMessage {
    /// Its id.
    pub id: ChannelMessageId,
    /// The account.
    pub account_id: ProviderAccountId,
    /// The vendor.
    pub provider: String,
    /// The vendor's id of the message.
    pub provider_message_id: String,
    /// The vendor's id of the sender.
    pub sender_id: String,
    /// The recipient of a reply.
    pub recipient_id: String,
    /// The part of the conversation that it belongs to.
    pub thread: Option<String>,
    /// Text of the message.
    pub text: String,
    /// Its state.
    pub status: MessageStatus,
    /// The product's id of the sender.
    pub user_id: Option<String>,
    /// Role of that user.
    pub role: Option<String>,
    /// The reply that could not be put into the outbox.
    pub reply: Option<serde_json::Value>,
    /// Why it was denied or failed.
    pub last_error: Option<String>,
    /// Correlation id in logs.
    pub correlation_id: Uuid,
    /// Number of deliveries.
    pub deliveries: i32,
    /// Number of executions.
    pub executions: i32,
    /// Id of its reply.
    pub reply_id: Option<OutboxId>,
    /// When it was received.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// Filters for the list of messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessageFilter<'a> {
    /// Only the message with this id.
    pub id: Option<ChannelMessageId>,
    /// Only in this state.
    pub status: Option<MessageStatus>,
    /// Only at this account.
    pub account: Option<ProviderAccountId>,
    /// Only of this sender.
    pub sender: Option<&'a str>,
}

/// Up to so many messages of a tenant, newest first, below this one.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    filter: MessageFilter<'_>,
    below: Option<ChannelMessageId>,
    limit: i64,
) -> Result<Vec<ChannelMessage>, StoreError> {
    let rows = sqlx::query_file!(
        "sql/channels/list_messages.sql",
        tenant.0,
        filter.id.map(|id| id.0),
        filter.status.map(MessageStatus::as_str),
        filter.account.map(|id| id.0),
        filter.sender,
        below.map(|id| id.0),
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the messages"))?;
    rows.into_iter()
        .map(|row| {
            Ok(ChannelMessage {
                id: ChannelMessageId(row.id),
                account_id: ProviderAccountId(row.account_id),
                provider: row.provider,
                provider_message_id: row.provider_message_id,
                sender_id: row.sender_id,
                recipient_id: row.recipient_id,
                thread: row.thread,
                text: row.text,
                status: word(&row.status)?,
                user_id: row.user_id,
                role: row.role,
                reply: row.reply,
                last_error: row.last_error,
                correlation_id: row.correlation_id,
                deliveries: row.deliveries,
                executions: row.executions,
                reply_id: row.reply_id.map(OutboxId),
                created_at: row.created_at.to_jiff(),
                updated_at: row.updated_at.to_jiff(),
            })
        })
        .collect()
}

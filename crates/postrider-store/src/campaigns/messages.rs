//! Single messages: hand one over, read them, and group those that are due into runs.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    Channel,
    ids::{AssetId, OutboxId, RunId, SingleMessageId, TenantId, WorkspaceId},
};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Pool, StoreError,
    campaigns::outbox::JobHold,
    postgres::{pool, unprepared::unprepared, values::word},
};

/// Most tenants whose messages are grouped before send jobs are claimed.
const TENANTS_MAX: i32 = 64;

/// A message to hand over.
#[derive(Debug, Clone, Copy)]
pub struct NewMessage<'a> {
    /// The tenant.
    pub tenant: TenantId,
    /// The workspace; the tenant's first one if it is `None`.
    pub workspace: Option<WorkspaceId>,
    /// How the person is reached.
    pub channel: Channel,
    /// The name of the account.
    pub account: &'a str,
    /// An e-mail address or a phone number. A post has none.
    pub recipient: Option<&'a str>,
    /// The key of the caller: one key, one message.
    pub key: &'a str,
    /// The id of an asset, its name for the newest version, or `NAME@VERSION`.
    pub asset: Option<&'a str>,
    /// Content of its own, instead of an asset.
    pub content: Option<&'a Value>,
    /// The variables of its template.
    pub variables: &'a Value,
    /// Not before this time.
    pub send_after: Option<Timestamp>,
}

/// A message that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Its id.
    pub id: SingleMessageId,
    /// False if the same message was handed over before.
    pub is_new: bool,
}

/// Hands a message over, in the transaction of the caller. [`StoreError::Conflict`]: the key was used for another message.
pub async fn send(
    connection: &mut PgConnection,
    new: NewMessage<'_>,
    actor: &str,
) -> Result<Sent, StoreError> {
    let id = SingleMessageId::new();
    let found = sqlx::query_scalar!(
        r#"
        select execution.send_message(
                   p_tenant_id => $1, p_channel => $2, p_account => $3, p_recipient => $4, p_key => $5, p_asset => $6,
                   p_content => $7, p_variables => $8, p_send_after => $9, p_workspace_id => $10, p_actor => $11, p_id => $12) as "id!"
        "#,
        new.tenant.0,
        new.channel.as_str(),
        new.account,
        new.recipient,
        new.key,
        new.asset,
        new.content,
        new.variables,
        new.send_after.map(ToSqlx::to_sqlx) as _,
        new.workspace.map(|workspace| workspace.0),
        actor,
        id.0,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("sending the message"))?;
    Ok(Sent { id: SingleMessageId(found), is_new: found == id.0 })
}

/// A single message, and how far it is.
#[derive(Debug, Clone, Serialize)]
pub struct SingleMessage {
    /// Its id.
    pub id: SingleMessageId,
    /// Its workspace.
    pub workspace_id: WorkspaceId,
    /// The key of the caller; `None` after an erasure.
    pub key: Option<String>,
    /// `waiting`; `queued` while its run works on it; or the status of its item.
    pub status: String,
    /// How the person is reached.
    pub channel: Channel,
    /// The name of the account, unless it was removed.
    pub account: Option<String>,
    /// The vendor.
    pub provider: String,
    /// The address.
    pub recipient: Option<String>,
    /// The version of the asset, unless the message has content of its own.
    pub asset_id: Option<AssetId>,
    /// Content of its own.
    pub content: Option<Value>,
    /// The variables that the caller gave.
    pub variables: Value,
    /// Not before this time.
    pub send_after: Timestamp,
    /// When it was handed over.
    pub created_at: Timestamp,
    /// The caller.
    pub actor: String,
    /// Its run, once it is in one.
    pub run_id: Option<RunId>,
    /// Its item, once it is reserved.
    pub item_id: Option<OutboxId>,
    /// The provider's id of the message, call or post.
    pub provider_message_id: Option<String>,
    /// Reason why it failed, was left out or is in doubt.
    pub error: Option<String>,
    /// Time since which it is in doubt, if it is.
    pub in_doubt_since: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// Messages by their ids, newest first. Those of other tenants are not there.
pub async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    ids: &[Uuid],
) -> Result<Vec<SingleMessage>, StoreError> {
    let rows = sqlx::query_file!("sql/campaigns/single_messages.sql", tenant.0, ids)
        .fetch_all(unprepared(connection))
        .await
        .map_err(StoreError::on("reading the messages"))?;
    rows.into_iter()
        .map(|row| {
            Ok(SingleMessage {
                id: SingleMessageId(row.id),
                workspace_id: WorkspaceId(row.workspace_id),
                key: row.key,
                status: row.status,
                channel: word(&row.channel)?,
                account: row.account,
                provider: row.provider,
                recipient: row.recipient,
                asset_id: row.asset_id.map(AssetId),
                content: row.content,
                variables: row.variables,
                send_after: row.send_after.to_jiff(),
                created_at: row.created_at.to_jiff(),
                actor: row.actor,
                run_id: row.run_id.map(RunId),
                item_id: row.item_id.map(OutboxId),
                provider_message_id: row.provider_message_id,
                error: row.error,
                in_doubt_since: row.in_doubt_since.map(jiff_sqlx::Timestamp::to_jiff),
                ended_at: row.ended_at.map(jiff_sqlx::Timestamp::to_jiff),
            })
        })
        .collect()
}

/// One message. `None` when the tenant has no such message.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: SingleMessageId,
) -> Result<Option<SingleMessage>, StoreError> {
    Ok(read(connection, tenant, &[id.0]).await?.pop())
}

/// Filters for the list of messages.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only to this address, in upper or lower case.
    pub recipient: Option<String>,
    /// Only with this key.
    pub key: Option<String>,
    /// Only on this channel.
    pub channel: Option<Channel>,
}

/// Messages of a tenant, newest first: those after a given one, or from the beginning.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    filter: &Filter,
    after: Option<(Timestamp, SingleMessageId)>,
    limit: i64,
) -> Result<Vec<SingleMessage>, StoreError> {
    let (at, id) = after.unzip();
    let (at, id) = (at.map(ToSqlx::to_sqlx), id.map(|id| id.0));
    let ids = match &filter.recipient {
        Some(recipient) => {
            sqlx::query_scalar!(
                r#"select message_id as "id!" from execution.messages_to($1, $2, $3, $4, $5, $6, $7)"#,
                tenant.0,
                recipient.as_str(),
                filter.key.as_deref(),
                filter.channel.map(Channel::as_str),
                at as _,
                id,
                limit,
            )
            .fetch_all(unprepared(&mut *connection))
            .await
        }
        None => {
            sqlx::query_scalar!(
                r#"
                select id
                  from execution.messages
                 where tenant_id = $1
                   and ($2::text is null or key_hash = sha256(convert_to($2, 'UTF8')))
                   and ($3::text is null or channel = $3)
                   and ($4::timestamptz is null or (created_at, id) < ($4, $5::uuid))
                 order by created_at desc, id desc
                 limit $6
                "#,
                tenant.0,
                filter.key.as_deref(),
                filter.channel.map(Channel::as_str),
                at as _,
                id,
                limit,
            )
            .fetch_all(unprepared(&mut *connection))
            .await
        }
    };
    let ids: Vec<Uuid> = ids.map_err(StoreError::on("listing the messages"))?;
    read(connection, tenant, &ids).await
}

/// Groups the messages that are due into runs, tenant by tenant, and returns their number. Every commit was seen. A tenant whose messages
/// cannot be grouped does not keep back those of the others: the error is logged.
pub async fn group_due(pool: &Pool, worker: &str) -> Result<i64, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let tenants = sqlx::query_scalar!(
        r#"select tenant_id as "tenant_id!" from execution.tenants_with_due_messages($1)"#,
        TENANTS_MAX,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("choosing tenants with messages"))?;
    pool::commit(transaction).await?;
    let mut grouped = 0;
    for tenant in tenants {
        match group(pool, worker, TenantId(tenant)).await {
            Ok(count) => grouped += i64::from(count),
            Err(error) if error.is_outage() => return Err(error),
            Err(error) => {
                tracing::error!(error = ?error, tenant.id = %tenant, "the messages of a tenant were not grouped: {error}");
            }
        }
    }
    Ok(grouped)
}

async fn group(pool: &Pool, worker: &str, tenant: TenantId) -> Result<i32, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let count =
        sqlx::query_scalar!(r#"select execution.group_messages($1, $2) as "count!""#, tenant.0, worker)
            .fetch_one(unprepared(&mut transaction))
            .await
            .map_err(StoreError::on("grouping messages"))?;
    pool::commit(transaction).await?;
    Ok(count)
}

/// The content of a message of a send job.
#[derive(Debug)]
pub struct Content {
    /// The message.
    pub message: Uuid,
    /// The version of the asset that it sends.
    pub asset: Option<AssetId>,
    /// The content. That of an asset is there once.
    pub content: Option<Value>,
}

/// The contents of the messages of a send job. Empty if the worker does not hold it.
pub(super) async fn contents(
    connection: &mut PgConnection,
    worker: &str,
    hold: JobHold,
) -> Result<Vec<Content>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select message_id as "message_id!",
               asset_id,
               content
          from execution.read_messages($1, $2, $3, $4)
        "#,
        hold.tenant_id.0,
        worker,
        hold.job_id.0,
        hold.attempt,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the messages of the send job"))?;
    let content =
        |message, asset: Option<Uuid>, content| Content { message, asset: asset.map(AssetId), content };
    Ok(rows.into_iter().map(|row| content(row.message_id, row.asset_id, row.content)).collect())
}

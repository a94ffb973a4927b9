//! Received messages and their results.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_model::{channels::MessageStatus, ids::ChannelMessageId};
use postrider_store::channels::{
    messages::{self, ChannelMessage, MessageFilter},
    replies::{self, ReplyFilter},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Fingerprint, Path, Query},
        docs,
        error::{ApiError, ApiResult},
        paging::{self, Page},
        requests::{Reading, Repeatable, Writing},
    },
};
use {
    super::{
        listed_account,
        outbox::{ReplyBody, ReplyPayload},
    },
    crate::common::words,
};

/// A received message.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChannelMessage)]
pub(crate) struct MessageBody {
    id: Uuid,
    account_id: Uuid,
    /// The vendor, such as `slack`.
    provider: String,
    /// The vendor's id of the message, which identifies repeated deliveries.
    provider_message_id: String,
    /// The vendor's id of the sender.
    sender_id: String,
    /// The recipient of a reply.
    recipient_id: String,
    /// The part of the conversation that it belongs to.
    thread: Option<String>,
    text: String,
    #[schema(value_type = words::MessageStatus)]
    status: MessageStatus,
    /// The product's id of the sender.
    user_id: Option<String>,
    /// Role of that user.
    #[schema(value_type = Option<docs::Role>)]
    role: Option<String>,
    /// Why it was denied, or what failed.
    last_error: Option<String>,
    /// A reply that could not be put into the outbox yet.
    #[schema(value_type = Option<ReplyPayload>)]
    kept_reply: Option<Value>,
    /// Its reply in the outbox.
    reply_id: Option<Uuid>,
    /// Number of deliveries.
    deliveries: i32,
    /// Number of executions.
    executions: i32,
    /// Correlation id in logs.
    correlation_id: Uuid,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<ChannelMessage> for MessageBody {
    fn from(message: ChannelMessage) -> Self {
        Self {
            id: message.id.0,
            account_id: message.account_id.0,
            provider: message.provider,
            provider_message_id: message.provider_message_id,
            sender_id: message.sender_id,
            recipient_id: message.recipient_id,
            thread: message.thread,
            text: message.text,
            status: message.status,
            user_id: message.user_id,
            role: message.role,
            last_error: message.last_error,
            kept_reply: message.reply,
            reply_id: message.reply_id.map(|id| id.0),
            deliveries: message.deliveries,
            executions: message.executions,
            correlation_id: message.correlation_id,
            created_at: message.created_at,
            updated_at: message.updated_at,
        }
    }
}

/// A received message and its reply.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChannelMessageWithReply)]
pub(crate) struct WholeMessage {
    #[serde(flatten)]
    message: MessageBody,
    /// Its reply, once there is one.
    reply: Option<ReplyBody>,
}

/// Filters for the list of messages.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessageQuery {
    /// Only those in this state.
    #[param(value_type = Option<words::MessageStatus>)]
    status: Option<MessageStatus>,
    /// Only at this account, by name or id.
    account: Option<String>,
    /// Only of this sender.
    sender_id: Option<String>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The tenant's messages, newest first.
#[utoipa::path(
    get,
    path = "/channels/messages",
    operation_id = "list_channel_messages",
    tag = "channels",
    params(MessageQuery),
    responses((status = 200, description = "A page of messages", body = Page<MessageBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<MessageQuery>,
) -> ApiResult<Json<Page<MessageBody>>> {
    let size = paging::size(query.limit)?;
    let below: Option<ChannelMessageId> = paging::decode(query.cursor.as_deref())?;
    let tenant = caller.tenant_id;
    let mut reading = Reading::begin(&app, tenant).await?;
    let account = listed_account(reading.connection(), tenant, query.account.as_deref()).await?;
    let filter =
        MessageFilter { id: None, status: query.status, account, sender: query.sender_id.as_deref() };
    let rows = messages::page(reading.connection(), tenant, filter, below, size + 1).await?;
    reading.page(rows, size, |message| message.id, MessageBody::from).await
}

/// One message, with its reply.
#[utoipa::path(
    get,
    path = "/channels/messages/{id}",
    operation_id = "get_channel_message",
    tag = "channels",
    params(("id" = Uuid, Path, description = "The message's id")),
    responses((status = 200, description = "The message", body = WholeMessage)),
)]
pub(crate) async fn get(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<ChannelMessageId>,
) -> ApiResult<Json<WholeMessage>> {
    let tenant = caller.tenant_id;
    let mut reading = Reading::begin(&app, tenant).await?;
    let only = MessageFilter { id: Some(id), ..MessageFilter::default() };
    let message = messages::page(reading.connection(), tenant, only, None, 1).await?.pop();
    let message = message.ok_or(ApiError::NotFound("message"))?;
    let reply = match message.reply_id {
        Some(reply) => {
            let only = ReplyFilter { id: Some(reply), ..ReplyFilter::default() };
            replies::page(reading.connection(), tenant, only, None, 1).await?.pop()
        }
        None => None,
    };
    reading.end().await?;
    Ok(Json(WholeMessage { message: message.into(), reply: reply.map(ReplyBody::from) }))
}

/// Retries a message that could not be executed, in a process with the role `dispatcher`. A stored reply is put into the outbox
/// without another execution.
#[utoipa::path(
    post,
    path = "/channels/messages/{id}/retry",
    operation_id = "retry_channel_message",
    tag = "channels",
    params(("id" = Uuid, Path, description = "The message's id"), Repeatable),
    responses(
        (status = 202, description = "The message will be retried in a moment", body = MessageBody),
        (status = 409, description = "The message has not failed, or is being executed; `current_state` names its state"),
    ),
)]
pub(crate) async fn retry(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<ChannelMessageId>,
    fingerprint: Fingerprint,
) -> ApiResult<Response> {
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let connection = writing.connection();
    let is_due = messages::retry(connection, caller.tenant_id, id, &caller.actor()).await?;
    let only = MessageFilter { id: Some(id), ..MessageFilter::default() };
    let message = messages::page(connection, caller.tenant_id, only, None, 1).await?.pop();
    let message = message.ok_or(ApiError::NotFound("message"))?;
    if !is_due {
        let why = match message.status {
            MessageStatus::Accepted | MessageStatus::DispatchFailed => "the message is being executed",
            _ => "the message has not failed",
        };
        return Err(ApiError::conflict(why).with("current_state", message.status));
    }
    writing.answer(StatusCode::ACCEPTED, &MessageBody::from(message)).await
}

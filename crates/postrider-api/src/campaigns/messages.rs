//! Single messages: send one, list them, show one. An application that has the database calls `execution.send_message` in its own transaction
//! instead.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_engine::campaigns::messages::{self as sending, SendError};
use postrider_model::{
    Channel,
    ids::{SingleMessageId, WorkspaceId},
};
use postrider_store::campaigns::messages::{self, Filter, NewMessage, SingleMessage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::time;
use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Body, Path, Query},
        error::{ApiError, ApiResult},
        paging::{self, Page, by_age},
        requests::{Reading, Repeatable, Writing},
        words,
    },
    tenancy::workspace,
};

/// A message to send.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSingleMessage)]
pub(crate) struct NewMessageBody {
    #[schema(value_type = words::Channel)]
    channel: Channel,
    /// The name of the provider account.
    #[schema(min_length = 1, max_length = 255)]
    account: String,
    /// An e-mail address, or a phone number like `+4930901820`. A post has none.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 320)]
    recipient: Option<String>,
    /// A key of your own. The same key and message return the message that was taken before; another message with the key is refused.
    #[schema(min_length = 1, max_length = 255, pattern = r"\S")]
    key: String,
    /// The id of an asset, its name for the newest version, or `NAME@VERSION`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 300)]
    asset: Option<String>,
    /// Content of its own instead of an asset: `subject` with `text`, `html` or both for e-mail, `script` for voice, `text` for social.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    content: Option<Value>,
    /// The variables of its template.
    #[serde(default = "nothing")]
    #[schema(value_type = Object, required = false)]
    variables: Value,
    /// The message is not sent before this time.
    #[serde(default, deserialize_with = "time")]
    send_after: Option<Timestamp>,
    /// The workspace; the tenant's first one when left out.
    #[serde(default)]
    workspace_id: Option<Uuid>,
}

fn nothing() -> Value {
    json!({})
}

/// A message outside a campaign.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SingleMessage)]
pub(crate) struct MessageBody {
    id: Uuid,
    workspace_id: Uuid,
    /// The key of the caller. Absent after an erasure.
    key: Option<String>,
    /// `waiting`, then `queued` while its run works on it, then the status of its item: `sent`, `called`, `posted`, `failed` or `skipped`.
    /// An item in doubt is `queued` and has `in_doubt_since`.
    #[schema(pattern = "^(waiting|queued|sent|called|posted|failed|skipped)$")]
    status: String,
    #[schema(value_type = words::Channel)]
    channel: Channel,
    /// The name of the account, unless it was removed.
    account: Option<String>,
    /// The vendor.
    provider: String,
    /// The address. Absent for a post, and after an erasure or retention.
    recipient: Option<String>,
    /// The version of the asset, unless the message has content of its own.
    asset_id: Option<Uuid>,
    /// Content of its own.
    #[schema(value_type = Option<Object>)]
    content: Option<Value>,
    #[schema(value_type = Object)]
    variables: Value,
    send_after: Timestamp,
    created_at: Timestamp,
    /// The caller that handed the message over.
    actor: String,
    /// Its run, once it is in one.
    run_id: Option<Uuid>,
    /// Its item, once it is reserved. `GET /items/{id}` has everything about it.
    item_id: Option<Uuid>,
    /// The provider's id of the message, call or post.
    provider_message_id: Option<String>,
    /// Reason why it failed, was left out or is in doubt.
    error: Option<String>,
    /// Time since which it is in doubt, if it is.
    in_doubt_since: Option<Timestamp>,
    ended_at: Option<Timestamp>,
}

impl From<SingleMessage> for MessageBody {
    fn from(message: SingleMessage) -> Self {
        Self {
            id: message.id.0,
            workspace_id: message.workspace_id.0,
            key: message.key,
            status: message.status,
            channel: message.channel,
            account: message.account,
            provider: message.provider,
            recipient: message.recipient,
            asset_id: message.asset_id.map(|id| id.0),
            content: message.content,
            variables: message.variables,
            send_after: message.send_after,
            created_at: message.created_at,
            actor: message.actor,
            run_id: message.run_id.map(|id| id.0),
            item_id: message.item_id.map(|id| id.0),
            provider_message_id: message.provider_message_id,
            error: message.error,
            in_doubt_since: message.in_doubt_since,
            ended_at: message.ended_at,
        }
    }
}

/// Filters for the list of messages.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessageQuery {
    /// Only to this address, in upper or lower case.
    #[param(min_length = 1, max_length = 320)]
    recipient: Option<String>,
    /// Only with this key.
    #[param(min_length = 1, max_length = 255)]
    key: Option<String>,
    /// Only on this channel.
    #[param(value_type = Option<words::Channel>)]
    channel: Option<Channel>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

impl From<SendError> for ApiError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Wrong { field, problem } => Self::unprocessable(field, problem),
            SendError::KeyOfAnother(problem) => Self::unprocessable("key", problem),
            SendError::Store(error) => Self::Store(error),
        }
    }
}

/// Sends one message outside a campaign. It takes the same path as every item: one reservation, limits, sending hours, suppression. A
/// repeat with the same key and message changes nothing and returns the message with status 200.
#[utoipa::path(
    post,
    path = "/messages",
    operation_id = "send_message",
    tag = "messages",
    params(Repeatable),
    request_body = NewMessageBody,
    responses(
        (status = 200, description = "The message that was taken before under this key", body = MessageBody),
        (status = 201, description = "The message", body = MessageBody),
    ),
)]
pub(crate) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    Body { value: new, fingerprint }: Body<NewMessageBody>,
) -> ApiResult<Response> {
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let wanted = new.workspace_id.map(WorkspaceId);
    let workspace = workspace(writing.connection(), caller.tenant_id, wanted).await?;
    let message = NewMessage {
        tenant: caller.tenant_id,
        workspace: Some(workspace),
        channel: new.channel,
        account: &new.account,
        recipient: new.recipient.as_deref(),
        key: &new.key,
        asset: new.asset.as_deref(),
        content: new.content.as_ref(),
        variables: &new.variables,
        send_after: new.send_after,
    };
    let (sent, message) =
        sending::send(writing.connection(), &app.adapters, message, &caller.actor()).await?;
    let body = MessageBody::from(message);
    if sent.is_new {
        return writing.answer_made(format!("/api/v2/messages/{}", sent.id.0), &body).await;
    }
    writing.answer(StatusCode::OK, &body).await
}

/// Messages outside campaigns, newest first.
#[utoipa::path(
    get,
    path = "/messages",
    operation_id = "list_messages",
    tag = "messages",
    params(MessageQuery),
    responses((status = 200, description = "A page of messages", body = Page<MessageBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<MessageQuery>,
) -> ApiResult<Json<Page<MessageBody>>> {
    let size = paging::size(query.limit)?;
    let after = by_age::<SingleMessageId>(query.cursor.as_deref())?;
    let filter = Filter { recipient: query.recipient, key: query.key, channel: query.channel };
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = messages::page(reading.connection(), caller.tenant_id, &filter, after, size + 1).await?;
    reading.page(rows, size, |message| (message.created_at, message.id), MessageBody::from).await
}

/// One message outside a campaign.
#[utoipa::path(
    get,
    path = "/messages/{id}",
    operation_id = "get_message",
    tag = "messages",
    params(("id" = Uuid, Path, description = "The message's id")),
    responses((status = 200, description = "The message", body = MessageBody)),
)]
pub(crate) async fn get(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<SingleMessageId>,
) -> ApiResult<Json<MessageBody>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let found = messages::find(reading.connection(), caller.tenant_id, id).await?;
    reading.end().await?;
    Ok(Json(found.ok_or(ApiError::NotFound("message"))?.into()))
}

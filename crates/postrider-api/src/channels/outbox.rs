//! Replies in the outbox: pending, sent and dead.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_model::{channels::ReplyStatus, ids::OutboxId};
use postrider_store::{
    channels::replies::{self, ReplyFilter, ReplyState, Requeue},
    postgres::wakeups,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Body, Fingerprint, Named, Path, Query},
        error::{ApiError, ApiResult},
        paging::{self, Page},
        requests::{Reading, Repeatable, Writing},
    },
};
use {
    super::{account, listed_account},
    crate::common::words,
};

/// Default number of replies that one request queues again.
const REQUEUE: u32 = 1_000;
/// Maximum number of replies that one request queues again.
const REQUEUE_MAX: u32 = 10_000;
/// Maximum length of the text to look for in errors, in bytes: errors are no longer.
const ERROR_BYTES_MAX: usize = 1_000;

/// The id in a path of this resource.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(transparent)]
pub(crate) struct ReplyId(OutboxId);

impl Named for ReplyId {
    const NAME: &'static str = "reply";
}

const UNKNOWN: ApiError = ApiError::NotFound(ReplyId::NAME);

/// A reply and its state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChannelReply)]
pub(crate) struct ReplyBody {
    id: Uuid,
    /// The message that it answers.
    channel_message_id: Uuid,
    account_id: Uuid,
    /// The vendor, such as `slack`.
    provider: String,
    /// The recipient.
    recipient_id: String,
    #[schema(value_type = ReplyPayload)]
    payload: Value,
    #[schema(value_type = words::ReplyStatus)]
    status: ReplyStatus,
    /// Number of failed attempts.
    attempt_count: i32,
    /// Number of failed attempts after which the reply is dead.
    max_attempts: i32,
    /// Earliest time of the next attempt, while it is `pending`.
    next_attempt_at: Timestamp,
    /// The last error.
    last_error: Option<String>,
    /// Since when a dispatcher holds it.
    locked_at: Option<Timestamp>,
    locked_by: Option<String>,
    /// Time since which it is in doubt: it may have been delivered.
    in_doubt_since: Option<Timestamp>,
    /// The vendor's id of the reply.
    provider_message_id: Option<String>,
    /// State of the delivery, in the vendor's word.
    delivery_status: Option<String>,
    delivery_status_at: Option<Timestamp>,
    /// Error of the delivery, from the vendor.
    delivery_error: Option<String>,
    /// Correlation id of its message in logs.
    correlation_id: Uuid,
    /// When the vendor accepted it.
    sent_at: Option<Timestamp>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<ReplyState> for ReplyBody {
    fn from(reply: ReplyState) -> Self {
        Self {
            id: reply.id.0,
            channel_message_id: reply.channel_message_id.0,
            account_id: reply.account_id.0,
            provider: reply.provider,
            recipient_id: reply.recipient_id,
            payload: reply.payload,
            status: reply.status,
            attempt_count: reply.attempt_count,
            max_attempts: reply.max_attempts,
            next_attempt_at: reply.next_attempt_at,
            last_error: reply.last_error,
            locked_at: reply.locked_at,
            locked_by: reply.locked_by,
            in_doubt_since: reply.in_doubt_since,
            provider_message_id: reply.provider_message_id,
            delivery_status: reply.delivery_status,
            delivery_status_at: reply.delivery_status_at,
            delivery_error: reply.delivery_error,
            correlation_id: reply.correlation_id,
            sent_at: reply.sent_at,
            created_at: reply.created_at,
            updated_at: reply.updated_at,
        }
    }
}

/// The content of a reply.
#[derive(Serialize, ToSchema)]
#[schema(as = ChannelReplyPayload)]
pub(crate) struct ReplyPayload {
    text: String,
    /// The part of the conversation that it belongs to.
    thread: Option<String>,
}

/// Filters for the list of replies.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OutboxQuery {
    /// Only those in this state.
    #[param(value_type = Option<words::ReplyStatus>)]
    status: Option<ReplyStatus>,
    /// Only through this account, by name or id.
    account: Option<String>,
    /// Only through this vendor.
    #[param(example = "slack")]
    provider: Option<String>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The dead replies to queue again. A reply must match every filter that is set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RequeueChannelReplies)]
pub(crate) struct RequeueBody {
    /// Through this account, by name or id.
    #[serde(default)]
    #[schema(min_length = 1)]
    account: Option<String>,
    /// Through this vendor.
    #[serde(default)]
    #[schema(example = "slack")]
    provider: Option<String>,
    /// Text that the last error contains, in any case.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 1000)]
    error_contains: Option<String>,
    /// Replies that died before this time.
    #[serde(default)]
    dead_before: Option<Timestamp>,
    /// Replies that died at this time or later.
    #[serde(default)]
    dead_since: Option<Timestamp>,
    /// All dead replies. Required when no other filter is set.
    #[serde(default)]
    all: bool,
    /// Maximum number of replies, the longest dead first; 1000 when left out.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}

/// Number of replies that were queued again.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RequeuedChannelReplies)]
pub(crate) struct Requeued {
    requeued: usize,
}

/// The tenant's replies, newest first.
#[utoipa::path(
    get,
    path = "/channels/outbox",
    operation_id = "list_channel_replies",
    tag = "channels",
    params(OutboxQuery),
    responses((status = 200, description = "A page of replies", body = Page<ReplyBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<OutboxQuery>,
) -> ApiResult<Json<Page<ReplyBody>>> {
    let size = paging::size(query.limit)?;
    let below: Option<OutboxId> = paging::decode(query.cursor.as_deref())?;
    let tenant = caller.tenant_id;
    let mut reading = Reading::begin(&app, tenant).await?;
    let account = listed_account(reading.connection(), tenant, query.account.as_deref()).await?;
    let filter = ReplyFilter { id: None, status: query.status, account, provider: query.provider.as_deref() };
    let rows = replies::page(reading.connection(), tenant, filter, below, size + 1).await?;
    reading.page(rows, size, |reply| reply.id, ReplyBody::from).await
}

/// One reply.
#[utoipa::path(
    get,
    path = "/channels/outbox/{id}",
    operation_id = "get_channel_reply",
    tag = "channels",
    params(("id" = Uuid, Path, description = "The reply's id")),
    responses((status = 200, description = "The reply", body = ReplyBody)),
)]
pub(crate) async fn get(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(ReplyId(id)): Path<ReplyId>,
) -> ApiResult<Json<ReplyBody>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let only = ReplyFilter { id: Some(id), ..ReplyFilter::default() };
    let reply = replies::page(reading.connection(), caller.tenant_id, only, None, 1).await?.pop();
    reading.found(reply.map(ReplyBody::from), UNKNOWN).await
}

/// Queues a dead reply again, with all its attempts.
#[utoipa::path(
    post,
    path = "/channels/outbox/{id}/requeue",
    operation_id = "requeue_channel_reply",
    tag = "channels",
    params(("id" = Uuid, Path, description = "The reply's id"), Repeatable),
    responses(
        (status = 200, description = "The reply was queued again", body = ReplyBody),
        (status = 409, description = "The reply is not dead; `current_state` names its state"),
    ),
)]
pub(crate) async fn requeue(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(ReplyId(id)): Path<ReplyId>,
    fingerprint: Fingerprint,
) -> ApiResult<Response> {
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let connection = writing.connection();
    let this = Requeue { id: Some(id), ..Requeue::default() };
    let requeued = replies::requeue(connection, caller.tenant_id, this, 1, &caller.actor()).await?;
    let only = ReplyFilter { id: Some(id), ..ReplyFilter::default() };
    let reply = replies::page(connection, caller.tenant_id, only, None, 1).await?.pop().ok_or(UNKNOWN)?;
    if requeued.is_empty() {
        let why = match reply.status {
            ReplyStatus::Sent => "the reply was sent already",
            ReplyStatus::Pending | ReplyStatus::Sending => "the reply is on its way already",
            ReplyStatus::Dead => "the reply died at this moment; try again",
        };
        return Err(ApiError::conflict(why).with("current_state", reply.status));
    }
    let response = writing.answer(StatusCode::OK, &ReplyBody::from(reply)).await?;
    hint(&app).await;
    Ok(response)
}

/// Queues dead replies again, with all their attempts: those that match, the longest dead first.
#[utoipa::path(
    post,
    path = "/channels/outbox/requeue",
    operation_id = "requeue_channel_replies",
    tag = "channels",
    params(Repeatable),
    request_body = RequeueBody,
    responses((status = 200, description = "The number of replies that were queued again", body = Requeued)),
)]
pub(crate) async fn requeue_all(
    State(app): State<App>,
    Operator(caller): Operator,
    Body { value: wanted, fingerprint }: Body<RequeueBody>,
) -> ApiResult<Response> {
    wanted.check()?;
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let connection = writing.connection();
    let account = match &wanted.account {
        Some(account_wanted) => Some(account(connection, caller.tenant_id, account_wanted).await?),
        None => None,
    };
    let which = Requeue {
        id: None,
        account,
        provider: wanted.provider.as_deref(),
        error_contains: wanted.error_contains.as_deref(),
        dead_before: wanted.dead_before,
        dead_since: wanted.dead_since,
    };
    let limit = i32::try_from(wanted.limit.unwrap_or(REQUEUE)).unwrap_or(i32::MAX);
    let requeued = replies::requeue(connection, caller.tenant_id, which, limit, &caller.actor()).await?.len();
    let response = writing.answer(StatusCode::OK, &Requeued { requeued }).await?;
    if requeued > 0 {
        hint(&app).await;
    }
    Ok(response)
}

impl RequeueBody {
    fn check(&self) -> ApiResult<()> {
        let is_filtered = self.account.is_some()
            || self.provider.is_some()
            || self.error_contains.is_some()
            || self.dead_before.is_some()
            || self.dead_since.is_some();
        match (is_filtered, self.all) {
            (false, false) => {
                let problem = "say which: account, provider, error_contains, dead_before or dead_since; or `\"all\": true`";
                return Err(ApiError::unprocessable("all", problem));
            }
            (true, true) => {
                let problem = "means every reply that is dead; leave it out, or leave out the rest";
                return Err(ApiError::unprocessable("all", problem));
            }
            _ => {}
        }
        if self.error_contains.as_ref().is_some_and(|part| part.is_empty() || part.len() > ERROR_BYTES_MAX) {
            let problem = format!("needs 1 to {ERROR_BYTES_MAX} bytes");
            return Err(ApiError::unprocessable("error_contains", problem));
        }
        // The database may not be able to store such times.
        for (field, at) in [("dead_before", self.dead_before), ("dead_since", self.dead_since)] {
            if at.is_some_and(|at| at < Timestamp::UNIX_EPOCH) {
                return Err(ApiError::unprocessable(field, "is before 1970; nothing died then"));
            }
        }
        if self.limit.is_some_and(|limit| !(1..=REQUEUE_MAX).contains(&limit)) {
            return Err(ApiError::unprocessable("limit", format!("must lie between 1 and {REQUEUE_MAX}")));
        }
        Ok(())
    }
}

/// Wakes the dispatchers. The change is committed, so a hint that fails is not an error.
async fn hint(app: &App) {
    if let Err(error) = wakeups::notify(&app.pool, replies::HINT_CHANNEL).await {
        tracing::warn!(?error, "no hint was sent; the next poll finds the replies: {error}");
    }
}

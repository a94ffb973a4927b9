//! Items of which nobody knows whether the provider acted.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_engine::campaigns::resolver::{SettledBy, settled_by};
use postrider_model::{Channel, campaign::ItemStatus, ids::OutboxId};
use postrider_store::{
    StoreError,
    doubts::{self, Doubt, Resolution},
    items, jobs, pool,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{by_age, words};
use crate::{
    App,
    auth::{Operator, Viewer},
    body::{Body, Path, Query},
    error::{ApiError, ApiResult},
    paging::{self, Page, PageQuery},
    requests::{Begun, Repeatable, Writing},
};

/// Longest note, in bytes: as much as the log keeps with an item.
const NOTE_BYTES_MAX: usize = 2_000;
/// Longest id that a provider gives a message, in bytes.
const MESSAGE_ID_BYTES_MAX: usize = 500;

/// An item in doubt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Doubt)]
pub(crate) struct DoubtBody {
    /// The item.
    outbox_id: Uuid,
    run_id: Uuid,
    job_id: Uuid,
    campaign_id: Uuid,
    /// What the tenant calls the campaign.
    campaign: String,
    /// The name of the phase.
    phase: String,
    #[schema(value_type = words::Channel)]
    channel: Channel,
    /// Which vendor was called.
    provider: String,
    /// The lead, or the post.
    recipient_id: Option<Uuid>,
    /// The address.
    recipient: Option<String>,
    /// The key that the provider may know it by.
    idempotency_key: String,
    /// Which worker reserved it.
    reserved_by: Option<String>,
    /// Under which attempt of its job.
    attempt: Option<i32>,
    reserved_at: Timestamp,
    /// Since when nobody knows.
    doubted_since: Timestamp,
    /// The same as seconds.
    age_seconds: i64,
    /// From then on it may be resolved as `failed`: nothing can arrive any more.
    quiet_until: Timestamp,
    /// Whether that time has come.
    is_quiet: bool,
    /// What happened instead of an answer.
    reason: String,
    /// Who will find out.
    #[schema(value_type = words::SettledBy)]
    settled_by: SettledBy,
    /// How many times the resolver has looked.
    looks: i32,
    /// What it found the last time.
    note: Option<String>,
}

impl DoubtBody {
    fn of(doubt: Doubt, settled_by: SettledBy) -> Self {
        Self {
            outbox_id: doubt.id.0,
            run_id: doubt.run_id.0,
            job_id: doubt.job_id.0,
            campaign_id: doubt.campaign_id.0,
            campaign: doubt.campaign,
            phase: doubt.phase,
            channel: doubt.channel,
            provider: doubt.provider,
            recipient_id: doubt.recipient_id,
            recipient: doubt.recipient,
            idempotency_key: doubt.idempotency_key.to_string(),
            reserved_by: doubt.reserved_by,
            attempt: doubt.attempt,
            reserved_at: doubt.reserved_at,
            doubted_since: doubt.doubted_since,
            age_seconds: doubt.age_seconds,
            quiet_until: doubt.quiet_until,
            is_quiet: doubt.is_quiet,
            reason: doubt.reason,
            settled_by,
            looks: doubt.looks,
            note: doubt.note,
        }
    }
}

/// What somebody found out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Verdict {
    /// What became of the item.
    r#as: ResolvedAs,
    /// The provider's own id of the message. Only for one that was sent.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 500)]
    provider_message_id: Option<String>,
    /// How it is known; the log keeps it.
    #[schema(min_length = 1, max_length = 2000, pattern = r"\S")]
    note: String,
}

/// What became of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResolvedAs {
    /// The provider has it. This counts at once.
    Sent,
    /// The provider never got it. This counts after the quiet time.
    Failed,
}

/// An item that is settled.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Resolved {
    /// The item.
    outbox_id: Uuid,
    #[schema(value_type = words::ItemStatus)]
    status: ItemStatus,
}

/// What is in doubt in the tenant, the longest reserved first.
#[utoipa::path(
    get,
    path = "/in-doubt",
    operation_id = "list_in_doubt",
    tag = "in doubt",
    params(PageQuery),
    responses((status = 200, description = "A page of items", body = Page<DoubtBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<PageQuery>,
) -> ApiResult<Json<Page<DoubtBody>>> {
    let size = paging::size(query.limit)?;
    let after = by_age::<OutboxId>(query.cursor.as_deref())?;
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    let doubts = doubts::page(&mut transaction, caller.tenant_id, after, size + 1).await?;
    pool::commit(transaction).await?;
    let show = |doubt: Doubt| {
        let settled_by = settled_by(&doubt, &app.adapters);
        DoubtBody::of(doubt, settled_by)
    };
    Ok(Json(Page::of(doubts.items, size, |doubt| (doubt.reserved_at, doubt.id), show)))
}

/// Settles an item with what was found out at the provider. It is never reopened: sending again is a new run.
#[utoipa::path(
    post,
    path = "/in-doubt/{outbox_id}/resolve",
    operation_id = "resolve_in_doubt",
    tag = "in doubt",
    params(("outbox_id" = Uuid, Path, description = "The item's id"), Repeatable),
    request_body = Verdict,
    responses(
        (status = 200, description = "The item is settled", body = Resolved),
        (status = 409, description = "The item has ended, or its worker is at work, or as `failed` it is too early"),
    ),
)]
pub(crate) async fn resolve(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<OutboxId>,
    Body { value: verdict, fingerprint }: Body<Verdict>,
) -> ApiResult<Response> {
    verdict.check()?;
    let mut writing = match Writing::begin(&app, caller, &fingerprint).await? {
        Begun::Replay(response) => return Ok(response),
        Begun::Fresh(writing) => writing,
    };
    let connection = writing.connection();
    if !items::exists(connection, caller.tenant_id, id).await? {
        return Err(ApiError::NotFound("item"));
    }
    let resolution = match verdict.r#as {
        ResolvedAs::Sent => Resolution::Sent { message_id: verdict.provider_message_id.as_deref() },
        ResolvedAs::Failed => Resolution::Failed,
    };
    let status =
        doubts::resolve(connection, caller.tenant_id, id, resolution, &verdict.note, &caller.actor())
            .await
            .map_err(|error| match error {
            // The item is there and the verdict is whole, so it is the item's state that does not allow it.
            StoreError::Refused { message, hint } => {
                ApiError::conflict(hint.map_or(message.clone(), |hint| format!("{message}. {hint}")))
            }
            error => error.into(),
        })?;
    let response = writing.answer(StatusCode::OK, &Resolved { outbox_id: id.0, status }).await?;
    // Its job may have waited for nothing else. The hint is no more than one, and what was done stays done.
    if let Err(error) = hint(&app).await {
        tracing::warn!(
            ?error,
            "workers were not woken after item {id} was resolved; their poll finds the job"
        );
    }
    Ok(response)
}

async fn hint(app: &App) -> Result<(), StoreError> {
    let mut transaction = pool::begin(&app.pool).await?;
    jobs::hint(&mut transaction).await?;
    pool::commit(transaction).await
}

impl Verdict {
    fn check(&self) -> ApiResult<()> {
        if self.note.trim().is_empty() || self.note.len() > NOTE_BYTES_MAX {
            let problem =
                format!("say in 1 to {NOTE_BYTES_MAX} bytes how it is known what became of the item");
            return Err(ApiError::unprocessable("note", problem));
        }
        let Some(message_id) = &self.provider_message_id else { return Ok(()) };
        if self.r#as == ResolvedAs::Failed {
            let problem = "belongs to an item that was sent; leave it out, or resolve as `sent`";
            return Err(ApiError::unprocessable("provider_message_id", problem));
        }
        if message_id.is_empty() || message_id.len() > MESSAGE_ID_BYTES_MAX {
            let problem = format!("has 1 to {MESSAGE_ID_BYTES_MAX} bytes; leave it out when it is not known");
            return Err(ApiError::unprocessable("provider_message_id", problem));
        }
        Ok(())
    }
}

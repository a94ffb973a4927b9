//! Items in doubt: the provider may or may not have acted. `many.rs` settles many at a time.

pub(crate) mod many;

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_engine::campaigns::resolver::{SettledBy, settled_by, settled_in};
use postrider_model::{
    Channel,
    campaigns::ItemStatus,
    ids::{CampaignId, OutboxId, RunId},
};
use postrider_store::{
    StoreError,
    campaigns::{
        doubts::{self, Doubt, Filter, Resolution},
        items, send_jobs,
    },
    postgres::pool,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::common::{paging::by_age, words};
use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Body, Path, Query},
        error::{ApiError, ApiResult},
        filters,
        paging::{self, Page},
        requests::{Reading, Repeatable, Writing},
    },
};

/// Longest note, in bytes: as much as the log keeps with an item.
const NOTE_BYTES_MAX: usize = 2_000;
/// Longest id that a provider gives a message, in bytes.
const MESSAGE_ID_BYTES_MAX: usize = 500;

/// An item in doubt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Doubt)]
pub(crate) struct DoubtBody {
    /// Id of the item.
    outbox_id: Uuid,
    run_id: Uuid,
    job_id: Uuid,
    /// Absent for a single message.
    campaign_id: Option<Uuid>,
    /// Name of the campaign. Absent for a single message.
    campaign: Option<String>,
    /// The name of the phase. Absent for a single message.
    phase: Option<String>,
    #[schema(value_type = words::Channel)]
    channel: Channel,
    /// The vendor that was called.
    provider: String,
    /// The lead, or the post.
    recipient_id: Option<Uuid>,
    /// The address.
    recipient: Option<String>,
    /// Idempotency key of the call.
    idempotency_key: String,
    /// Worker that reserved it.
    reserved_by: Option<String>,
    /// Attempt of its send job that reserved it.
    attempt: Option<i32>,
    reserved_at: Timestamp,
    /// Time since which it is in doubt.
    doubted_since: Timestamp,
    /// The same, as a number of seconds until now.
    age_seconds: i64,
    /// From then on it may be resolved as `failed`: nothing can arrive any more.
    quiet_until: Timestamp,
    /// Whether that time has come.
    is_quiet: bool,
    /// The event that left the item in doubt.
    reason: String,
    /// How the item will be settled.
    #[schema(value_type = words::SettledBy)]
    settled_by: SettledBy,
    /// Number of look-ups by the resolver.
    looks: i32,
    /// Result of the resolver's last look-up.
    note: Option<String>,
}

impl DoubtBody {
    fn of(doubt: Doubt, settled_by: SettledBy) -> Self {
        Self {
            outbox_id: doubt.id.0,
            run_id: doubt.run_id.0,
            job_id: doubt.job_id.0,
            campaign_id: doubt.campaign_id.map(|id| id.0),
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

/// A finding about an item in doubt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Verdict {
    /// Result of the item.
    r#as: ResolvedAs,
    /// The provider's own id of the message. Only for one that was sent.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 500)]
    provider_message_id: Option<String>,
    /// Evidence for the finding; the log keeps it.
    #[schema(min_length = 1, max_length = 2000, pattern = r"\S")]
    note: String,
}

/// Result of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResolvedAs {
    /// The provider has it. This counts at once.
    Sent,
    /// The provider never got it. This counts after the quiet time.
    Failed,
}

/// A settled item.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Resolved {
    /// Id of the item.
    outbox_id: Uuid,
    #[schema(value_type = words::ItemStatus)]
    status: ItemStatus,
}

/// Filters for the items in doubt.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DoubtQuery {
    /// Only of this run.
    run_id: Option<Uuid>,
    /// Only of this campaign.
    campaign_id: Option<Uuid>,
    /// Only of this vendor.
    #[param(min_length = 1, max_length = 500)]
    provider: Option<String>,
    /// Only those that will be settled in one of these ways: `repeat`, `look_up`, `callback` and `person`, with commas between them.
    #[param(
        example = "repeat,look_up",
        pattern = "^(repeat|look_up|callback|person)(,(repeat|look_up|callback|person))*$"
    )]
    settled_by: Option<String>,
    /// Only those that may be resolved as `failed` now, or only the others.
    is_quiet: Option<bool>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// Lists the tenant's items in doubt, the longest reserved first.
#[utoipa::path(
    get,
    path = "/in-doubt",
    operation_id = "list_in_doubt",
    tag = "in doubt",
    params(DoubtQuery),
    responses((status = 200, description = "A page of items", body = Page<DoubtBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<DoubtQuery>,
) -> ApiResult<Json<Page<DoubtBody>>> {
    let size = paging::size(query.limit)?;
    let after = by_age::<OutboxId>(query.cursor.as_deref())?;
    let ways = filters::words("settled_by", query.settled_by.as_deref(), SettledBy::ALL)?;
    let filter = Filter {
        run: query.run_id.map(RunId),
        campaign: query.campaign_id.map(CampaignId),
        provider: filters::text("provider", query.provider)?,
        settled: (!ways.is_empty()).then(|| settled_in(&ways, &app.adapters)),
        is_quiet: query.is_quiet,
    };
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let doubts = doubts::page(reading.connection(), caller.tenant_id, &filter, after, size + 1).await?;
    let show = |doubt: Doubt| {
        let settled_by = settled_by(&doubt, &app.adapters);
        DoubtBody::of(doubt, settled_by)
    };
    reading.page(doubts.items, size, |doubt| (doubt.reserved_at, doubt.id), show).await
}

/// Settles an item with a finding from the provider. A settled item is never reopened: sending again is a new run.
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
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
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
    wake_workers(&app).await;
    Ok(response)
}

/// Wakes the workers, because send jobs may be able to end now. The resolution is committed, so a hint that fails is not an error.
async fn wake_workers(app: &App) {
    if let Err(error) = hint(app).await {
        tracing::warn!(
            ?error,
            "workers were not woken after items were resolved; their poll finds the send jobs"
        );
    }
}

async fn hint(app: &App) -> Result<(), StoreError> {
    let mut transaction = pool::begin(&app.pool).await?;
    send_jobs::hint(&mut transaction).await?;
    pool::commit(transaction).await
}

impl Verdict {
    fn check(&self) -> ApiResult<()> {
        check_note(&self.note)?;
        check_message_id("provider_message_id", self.r#as, self.provider_message_id.as_deref())
    }
}

fn check_note(note: &str) -> ApiResult<()> {
    if note.trim().is_empty() || note.len() > NOTE_BYTES_MAX {
        let problem = format!("say in 1 to {NOTE_BYTES_MAX} bytes how it is known what became of the item");
        return Err(ApiError::unprocessable("note", problem));
    }
    Ok(())
}

fn check_message_id(field: &str, resolved_as: ResolvedAs, message_id: Option<&str>) -> ApiResult<()> {
    let Some(message_id) = message_id else { return Ok(()) };
    if resolved_as == ResolvedAs::Failed {
        let problem = "belongs to an item that was sent; leave it out, or resolve as `sent`";
        return Err(ApiError::unprocessable(field, problem));
    }
    if message_id.is_empty() || message_id.len() > MESSAGE_ID_BYTES_MAX {
        let problem = format!("has 1 to {MESSAGE_ID_BYTES_MAX} bytes; leave it out when it is not known");
        return Err(ApiError::unprocessable(field, problem));
    }
    Ok(())
}

//! The history of a campaign, page by page. `stream/` sends it live.

use axum::{Json, extract::State};
use jiff::Timestamp;
use postrider_model::{campaigns::EventType, ids::CampaignId};
use postrider_store::campaigns::{
    self,
    history::{self, CampaignEvent},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    App,
    common::{
        auth::Viewer,
        body::{Path, Query},
        error::{ApiError, ApiResult},
        filters,
        paging::{self, Page},
        requests::Reading,
        words,
    },
};

/// An event in the history of a campaign, as the stream sends it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CampaignEvent)]
pub(crate) struct EventBody {
    #[schema(value_type = words::EventType)]
    r#type: EventType,
    campaign_id: Uuid,
    /// The name of the phase.
    phase: String,
    /// Its place in the history, which has no gaps.
    sequence: i64,
    timestamp: Timestamp,
    /// Details: the control, actor and reason of a change; the percentage and the counts of the run of a progress.
    #[schema(value_type = EventPayload)]
    payload: Value,
}

/// Details of an event. A newer version may add fields.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventPayload {
    /// The state of the phase after the event.
    #[schema(nullable = false)]
    status: Option<words::PhaseStatus>,
    /// The state before the event.
    #[schema(nullable = false)]
    previous_status: Option<words::PhaseStatus>,
    /// The transition.
    #[schema(nullable = false)]
    trigger: Option<words::PhaseTrigger>,
    /// The control, where it is not the transition: `cancel`.
    #[schema(nullable = false)]
    control: Option<words::PhaseTrigger>,
    /// For a retry: whether it takes the canceled items, too.
    #[schema(nullable = false)]
    includes_canceled: Option<bool>,
    /// For a rerun: `failed`, if it takes only the failed items.
    #[schema(nullable = false)]
    only: Option<String>,
    /// The newest run of the phase.
    #[schema(nullable = false)]
    run_id: Option<Uuid>,
    /// `key:…` for requests, `cli:…` for people at a shell, or the name of a worker.
    #[schema(nullable = false)]
    actor: Option<String>,
    #[schema(nullable = false)]
    reason: Option<String>,
    /// Number of items that the control sends, or that the run had.
    #[schema(nullable = false)]
    items: Option<i64>,
    /// Number of people who got the message before, or may have, and get it again.
    #[schema(nullable = false)]
    second_messages: Option<i64>,
    #[schema(nullable = false, minimum = 0, maximum = 100)]
    progress_percentage: Option<f64>,
    #[schema(nullable = false)]
    run: Option<EventRun>,
}

/// Counts of the phase's newest run in a progress event. A phase that another service carries out has none.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventRun {
    id: Uuid,
    intended: i64,
    succeeded: i64,
    failed: i64,
    skipped: i64,
    in_doubt: i64,
    in_flight: i64,
}

impl From<CampaignEvent> for EventBody {
    fn from(event: CampaignEvent) -> Self {
        Self {
            r#type: event.r#type,
            campaign_id: event.campaign_id.0,
            phase: event.phase,
            sequence: event.sequence,
            timestamp: event.timestamp,
            payload: event.payload,
        }
    }
}

/// Filters for the history of a campaign.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HistoryQuery {
    /// Only of these types, with commas between them: `phase_started`, `phase_paused`, `phase_resumed`, `phase_completed`,
    /// `phase_failed` and `campaign_progress`.
    #[param(
        example = "phase_started,phase_completed",
        pattern = "^(phase_(started|paused|resumed|completed|failed)|campaign_progress)(,(phase_(started|paused|resumed|completed|failed)|campaign_progress))*$"
    )]
    r#type: Option<String>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The events of a campaign that are kept, newest first.
#[utoipa::path(
    get,
    path = "/campaigns/{id}/history",
    operation_id = "list_campaign_history",
    tag = "campaigns",
    params(("id" = Uuid, Path, description = "The campaign's id"), HistoryQuery),
    responses((status = 200, description = "A page of events", body = Page<EventBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(campaign): Path<CampaignId>,
    Query(query): Query<HistoryQuery>,
) -> ApiResult<Json<Page<EventBody>>> {
    let size = paging::size(query.limit)?;
    let before: Option<i64> = paging::decode(query.cursor.as_deref())?;
    let types = filters::words("type", query.r#type.as_deref(), EventType::ALL)?;
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let known = campaigns::read(reading.connection(), caller.tenant_id, campaign).await?;
    known.ok_or(ApiError::NotFound("campaign"))?;
    let rows =
        history::page(reading.connection(), caller.tenant_id, campaign, &types, before, size + 1).await?;
    reading.page(rows, size, |event| event.sequence, EventBody::from).await
}

//! Campaigns: create, list, show. `phases.rs` has the controls of their phases.

pub(crate) mod assets;
pub(crate) mod callbacks;
pub(crate) mod history;
pub(crate) mod in_doubt;
pub(crate) mod items;
pub(crate) mod leads;
pub(crate) mod limits;
pub(crate) mod messages;
pub(crate) mod phases;
pub(crate) mod runs;
pub(crate) mod stream;

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_engine::campaigns::drafts::{self, DraftError};
use postrider_model::{
    Channel,
    campaigns::{PhaseKind, PhaseStatus},
    ids::{AssetId, CampaignId, TenantId, WorkspaceId},
};
use postrider_store::{
    PgConnection,
    campaigns::{self, Campaign, Filter, Listed, ListedPhase, NewCampaign, NewPhase, PhaseState},
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, Unexpected},
};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Body, Object, Path, Query},
        error::{ApiError, ApiResult},
        filters,
        paging::{self, Page},
        requests::{Reading, Repeatable, Writing},
    },
};
use crate::{
    common::{paging::by_age, words},
    tenancy::workspace,
};

/// A new campaign.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewCampaign)]
pub(crate) struct CampaignRequest {
    /// Name of the campaign, unique in its workspace.
    #[schema(min_length = 1, max_length = 255, pattern = r"\S")]
    name: String,
    /// Whether a phase that completes starts the next one. It does when this is left out.
    #[serde(default = "yes")]
    #[schema(required = false)]
    auto_advance: bool,
    /// Its steps, in order.
    #[schema(value_type = Vec<PhaseRequest>, min_items = 1, max_items = 100)]
    phases: Vec<Object<PhaseRequest>>,
    /// The workspace; the tenant's first one when left out.
    #[serde(default)]
    workspace_id: Option<Uuid>,
}

/// A new phase.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewPhase)]
pub(crate) struct PhaseRequest {
    /// Its name inside the campaign.
    #[schema(pattern = "^[a-z0-9][a-z0-9_-]{0,62}$")]
    phase: String,
    /// `delivery` when left out.
    #[serde(default = "delivery")]
    #[schema(value_type = words::PhaseKind, required = false)]
    kind: PhaseKind,
    /// Channel on which people are reached. A delivery has one.
    #[serde(default)]
    #[schema(value_type = Option<words::Channel>)]
    channel: Option<Channel>,
    /// Id of the asset that is sent. A delivery has one.
    #[serde(default)]
    asset_id: Option<Uuid>,
    /// The name of the list that is addressed. A delivery has one, unless it is one post on channel `social`.
    #[serde(default)]
    list: Option<String>,
    /// The name of the account that is used. A delivery has one.
    #[serde(default)]
    provider_account: Option<String>,
    /// The name of the account that takes over what the first one provably did not send.
    #[serde(default)]
    failover_account: Option<String>,
    /// The share of failed items with which it still counts as completed; 0.05 when left out.
    #[serde(default)]
    #[schema(minimum = 0.0, maximum = 1.0)]
    failure_tolerance: Option<f64>,
    /// Nothing is sent before this time.
    #[serde(default, deserialize_with = "time")]
    scheduled_for: Option<Timestamp>,
    /// How long after a call the provider's silence counts as "it was never sent"; 660 when left out.
    #[serde(default, deserialize_with = "whole_seconds")]
    #[schema(value_type = Option<i64>, minimum = 1, maximum = 4_294_967_295_i64)]
    quiet_time_seconds: Option<u32>,
}

fn yes() -> bool {
    true
}

fn delivery() -> PhaseKind {
    PhaseKind::Delivery
}

/// A time with its offset, or none.
pub(crate) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        let shown: String = text.chars().take(60).collect();
        D::Error::custom(format!(
            "`{shown}` is not a time; write one with its offset, such as 2030-03-01T09:00:00Z"
        ))
    })
}

/// A whole number. For JSON that is 60 as well as 60.0.
fn whole_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let Some(number) = Option::<f64>::deserialize(deserializer)? else { return Ok(None) };
    if number.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&number) {
        return Err(D::Error::invalid_value(Unexpected::Float(number), &"a whole number of seconds"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it was just compared with both ends"
    )]
    let seconds = number as u32;
    Ok(Some(seconds))
}

impl From<CampaignRequest> for NewCampaign {
    fn from(new: CampaignRequest) -> Self {
        let phases = new.phases.into_iter().map(|Object(phase)| NewPhase {
            phase: phase.phase,
            kind: phase.kind,
            channel: phase.channel,
            asset_id: phase.asset_id.map(AssetId),
            list: phase.list,
            provider_account: phase.provider_account,
            failover_account: phase.failover_account,
            failure_tolerance: phase.failure_tolerance,
            scheduled_for: phase.scheduled_for,
            quiet_time_seconds: phase.quiet_time_seconds,
        });
        Self { name: new.name, auto_advance: new.auto_advance, phases: phases.collect() }
    }
}

/// A campaign in a list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CampaignInList)]
pub(crate) struct ListedBody {
    #[serde(flatten)]
    campaign: CampaignBody,
    /// Its phases, in order.
    phases: Vec<ListedPhaseBody>,
}

/// A campaign.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CampaignSummary)]
pub(crate) struct CampaignBody {
    id: Uuid,
    workspace_id: Uuid,
    name: String,
    /// Whether a phase that completes starts the next one.
    auto_advance: bool,
    created_at: Timestamp,
}

/// A phase in a list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PhaseInList)]
pub(crate) struct ListedPhaseBody {
    phase: String,
    #[schema(value_type = words::PhaseKind)]
    kind: PhaseKind,
    /// Channel on which people are reached. A delivery has one.
    #[schema(value_type = Option<words::Channel>)]
    channel: Option<Channel>,
    #[schema(value_type = words::PhaseStatus)]
    status: PhaseStatus,
    #[schema(minimum = 0, maximum = 100)]
    progress_percentage: f64,
}

/// A campaign with its phases. Its status shows their progress.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Campaign)]
pub(crate) struct WholeCampaign {
    #[serde(flatten)]
    campaign: CampaignBody,
    /// Its phases, in order.
    phases: Vec<PhaseBody>,
}

/// A phase.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Phase)]
pub(crate) struct PhaseBody {
    id: Uuid,
    /// Its name inside the campaign.
    phase: String,
    #[schema(value_type = words::PhaseKind)]
    kind: PhaseKind,
    #[schema(value_type = words::PhaseStatus)]
    status: PhaseStatus,
    #[schema(value_type = Option<words::Channel>)]
    channel: Option<Channel>,
    asset_id: Option<Uuid>,
    /// The same as `NAME@VERSION`.
    asset: Option<String>,
    /// The name of the list that it addresses.
    list: Option<String>,
    /// The name of the account that it uses.
    provider_account: Option<String>,
    /// The name of the account that takes over what the first one provably did not send.
    failover_account: Option<String>,
    /// The share of failed items with which it still counts as completed.
    failure_tolerance: f64,
    /// Nothing is sent before this time.
    scheduled_for: Option<Timestamp>,
    /// How long after a call the provider's silence counts as "it was never sent".
    quiet_time_seconds: f64,
    /// Its newest run, if it was deployed.
    run_id: Option<Uuid>,
}

impl From<Campaign> for CampaignBody {
    fn from(campaign: Campaign) -> Self {
        Self {
            id: campaign.id.0,
            workspace_id: campaign.workspace_id.0,
            name: campaign.name,
            auto_advance: campaign.auto_advance,
            created_at: campaign.created_at,
        }
    }
}

impl From<Listed> for ListedBody {
    fn from(listed: Listed) -> Self {
        let phase = |ListedPhase { phase, kind, channel, status, progress }| ListedPhaseBody {
            phase,
            kind,
            channel,
            status,
            progress_percentage: progress,
        };
        Self { campaign: listed.campaign.into(), phases: listed.phases.into_iter().map(phase).collect() }
    }
}

impl From<PhaseState> for PhaseBody {
    fn from(phase: PhaseState) -> Self {
        Self {
            id: phase.id.0,
            phase: phase.phase,
            kind: phase.kind,
            status: phase.status,
            channel: phase.channel,
            asset_id: phase.asset_id.map(|id| id.0),
            asset: phase.asset,
            list: phase.list,
            provider_account: phase.provider_account,
            failover_account: phase.failover_account,
            failure_tolerance: phase.failure_tolerance,
            scheduled_for: phase.scheduled_for,
            quiet_time_seconds: phase.quiet_time_seconds,
            run_id: phase.run.map(|state| state.run.id.0),
        }
    }
}

/// Creates a campaign with its phases, all of it or nothing. Nothing is sent before a phase is started.
#[utoipa::path(
    post,
    path = "/campaigns",
    operation_id = "create_campaign",
    tag = "campaigns",
    params(Repeatable),
    request_body = CampaignRequest,
    responses((status = 201, description = "The new campaign", body = WholeCampaign)),
)]
pub(crate) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    Body { value: new, fingerprint }: Body<CampaignRequest>,
) -> ApiResult<Response> {
    let wanted = new.workspace_id.map(WorkspaceId);
    let campaign = NewCampaign::from(new);
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let connection = writing.connection();
    let workspace = workspace(connection, caller.tenant_id, wanted).await?;
    drafts::check(connection, caller.tenant_id, workspace, &campaign, &app.adapters).await.map_err(
        |error| match error {
            DraftError::Mistake(mistake) => ApiError::unprocessable(mistake.path(), mistake.problem),
            DraftError::Store(error) => error.into(),
        },
    )?;
    let id = campaigns::create(connection, caller.tenant_id, workspace, &campaign, &caller.actor()).await?;
    let made = whole(connection, caller.tenant_id, id).await?;
    let made = made.ok_or_else(|| ApiError::Internal(format!("campaign {id} was made and is gone")))?;
    writing.answer(StatusCode::CREATED, &made).await
}

/// Filters for the list of campaigns.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CampaignQuery {
    /// Only with this text in their name, in any case.
    #[param(min_length = 1, max_length = 500)]
    q: Option<String>,
    /// Only with a phase in one of these states: `not_started`, `in_progress`, `paused`, `completed` and `failed`, with commas between
    /// them.
    #[param(
        example = "in_progress,paused",
        pattern = "^(not_started|in_progress|paused|completed|failed)(,(not_started|in_progress|paused|completed|failed))*$"
    )]
    phase_status: Option<String>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The tenant's campaigns, newest first.
#[utoipa::path(
    get,
    path = "/campaigns",
    operation_id = "list_campaigns",
    tag = "campaigns",
    params(CampaignQuery),
    responses((status = 200, description = "A page of campaigns", body = Page<ListedBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<CampaignQuery>,
) -> ApiResult<Json<Page<ListedBody>>> {
    let size = paging::size(query.limit)?;
    let after = by_age::<CampaignId>(query.cursor.as_deref())?;
    let filter = Filter {
        name_contains: filters::text("q", query.q)?,
        phase_statuses: filters::words("phase_status", query.phase_status.as_deref(), PhaseStatus::ALL)?,
    };
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = campaigns::page(reading.connection(), caller.tenant_id, &filter, after, size + 1).await?;
    let key = |listed: &Listed| (listed.campaign.created_at, listed.campaign.id);
    reading.page(rows, size, key, ListedBody::from).await
}

/// One campaign, with its phases.
#[utoipa::path(
    get,
    path = "/campaigns/{id}",
    operation_id = "get_campaign",
    tag = "campaigns",
    params(("id" = Uuid, Path, description = "The campaign's id")),
    responses((status = 200, description = "The campaign", body = WholeCampaign)),
)]
pub(crate) async fn get(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<CampaignId>,
) -> ApiResult<Json<WholeCampaign>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let found = whole(reading.connection(), caller.tenant_id, id).await?;
    reading.found(found, ApiError::NotFound("campaign")).await
}

async fn whole(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: CampaignId,
) -> ApiResult<Option<WholeCampaign>> {
    let Some(campaign) = campaigns::read(connection, tenant, id).await? else { return Ok(None) };
    let phases = campaigns::status(connection, tenant, id).await?;
    Ok(Some(WholeCampaign {
        campaign: campaign.into(),
        phases: phases.into_iter().map(PhaseBody::from).collect(),
    }))
}

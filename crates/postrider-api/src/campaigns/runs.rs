//! Runs: list, show, their items, their launch certificate, their trace.

pub(crate) mod bodies;
pub(crate) mod export;

use axum::{Json, extract::State};
use jiff::Timestamp;
use postrider_model::{
    Channel,
    campaigns::{ItemStatus, RunCause, RunStatus},
    ids::{CampaignId, JobId, OutboxId, RunId, TenantId},
};
use postrider_store::{
    PgConnection,
    campaigns::{
        self, RunState, deliveries, failures,
        items::{self, State as InState},
        runs::{self, Filter, Run},
        trace::{self, Subject},
    },
};
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

pub(crate) use self::bodies::{AuditLineBody, ItemBody, RunBody};
use self::bodies::{CertificateBody, FailureBody, RunWithProgress, TraceBody};
use crate::common::{paging::by_age, words};
use crate::{
    App,
    common::{
        auth::Viewer,
        body::{Path, Query},
        error::{ApiError, ApiResult},
        filters,
        paging::{self, Page},
        requests::Reading,
    },
};

/// Default maximum of the send jobs, items and lines of a trace, each.
const TRACE_SIZE: u32 = 200;
/// The largest maximum that a caller may set.
const TRACE_SIZE_MAX: u32 = 1_000;

/// Filters for the list of runs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunQuery {
    /// Only of this campaign.
    campaign_id: Option<Uuid>,
    /// Only those in this state.
    #[param(value_type = Option<words::RunStatus>)]
    status: Option<RunStatus>,
    /// Only on this channel.
    #[param(value_type = Option<words::Channel>)]
    channel: Option<Channel>,
    /// Only at this vendor.
    #[param(min_length = 1, max_length = 500)]
    provider: Option<String>,
    /// Only with this cause.
    #[param(value_type = Option<words::RunCause>)]
    cause: Option<RunCause>,
    /// Only those created at this time or later.
    created_after: Option<Timestamp>,
    /// Only those created before this time.
    created_before: Option<Timestamp>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The tenant's runs, newest first.
#[utoipa::path(
    get,
    path = "/runs",
    operation_id = "list_runs",
    tag = "runs",
    params(RunQuery),
    responses((status = 200, description = "A page of runs", body = Page<RunBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<RunQuery>,
) -> ApiResult<Json<Page<RunBody>>> {
    let size = paging::size(query.limit)?;
    let after = by_age::<RunId>(query.cursor.as_deref())?;
    let filter = Filter {
        campaign: query.campaign_id.map(CampaignId),
        status: query.status,
        channel: query.channel,
        provider: filters::text("provider", query.provider)?,
        cause: query.cause,
        created_after: filters::time("created_after", query.created_after)?,
        created_before: filters::time("created_before", query.created_before)?,
    };
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = runs::page(reading.connection(), caller.tenant_id, &filter, after, size + 1).await?;
    reading.page(rows, size, |run: &Run| (run.created_at, run.id), RunBody::from).await
}

/// One run with its progress, and the provider's reports about its items.
#[utoipa::path(
    get,
    path = "/runs/{id}",
    operation_id = "get_run",
    tag = "runs",
    params(("id" = Uuid, Path, description = "The run's id")),
    responses((status = 200, description = "The run", body = RunWithProgress)),
)]
pub(crate) async fn get(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<RunId>,
) -> ApiResult<Json<RunWithProgress>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let found = campaigns::run_states(reading.connection(), caller.tenant_id, &[id]).await?.remove(&id);
    let RunState { run, progress, waiting } = found.ok_or(ApiError::NotFound("run"))?;
    let reported =
        deliveries::summary(reading.connection(), caller.tenant_id, &run, progress.succeeded).await?;
    reading.end().await?;
    Ok(Json(RunWithProgress::of(run, progress, waiting, reported)))
}

/// Filters for the list of items.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ItemQuery {
    /// Only those in this state.
    #[param(inline, value_type = Option<words::ItemState>)]
    status: Option<ItemState>,
    /// Only to this address; the text must match exactly.
    #[param(min_length = 1, max_length = 500)]
    recipient: Option<String>,
    /// Only of this send job.
    job_id: Option<Uuid>,
    /// Only with this text in their error, in any case.
    #[param(min_length = 1, max_length = 500)]
    error_contains: Option<String>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// Filter for the state of items.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ItemState {
    Queued,
    Sent,
    Called,
    Posted,
    Failed,
    Skipped,
    InDoubt,
}

impl From<ItemState> for InState {
    fn from(state: ItemState) -> Self {
        match state {
            ItemState::Queued => Self::Is(ItemStatus::Queued),
            ItemState::Sent => Self::Is(ItemStatus::Sent),
            ItemState::Called => Self::Is(ItemStatus::Called),
            ItemState::Posted => Self::Is(ItemStatus::Posted),
            ItemState::Failed => Self::Is(ItemStatus::Failed),
            ItemState::Skipped => Self::Is(ItemStatus::Skipped),
            ItemState::InDoubt => Self::InDoubt,
        }
    }
}

/// The items of a run that were reserved, in the order of its send jobs. An item that no worker has reserved is not in the list.
#[utoipa::path(
    get,
    path = "/runs/{id}/items",
    operation_id = "list_run_items",
    tag = "runs",
    params(("id" = Uuid, Path, description = "The run's id"), ItemQuery),
    responses(
        (status = 200, description = "A page of items", body = Page<ItemBody>),
        (status = 422, description = "The run has too many items to search for a recipient or an error"),
    ),
)]
pub(crate) async fn list_items(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<RunId>,
    Query(query): Query<ItemQuery>,
) -> ApiResult<Json<Page<ItemBody>>> {
    let size = paging::size(query.limit)?;
    let after: Option<(i32, OutboxId)> = paging::decode(query.cursor.as_deref())?;
    let filter = items::Filter {
        state: query.status.map(InState::from),
        recipient: filters::address("recipient", query.recipient)?,
        job: query.job_id.map(JobId),
        error_contains: filters::text("error_contains", query.error_contains)?,
    };
    let searched = if filter.recipient.is_some() { "recipient" } else { "error_contains" };
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    find(reading.connection(), caller.tenant_id, id).await?;
    let rows = items::page(reading.connection(), caller.tenant_id, id, &filter, after, size + 1)
        .await
        .map_err(|error| match error {
            error if error.is_timeout() => ApiError::unprocessable(
                searched,
                "the run has too many items to search them within 5 s; add `job_id` or `status`, or export the items",
            ),
            error => error.into(),
        })?;
    reading.page(rows, size, |item| (item.job_position, item.id), ItemBody::from).await
}

/// The most frequent errors of a run's failed items, at most 50, each with the number of items and three of them.
#[utoipa::path(
    get,
    path = "/runs/{id}/failures",
    operation_id = "list_run_failures",
    tag = "runs",
    params(("id" = Uuid, Path, description = "The run's id")),
    responses(
        (status = 200, description = "The errors, the most frequent first", body = Vec<FailureBody>),
        (status = 422, description = "The run has too many failed items to group them"),
    ),
)]
pub(crate) async fn failures(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<RunId>,
) -> ApiResult<Json<Vec<FailureBody>>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    find(reading.connection(), caller.tenant_id, id).await?;
    let failures = failures::list(reading.connection(), caller.tenant_id, id).await.map_err(|error| {
        if error.is_timeout() {
            let problem =
                "the run has too many failed items to group them within 5 s; export the failed items";
            return ApiError::unprocessable("id", problem);
        }
        error.into()
    })?;
    reading.end().await?;
    Ok(Json(failures.into_iter().map(FailureBody::from).collect()))
}

/// The launch certificate: whether the run and every intended item have come to an end and no second call is possible, with the
/// counts that show it.
#[utoipa::path(
    get,
    path = "/runs/{id}/launch",
    operation_id = "get_run_launch",
    tag = "runs",
    params(("id" = Uuid, Path, description = "The run's id")),
    responses((status = 200, description = "The certificate", body = CertificateBody)),
)]
pub(crate) async fn launch(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<RunId>,
) -> ApiResult<Json<CertificateBody>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    find(reading.connection(), caller.tenant_id, id).await?;
    let certificate = runs::verify(reading.connection(), caller.tenant_id, id).await?;
    reading.end().await?;
    Ok(Json(certificate.into()))
}

/// Size of a trace.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TraceQuery {
    /// Maximum number of send jobs, items and lines of the log, each. Those that may need a person come first.
    #[param(minimum = 1, maximum = 1000, default = 200)]
    limit: Option<u32>,
}

/// Shows the trace of a run: its send jobs, their items, and the log.
#[utoipa::path(
    get,
    path = "/runs/{id}/trace",
    operation_id = "get_run_trace",
    tag = "runs",
    params(("id" = Uuid, Path, description = "The run's id"), TraceQuery),
    responses((status = 200, description = "The trace", body = TraceBody)),
)]
pub(crate) async fn trace(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<RunId>,
    Query(query): Query<TraceQuery>,
) -> ApiResult<Json<TraceBody>> {
    let limit = query.limit.unwrap_or(TRACE_SIZE);
    if !(1..=TRACE_SIZE_MAX).contains(&limit) {
        return Err(ApiError::invalid("limit", format!("must lie between 1 and {TRACE_SIZE_MAX}")));
    }
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let mut told =
        trace::read(reading.connection(), caller.tenant_id, Subject::Run(id), limit.into()).await?;
    reading.end().await?;
    let run = told.runs.pop().ok_or(ApiError::NotFound("run"))?;
    Ok(Json(TraceBody::of(run, told.audit, told.audit_left_out)))
}

async fn find(connection: &mut PgConnection, tenant: TenantId, id: RunId) -> ApiResult<Run> {
    runs::find(connection, tenant, id).await?.ok_or(ApiError::NotFound("run"))
}

//! Runs of functions: list, show, retry, cancel.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_model::{
    ids::{JobRunId, ScheduleId},
    jobs::{JobRunStatus, lock_key::Grain},
};
use postrider_store::{
    PgConnection,
    jobs::runs::{self, Cancelled, Retried, RunFilter, RunState},
    postgres::wakeups,
    tenancy::keys::Caller,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Fingerprint, MaybeBody, Named, Path, Query},
        error::{ApiError, ApiResult},
        paging::{self, Page},
        requests::{Reading, Repeatable, Writing},
    },
};
use {super::check_note, crate::common::words};

pub(super) const UNKNOWN: ApiError = ApiError::NotFound(JobRunId::NAME);

/// A job run and its state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = JobRun)]
pub(crate) struct JobRunBody {
    id: Uuid,
    function_name: String,
    /// Lock key, which only one active job run has.
    lock_key: String,
    #[schema(value_type = words::JobRunStatus)]
    status: JobRunStatus,
    /// Input of the function.
    input_params: Option<Value>,
    /// Result of the function.
    result: Option<Value>,
    /// The last error.
    error_message: Option<String>,
    /// Number of retries.
    retry_count: i32,
    /// Time of the next retry.
    retry_at: Option<Timestamp>,
    /// When its last attempt began.
    started_at: Timestamp,
    completed_at: Option<Timestamp>,
    duration_ms: Option<i32>,
    /// Time of the runner's last heartbeat.
    heartbeat_at: Option<Timestamp>,
    /// Worker that runs it.
    locked_by: Option<String>,
    /// The schedule that created it, if any.
    schedule_id: Option<Uuid>,
    /// Time of the schedule's firing.
    scheduled_for: Option<Timestamp>,
    #[schema(value_type = words::Grain)]
    grain: Grain,
    grain_start: Timestamp,
    /// Whether it was forced although a job run of its grain was completed.
    is_forced: bool,
    created_at: Timestamp,
}

impl From<RunState> for JobRunBody {
    fn from(run: RunState) -> Self {
        Self {
            id: run.id.0,
            function_name: run.function_name,
            lock_key: run.lock_key,
            status: run.status,
            input_params: run.input_params,
            result: run.result,
            error_message: run.error_message,
            retry_count: run.retry_count,
            retry_at: run.retry_at,
            started_at: run.started_at,
            completed_at: run.completed_at,
            duration_ms: run.duration_ms,
            heartbeat_at: run.heartbeat_at,
            locked_by: run.locked_by,
            schedule_id: run.schedule_id.map(|schedule| schedule.0),
            scheduled_for: run.scheduled_for,
            grain: run.grain,
            grain_start: run.grain_start,
            is_forced: run.is_forced,
            created_at: run.created_at,
        }
    }
}

/// Filters for the list of job runs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct JobRunsQuery {
    /// Only of this function.
    #[param(example = "detect-alerts")]
    function: Option<String>,
    /// Only those in this state.
    #[param(value_type = Option<words::JobRunStatus>)]
    status: Option<JobRunStatus>,
    /// Only those that this schedule made.
    #[param(value_type = Option<Uuid>)]
    schedule_id: Option<ScheduleId>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// A cancellation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CancelJobRun)]
pub(crate) struct CancelBody {
    /// Reason, kept with the job run.
    #[serde(default)]
    #[schema(max_length = 2000)]
    note: Option<String>,
}

/// The tenant's job runs, newest first.
#[utoipa::path(
    get,
    path = "/job-runs",
    operation_id = "list_job_runs",
    tag = "jobs",
    params(JobRunsQuery),
    responses((status = 200, description = "A page of job runs", body = Page<JobRunBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<JobRunsQuery>,
) -> ApiResult<Json<Page<JobRunBody>>> {
    let size = paging::size(query.limit)?;
    let below: Option<JobRunId> = paging::decode(query.cursor.as_deref())?;
    let filter = RunFilter {
        id: None,
        function: query.function.as_deref(),
        status: query.status,
        schedule: query.schedule_id,
    };
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = runs::page(reading.connection(), caller.tenant_id, filter, below, size + 1).await?;
    reading.page(rows, size, |run| run.id, JobRunBody::from).await
}

/// One job run.
#[utoipa::path(
    get,
    path = "/job-runs/{id}",
    operation_id = "get_job_run",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The job run's id")),
    responses((status = 200, description = "The job run", body = JobRunBody)),
)]
pub(crate) async fn show(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<JobRunId>,
) -> ApiResult<Json<JobRunBody>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let run = runs::find(reading.connection(), caller.tenant_id, id).await?;
    reading.found(run.map(JobRunBody::from), UNKNOWN).await
}

/// Retries a failed job run at once, whether it waits for its retry or has none left.
#[utoipa::path(
    post,
    path = "/job-runs/{id}/retry",
    operation_id = "retry_job_run",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The job run's id"), Repeatable),
    responses(
        (status = 200, description = "The job run was retried", body = JobRunBody),
        (status = 409, description = "The job run is not failed: `current_state` names its state; or another job run has its lock key: `existing_job_id`"),
    ),
)]
pub(crate) async fn retry(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<JobRunId>,
    fingerprint: Fingerprint,
) -> ApiResult<Response> {
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let run = retried(writing.connection(), caller, id).await?.ok_or(UNKNOWN)?;
    let response = writing.answer(StatusCode::OK, &run).await?;
    app.jobs.hints.send();
    Ok(response)
}

/// Retries a job run. `None` when there is no such job run. Wake the runners after the commit.
pub(super) async fn retried(
    connection: &mut PgConnection,
    caller: Caller,
    id: JobRunId,
) -> ApiResult<Option<JobRunBody>> {
    match runs::retry(connection, caller.tenant_id, id, &caller.actor()).await? {
        None => return Ok(None),
        Some(Retried::Retried) => {}
        Some(Retried::NotFailed(status)) => {
            let why = match status {
                JobRunStatus::Completed => {
                    "the run is completed; invoke the function with `force` to run it once more"
                }
                JobRunStatus::Cancelled => {
                    "the run was cancelled, which is for ever; invoke the function again"
                }
                JobRunStatus::Running | JobRunStatus::Failed => "the run is running already",
            };
            return Err(ApiError::conflict(why).with("current_state", status));
        }
        Some(Retried::KeyTaken(other)) => {
            let why = "another run has the lock key of this one by now; look at that one";
            return Err(ApiError::conflict(why)
                .with("current_state", JobRunStatus::Failed)
                .with("existing_job_id", other.0));
        }
    }
    Ok(runs::find(connection, caller.tenant_id, id).await?.map(JobRunBody::from))
}

/// Cancels a job run for ever. The worker that runs it cannot end it any more. Cancelling it again changes nothing.
#[utoipa::path(
    post,
    path = "/job-runs/{id}/cancel",
    operation_id = "cancel_job_run",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The job run's id"), Repeatable),
    request_body(content = Option<CancelBody>),
    responses(
        (status = 200, description = "The job run is cancelled", body = JobRunBody),
        (status = 409, description = "The job run is completed, as `current_state` says"),
    ),
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<JobRunId>,
    MaybeBody { value, fingerprint }: MaybeBody<CancelBody>,
) -> ApiResult<Response> {
    let note = value.and_then(|body| body.note);
    check_note(note.as_deref()).map_err(|error| ApiError::Unprocessable(vec![error]))?;
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let connection = writing.connection();
    match runs::cancel(connection, caller.tenant_id, id, note.as_deref(), &caller.actor())
        .await?
        .ok_or(UNKNOWN)?
    {
        Cancelled::Cancelled => {}
        Cancelled::Completed => {
            return Err(ApiError::conflict("the job run is completed; there is nothing left to cancel")
                .with("current_state", JobRunStatus::Completed));
        }
    }
    let run = runs::find(connection, caller.tenant_id, id).await?.map(JobRunBody::from).ok_or(UNKNOWN)?;
    let response = writing.answer(StatusCode::OK, &run).await?;
    app.jobs.cancels.send();
    // Wakes the callers that wait for the job run.
    if let Err(error) = wakeups::notify(&app.pool, runs::ENDS_CHANNEL).await {
        tracing::debug!(?error, "a hint was lost; the poll finds that the run is over: {error}");
    }
    Ok(response)
}

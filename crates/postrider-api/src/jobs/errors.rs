//! Dead letters: failures that need a person.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_model::ids::{JobRunId, SyncErrorId};
use postrider_store::jobs::sync_errors::{self, SyncError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::{
    check_note,
    runs::{JobRunBody, retried},
};
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

const UNKNOWN: ApiError = ApiError::NotFound(SyncErrorId::NAME);

/// A dead letter.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SyncError)]
pub(crate) struct SyncErrorBody {
    id: Uuid,
    /// Type of the failure.
    #[schema(example = "job_failure")]
    error_type: String,
    /// `MAX_RETRIES_EXCEEDED`, or `EXECUTION_ERROR` where another try would not do.
    #[schema(example = "MAX_RETRIES_EXCEEDED")]
    error_code: String,
    error_message: String,
    /// Function, lock key, input, retries and the time of the last attempt.
    #[schema(value_type = Object)]
    error_details: Value,
    #[schema(example = "job_run")]
    source_entity_type: String,
    /// Id of the job run.
    source_entity_id: Uuid,
    is_resolved: bool,
    resolved_at: Option<Timestamp>,
    resolved_by: Option<String>,
    resolution_note: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<SyncError> for SyncErrorBody {
    fn from(error: SyncError) -> Self {
        Self {
            id: error.id.0,
            error_type: error.error_type,
            error_code: error.error_code,
            error_message: error.error_message,
            error_details: error.error_details,
            source_entity_type: error.source_entity_type,
            source_entity_id: error.source_entity_id,
            is_resolved: error.is_resolved,
            resolved_at: error.resolved_at,
            resolved_by: error.resolved_by,
            resolution_note: error.resolution_note,
            created_at: error.created_at,
            updated_at: error.updated_at,
        }
    }
}

/// Filters for the list of dead letters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SyncErrorsQuery {
    /// Only resolved dead letters, or only open ones.
    resolved: Option<bool>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The resolution of a dead letter.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResolveSyncError)]
pub(crate) struct ResolveBody {
    /// Note about the cause and the fix.
    #[schema(min_length = 1, max_length = 2000, pattern = r"\S")]
    note: String,
}

/// The tenant's dead letters, newest first.
#[utoipa::path(
    get,
    path = "/sync-errors",
    operation_id = "list_sync_errors",
    tag = "jobs",
    params(SyncErrorsQuery),
    responses((status = 200, description = "A page of dead letters", body = Page<SyncErrorBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<SyncErrorsQuery>,
) -> ApiResult<Json<Page<SyncErrorBody>>> {
    let size = paging::size(query.limit)?;
    let below: Option<SyncErrorId> = paging::decode(query.cursor.as_deref())?;
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows =
        sync_errors::page(reading.connection(), caller.tenant_id, query.resolved, below, size + 1).await?;
    reading.page(rows, size, |error| error.id, SyncErrorBody::from).await
}

/// One dead letter.
#[utoipa::path(
    get,
    path = "/sync-errors/{id}",
    operation_id = "get_sync_error",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The dead letter's id")),
    responses((status = 200, description = "The dead letter", body = SyncErrorBody)),
)]
pub(crate) async fn show(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<SyncErrorId>,
) -> ApiResult<Json<SyncErrorBody>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let error = sync_errors::find(reading.connection(), caller.tenant_id, id).await?;
    reading.found(error.map(SyncErrorBody::from), UNKNOWN).await
}

/// Resolves a dead letter with a note. Resolving it again changes nothing: the first note stays.
#[utoipa::path(
    post,
    path = "/sync-errors/{id}/resolve",
    operation_id = "resolve_sync_error",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The dead letter's id"), Repeatable),
    request_body = ResolveBody,
    responses((status = 200, description = "The dead letter was resolved", body = SyncErrorBody)),
)]
pub(crate) async fn resolve(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<SyncErrorId>,
    Body { value: ResolveBody { note }, fingerprint }: Body<ResolveBody>,
) -> ApiResult<Response> {
    check_note(Some(&note)).map_err(|error| ApiError::Unprocessable(vec![error]))?;
    if note.trim().is_empty() {
        return Err(ApiError::unprocessable("note", "say what was found and done"));
    }
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let connection = writing.connection();
    if !sync_errors::resolve(connection, caller.tenant_id, id, &note, &caller.actor()).await? {
        return Err(UNKNOWN);
    }
    let error = sync_errors::find(connection, caller.tenant_id, id).await?.ok_or(UNKNOWN)?;
    writing.answer(StatusCode::OK, &SyncErrorBody::from(error)).await
}

/// Retries the failed job run of a dead letter at once. The dead letter is resolved by itself when the job run completes.
#[utoipa::path(
    post,
    path = "/sync-errors/{id}/retry",
    operation_id = "retry_sync_error",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The dead letter's id"), Repeatable),
    responses(
        (status = 200, description = "The job run was retried", body = JobRunBody),
        (status = 409, description = "The job run is not failed: `current_state` names its state; or another job run has its lock key: `existing_job_id`"),
    ),
)]
pub(crate) async fn retry(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<SyncErrorId>,
    fingerprint: Fingerprint,
) -> ApiResult<Response> {
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let connection = writing.connection();
    let error = sync_errors::find(connection, caller.tenant_id, id).await?.ok_or(UNKNOWN)?;
    let run = match error.source_entity_type.as_str() {
        "job_run" => retried(connection, caller, JobRunId(error.source_entity_id)).await?,
        _ => None,
    };
    let gone =
        || ApiError::conflict("there is no job run to retry any more; resolve the dead letter with a note");
    let response = writing.answer(StatusCode::OK, &run.ok_or_else(gone)?).await?;
    app.jobs.hints.send();
    Ok(response)
}

//! Responses to an invocation. Errors are problems like all others, and also have `success`, and `reason` or `error`.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use postrider_model::{ids::JobRunId, jobs::JobRunStatus};
use postrider_store::{
    jobs::runs::{Acquired, RunState},
    tenancy::requests::Answer,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::common::error::{ApiError, ApiResult, Problem};
use crate::common::words;

/// A job run that is completed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InvocationResult)]
pub(crate) struct Done {
    /// Always true.
    success: bool,
    job_id: Uuid,
    /// Result of the function.
    result: Option<Value>,
}

/// A job run that has not ended yet.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = InvocationAccepted)]
pub(crate) struct Waiting {
    /// Always true.
    success: bool,
    job_id: Uuid,
    /// `running`, or `failed` while it waits for its retry.
    #[schema(value_type = words::JobRunStatus)]
    status: JobRunStatus,
    /// Time of the next retry.
    retry_at: Option<Timestamp>,
}

impl Waiting {
    /// A job run that was created at this moment.
    pub(super) fn fresh(run: JobRunId) -> Self {
        Self { success: true, job_id: run.0, status: JobRunStatus::Running, retry_at: None }
    }
}

/// The job run that an earlier invocation created.
pub(super) fn run_of(kept: &Answer) -> ApiResult<JobRunId> {
    let kept = kept.body.as_deref().and_then(|body| serde_json::from_str::<Waiting>(body).ok());
    let kept =
        kept.ok_or_else(|| ApiError::Internal("the stored answer of an invocation names no run".to_owned()))?;
    Ok(JobRunId(kept.job_id))
}

/// The conflict with an existing job run.
pub(super) fn in_the_way(acquired: Acquired, existing: &RunState) -> ApiError {
    let (state, reason) = match acquired {
        Acquired::Completed(_) => {
            let (grain, label) = (existing.grain, existing.grain.label(existing.grain_start));
            let reason = format!(
                "Job already completed in this grain ({grain} {label}); send `force` to run it once more"
            );
            (JobRunStatus::Completed, reason)
        }
        Acquired::RetryPending(_) => {
            let at = existing.retry_at.map(|at| format!(" at {at}")).unwrap_or_default();
            let reason =
                format!("Job failed and waits for its retry{at}; retry its run to have it tried at once");
            (JobRunStatus::Failed, reason)
        }
        _ => (JobRunStatus::Running, "Job already running; wait for its run, or cancel it".to_owned()),
    };
    ApiError::conflict(reason)
        .with("current_state", state)
        .with("retry_at", existing.retry_at)
        .with("existing_job_id", existing.id.0)
}

/// The response with the state of a job run.
pub(super) fn standing(run: RunState) -> Response {
    let (success, job_id) = (true, run.id.0);
    match (run.status, run.retry_at) {
        (JobRunStatus::Completed, _) => Json(Done { success, job_id, result: run.result }).into_response(),
        (status @ JobRunStatus::Running, retry_at) | (status @ JobRunStatus::Failed, retry_at @ Some(_)) => {
            (StatusCode::ACCEPTED, Json(Waiting { success, job_id, status, retry_at })).into_response()
        }
        (JobRunStatus::Failed, None) => {
            let error = run.error_message.unwrap_or_else(|| "no reason was given".to_owned());
            let mut problem =
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the function failed: {error}"));
            problem.members.insert("error".to_owned(), json!(error));
            problem.members.insert("job_id".to_owned(), json!(job_id));
            problem.into_response()
        }
        (JobRunStatus::Cancelled, _) => {
            let why = run.error_message.unwrap_or_else(|| "cancelled".to_owned());
            ApiError::conflict(format!("Job was cancelled: {why}")).with("job_id", job_id).into_response()
        }
    }
}

/// Adds to every problem of the route the fields that its callers expect.
pub(crate) async fn refused(mut response: Response) -> Response {
    let Some(mut problem) = response.extensions_mut().remove::<Problem>() else { return response };
    let why = if response.status() == StatusCode::CONFLICT { "reason" } else { "error" };
    problem.members.insert("success".to_owned(), json!(false));
    problem.members.entry(why.to_owned()).or_insert_with(|| json!(problem.detail));
    // The outermost layer writes the body again.
    response.extensions_mut().insert(problem);
    response
}

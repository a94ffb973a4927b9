//! Invoking a function: once per grain, and waiting for its result.
//!
//! ```text
//! acquire ──commit──▶ hint ──▶ wait for the end, without a connection ──▶ 200, or 500 or 409 by how it ended
//!   ├─ another job run has the lock key: 409             └─ the wait is over: 202
//! ```
//!
//! A client that disconnects does not stop the job run.

mod answer;
mod browsers;

use std::time::Duration;

use axum::{extract::State, http::StatusCode, response::Response};
use postrider_model::ids::{JobRunId, TenantId};
use postrider_store::{
    StoreError,
    jobs::runs::{self, Acquired, Invocation, RunState},
    postgres::pool,
    tenancy::keys::Caller,
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use utoipa::{IntoParams, ToSchema};

use self::answer::{Done, Waiting};
pub(crate) use self::{
    answer::refused,
    browsers::{is_invocation, open_to_pages},
};
use super::{FunctionName, check_input, functions, hash, input_too_large, make_builtin, runs::UNKNOWN};
use crate::{
    App,
    common::{
        auth::Operator,
        body::{MaybeBody, Path, Query},
        error::{ApiError, ApiResult},
        requests::{Repeatable, Taken, Writing, replayed},
    },
    jobs::run_waiters::Waiter,
};

/// Default time to wait for the end, in seconds.
const WAIT_SECONDS: u32 = 60;
/// Maximum time to wait, in seconds.
pub(crate) const WAIT_SECONDS_MAX: u32 = 600;

/// Query parameters of an invocation.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct InvokeQuery {
    /// Seconds to wait for the end, with all retries; with 0 the response does not wait.
    #[param(minimum = 0, maximum = 600, default = 60)]
    wait: Option<u32>,
    /// Whether to run it although it was completed in this grain. An active job run is never duplicated.
    #[param(default = false)]
    force: Option<bool>,
}

/// Body of an invocation.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Invocation)]
pub(crate) struct InvokeBody {
    /// Input of the function: any JSON, up to 64 KiB.
    #[serde(default)]
    input: Option<Value>,
    /// Entities that it is about: it runs once per grain and entities.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    entities: Option<Box<RawValue>>,
    /// As in the query.
    #[serde(default)]
    force: bool,
    /// The key's own tenant. It may be left out.
    #[serde(default)]
    #[schema(value_type = Option<uuid::Uuid>)]
    tenant_id: Option<TenantId>,
}

/// Runs a function and returns its result. The function runs once per grain and entities, for all callers together.
#[utoipa::path(
    post,
    path = "/functions/{name}/invoke",
    operation_id = "invoke_function",
    tag = "jobs",
    params(("name" = String, Path, description = "The function's name"), InvokeQuery, Repeatable),
    request_body(content = Option<InvokeBody>),
    responses(
        (status = 200, description = "The job run is completed", body = Done),
        (status = 202, description = "The job run has not ended yet; look at it later", body = Waiting),
        (status = 409, description = "The job run is active, or was completed in this grain: `reason` says which, `existing_job_id` which job run; or the job run was cancelled"),
        (status = 500, description = "The job run failed for good: `error` has the reason, `job_id` the job run. Without a `job_id` it is a bug"),
    ),
)]
pub(crate) async fn invoke(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(FunctionName(name)): Path<FunctionName>,
    Query(query): Query<InvokeQuery>,
    MaybeBody { value, fingerprint }: MaybeBody<InvokeBody>,
) -> ApiResult<Response> {
    let wait = query.wait.unwrap_or(WAIT_SECONDS);
    if wait > WAIT_SECONDS_MAX {
        return Err(ApiError::invalid("wait", format!("must lie between 0 and {WAIT_SECONDS_MAX}")));
    }
    let body = value.unwrap_or_default();
    if body.tenant_id.is_some_and(|tenant| tenant != caller.tenant_id) {
        return Err(ApiError::invalid("tenant_id", "is not the tenant of this key; leave it out"));
    }
    let wrong = |error| ApiError::Invalid(vec![error]);
    check_input(body.input.as_ref()).map_err(wrong)?;
    let entities = hash(body.entities.as_deref()).map_err(wrong)?;
    let invocation = Invocation {
        function: &name,
        input: body.input.as_ref(),
        entities: entities.as_ref(),
        force: body.force || query.force.unwrap_or_default(),
    };
    let wait = Duration::from_secs(wait.into());

    let mut writing = match Writing::take(&app.pool, caller, &fingerprint).await? {
        Taken::Before(kept) => {
            let run = answer::run_of(&kept)?;
            let waiter = app.jobs.run_waiters.wait_for(caller.tenant_id, run);
            return outcome(&app, caller, run, waiter, wait).await.map(replayed);
        }
        Taken::Fresh(writing) => writing,
    };
    let run = acquire(&mut writing, caller, invocation).await?;
    // Before the commit, so that no end is missed.
    let waiter = app.jobs.run_waiters.wait_for(caller.tenant_id, run);
    let accepted = writing.answer(StatusCode::ACCEPTED, &Waiting::fresh(run)).await?;
    app.jobs.hints.send();
    if wait.is_zero() {
        return Ok(accepted);
    }
    outcome(&app, caller, run, waiter, wait).await
}

/// A job run under the lock key, or why there is none.
async fn acquire(writing: &mut Writing, caller: Caller, invocation: Invocation<'_>) -> ApiResult<JobRunId> {
    let (connection, actor) = (writing.connection(), caller.actor());
    let mut acquired =
        runs::acquire(connection, caller.tenant_id, invocation, &actor).await.map_err(too_large)?;
    if acquired == Acquired::UnknownFunction
        && make_builtin(connection, caller.tenant_id, invocation.function).await?
    {
        acquired =
            runs::acquire(connection, caller.tenant_id, invocation, &actor).await.map_err(too_large)?;
    }
    let existing = match acquired {
        Acquired::Run(run) => return Ok(run),
        Acquired::UnknownFunction => return Err(functions::UNKNOWN),
        Acquired::Running(run) | Acquired::RetryPending(run) | Acquired::Completed(run) => run,
    };
    let run = runs::find(connection, caller.tenant_id, existing).await?.ok_or(UNKNOWN)?;
    Err(answer::in_the_way(acquired, &run))
}

/// The database stores the input in a longer form than the request, and may refuse it as too large.
fn too_large(error: StoreError) -> ApiError {
    match error {
        StoreError::Refused { .. } => ApiError::Invalid(vec![input_too_large()]),
        error => error.into(),
    }
}

/// Waits for a job run, unless there are too many waiters, and returns the response with its state.
async fn outcome(
    app: &App,
    caller: Caller,
    run: JobRunId,
    waiter: Option<Waiter>,
    wait: Duration,
) -> ApiResult<Response> {
    if let Some(waiter) = waiter {
        waiter.over_within(wait).await;
    }
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    let state: Option<RunState> = runs::find(&mut transaction, caller.tenant_id, run).await?;
    pool::commit(transaction).await?;
    Ok(answer::standing(state.ok_or(UNKNOWN)?))
}

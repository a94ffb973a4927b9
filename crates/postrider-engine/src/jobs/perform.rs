//! One attempt at a job run.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use postrider_model::jobs::{SqlName, Target, VALUE_BYTES_MAX};
use postrider_providers::function::{FunctionCall, HttpFunction};
use postrider_store::{
    crash_point,
    jobs::runs::{self, ClaimedRun, End, SqlEnd},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Invoked, Shared};

/// The result of an attempt.
pub(super) enum Performed {
    /// The function ended; the result must be recorded.
    Ended(End),
    /// The result was recorded in the transaction of the SQL function.
    Committed,
    /// This runner no longer holds the run.
    Abandoned,
}

/// Added to the timeout of a SQL function, so that the server stops the statement first and reports the error.
const SQL_GRACE: Duration = Duration::from_secs(5);

/// Performs a run within its timeout, unless the run is cancelled or lost.
pub(super) async fn perform(shared: &Shared, run: &ClaimedRun, cancelled: &CancellationToken) -> Performed {
    tracing::info!(
        tenant_id = %run.tenant.0, job_id = %run.id.0, function = run.function_name, attempt = run.retry_count + 1,
        "a run begins"
    );
    let performing = AssertUnwindSafe(attempt(shared, run)).catch_unwind();
    crash_point!("run.before_call");
    let performed = match cancelled.run_until_cancelled(performing).await {
        None => {
            tracing::warn!(tenant_id = %run.tenant.0, job_id = %run.id.0, function = run.function_name, "the runner abandoned a run that was cancelled or that another runner holds");
            metrics::counter!("postrider_job_runs_total", "as" => "abandoned").increment(1);
            Performed::Abandoned
        }
        Some(Ok(performed)) => performed,
        Some(Err(_)) => Performed::Ended(failed("the function panicked", true)),
    };
    crash_point!("run.after_call");
    performed
}

async fn attempt(shared: &Shared, run: &ClaimedRun) -> Performed {
    let Some(function) = &run.function else {
        let error =
            format!("the function `{}` was removed; register it again and retry the run", run.function_name);
        return Performed::Ended(failed(&error, false));
    };
    let timeout = function.timeout;
    let end = match &function.target {
        None => failed(&format!("this version cannot run the function `{}`", run.function_name), false),
        Some(Target::Sql(name)) => return sql(shared, run, name, timeout).await,
        Some(Target::Http(url)) => in_time(timeout, http(shared, run, url)).await,
        Some(Target::Builtin(name)) => in_time(timeout, rust(shared, run, name)).await,
    };
    Performed::Ended(end)
}

async fn in_time(timeout: Duration, call: impl Future<Output = End>) -> End {
    let timed_out = || failed(&format!("the function did not answer within {timeout:?}"), true);
    tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| timed_out())
}

async fn http(shared: &Shared, run: &ClaimedRun, url: &str) -> End {
    let secret = match shared.master_key.as_ref().map(|key| run.secret(key)) {
        Some(Ok(Some(secret))) => secret,
        Some(Err(error)) => return failed(&format!("failed to open the function's secret: {error}"), true),
        // Retryable, because the secret may be about to be set again.
        Some(Ok(None)) | None => return failed("the function has no secret; set it again", true),
    };
    let call = FunctionCall {
        tenant_id: run.tenant,
        job_id: run.id,
        function_name: &run.function_name,
        lock_key: &run.lock_key,
        attempt: run.retry_count + 1,
        input: &run.input,
    };
    let answer = match HttpFunction::new(&shared.client, url, &secret) {
        Ok(function) => function.call(&call).await,
        Err(error) => Err(error),
    };
    answer.map_or_else(|error| failed(&error.message, error.retryable), End::Completed)
}

async fn rust(shared: &Shared, run: &ClaimedRun, name: &str) -> End {
    let Some(function) = shared.functions.get(name) else {
        return failed(&format!("this process has no function `{name}`"), true);
    };
    let invoked = Invoked {
        tenant: run.tenant,
        job_id: run.id,
        function_name: &run.function_name,
        lock_key: &run.lock_key,
        attempt: run.retry_count + 1,
        input: &run.input,
        scheduled_for: run.scheduled_for,
    };
    match function.call(&invoked).await {
        Ok(result) => bounded(result),
        Err(error) => failed(&error.message, error.retryable),
    }
}

fn bounded(result: Value) -> End {
    if result.to_string().len() > VALUE_BYTES_MAX {
        return failed(&format!("the function returned more than {VALUE_BYTES_MAX} bytes"), false);
    }
    End::Completed(result)
}

async fn sql(shared: &Shared, run: &ClaimedRun, name: &SqlName, timeout: Duration) -> Performed {
    if let Err(problem) = runs::check_sql_schema(name, &shared.settings.sql_schemas) {
        return Performed::Ended(failed(&problem, false));
    }
    let performing = runs::perform_sql(&shared.sql_pool, &shared.name, run, name, timeout);
    match tokio::time::timeout(timeout + SQL_GRACE, performing).await {
        Ok(Ok(SqlEnd::Committed)) => {
            metrics::counter!("postrider_job_runs_total", "as" => "completed").increment(1);
            tracing::info!(tenant_id = %run.tenant.0, job_id = %run.id.0, function = run.function_name, "a run is completed");
            Performed::Committed
        }
        Ok(Ok(SqlEnd::Lost)) => Performed::Abandoned,
        Ok(Ok(SqlEnd::Failed(end))) => Performed::Ended(end),
        // The transaction may have been committed. Then the run has ended, and the database ignores this result.
        Ok(Err(error)) => Performed::Ended(failed(&format!("failed to run {name}: {error}"), true)),
        Err(_) => Performed::Ended(failed(&format!("{name} did not answer within {timeout:?}"), true)),
    }
}

fn failed(error: &str, retryable: bool) -> End {
    End::Failed { error: error.to_owned(), retryable }
}

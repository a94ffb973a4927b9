//! Health of a tenant's jobs.

use axum::{Json, extract::State};
use postrider_model::jobs::{AlertRules, JobRunStatus};
use postrider_store::{
    jobs::{
        alerts,
        runs::{self, Day, Health},
    },
    postgres::pool,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::common::words;
use crate::{
    App,
    common::{auth::Viewer, error::ApiResult},
};

/// Health of a tenant's jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobHealth {
    /// Runs of the last day, by function and state.
    functions: Vec<FunctionHealth>,
    alerts: JobThresholds,
}

/// Runs of one function in one state, of the last day.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FunctionHealth {
    function_name: String,
    #[schema(value_type = words::JobRunStatus)]
    status: JobRunStatus,
    count: i64,
    avg_duration_ms: Option<f64>,
    max_duration_ms: Option<i32>,
    /// Number of job runs that were retried.
    retried_count: i64,
}

impl From<Health> for FunctionHealth {
    fn from(health: Health) -> Self {
        Self {
            function_name: health.function_name,
            status: health.status,
            count: health.count,
            avg_duration_ms: health.avg_duration_ms,
            max_duration_ms: health.max_duration_ms,
            retried_count: health.retried_count,
        }
    }
}

/// The three numbers that `detect-alerts` watches, at this moment, by the thresholds of its schedule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobThresholds {
    /// Runs of the last day that are failed.
    failed_24h: Threshold,
    /// Runs that have been running for longer than they may, which is 30 minutes unless the schedule says otherwise.
    long_running: Threshold,
    /// The share of the last day's runs that were retried.
    retry_rate: Threshold,
}

/// A number, and the largest value that is not an alert.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = JobThreshold)]
pub(crate) struct Threshold {
    value: f64,
    threshold: f64,
    /// Whether it is an alert.
    crossed: bool,
}

impl Threshold {
    fn of(value: f64, threshold: f64) -> Self {
        Self { value, threshold, crossed: value > threshold }
    }
}

impl JobThresholds {
    #[expect(clippy::cast_precision_loss, reason = "numbers of runs are far smaller")]
    fn of(day: &Day, rules: &AlertRules) -> Self {
        Self {
            failed_24h: Threshold::of(day.failed as f64, rules.failed_max.into()),
            long_running: Threshold::of(day.long_running as f64, 0.0),
            retry_rate: Threshold::of(day.retry_rate(), rules.retry_rate_max),
        }
    }
}

/// Shows the health of the tenant's jobs.
#[utoipa::path(
    get,
    path = "/jobs/health",
    operation_id = "job_health",
    tag = "jobs",
    responses((status = 200, description = "The job runs of the last day, and the numbers behind alerts at this moment", body = JobHealth)),
)]
pub(crate) async fn show(State(app): State<App>, Viewer(caller): Viewer) -> ApiResult<Json<JobHealth>> {
    let mut transaction = pool::begin_snapshot(&app.pool, caller.tenant_id).await?;
    let functions = runs::health(&mut transaction, caller.tenant_id).await?;
    let rules = alerts::rules(&mut transaction, caller.tenant_id).await?;
    let day = runs::day(&mut transaction, caller.tenant_id, rules.running_max()).await?;
    pool::commit(transaction).await?;
    let functions = functions.into_iter().map(FunctionHealth::from).collect();
    Ok(Json(JobHealth { functions, alerts: JobThresholds::of(&day, &rules) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_crossed_by_more_than_it_allows() {
        let crossed = |failed, long_running, retried, total| {
            let alerts =
                JobThresholds::of(&Day { failed, long_running, retried, total }, &AlertRules::default());
            [alerts.failed_24h, alerts.long_running, alerts.retry_rate].map(|alert| alert.crossed)
        };
        assert_eq!(crossed(0, 0, 0, 0), [false, false, false]);
        assert_eq!(crossed(5, 0, 1, 10), [false, false, false]);
        assert_eq!(crossed(6, 1, 2, 19), [true, true, true]);
    }
}

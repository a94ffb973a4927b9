//! How jobs are doing, beside what raises alerts.

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use postrider_engine::jobs::builtin::DETECT_ALERTS;
use postrider_model::job::JobRunStatus;
use postrider_store::{
    PgConnection,
    job_runs::{self, Health, RunFilter},
    schedules,
    tenants::Tenant,
};
use serde::Serialize;
use serde_json::Value;

use super::super::{ForTenant, output, with_installation};
use crate::config::Config;

/// Most runs under way that are looked at.
const RUNNING_MAX: i64 = 10_000;

#[derive(Args)]
pub struct HealthArgs {
    #[command(flatten)]
    of: ForTenant,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// A number, and from where on it is an alert.
#[derive(Serialize)]
struct Threshold {
    rule: &'static str,
    what: &'static str,
    value: f64,
    threshold: f64,
    is_exceeded: bool,
    #[serde(skip)]
    shown: [String; 2],
}

pub async fn health(args: &HealthArgs, config: &Config) -> anyhow::Result<()> {
    let (health, thresholds) = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
        let health = job_runs::health(&mut transaction, tenant.id).await?;
        let thresholds = thresholds(&mut transaction, &tenant, &health).await?;
        Ok((health, thresholds))
    })
    .await?;
    if args.json {
        return output::json(&serde_json::json!({ "functions": health, "thresholds": thresholds }));
    }
    let milliseconds = |value: Option<String>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"));
    let rows = health
        .iter()
        .map(|row| {
            [
                row.function_name.clone(),
                row.status.to_string(),
                row.count.to_string(),
                milliseconds(row.avg_duration_ms.map(|average| format!("{average:.1}"))),
                milliseconds(row.max_duration_ms.map(|longest| longest.to_string())),
                row.retried_count.to_string(),
            ]
        })
        .collect();
    output::table(
        ["function", "status", "count", "avg duration", "max duration", "retried"],
        rows,
        "nothing has run in the last 24 hours",
    )?;
    if !health.is_empty() {
        output::line("")?;
    }
    let rows = thresholds
        .iter()
        .map(|threshold| {
            let [value, most] = threshold.shown.clone();
            let verdict = if threshold.is_exceeded { "ALERT" } else { "ok" };
            [threshold.what.to_owned(), value, most, verdict.to_owned()]
        })
        .collect();
    output::table(["what", "now", "alert over", ""], rows, "")
}

/// The three rules of `detect-alerts`, as its schedule sets them.
async fn thresholds(
    connection: &mut PgConnection,
    tenant: &Tenant,
    health: &[Health],
) -> anyhow::Result<[Threshold; 3]> {
    let schedule = schedules::page(connection, tenant.id, Some(DETECT_ALERTS), None, 1).await?.pop();
    let set = schedule.and_then(|schedule| schedule.input).unwrap_or(Value::Null);
    let most = |name: &str, default: f64| set[name].as_f64().unwrap_or(default);
    let (failed_max, minutes_max, rate_max) =
        (most("failed_max", 5.0), most("running_minutes_max", 30.0), most("retry_rate_max", 0.1));

    let total: i64 = health.iter().map(|row| row.count).sum();
    let failed: i64 =
        health.iter().filter(|row| row.status == JobRunStatus::Failed).map(|row| row.count).sum();
    let retried: i64 = health.iter().map(|row| row.retried_count).sum();
    let rate = if total == 0 { 0.0 } else { number(retried) / number(total) };
    let limit = SignedDuration::try_from_secs_f64(minutes_max * 60.0)?;
    let since: Timestamp = schedules::now(connection).await?.checked_sub(limit)?;
    let running = RunFilter { status: Some(JobRunStatus::Running), ..RunFilter::default() };
    let running = job_runs::page(connection, tenant.id, running, None, RUNNING_MAX).await?;
    let long: i64 = running.iter().filter(|run| run.started_at < since).map(|_| 1).sum();
    Ok([
        Threshold {
            rule: "failed-jobs",
            what: "failed in 24 hours",
            value: number(failed),
            threshold: failed_max,
            is_exceeded: number(failed) > failed_max,
            shown: [failed.to_string(), failed_max.to_string()],
        },
        Threshold {
            rule: "long-running-jobs",
            what: "running for too long",
            value: number(long),
            threshold: 0.0,
            is_exceeded: long > 0,
            shown: [long.to_string(), format!("0, after {minutes_max} min")],
        },
        Threshold {
            rule: "retry-rate",
            what: "retried in 24 hours",
            value: rate,
            threshold: rate_max,
            is_exceeded: rate > rate_max,
            shown: [format!("{:.1} %", rate * 100.0), format!("{} %", rate_max * 100.0)],
        },
    ])
}

/// Counts are far below what a float holds exactly.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn number(count: i64) -> f64 {
    count as f64
}

//! `postrider jobs health`: statistics of job runs beside the thresholds of alerts.

use clap::Args;
use postrider_model::jobs::AlertRules;
use postrider_store::{
    PgConnection,
    jobs::{alerts, runs},
    tenancy::tenants::Tenant,
};
use serde::Serialize;

use super::super::{ForTenant, output, with_installation};
use crate::config::Config;

#[derive(Args)]
pub struct HealthArgs {
    #[command(flatten)]
    of: ForTenant,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A number, and the threshold above which it raises an alert.
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
        let health = runs::health(&mut transaction, tenant.id).await?;
        let thresholds = thresholds(&mut transaction, &tenant).await?;
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
        "no function has run in the last 24 hours",
    )?;
    if !health.is_empty() {
        output::line("")?;
    }
    let rows = thresholds
        .iter()
        .map(|threshold| {
            let [value, most] = threshold.shown.clone();
            let mark = if threshold.is_exceeded { "ALERT" } else { "ok" };
            [threshold.what.to_owned(), value, most, mark.to_owned()]
        })
        .collect();
    output::table(["what", "now", "alert over", ""], rows, "")
}

/// The three rules of `detect-alerts`, as its schedule sets them.
async fn thresholds(connection: &mut PgConnection, tenant: &Tenant) -> anyhow::Result<[Threshold; 3]> {
    let rules = alerts::rules(connection, tenant.id).await?;
    let day = runs::day(connection, tenant.id, rules.running_max()).await?;
    let AlertRules { failed_max, running_minutes_max, retry_rate_max } = rules;
    Ok([
        Threshold {
            rule: "failed-jobs",
            what: "failed in 24 hours",
            value: number(day.failed),
            threshold: failed_max.into(),
            is_exceeded: day.failed > failed_max.into(),
            shown: [day.failed.to_string(), failed_max.to_string()],
        },
        Threshold {
            rule: "long-running-jobs",
            what: "running for too long",
            value: number(day.long_running),
            threshold: 0.0,
            is_exceeded: day.long_running > 0,
            shown: [day.long_running.to_string(), format!("0, after {running_minutes_max} min")],
        },
        Threshold {
            rule: "retry-rate",
            what: "retried in 24 hours",
            value: day.retry_rate(),
            threshold: retry_rate_max,
            is_exceeded: day.retry_rate() > retry_rate_max,
            shown: [format!("{:.1} %", day.retry_rate() * 100.0), format!("{} %", retry_rate_max * 100.0)],
        },
    ])
}

/// Counts are far below what a float holds exactly.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn number(count: i64) -> f64 {
    count as f64
}

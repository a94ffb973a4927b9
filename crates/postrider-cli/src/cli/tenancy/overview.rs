//! `postrider overview`: the numbers of a tenant that say whether something is wrong.

use clap::Args;
use postrider_api::{Overview, Overviews};
use postrider_store::postgres::pool;

use super::super::{ForTenant, output, with_installation};
use crate::{config::Config, wire};

#[derive(Args)]
pub struct OverviewArgs {
    #[command(flatten)]
    of: ForTenant,
    /// Print JSON, as `GET /api/v2/overview` returns it
    #[arg(long)]
    json: bool,
}

pub async fn run(args: &OverviewArgs, config: &Config) -> anyhow::Result<()> {
    let adapters = wire::adapters(config)?;
    let overview = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (transaction, tenant) = args.of.begin(&pool, installation).await?;
        pool::commit(transaction).await?;
        let overviews = Overviews::new(pool, &adapters, wire::stuck_after(config));
        Ok(overviews.read_numbers(tenant.id).await?)
    })
    .await?;
    if args.json {
        return output::json(&overview);
    }
    output::table(["what", "number", "oldest"], rows(&overview), "")
}

fn rows(overview: &Overview) -> Vec<[String; 3]> {
    let Overview { phases, items, jobs, accounts, replies, messages, events, .. } = overview;
    let Overview { job_runs, schedules, attention, .. } = overview;
    let rows: [(&str, &str, i64, Option<i64>); 33] = [
        ("items in doubt", "items.in_doubt", items.in_doubt, items.oldest_doubt_seconds),
        ("items in doubt for a person", "items.in_doubt_for_person", items.in_doubt_for_person, None),
        ("dead letters", "attention.sync_errors", attention.sync_errors, attention.oldest_sync_error_seconds),
        (
            "decision cards",
            "attention.decision_cards",
            attention.decision_cards,
            attention.oldest_decision_card_seconds,
        ),
        ("alerts", "attention.alerts", attention.alerts, None),
        ("dead replies", "replies.dead", replies.dead, replies.oldest_dead_seconds),
        (
            "messages that failed",
            "messages.dispatch_failed",
            messages.dispatch_failed,
            messages.oldest_failed_seconds,
        ),
        ("stuck events", "events.stuck", events.stuck, None),
        ("failed phases", "phases.failed", phases.failed, phases.oldest_failed_seconds),
        ("open circuits", "accounts.circuit_open", accounts.circuit_open, None),
        ("long job runs", "job_runs.long_running", job_runs.long_running, None),
        ("phases in progress", "phases.in_progress", phases.in_progress, None),
        ("paused phases", "phases.paused", phases.paused, None),
        ("phases not started", "phases.not_started", phases.not_started, None),
        ("items in flight", "items.in_flight", items.in_flight, None),
        ("send jobs waiting", "jobs.waiting", jobs.waiting, None),
        ("send jobs locked", "jobs.locked", jobs.locked, jobs.oldest_lock_seconds),
        ("send jobs put off", "jobs.put_off", jobs.put_off, None),
        ("accounts", "accounts.total", accounts.total, None),
        ("accounts waiting", "accounts.waiting", accounts.waiting, None),
        ("replies pending", "replies.pending", replies.pending, replies.oldest_seconds),
        ("replies due", "replies.due", replies.due, None),
        ("replies retrying", "replies.retrying", replies.retrying, None),
        ("replies in doubt", "replies.in_doubt", replies.in_doubt, None),
        ("messages unfinished", "messages.unfinished", messages.unfinished, None),
        ("events pending", "events.pending", events.pending, events.oldest_ready_seconds),
        ("job runs running", "job_runs.running", job_runs.running, None),
        ("job runs waiting", "job_runs.waiting", job_runs.waiting, None),
        ("job runs to retry", "job_runs.retry_pending", job_runs.retry_pending, None),
        ("job runs in 24 hours", "job_runs.total_24h", job_runs.total_24h, None),
        ("failed job runs in 24 hours", "job_runs.failed_24h", job_runs.failed_24h, None),
        ("schedules enabled", "schedules.enabled", schedules.enabled, schedules.overdue_seconds),
        ("firings waiting", "schedules.firings_waiting", schedules.firings_waiting, None),
    ];
    rows.into_iter()
        .map(|(what, name, number, oldest)| {
            let more = if overview.capped.iter().any(|capped| capped == name) { " or more" } else { "" };
            [what.to_owned(), format!("{number}{more}"), oldest.map_or_else(|| "-".to_owned(), age)]
        })
        .collect()
}

/// An age as people read it.
fn age(seconds: i64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, _, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_two_units() {
        assert_eq!(
            [0, 59, 60, 3725, 86_399, 90_061].map(age),
            ["0 s", "59 s", "1 min 0 s", "1 h 2 min", "23 h 59 min", "1 d 1 h"]
        );
    }
}

//! Keeps what this process runs, lets go of what was cancelled, and fails what dead processes left.

use std::{sync::Arc, time::Duration};

use postrider_model::ids::TenantId;
use postrider_store::{Pool, StoreError, job_runs, pool, wakeups::Wakeups};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::{step::within, vital::vital};

/// A cancelled run is let go of within this time, whatever the lease is: the hint may be lost.
const EVERY_MAX: Duration = Duration::from_secs(5);

/// Runs recovered in one transaction.
const BATCH: i32 = 100;

/// How often the jobs are measured for the metrics.
const MEASURE_EVERY: Duration = Duration::from_secs(30);

pub(super) struct Keeper {
    shared: Arc<Shared>,
    cancels: Wakeups,
    /// A few times within the lease, so that one lost heartbeat is none.
    every: Duration,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, cancels: Wakeups) -> Self {
        let every = (shared.settings.lease / 6).clamp(Duration::from_millis(50), EVERY_MAX);
        Self { shared, cancels, every }
    }

    pub(super) async fn run(mut self, over: CancellationToken) {
        let measuring =
            tokio::spawn(vital("what measures runs", measure(self.shared.pool.clone(), over.clone())));
        while !over.is_cancelled() {
            let begun = Instant::now();
            self.cancels.mark_unchanged();
            match self.beat().await {
                // Who could not be heard must not take it for the silence of others: its own runs would be among them.
                Err(error) => tracing::warn!(?error, "runs could not be kept: {error}"),
                Ok(()) => {
                    if let Err(error) = self.recover().await {
                        tracing::warn!(?error, "runs of dead processes wait for the next round: {error}");
                    }
                }
            }
            tokio::select! {
                () = over.cancelled() => {}
                changed = self.cancels.changed() => if changed.is_err() {
                    tokio::time::sleep_until(begun + self.every).await;
                },
                () = tokio::time::sleep_until(begun + self.every) => {}
            }
        }
        let _ = measuring.await;
    }

    async fn beat(&self) -> Result<(), StoreError> {
        let held = self.shared.held.all();
        if held.is_empty() {
            return Ok(());
        }
        let kept = within(job_runs::heartbeat(&self.shared.pool, &self.shared.name, &held)).await?;
        for (run, claim) in held {
            // What has just ended is not held either: then nobody waits for the token.
            if !kept.contains(&run) && self.shared.held.lose(run, claim) {
                tracing::debug!(job_id = %run.id.0, "a run is not this runner's any more");
            }
        }
        Ok(())
    }

    async fn recover(&self) -> Result<(), StoreError> {
        let lease = self.shared.settings.lease;
        let mut recovered = Ok(());
        // A tenant whose runs cannot be recovered does not delay the others.
        for tenant in within(job_runs::stale_tenants(&self.shared.pool, lease)).await? {
            recovered = recovered.and(self.recover_of(tenant, lease).await);
        }
        recovered
    }

    async fn recover_of(&self, tenant: TenantId, lease: Duration) -> Result<(), StoreError> {
        loop {
            let recovered = within(job_runs::recover(&self.shared.pool, tenant, lease, BATCH)).await?;
            for run in &recovered {
                tracing::warn!(tenant_id = %tenant.0, job_id = %run.id.0, function = run.function_name, worker = run.worker, retry_at = run.retry_at.map(tracing::field::display), "the process of a run went away");
            }
            metrics::counter!("postrider_job_runs_total", "as" => "recovered")
                .increment(recovered.len() as u64);
            if recovered.iter().any(|run| run.retry_at.is_none()) {
                self.shared.ends.send();
            }
            if recovered.len() < BATCH as usize {
                return Ok(());
            }
        }
    }
}

async fn measure(pool: Pool, over: CancellationToken) {
    loop {
        if let Err(error) = within(measure_once(&pool)).await {
            tracing::debug!(?error, "the jobs could not be measured");
        }
        tokio::select! {
            () = over.cancelled() => return,
            () = tokio::time::sleep(MEASURE_EVERY) => {}
        }
    }
}

async fn measure_once(pool: &Pool) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let standing = job_runs::measure(&mut transaction).await?;
    pool::commit(transaction).await?;
    let share = |part: i64, of: i64| if of > 0 { part as f64 / of as f64 } else { 0.0 };
    let retry_rate = share(standing.retried_day, standing.total_day);
    metrics::gauge!("postrider_job_runs_waiting").set(standing.waiting as f64);
    metrics::gauge!("postrider_job_runs_running").set(standing.running as f64);
    metrics::gauge!("postrider_job_runs_retry_pending").set(standing.retry_pending as f64);
    metrics::gauge!("postrider_job_runs_failed_24h").set(standing.failed_day as f64);
    metrics::gauge!("postrider_job_runs_24h").set(standing.total_day as f64);
    metrics::gauge!("postrider_job_runs_retry_rate_24h").set(retry_rate);
    metrics::gauge!("postrider_job_runs_long_running").set(standing.long_running as f64);
    metrics::gauge!("postrider_job_runs_oldest_heartbeat_seconds").set(standing.oldest_heartbeat_seconds);
    metrics::gauge!("postrider_schedules_overdue_seconds").set(standing.overdue_seconds);
    metrics::gauge!("postrider_schedule_firings_waiting").set(standing.waiting_firings as f64);
    metrics::gauge!("postrider_sync_errors_open").set(standing.open_errors as f64);
    metrics::gauge!("postrider_alerts_open").set(standing.open_alerts as f64);
    metrics::gauge!("postrider_alert_notifications_in_doubt").set(standing.doubtful_notifications as f64);
    Ok(())
}

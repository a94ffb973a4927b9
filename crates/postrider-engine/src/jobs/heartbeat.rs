//! Renews the claims of this process by heartbeats, cancels the tasks of lost runs, and recovers the runs of dead processes.

use std::{sync::Arc, time::Duration};

use postrider_model::ids::TenantId;
use postrider_store::{
    Pool, StoreError,
    jobs::runs,
    postgres::{pool, wakeups::Wakeups},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::common::{
    periodic::{at_interval, work_or_poll},
    round::within,
    supervised::supervised,
};

/// Maximum heartbeat interval. A heartbeat also finds cancelled runs, whose hint may be lost, so their tasks end within this time.
const EVERY_MAX: Duration = Duration::from_secs(5);

/// Maximum runs recovered in one transaction.
const BATCH: i32 = 100;

/// Interval of the job metrics.
const MEASURE_EVERY: Duration = Duration::from_secs(30);

pub(super) struct Heartbeat {
    shared: Arc<Shared>,
    cancels: Wakeups,
    /// The heartbeat interval: several times within the lease, so that one lost heartbeat does no harm.
    every: Duration,
}

impl Heartbeat {
    pub(super) fn new(shared: Arc<Shared>, cancels: Wakeups) -> Self {
        let every = (shared.settings.lease / 6).clamp(Duration::from_millis(50), EVERY_MAX);
        Self { shared, cancels, every }
    }

    /// Runs until `finished`.
    pub(super) async fn run(mut self, finished: CancellationToken) {
        let pool = self.shared.pool.clone();
        let measuring = tokio::spawn(supervised(
            "job meter",
            at_interval(MEASURE_EVERY, finished.clone(), move || measure(pool.clone())),
        ));
        while !finished.is_cancelled() {
            let begun = Instant::now();
            self.cancels.mark_unchanged();
            match self.renew().await {
                // Recover the runs of other processes only after our own heartbeat succeeded; otherwise a database outage would make us
                // fail our own runs.
                Err(error) => tracing::warn!(?error, "the heartbeat of job runs failed: {error}"),
                Ok(()) => {
                    if let Err(error) = self.recover().await {
                        tracing::warn!(?error, "failed to recover runs of dead processes; retrying: {error}");
                    }
                }
            }
            let rest = self.every.saturating_sub(begun.elapsed());
            tokio::select! {
                () = finished.cancelled() => {}
                () = work_or_poll(&mut self.cancels, rest) => {}
            }
        }
        let _ = measuring.await;
    }

    async fn renew(&self) -> Result<(), StoreError> {
        let held = self.shared.held.all();
        if held.is_empty() {
            return Ok(());
        }
        let renewed = within(runs::heartbeat(&self.shared.pool, &self.shared.name, &held)).await?;
        for (run, claim) in held {
            // The end of a run may have been recorded in the meantime; then the run is no longer held.
            if !renewed.contains(&run) && self.shared.held.lose(run, claim) {
                tracing::debug!(job_id = %run.id.0, "this runner lost a run to a cancellation or another runner");
            }
        }
        Ok(())
    }

    async fn recover(&self) -> Result<(), StoreError> {
        let lease = self.shared.settings.lease;
        let mut recovered = Ok(());
        // A tenant whose runs cannot be recovered does not delay the others.
        for tenant in within(runs::stale_tenants(&self.shared.pool, lease)).await? {
            recovered = recovered.and(self.recover_of(tenant, lease).await);
        }
        recovered
    }

    async fn recover_of(&self, tenant: TenantId, lease: Duration) -> Result<(), StoreError> {
        loop {
            let recovered = within(runs::recover(&self.shared.pool, tenant, lease, BATCH)).await?;
            for run in &recovered {
                tracing::warn!(tenant_id = %tenant.0, job_id = %run.id.0, function = run.function_name, worker = run.worker, retry_at = run.retry_at.map(tracing::field::display), "a run was recovered from a dead process");
            }
            metrics::counter!("postrider_job_runs_total", "as" => "recovered")
                .increment(recovered.len() as u64);
            if recovered.iter().any(|run| run.retry_at.is_none()) {
                self.shared.end_hints.send();
            }
            if recovered.len() < BATCH as usize {
                return Ok(());
            }
        }
    }
}

async fn measure(pool: Pool) {
    if let Err(error) = within(measure_once(&pool)).await {
        tracing::debug!(?error, "failed to measure the job runs");
    }
}

async fn measure_once(pool: &Pool) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let standing = runs::measure(&mut transaction).await?;
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

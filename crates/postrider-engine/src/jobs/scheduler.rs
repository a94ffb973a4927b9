//! The scheduler fires due schedules, and starts the runs of firings whose dependencies have ended.
//!
//! Schedulers have no leader and do not use their own clock. The database's clock decides which schedules are due, and the next firing
//! follows from the stored one. A firing is a row under a unique key, inserted in the transaction that advances the schedule, so exactly
//! one of several schedulers fires it (docs/decisions/0016-a-run-is-picked-up-and-grains-are-those-of-utc.md).

use std::{collections::HashMap, time::Duration};

use jiff::SignedDuration;
use postrider_model::{
    ids::{ScheduleId, TenantId},
    jobs::schedule::{Cron, Misfire, Plan, Policy, Timing, Zone, plan},
};
use postrider_store::{
    Pool, StoreError,
    jobs::schedules::{self, DueSchedule, Fire},
    postgres::wakeups::Wakeups,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::common::{health::Health, round::within, wakeup::Hints};

/// Maximum schedules per read, in total and per tenant.
const BATCH: i32 = 100;
const PER_TENANT: i32 = 20;
/// Backoff of a schedule that this process failed to fire, so that it does not delay others.
const FAILED_BACKOFF: Duration = Duration::from_secs(60);
/// Minimum time between two rounds without work: every ended run is a hint that a waiting firing may start.
const ROUND_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Maximum firings of one schedule per transaction.
const FIRINGS_MAX: usize = 100;

/// Settings of the scheduler.
#[derive(Debug, Clone)]
pub struct SchedulerSettings {
    /// Time between rounds without a hint.
    pub poll_interval: Duration,
    /// Maximum delay of a firing that still counts as on time.
    pub misfire_grace: Duration,
    /// Maximum time for which a firing waits for its dependencies.
    pub dependency_patience: Duration,
}

/// One scheduler.
pub struct Scheduler {
    /// Connections of the worker.
    pub pool: Pool,
    /// Hints that runs have ended, so that firings which depend on them may start.
    pub ends: Wakeups,
    /// Hints to runners that runs are due.
    pub runs: Hints,
    /// Settings of the scheduler.
    pub settings: SchedulerSettings,
    /// The health of the scheduler.
    pub health: Health,
}

impl Scheduler {
    /// Fires schedules until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tracing::info!("the scheduler is running");
        let mut unfit = HashMap::new();
        while !shutdown.is_cancelled() {
            self.ends.mark_unchanged();
            let fired = self.fire_due(&mut unfit).await.inspect_err(|error| {
                tracing::error!(
                    ?error,
                    "the scheduler failed to fire schedules; retrying in the next round: {error}"
                );
            });
            let started = self.fire_waiting().await.inspect_err(|error| {
                tracing::error!(?error, "failed to check waiting firings; retrying next time: {error}");
            });
            // A round failed if either part did.
            match fired.as_ref().err().or(started.as_ref().err()) {
                None => self.health.passed(),
                Some(error) => self.health.failed(error),
            }
            let (fired, started) = (fired.unwrap_or_default(), started.unwrap_or_default());
            if fired.runs + started > 0 {
                self.runs.send();
            }
            if fired.is_full || started >= BATCH {
                continue;
            }
            tokio::time::sleep(ROUND_INTERVAL_MIN).await;
            tokio::select! {
                () = shutdown.cancelled() => {}
                Ok(()) = self.ends.changed() => {}
                () = tokio::time::sleep(self.settings.poll_interval) => {}
            }
        }
        tracing::info!("the scheduler has stopped");
    }

    /// Checks a batch of waiting firings, tenant by tenant. Returns the number of new runs.
    async fn fire_waiting(&self) -> Result<i32, StoreError> {
        let mut started = 0;
        for (tenant, firings) in within(schedules::waiting_tenants(&self.pool, BATCH)).await? {
            let wait_max = self.settings.dependency_patience;
            match within(schedules::fire_waiting(&self.pool, tenant, firings, wait_max)).await {
                Ok(runs) => started += runs,
                // The scheduler continues with the other tenants, and sends hints for the started runs.
                Err(error) => {
                    tracing::error!(tenant_id = %tenant.0, ?error, "failed to check the waiting firings of a tenant; retrying next time: {error}");
                }
            }
        }
        Ok(started)
    }

    /// Fires a batch of due schedules.
    async fn fire_due(
        &self,
        unfit: &mut HashMap<(TenantId, ScheduleId), Instant>,
    ) -> Result<Fired, StoreError> {
        unfit.retain(|_, since| since.elapsed() < FAILED_BACKOFF);
        let except: Vec<(TenantId, ScheduleId)> = unfit.keys().copied().collect();
        let due = within(schedules::due(&self.pool, BATCH, PER_TENANT, &except)).await?;
        let mut fired = Fired { runs: 0, is_full: may_have_more(&due) };
        let mut has_advanced = false;
        for schedule in &due {
            match self.fire(schedule).await {
                Ok(Some((runs, is_behind))) => {
                    fired.runs += runs;
                    fired.is_full |= is_behind;
                    has_advanced = true;
                }
                // Another scheduler fired the schedule.
                Ok(None) => has_advanced = true,
                Err(error) => {
                    tracing::error!(schedule_id = %schedule.id.0, ?error, "failed to fire a schedule: {error}");
                    unfit.insert((schedule.tenant, schedule.id), Instant::now());
                }
            }
        }
        // If no schedule advanced, another round would read the same schedules.
        fired.is_full &= has_advanced;
        Ok(fired)
    }

    /// Fires one schedule. Returns the number of new runs, and whether more firings are due. `None` if another scheduler fired it.
    async fn fire(&self, schedule: &DueSchedule) -> Result<Option<(i32, bool)>, StoreError> {
        let timing = timing(schedule)?;
        let grace = SignedDuration::try_from(self.settings.misfire_grace).unwrap_or(SignedDuration::MAX);
        let misfire: Misfire = schedule.misfire.parse().map_err(unfit)?;
        let policy = Policy { misfire, grace, limit: FIRINGS_MAX };
        let Plan { run, skipped, next } = plan(&timing, &policy, schedule.due, schedule.now);
        let skipped = skipped.map(|missed| (missed.last, format!("missed {missed}: no scheduler ran then")));
        if let Some((_, why)) = &skipped {
            tracing::warn!(schedule_id = %schedule.id.0, "the scheduler skipped firings: {why}");
        }
        let fire = Fire { run: &run, skipped, next };
        let Some(runs) = within(schedules::fire(&self.pool, schedule, &fire)).await? else { return Ok(None) };
        metrics::counter!("postrider_schedule_firings_total").increment(run.len() as u64);
        tracing::info!(schedule_id = %schedule.id.0, firings = run.len(), runs, next = next.map(tracing::field::display), "a schedule fired");
        Ok(Some((runs, next.is_some_and(|next| next <= schedule.now))))
    }
}

/// Whether more schedules may be due, in total or of one tenant.
fn may_have_more(due: &[DueSchedule]) -> bool {
    let mut of_tenants: HashMap<TenantId, i32> = HashMap::new();
    due.iter().for_each(|schedule| *of_tenants.entry(schedule.tenant).or_default() += 1);
    due.len() >= BATCH as usize || of_tenants.values().any(|count| *count >= PER_TENANT)
}

#[derive(Default)]
struct Fired {
    runs: i32,
    is_full: bool,
}

/// Parses the timing of a schedule. An accepted time zone may be unknown to this version's zone database; then the schedule waits.
fn timing(schedule: &DueSchedule) -> Result<Timing, StoreError> {
    let cron: Cron = schedule.cron.parse().map_err(unfit)?;
    let zone: Zone = schedule.timezone.parse().map_err(unfit)?;
    Ok(Timing { cron, zone })
}

fn unfit(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unfit(error.to_string())
}

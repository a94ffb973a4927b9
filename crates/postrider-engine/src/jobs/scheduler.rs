//! The scheduler: fires schedules whose time has come, and goes on with firings that waited for others.
//!
//! There is no leader, and no clock here decides anything: due is what the database's clock says, the next firing follows from the one
//! that is stored, and a firing is a row under a unique key, made in the transaction that moves the schedule on. Of any number of
//! schedulers that try, one does it.

use std::{collections::HashMap, time::Duration};

use jiff::SignedDuration;
use postrider_model::{
    ids::{ScheduleId, TenantId},
    schedule::{Cron, Misfire, Plan, Policy, Timing, Zone, plan},
};
use postrider_store::{
    Pool, StoreError,
    schedules::{self, DueSchedule, Fire},
    wakeups::Wakeups,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::common::{health::Health, round::within, wakeup::Hints};

/// Schedules read at a time, and most of them of one tenant.
const BATCH: i32 = 100;
const PER_TENANT: i32 = 20;
/// A schedule that this process cannot fire is left alone for so long: it must not be in the way of others.
const LEAVE_ALONE: Duration = Duration::from_secs(60);
/// How far apart two looks are at least when there is nothing to do: every run that ends may be one that a firing waits for.
const APART: Duration = Duration::from_millis(50);
/// Most firings of one schedule in one transaction.
const FIRINGS_MAX: usize = 100;

/// What can be set.
#[derive(Debug, Clone)]
pub struct SchedulerSettings {
    /// How often to look.
    pub poll_interval: Duration,
    /// A firing that is late by no more than this is not late.
    pub misfire_grace: Duration,
    /// How long a firing waits for what it depends on.
    pub dependency_patience: Duration,
}

/// One scheduler.
pub struct Scheduler {
    /// Connections of the worker.
    pub pool: Pool,
    /// Says that runs have ended: what waited for them may go on.
    pub ends: Wakeups,
    /// To say that there are runs.
    pub runs: Hints,
    /// What can be set.
    pub settings: SchedulerSettings,
    /// Whether it can work.
    pub health: Health,
}

impl Scheduler {
    /// Fires until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tracing::info!("the scheduler is running");
        let mut unfit = HashMap::new();
        while !shutdown.is_cancelled() {
            self.ends.mark_unchanged();
            let fired = self.fire_due(&mut unfit).await.inspect_err(|error| {
                tracing::error!(
                    ?error,
                    "the scheduler failed to fire schedules; they wait for the next round: {error}"
                );
            });
            let went_on = self.fire_waiting().await.inspect_err(|error| {
                tracing::error!(?error, "firings that waited wait for the next round: {error}");
            });
            // A pass failed if either part did.
            match fired.as_ref().err().or(went_on.as_ref().err()) {
                None => self.health.passed(),
                Some(error) => self.health.failed(error),
            }
            let (fired, went_on) = (fired.unwrap_or_default(), went_on.unwrap_or_default());
            if fired.runs + went_on > 0 {
                self.runs.send();
            }
            if fired.is_full || went_on >= BATCH {
                continue;
            }
            tokio::time::sleep(APART).await;
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
            let patience = self.settings.dependency_patience;
            match within(schedules::fire_waiting(&self.pool, tenant, firings, patience)).await {
                Ok(runs) => started += runs,
                // The other tenants go on, and runs that were started are announced.
                Err(error) => {
                    tracing::error!(tenant_id = %tenant.0, ?error, "the firings of a tenant wait for the next round: {error}");
                }
            }
        }
        Ok(started)
    }

    /// Fires every schedule of a batch that is due.
    async fn fire_due(
        &self,
        unfit: &mut HashMap<(TenantId, ScheduleId), Instant>,
    ) -> Result<Fired, StoreError> {
        unfit.retain(|_, since| since.elapsed() < LEAVE_ALONE);
        let except: Vec<(TenantId, ScheduleId)> = unfit.keys().copied().collect();
        let due = within(schedules::due(&self.pool, BATCH, PER_TENANT, &except)).await?;
        let mut fired = Fired { runs: 0, is_full: leaves_some(&due) };
        let mut is_moving = false;
        for schedule in &due {
            match self.fire(schedule).await {
                Ok(Some((runs, is_behind))) => {
                    fired.runs += runs;
                    fired.is_full |= is_behind;
                    is_moving = true;
                }
                // Somebody else was faster.
                Ok(None) => is_moving = true,
                Err(error) => {
                    tracing::error!(schedule_id = %schedule.id.0, ?error, "a schedule was not fired: {error}");
                    unfit.insert((schedule.tenant, schedule.id), Instant::now());
                }
            }
        }
        // Where none of them moves, looking again at once would find the same.
        fired.is_full &= is_moving;
        Ok(fired)
    }

    /// Fires one schedule: how many runs that made, and whether more of its firings are due. `None` when it was somebody else's.
    async fn fire(&self, schedule: &DueSchedule) -> Result<Option<(i32, bool)>, StoreError> {
        let timing = timing(schedule)?;
        let grace = SignedDuration::try_from(self.settings.misfire_grace).unwrap_or(SignedDuration::MAX);
        let misfire: Misfire = schedule.misfire.parse().map_err(unfit)?;
        let policy = Policy { misfire, grace, limit: FIRINGS_MAX };
        let Plan { run, skipped, next } = plan(&timing, &policy, schedule.due, schedule.now);
        let skipped = skipped.map(|skipped| (skipped.last, format!("nobody was there for {skipped}")));
        if let Some((_, why)) = &skipped {
            tracing::warn!(schedule_id = %schedule.id.0, "firings are skipped: {why}");
        }
        let fire = Fire { run: &run, skipped, next };
        let Some(runs) = within(schedules::fire(&self.pool, schedule, &fire)).await? else { return Ok(None) };
        metrics::counter!("postrider_schedule_firings_total").increment(run.len() as u64);
        tracing::info!(schedule_id = %schedule.id.0, firings = run.len(), runs, next = next.map(tracing::field::display), "a schedule fired");
        Ok(Some((runs, next.is_some_and(|next| next <= schedule.now))))
    }
}

/// Whether more may be due: of all, or of one tenant.
fn leaves_some(due: &[DueSchedule]) -> bool {
    let mut of_tenants: HashMap<TenantId, i32> = HashMap::new();
    due.iter().for_each(|schedule| *of_tenants.entry(schedule.tenant).or_default() += 1);
    due.len() >= BATCH as usize || of_tenants.values().any(|count| *count >= PER_TENANT)
}

#[derive(Default)]
struct Fired {
    runs: i32,
    is_full: bool,
}

/// What was accepted once may be unknown to another version of the zones: then the schedule waits, and says so.
fn timing(schedule: &DueSchedule) -> Result<Timing, StoreError> {
    let cron: Cron = schedule.cron.parse().map_err(unfit)?;
    let zone: Zone = schedule.timezone.parse().map_err(unfit)?;
    Ok(Timing { cron, zone })
}

fn unfit(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unfit(error.to_string())
}

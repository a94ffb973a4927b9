//! The scheduler: fires schedules whose time has come, and goes on with firings that waited for others.
//!
//! There is no leader, and no clock here decides anything: due is what the database's clock says, the next firing follows from the one
//! that is stored, and a firing is a row under a unique key, made in the transaction that moves the schedule on. Of any number of
//! schedulers that try, one does it.

use std::time::Duration;

use jiff::SignedDuration;
use postrider_model::schedule::{Cron, Plan, Policy, Timing, Zone, plan};
use postrider_store::{
    Pool, StoreError,
    schedules::{self, DueSchedule, Fire},
    wakeups::Wakeups,
};
use tokio_util::sync::CancellationToken;

use crate::{Hints, jobs::within};

/// Schedules read at a time.
const BATCH: i32 = 100;
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
}

impl Scheduler {
    /// Fires until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tracing::info!("the scheduler is running");
        while !shutdown.is_cancelled() {
            self.ends.mark_unchanged();
            let fired = match self.fire_due().await {
                Ok(fired) => fired,
                Err(error) => {
                    tracing::error!(?error, "schedules wait for the next round: {error}");
                    Fired::default()
                }
            };
            let went_on = schedules::fire_waiting(&self.pool, BATCH, self.settings.dependency_patience);
            let went_on = within(went_on).await.unwrap_or_else(|error| {
                tracing::error!(?error, "firings that waited wait for the next round: {error}");
                0
            });
            if fired.runs + went_on > 0 {
                self.runs.send();
            }
            if fired.is_full || went_on >= BATCH {
                continue;
            }
            tokio::select! {
                () = shutdown.cancelled() => {}
                changed = self.ends.changed() => if changed.is_err() {
                    tokio::time::sleep(self.settings.poll_interval).await;
                },
                () = tokio::time::sleep(self.settings.poll_interval) => {}
            }
        }
        tracing::info!("the scheduler has stopped");
    }

    /// Fires every schedule of a batch that is due.
    async fn fire_due(&self) -> Result<Fired, StoreError> {
        let due = within(schedules::due(&self.pool, BATCH)).await?;
        let mut fired = Fired { runs: 0, is_full: due.len() >= usize::try_from(BATCH).unwrap_or_default() };
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
        let policy = Policy { misfire: schedule.misfire, grace, limit: FIRINGS_MAX };
        let Plan { run, skipped, next } = plan(&timing, &policy, schedule.due, schedule.now);
        let skipped = skipped.map(|skipped| (skipped.last, format!("nobody was there for {skipped}")));
        if let Some((_, why)) = &skipped {
            tracing::warn!(schedule_id = %schedule.id.0, "firings are skipped: {why}");
        }
        let fire = Fire { run: &run, skipped, next };
        let Some(runs) = within(schedules::fire(&self.pool, schedule, &fire)).await? else { return Ok(None) };
        metrics::counter!("postrider_schedule_firings_total").increment(run.len() as u64);
        tracing::info!(schedule_id = %schedule.id.0, firings = run.len(), runs, next = ?next, "a schedule fired");
        Ok(Some((runs, next.is_some_and(|next| next <= schedule.now))))
    }
}

#[derive(Default)]
struct Fired {
    runs: i32,
    is_full: bool,
}

/// What was accepted once may be unknown to another version of the zones: then the schedule waits, and says so.
fn timing(schedule: &DueSchedule) -> Result<Timing, StoreError> {
    let cron: Cron = schedule.cron.parse().map_err(|error| StoreError::Unfit(format!("{error}")))?;
    let zone: Zone = schedule.timezone.parse().map_err(|error| StoreError::Unfit(format!("{error}")))?;
    Ok(Timing { cron, zone })
}

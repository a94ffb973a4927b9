//! Wakes the callers that wait for a run when the run run_waiters.
//!
//! One loop per process queries all awaited runs in one statement: on a hint of the runners, and twice a second. Waiting callers
//! hold no database connection. While no caller waits, the loop sends no query.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use postrider_model::ids::{JobRunId, TenantId};
use postrider_store::{
    Pool, StoreError,
    jobs::runs::{self, RunRef},
    postgres::{pool, wakeups::Wakeups},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Poll interval without a hint.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Minimum time between two polls, so that one poll finds many ended runs.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// Delay of the poll for a first waiter, unless a hint comes earlier: hardly any run ends sooner.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// Maximum number of runs in one statement.
const ASKED_MAX: usize = 1_000;
/// Maximum concurrent waiters, in total and per tenant; each holds a connection. Callers over the limit get a response without waiting.
const WAITERS_MAX: usize = 10_000;
const WAITERS_PER_TENANT_MAX: usize = 500;

/// The awaited runs and their waiters.
#[derive(Clone)]
pub struct RunWaiters(Arc<Shared>);

struct Shared {
    waited: Mutex<Waited>,
    arrived: Notify,
    draining: CancellationToken,
}

#[derive(Default)]
struct Waited {
    waiters: usize,
    tenants: HashMap<TenantId, usize>,
    /// Number of waiters of a run, and the token that wakes them.
    runs: HashMap<RunRef, (usize, CancellationToken)>,
}

impl RunWaiters {
    /// Without waiters. The loop is [`RunWaiters::run`]. Once `draining` is cancelled, all waiters return.
    #[must_use]
    pub fn new(draining: CancellationToken) -> Self {
        Self(Arc::new(Shared { waited: Mutex::default(), arrived: Notify::new(), draining }))
    }

    /// Polls for ended runs until the process drains. `hints` come from [`runs::ENDS_CHANNEL`].
    pub async fn run(self, pool: Pool, mut hints: Wakeups) {
        let draining = &self.0.draining;
        while !draining.is_cancelled() {
            // Before the poll, so that a hint during the poll is not lost.
            hints.mark_unchanged();
            let asked = self.waited_for();
            if asked.is_empty() {
                tokio::select! {
                    () = draining.cancelled() => {}
                    () = self.0.arrived.notified() => self.wait_for_hint(&mut hints, FIRST_LOOK).await,
                }
                continue;
            }
            let began = Instant::now();
            if let Err(error) = self.look(&pool, &asked).await {
                tracing::warn!("failed to poll for finished runs; retrying in {LOOK_EVERY:?}: {error}");
            }
            tokio::select! {
                () = draining.cancelled() => {}
                // A poll that took long is not repeated at once: this loop has half of one connection, not all of it.
                () = tokio::time::sleep(began.elapsed().max(LOOK_PAUSE)) => self.wait_for_hint(&mut hints, LOOK_EVERY).await,
            }
        }
    }

    /// Waits for a hint, at most this long.
    async fn wait_for_hint(&self, hints: &mut Wakeups, time: Duration) {
        tokio::select! {
            () = self.0.draining.cancelled() => {}
            Ok(()) = hints.changed() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    /// Registers a waiter for a run, before the run can end. `None` when there are too many waiters.
    pub fn wait_for(&self, tenant: TenantId, run: JobRunId) -> Option<Waiter> {
        let run = RunRef { tenant, id: run };
        let mut waited = self.lock();
        let of_tenant = waited.tenants.get(&tenant).copied().unwrap_or_default();
        if waited.waiters >= WAITERS_MAX || of_tenant >= WAITERS_PER_TENANT_MAX {
            return None;
        }
        waited.waiters += 1;
        *waited.tenants.entry(tenant).or_default() += 1;
        let (count, over) = waited.runs.entry(run).or_default();
        *count += 1;
        let over = over.clone();
        drop(waited);
        self.0.arrived.notify_one();
        Some(Waiter { run_waiters: self.clone(), run, over })
    }

    async fn look(&self, pool: &Pool, asked: &[RunRef]) -> Result<(), StoreError> {
        for some in asked.chunks(ASKED_MAX) {
            let mut transaction = pool::begin_as_server(pool).await?;
            let ended = runs::which_ended(&mut transaction, some).await?;
            pool::commit(transaction).await?;
            self.notify(&ended);
        }
        Ok(())
    }

    fn notify(&self, ended: &[RunRef]) {
        let waited = self.lock();
        for (_, over) in ended.iter().filter_map(|run| waited.runs.get(run)) {
            over.cancel();
        }
    }

    /// The awaited runs that have not ended yet.
    fn waited_for(&self) -> Vec<RunRef> {
        let waited = self.lock();
        waited.runs.iter().filter(|(_, (_, over))| !over.is_cancelled()).map(|(run, _)| *run).collect()
    }

    fn leave(&self, run: RunRef) {
        let mut waited = self.lock();
        waited.waiters = waited.waiters.saturating_sub(1);
        if let Some(count) = waited.tenants.get_mut(&run.tenant) {
            *count -= 1;
            if *count == 0 {
                waited.tenants.remove(&run.tenant);
            }
        }
        if let Some((count, _)) = waited.runs.get_mut(&run) {
            *count -= 1;
            if *count == 0 {
                waited.runs.remove(&run);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waited> {
        self.0.waited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered waiter for a run. Dropping it unregisters it.
#[must_use = "dropping a waiter unregisters it"]
pub struct Waiter {
    run_waiters: RunWaiters,
    run: RunRef,
    over: CancellationToken,
}

impl Waiter {
    /// Returns when the run is over, when this time has passed, or when the process drains.
    pub async fn over_within(self, time: Duration) {
        tokio::select! {
            () = self.over.cancelled() => {}
            () = self.run_waiters.0.draining.cancelled() => {}
            () = tokio::time::sleep(time) => {}
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.run_waiters.leave(self.run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId(uuid::Uuid::nil());
    const LONG: Duration = Duration::from_secs(3600);

    /// Number of awaited runs, and number of waiters.
    fn counts(run_waiters: &RunWaiters) -> (usize, usize) {
        let waited = run_waiters.lock();
        (waited.runs.len(), waited.waiters)
    }

    #[tokio::test(start_paused = true)]
    async fn all_waiters_of_a_run_are_woken_and_removed() {
        let run_waiters = RunWaiters::new(CancellationToken::new());
        let (run, other) = (JobRunId::new(), JobRunId::new());
        let waiting: Vec<_> = (0..3).filter_map(|_| run_waiters.wait_for(TENANT, run)).collect();
        let elsewhere = run_waiters.wait_for(TENANT, other);
        let of_tenant = |id| RunRef { tenant: TENANT, id };
        let mut asked = run_waiters.waited_for();
        asked.sort();
        assert_eq!(asked, [of_tenant(run), of_tenant(other)], "each run is asked for once");

        // A run of another tenant with the same id is another run.
        run_waiters.notify(&[RunRef { tenant: TenantId::new(), id: other }]);
        run_waiters.notify(&[of_tenant(run), of_tenant(JobRunId::new())]);
        assert_eq!(run_waiters.waited_for(), [of_tenant(other)], "an ended run is not queried again");
        let began = tokio::time::Instant::now();
        for waiter in waiting {
            waiter.over_within(LONG).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(counts(&run_waiters), (1, 1));
        drop(elsewhere);
        assert_eq!(counts(&run_waiters), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_returns_at_its_timeout_or_when_the_process_drains() {
        let draining = CancellationToken::new();
        let run_waiters = RunWaiters::new(draining.clone());
        let began = tokio::time::Instant::now();
        let Some(waiter) = run_waiters.wait_for(TENANT, JobRunId::new()) else {
            unreachable!("there is room")
        };
        waiter.over_within(Duration::from_secs(2)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(2));
        draining.cancel();
        let Some(waiter) = run_waiters.wait_for(TENANT, JobRunId::new()) else {
            unreachable!("there is room")
        };
        waiter.over_within(LONG).await;
        assert_eq!(began.elapsed(), Duration::from_secs(2));
    }

    #[test]
    fn the_number_of_waiters_is_bounded() {
        let run_waiters = RunWaiters::new(CancellationToken::new());
        let of_one = |tenant| -> Vec<_> {
            (0..=WAITERS_PER_TENANT_MAX)
                .map_while(|_| run_waiters.wait_for(tenant, JobRunId::new()))
                .collect()
        };
        let all: Vec<Vec<_>> =
            (0..WAITERS_MAX / WAITERS_PER_TENANT_MAX).map(|_| of_one(TenantId::new())).collect();
        assert!(all.iter().all(|of_one| of_one.len() == WAITERS_PER_TENANT_MAX));
        assert!(run_waiters.wait_for(TENANT, JobRunId::new()).is_none());
        drop(all);
        assert!(run_waiters.wait_for(TENANT, JobRunId::new()).is_some());
        assert!(run_waiters.lock().tenants.is_empty());
    }
}

//! The state that all send jobs of the worker share.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use postrider_model::{
    ids::{AssetId, ProviderAccountId, RunId, TenantId},
    seal::MasterKey,
};
use postrider_providers::Adapters;
use postrider_store::{
    Pool, StoreError,
    campaigns::{
        limits,
        outbox::{JobHold, JobRef},
        send_jobs::{self, ClaimedJob},
    },
    tenancy::fence::Fence,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    ASK_AGAIN, CampaignSettings,
    admission::{AccountState, Bounds},
    committer::Submissions,
    render::Template,
    writing::Writing,
};
use crate::common::{health::Health, held::Held};

pub(super) struct Shared {
    pub(super) pool: Pool,
    /// New at every start, so that a process is never mistaken for a dead one of the same name.
    pub(super) worker: Arc<str>,
    pub(super) settings: CampaignSettings,
    pub(super) adapters: Adapters,
    pub(super) master_key: MasterKey,
    pub(super) submissions: Submissions,
    pub(super) writing: Arc<Writing>,
    /// Closed while the witness of the process cannot confirm that no commit is missing.
    pub(super) fence: Fence,
    pub(super) health: Health,
    pub(super) held: Held<JobRef, Claim>,
    claims: AtomicU64,
    /// By tenant and id: ids are unique within a tenant.
    accounts: Mutex<HashMap<(TenantId, ProviderAccountId), Arc<AccountState>>>,
    /// Compiled assets, by tenant and id.
    templates: Mutex<HashMap<(TenantId, AssetId), Arc<Template>>>,
    pub(super) job_ended: Notify,
    /// A circuit was opened or closed.
    pub(super) circuits_changed: Notify,
    /// No further item begins.
    pub(super) stopping: CancellationToken,
    /// Pauses end early.
    pub(super) hurry: CancellationToken,
}

/// One hold of this process on a send job. A send job that was released may be claimed again under the same attempt, so the attempt alone does not
/// tell two holds apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Claim {
    hold: JobHold,
    number: u64,
}

/// A send job that a task works on. Dropping it releases the send job, also after a panic: a lock that no task works under must not be renewed.
pub(super) struct HeldJob {
    pub(super) shared: Arc<Shared>,
    claim: Claim,
}

impl HeldJob {
    /// Holds a claimed send job. The token is cancelled when its lock is lost.
    pub(super) fn new(shared: &Arc<Shared>, hold: JobHold) -> (Self, CancellationToken) {
        let claim = Claim { hold, number: shared.claims.fetch_add(1, Ordering::Relaxed) };
        let lost = shared.held.take(hold.job(), claim);
        (Self { shared: Arc::clone(shared), claim }, lost)
    }
}

impl Drop for HeldJob {
    fn drop(&mut self) {
        self.shared.release(self.claim);
    }
}

/// Runs of slow accounts.
#[derive(Default)]
struct SlowRuns {
    /// Another send job of the account gets no slot.
    full: Vec<(TenantId, RunId)>,
    /// Another send job of the account gets a slot.
    with_slot: Vec<(TenantId, RunId)>,
}

impl Shared {
    pub(super) fn new(
        pool: Pool,
        worker: Arc<str>,
        settings: CampaignSettings,
        adapters: Adapters,
        master_key: MasterKey,
        submissions: Submissions,
        writing: Arc<Writing>,
    ) -> Self {
        Self {
            pool,
            worker,
            settings,
            adapters,
            master_key,
            submissions,
            writing,
            fence: Fence::default(),
            health: Health::new("campaigns"),
            held: Held::default(),
            claims: AtomicU64::new(0),
            accounts: Mutex::default(),
            templates: Mutex::default(),
            job_ended: Notify::new(),
            circuits_changed: Notify::new(),
            stopping: CancellationToken::new(),
            hurry: CancellationToken::new(),
        }
    }

    /// Claims as many send jobs as there are free slots: none of a tenant that has its share, and none of a slow account that has its own.
    pub(super) async fn claim(&self) -> Result<Vec<ClaimedJob>, StoreError> {
        let (free, except) = self.free_slots();
        // A worker that cannot write or reserve must not hold send jobs that other workers could do.
        if free == 0 || self.writing.is_starved() || !self.fence.is_open() {
            return Ok(Vec::new());
        }
        let slow = self.slow_runs();
        let mut claimed = Vec::new();
        if !slow.with_slot.is_empty() {
            // One at a time, because the run may have many.
            claimed = send_jobs::claim(&self.pool, &self.worker, 1, &except, &slow.full).await?;
        }
        if claimed.len() < free {
            let runs = [slow.full, slow.with_slot].concat();
            claimed.extend(
                send_jobs::claim(&self.pool, &self.worker, free - claimed.len(), &except, &runs).await?,
            );
        }
        metrics::counter!("postrider_send_jobs_claimed_total").increment(claimed.len() as u64);
        Ok(claimed)
    }

    /// How many send jobs may be claimed, and the tenants that have their share already.
    fn free_slots(&self) -> (usize, Vec<TenantId>) {
        let held = self.held.all();
        let mut of_tenant: HashMap<TenantId, usize> = HashMap::new();
        for (_, claim) in &held {
            *of_tenant.entry(claim.hold.tenant_id).or_default() += 1;
        }
        let share = self.settings.jobs_per_tenant_max;
        let (mut except, mut most) = (Vec::new(), 0);
        for (tenant, jobs) in of_tenant {
            if jobs >= share {
                except.push(tenant);
            } else {
                most = most.max(jobs);
            }
        }
        // No tenant exceeds its share by one large claim.
        (self.settings.jobs_max.saturating_sub(held.len()).min(share - most), except)
    }

    fn release(&self, claim: Claim) {
        let hold = claim.hold;
        self.held.release(hold.job(), claim);
        let now = Instant::now();
        self.accounts().retain(|_, account| {
            account.leave(hold);
            account.is_needed(now)
        });
        self.job_ended.notify_waiters();
    }

    fn accounts(&self) -> MutexGuard<'_, HashMap<(TenantId, ProviderAccountId), Arc<AccountState>>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn templates(&self) -> MutexGuard<'_, HashMap<(TenantId, AssetId), Arc<Template>>> {
        self.templates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a tenant's account, which allows so many calls at a time.
    pub(super) fn account_state(
        &self,
        tenant: TenantId,
        account: ProviderAccountId,
        concurrency: usize,
    ) -> Arc<AccountState> {
        let concurrency = concurrency.min(self.settings.account_concurrency);
        Arc::clone(
            self.accounts()
                .entry((tenant, account))
                .or_insert_with(|| Arc::new(AccountState::new(concurrency))),
        )
    }

    /// Runs whose account has more send jobs than call tokens.
    fn slow_runs(&self) -> SlowRuns {
        let (now, bounds, mut slow) = (Instant::now(), Bounds::of(&self.settings), SlowRuns::default());
        let accounts = self.accounts();
        let mut slots: Vec<_> = accounts.values().flat_map(|account| account.slow_slots(now)).collect();
        // A new send job does not replace one that has had its share: the send jobs that were released for it come first.
        slots.iter_mut().for_each(|slot| slot.has_had_its_share = false);
        for (runs, next) in accounts.values().filter_map(|account| account.slow_runs(now)) {
            let with_next = slots.iter().copied().chain([next]).collect();
            let has_slot = bounds.kept(with_next).contains(&None);
            if has_slot { &mut slow.with_slot } else { &mut slow.full }.extend(runs);
        }
        slow
    }

    /// Whether this send job is one too many for an account that is slow.
    pub(super) fn is_crowded(&self, account: &AccountState, hold: JobHold) -> bool {
        let now = Instant::now();
        if !account.is_slow(now) {
            return false;
        }
        let slots = self.accounts().values().flat_map(|account| account.slow_slots(now)).collect();
        if Bounds::of(&self.settings).kept(slots).contains(&Some(hold)) {
            return false;
        }
        // While other send jobs use the account, they find out themselves how slow it is.
        if account.is_first(hold) {
            account.note_release(now);
        }
        true
    }

    /// Learns what other processes have found about the accounts of the held send jobs.
    pub(super) async fn learn_account_states(&self) {
        let holds: Vec<JobHold> = self.held.all().into_iter().map(|(_, claim)| claim.hold).collect();
        if holds.is_empty() {
            return;
        }
        match limits::known(&self.pool, &self.worker, &holds).await {
            Ok(known) => {
                let now = Instant::now();
                for (account, state) in &*self.accounts() {
                    state.learn(now, known.get(account).copied().unwrap_or_default());
                }
            }
            Err(error) => tracing::debug!(?error, "the states of the accounts could not be read"),
        }
    }

    /// Renews the locks, and cancels the tasks of send jobs whose lock is lost.
    pub(super) async fn heartbeat(&self) {
        let held = self.held.all();
        if held.is_empty() {
            return;
        }
        let holds: Vec<JobHold> = held.iter().map(|(_, claim)| claim.hold).collect();
        match send_jobs::heartbeat(&self.pool, &self.worker, &holds).await {
            Ok(kept) => {
                // Only the claims that were held before the heartbeat: a send job that was released since may be held again.
                for (job, claim) in held.into_iter().filter(|(job, _)| !kept.contains(job)) {
                    self.held.lose(job, claim);
                }
            }
            Err(error) => tracing::warn!(error = ?error, "the heartbeat of send jobs failed: {error}"),
        }
    }

    /// Repeats a statement while the database is unavailable: an outage uses up no attempt.
    pub(super) async fn retry_while_unavailable<'a, T, F, Fut>(
        &'a self,
        mut statement: F,
    ) -> Result<T, StoreError>
    where
        F: FnMut(&'a Pool, &'a str) -> Fut,
        Fut: Future<Output = Result<T, StoreError>>,
    {
        loop {
            match statement(&self.pool, &self.worker).await {
                Err(error) if error.is_passing() => {
                    tracing::warn!(error = ?error, "a send job waits for the database: {error}");
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                result => return result,
            }
        }
    }
}

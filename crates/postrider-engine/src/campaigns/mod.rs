//! The campaign worker: whatever crashes, nobody is called twice and nobody is forgotten.
//!
//! ```text
//! claim jobs ──▶ a task per job (job.rs): plan ─▶ reserve ─▶ call ─▶ decide ─▶ settle ──▶ complete
//!     ▲              │        ▲ settlements and reservations of all jobs, a transaction for many (committer.rs)
//!     └── a job ends ◀────────┘ heartbeats keep the locks of all jobs fresh
//! ```
//!
//! What a crash can put in doubt is what is reserved, and that is what is being called: at most a window per job.

mod call;
mod committer;
mod decide;
mod failover;
mod gate;
mod hours;
mod job;
mod prepare;
mod route;
mod slow;
mod turns;
mod window;
mod writing;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use postrider_model::{
    ids::{AssetId, ProviderAccountId, RunId, TenantId},
    seal::MasterKey,
};
use postrider_providers::Adapters;
use postrider_store::{
    Pool, StoreError,
    fence::Fence,
    jobs::{self, ClaimedJob},
    limits,
    outbox::{JobHold, JobRef},
    phases,
    wakeups::Wakeups,
};
use tokio::sync::{Notify, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::decide::RetryPolicy;
use self::{
    committer::{Committer, Submissions},
    gate::Gate,
    slow::Bounds,
    writing::Writing,
};
use crate::{Health, render::Template, vital::vital};

/// How the worker behaves.
#[derive(Debug, Clone)]
pub struct CampaignSettings {
    /// Most jobs at a time.
    pub jobs_max: usize,
    /// Most of them for one tenant, so that there is room when another one comes.
    pub jobs_per_tenant_max: usize,
    /// Most items of one job that are reserved and being called: what a crash can put in doubt.
    pub window: usize,
    /// Most calls at a time with one account, where its own limits do not say less.
    pub account_concurrency: usize,
    /// How many connections write at a time.
    pub commit_connections: usize,
    /// How long one call may take.
    pub call_timeout: Duration,
    /// A call must begin within so long after its reservation, or it is not made. Far below every quiet time.
    pub call_within: Duration,
    /// What is done when provably nothing was sent.
    pub retry: RetryPolicy,
    /// So many calls of an account in a row must fail before its circuit opens.
    pub circuit_after: u32,
    /// How long a job stays away after its first attempt; each further pause is twice as long.
    pub retry_pause: Duration,
    /// How often locks are kept fresh.
    pub heartbeat_interval: Duration,
    /// How often to look for jobs without a hint.
    pub poll_interval: Duration,
}

impl Default for CampaignSettings {
    fn default() -> Self {
        Self {
            jobs_max: 16,
            jobs_per_tenant_max: 12,
            window: 64,
            account_concurrency: 64,
            commit_connections: 2,
            call_timeout: Duration::from_secs(60),
            call_within: Duration::from_secs(120),
            retry: RetryPolicy::default(),
            circuit_after: 10,
            retry_pause: Duration::from_secs(60),
            heartbeat_interval: Duration::from_secs(20),
            poll_interval: Duration::from_millis(500),
        }
    }
}

/// One worker of campaigns.
pub struct CampaignWorker {
    shared: Arc<Shared>,
    committer: Committer,
    wakeups: Wakeups,
}

/// What all jobs of the process use.
struct Shared {
    pool: Pool,
    /// New at every start, so that nobody is taken for the process that died under the same name.
    worker: Arc<str>,
    settings: CampaignSettings,
    adapters: Adapters,
    master_key: MasterKey,
    submissions: Submissions,
    writing: Arc<Writing>,
    health: Health,
    /// What is known about each account. Ids of accounts and of jobs are unique within a tenant.
    gates: Mutex<HashMap<(TenantId, ProviderAccountId), Arc<Gate>>>,
    /// Assets that were compiled already. An asset is known by its tenant and its id.
    templates: Mutex<HashMap<(TenantId, AssetId), Arc<Template>>>,
    held: Mutex<HashMap<JobRef, Held>>,
    job_ended: Notify,
    /// A circuit was opened or closed.
    circuits_changed: Notify,
    /// Nothing new is begun.
    stopping: CancellationToken,
    /// Pauses are cut short.
    hurry: CancellationToken,
}

/// Runs whose account is slow: there is no place for another job of it, or there is one.
#[derive(Default)]
struct SlowRuns {
    full: Vec<(TenantId, RunId)>,
    with_room: Vec<(TenantId, RunId)>,
}

struct Held {
    hold: JobHold,
    lost: CancellationToken,
}

/// A job in the hands of its task. It is let go when the task ends, even by a panic: a lock that nobody works under must not
/// be kept fresh.
struct Holding {
    shared: Arc<Shared>,
    hold: JobHold,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.shared.let_go(self.hold);
    }
}

/// How often this process hears what others have found out about the accounts that it uses.
const LISTEN_EVERY: Duration = Duration::from_secs(1);
/// How often campaigns say how far they are, and go on to their next phase.
const TEND_EVERY: Duration = Duration::from_millis(500);
/// How much time lies between two claims while most places are taken.
const CLAIMS_APART: Duration = Duration::from_millis(50);
/// How often the backlog is measured for the metrics.
const MEASURE_EVERY: Duration = Duration::from_secs(15);
/// How long to wait before the database is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Submissions that may wait for the committer: a few per job.
const SUBMISSIONS_MAX: usize = 256;

impl CampaignWorker {
    /// A worker. `writes` are connections for the committer alone, so that an outcome never waits for a read.
    #[must_use]
    pub fn new(
        pool: Pool,
        writes: Pool,
        wakeups: Wakeups,
        adapters: Adapters,
        master_key: MasterKey,
        settings: CampaignSettings,
    ) -> Self {
        let worker: Arc<str> = format!("worker-{}", uuid::Uuid::now_v7()).into();
        let (submissions, queue) = mpsc::channel(SUBMISSIONS_MAX);
        let writing = Arc::new(Writing::new(writes, pool.clone()));
        let committer = Committer::new(Arc::clone(&writing), Arc::clone(&worker), queue);
        let shared = Arc::new(Shared {
            pool,
            worker,
            settings,
            adapters,
            master_key,
            submissions,
            writing,
            health: Health::new("campaigns"),
            gates: Mutex::default(),
            templates: Mutex::default(),
            held: Mutex::default(),
            job_ended: Notify::new(),
            circuits_changed: Notify::new(),
            stopping: CancellationToken::new(),
            hurry: CancellationToken::new(),
        });
        Self { shared, committer, wakeups }
    }

    /// Whether its loops can work, once it runs.
    #[must_use]
    pub fn health(&self) -> [Health; 2] {
        [self.shared.health.clone(), self.shared.writing.health.clone()]
    }

    /// Reserves only while this fence is open.
    #[must_use]
    pub fn fenced(self, fence: Fence) -> Self {
        Self { committer: self.committer.fenced(fence), ..self }
    }

    /// Works until shutdown; then finishes the calls that are under way and hands back the rest.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { shared, committer, mut wakeups } = self;
        tracing::info!(worker = %shared.worker, "the campaign worker is running");
        metrics::counter!("postrider_send_jobs_claimed_total").increment(0);
        metrics::counter!("postrider_commits_total").increment(0);
        let committing = TaskTracker::new();
        for _ in 0..shared.settings.commit_connections.max(1) {
            committing.spawn(vital("the committer", committer.clone().run()));
        }
        drop(committer);
        let background = TaskTracker::new();
        let ended = CancellationToken::new();
        background.spawn(vital("the heartbeat of jobs", heartbeats(Arc::clone(&shared), ended.clone())));
        background.spawn(vital("what measures jobs", measure(Arc::clone(&shared), ended.clone())));
        background.spawn(vital("what listens for limits", listen(Arc::clone(&shared), ended.clone())));
        background.spawn(vital("what tends phases", tend(Arc::clone(&shared), ended.clone())));
        let writing = Arc::clone(&shared.writing);
        let watching = ended.clone();
        background
            .spawn(vital("the watch of write connections", async move { writing.watch(watching).await }));
        let jobs = TaskTracker::new();
        let mut was_away = false;
        let mut claimed_at: Option<Instant> = None;

        while !shutdown.is_cancelled() {
            // Where jobs end quickly, one question is for several. Those under way keep everybody busy meanwhile.
            if let Some(rest) = claimed_at.and_then(|at| CLAIMS_APART.checked_sub(at.elapsed()))
                && shared.held().len() > shared.settings.jobs_max / 2
            {
                tokio::time::sleep(rest).await;
            }
            claimed_at = Some(Instant::now());
            // Before the claim, so that a hint during the claim is not lost.
            wakeups.mark_unchanged();
            let job_ended = shared.job_ended.notified();
            if was_away {
                // Before the claim, which would take our own jobs for those of a worker that died.
                shared.beat().await;
            }
            match shared.claim().await {
                Ok(claimed) if !claimed.is_empty() => {
                    shared.health.passed();
                    for job in claimed {
                        let lost = shared.hold(job.hold);
                        let holding = Holding { shared: Arc::clone(&shared), hold: job.hold };
                        jobs.spawn(async move { job::work(&holding.shared, job, lost).await });
                    }
                    continue;
                }
                Ok(_) => {
                    was_away = false;
                    shared.health.passed();
                }
                Err(error) => {
                    was_away = true;
                    shared.health.failed(&error);
                    tracing::error!(error = ?error, "the campaign worker failed to claim jobs: {error}");
                }
            }
            // A notification is a hint; the poll is the guarantee.
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = job_ended => {}
                changed = wakeups.changed() => if changed.is_err() {
                    tokio::time::sleep(shared.settings.poll_interval).await;
                },
                () = tokio::time::sleep(shared.settings.poll_interval) => {}
            }
        }

        tracing::info!(jobs = jobs.len(), "the campaign worker finishes its calls");
        shared.stopping.cancel();
        jobs.close();
        if tokio::time::timeout(shared.settings.call_timeout, jobs.wait()).await.is_err() {
            shared.hurry.cancel();
            jobs.wait().await;
        }
        ended.cancel();
        background.close();
        background.wait().await;
        let worker = Arc::clone(&shared.worker);
        // The last sender: the committers finish their queue and end.
        drop(shared);
        committing.close();
        committing.wait().await;
        tracing::info!(%worker, "the campaign worker has stopped");
    }
}

impl Shared {
    /// Takes as many jobs as there is room for: none of a tenant that has its share already, and none of an account that they
    /// would only wait for.
    async fn claim(&self) -> Result<Vec<ClaimedJob>, StoreError> {
        let (room, except) = {
            let held = self.held();
            let mut of_tenant: HashMap<TenantId, usize> = HashMap::new();
            for held in held.values() {
                *of_tenant.entry(held.hold.tenant_id).or_default() += 1;
            }
            let has_enough = |(tenant, jobs): (&TenantId, &usize)| {
                (*jobs >= self.settings.jobs_per_tenant_max).then_some(*tenant)
            };
            let except: Vec<TenantId> = of_tenant.iter().filter_map(has_enough).collect();
            // No tenant gets past its share by asking once for everything.
            let most =
                of_tenant.values().copied().filter(|jobs| *jobs < self.settings.jobs_per_tenant_max).max();
            let room = self.settings.jobs_max.saturating_sub(held.len());
            (room.min(self.settings.jobs_per_tenant_max - most.unwrap_or(0)), except)
        };
        // A worker that cannot write must not hold jobs that others could work on.
        if room == 0 || self.writing.is_starved() {
            return Ok(Vec::new());
        }
        let slow = self.slow_runs();
        let mut claimed = Vec::new();
        if !slow.with_room.is_empty() {
            // One at a time, because the run may have many.
            claimed = jobs::claim(&self.pool, &self.worker, 1, &except, &slow.full).await?;
        }
        if claimed.len() < room {
            let runs = [slow.full, slow.with_room].concat();
            claimed
                .extend(jobs::claim(&self.pool, &self.worker, room - claimed.len(), &except, &runs).await?);
        }
        metrics::counter!("postrider_send_jobs_claimed_total").increment(claimed.len() as u64);
        Ok(claimed)
    }

    fn hold(&self, hold: JobHold) -> CancellationToken {
        let lost = CancellationToken::new();
        if let Some(before) = self.held().insert(hold.job(), Held { hold, lost: lost.clone() }) {
            // We were away so long that we took over from ourselves.
            before.lost.cancel();
        }
        lost
    }

    fn let_go(&self, hold: JobHold) {
        // The same job may have come back under another attempt: that one is still held.
        self.held().retain(|_, held| held.hold != hold);
        let now = Instant::now();
        self.gates().retain(|_, gate| {
            gate.leave(hold);
            gate.is_needed(now)
        });
        self.job_ended.notify_waiters();
    }

    fn held(&self) -> MutexGuard<'_, HashMap<JobRef, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gates(&self) -> MutexGuard<'_, HashMap<(TenantId, ProviderAccountId), Arc<Gate>>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn templates(&self) -> MutexGuard<'_, HashMap<(TenantId, AssetId), Arc<Template>>> {
        self.templates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gate of a tenant's account, which allows so many calls at a time.
    fn gate_of(&self, tenant: TenantId, account: ProviderAccountId, concurrency: usize) -> Arc<Gate> {
        let concurrency = concurrency.min(self.settings.account_concurrency);
        Arc::clone(self.gates().entry((tenant, account)).or_insert_with(|| Arc::new(Gate::new(concurrency))))
    }

    /// Runs whose account has more jobs than turns.
    fn slow_runs(&self) -> SlowRuns {
        let (now, bounds, mut slow) = (Instant::now(), Bounds::of(&self.settings), SlowRuns::default());
        let gates = self.gates();
        let mut places: Vec<_> = gates.values().flat_map(|gate| gate.slow_places(now)).collect();
        // Nobody comes back at once to take the place of one that is there for long: those that were turned away before come first.
        places.iter_mut().for_each(|place| place.has_had_its_time = false);
        for (runs, next) in gates.values().filter_map(|gate| gate.slow_runs(now)) {
            let with_next = places.iter().copied().chain([next]).collect();
            let has_room = bounds.kept(with_next).contains(&None);
            if has_room { &mut slow.with_room } else { &mut slow.full }.extend(runs);
        }
        slow
    }

    /// Whether this job is one too many for an account that is slow.
    fn is_crowded(&self, gate: &Gate, hold: JobHold) -> bool {
        let now = Instant::now();
        if !gate.is_slow(now) {
            return false;
        }
        let places = self.gates().values().flat_map(|gate| gate.slow_places(now)).collect();
        if Bounds::of(&self.settings).kept(places).contains(&Some(hold)) {
            return false;
        }
        // While others of it are here, they find out for themselves how slow it is.
        if gate.is_first(hold) {
            gate.turn_away(now);
        }
        true
    }

    /// Hears what others have found out about the accounts of the jobs that are held.
    async fn listen(&self) {
        let holds: Vec<JobHold> = self.held().values().map(|held| held.hold).collect();
        if holds.is_empty() {
            return;
        }
        match limits::known(&self.pool, &self.worker, &holds).await {
            Ok(known) => {
                let now = Instant::now();
                for (account, gate) in &*self.gates() {
                    gate.learn(now, known.get(account).copied().unwrap_or_default());
                }
            }
            Err(error) => tracing::debug!(?error, "how the accounts stand could not be read"),
        }
    }

    /// Keeps the locks fresh, and tells jobs whose lock is gone.
    async fn beat(&self) {
        let (holds, tokens): (Vec<JobHold>, Vec<CancellationToken>) =
            self.held().values().map(|held| (held.hold, held.lost.clone())).unzip();
        if holds.is_empty() {
            return;
        }
        match jobs::heartbeat(&self.pool, &self.worker, &holds).await {
            Ok(kept) => {
                for (hold, lost) in holds.iter().zip(tokens) {
                    if !kept.contains(&hold.job()) {
                        // Its own, of when we asked: a job that was handed back may have come again since, under the same
                        // attempt. Of one that has ended, nobody listens.
                        lost.cancel();
                    }
                }
            }
            Err(error) => tracing::warn!(error = ?error, "locks could not be kept fresh: {error}"),
        }
    }

    /// Does something again for as long as the database is away: an outage burns no attempt.
    async fn while_away<'a, T, F, Fut>(&'a self, mut ask: F) -> Result<T, StoreError>
    where
        F: FnMut(&'a Pool, &'a str) -> Fut,
        Fut: Future<Output = Result<T, StoreError>>,
    {
        loop {
            match ask(&self.pool, &self.worker).await {
                Err(error) if error.is_passing() => {
                    tracing::warn!(error = ?error, "a job waits for the database: {error}");
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                answered => return answered,
            }
        }
    }
}

/// Keeps the locks fresh until the last job has ended.
async fn heartbeats(shared: Arc<Shared>, ended: CancellationToken) {
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            () = tokio::time::sleep(shared.settings.heartbeat_interval) => {}
        }
        shared.beat().await;
    }
}

async fn listen(shared: Arc<Shared>, ended: CancellationToken) {
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            () = tokio::time::sleep(LISTEN_EVERY) => {}
        }
        shared.listen().await;
    }
}

/// Says how far campaigns are, and starts what comes next in those that go on by themselves.
async fn tend(shared: Arc<Shared>, ended: CancellationToken) {
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            () = tokio::time::sleep(TEND_EVERY) => {}
        }
        if let Err(error) = phases::note_progress(&shared.pool, &shared.worker).await {
            tracing::debug!(?error, "how far the campaigns are could not be said");
        }
        loop {
            match phases::tend(&shared.pool, &shared.worker).await {
                Ok(false) => break,
                Ok(true) if shared.stopping.is_cancelled() => break,
                // There may be jobs now.
                Ok(true) => shared.job_ended.notify_waiters(),
                Err(error) => {
                    tracing::warn!(?error, "a phase was not ended or started, and is tried again: {error}");
                    break;
                }
            }
        }
    }
}

async fn measure(shared: Arc<Shared>, ended: CancellationToken) {
    let mut providers = HashMap::new();
    loop {
        measure_circuits(&shared, &mut providers).await;
        match jobs::measure(&shared.pool).await {
            Ok(backlog) => {
                metrics::gauge!("postrider_send_jobs_waiting").set(backlog.jobs_waiting as f64);
                metrics::gauge!("postrider_send_jobs_locked").set(backlog.jobs_locked as f64);
                metrics::gauge!("postrider_send_jobs_oldest_lock_seconds").set(backlog.oldest_lock_seconds);
                metrics::gauge!("postrider_items_in_doubt").set(backlog.items_in_doubt as f64);
                metrics::gauge!("postrider_items_oldest_doubt_seconds").set(backlog.oldest_doubt_seconds);
            }
            Err(error) => tracing::debug!(?error, "the jobs could not be measured"),
        }
        tokio::select! {
            () = ended.cancelled() => return,
            () = shared.circuits_changed.notified() => {}
            () = tokio::time::sleep(MEASURE_EVERY) => {}
        }
    }
}

/// A gauge per provider that ever had an open circuit. Whose account it is, `postrider accounts list` says.
async fn measure_circuits(shared: &Shared, providers: &mut HashMap<String, i64>) {
    match limits::measure_circuits(&shared.pool).await {
        Ok(open) => {
            providers.values_mut().for_each(|count| *count = 0);
            providers.extend(open);
            for (provider, count) in providers {
                metrics::gauge!("postrider_circuit_open", "provider" => provider.clone()).set(*count as f64);
            }
        }
        Err(error) => tracing::debug!(?error, "the circuits could not be counted"),
    }
}

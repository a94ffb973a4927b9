//! The runner: claims runs of functions, performs them, and ends each under its claim.
//!
//! ```text
//! claim ──▶ perform (HTTP · SQL · Rust, within its time) ──▶ settle
//!   ▲ tenant by tenant in turns
//! keep: heartbeats; lets go of what was cancelled; fails what dead processes left, which is then retried
//! ```
//!
//! A function that failed comes again by `retry_at`, which the database alone computes, whoever claims it then.

pub mod builtin;
mod functions;
mod keep;
mod perform;
mod provide;
mod settle;

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::FutureExt;
use postrider_model::{
    ids::{JobRunId, TenantId},
    seal::MasterKey,
};
use postrider_providers::GuardedClient;
use postrider_store::{
    Pool,
    job_runs::{self, ClaimedRun, EndedRun, Room},
    wakeups::Wakeups,
};
use tokio::{
    sync::{mpsc, watch::error::RecvError},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use self::functions::{BUILTINS, Function, FunctionError, Functions, Invoked, unknown};
use self::{keep::Keeper, perform::Performed, settle::Settler};
use crate::{
    Health, Hints,
    step::{served_last, within},
    vital::vital,
};

/// How far apart two claims by hints are at least while several runs are under way, so that a claim takes many when many come.
const CLAIMS_APART: Duration = Duration::from_millis(10);
const SEVERAL: usize = 4;

/// What can be set.
#[derive(Debug, Clone)]
pub struct RunnerSettings {
    /// Most runs at a time.
    pub concurrency: usize,
    /// Most of them of one tenant.
    pub tenant_concurrency: usize,
    /// A run whose process has not been heard of for so long is failed, and retried.
    pub lease: Duration,
    /// How often to look without a hint.
    pub poll_interval: Duration,
    /// Most SQL functions at a time; each holds a connection.
    pub sql_concurrency: usize,
    /// Most of them of one tenant, less than all of them, so that one tenant's slow functions do not keep those of others waiting.
    pub sql_tenant_concurrency: usize,
    /// The schemas whose functions may be run; none, if none is named.
    pub sql_schemas: Vec<String>,
}

/// What a runner runs with.
pub struct RunnerParts {
    /// Connections of the worker.
    pub pool: Pool,
    /// Connections for SQL functions, which may take long: claims, heartbeats and ends must not wait for them.
    pub sql_pool: Pool,
    /// Rust functions.
    pub functions: Functions,
    /// For functions behind URLs.
    pub client: GuardedClient,
    /// Opens the secrets of those; without it they are left to other processes.
    pub master_key: Option<MasterKey>,
    /// To say that runs have ended.
    pub ends: Hints,
}

impl RunnerParts {
    /// With more Rust functions, each in place of one of the same name.
    #[must_use]
    pub fn with_functions(mut self, functions: &Functions) -> Self {
        self.functions = self.functions.with_all(functions);
        self
    }
}

/// One runner.
pub struct Runner {
    shared: Arc<Shared>,
    wakeups: Wakeups,
    cancels: Wakeups,
}

struct Shared {
    pool: Pool,
    /// New at every start, so that nobody is taken for the process that died under the same name.
    name: String,
    functions: Functions,
    client: GuardedClient,
    master_key: Option<MasterKey>,
    ends: Hints,
    held: Held,
    sql_pool: Pool,
    settings: RunnerSettings,
    health: Health,
}

impl Runner {
    /// A runner. `wakeups` say that there are runs, `cancels` that runs were cancelled.
    #[must_use]
    pub fn new(parts: RunnerParts, wakeups: Wakeups, cancels: Wakeups, settings: RunnerSettings) -> Self {
        let RunnerParts { pool, sql_pool, functions, client, master_key, ends } = parts;
        let name = format!("runner-{}", uuid::Uuid::now_v7());
        let held = Held::default();
        let health = Health::new("scheduler");
        let shared =
            Shared { pool, name, functions, client, master_key, ends, held, sql_pool, settings, health };
        Self { shared: Arc::new(shared), wakeups, cancels }
    }

    /// Whether it can work, once it runs. It is a part of the role `scheduler`.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health.clone()
    }

    /// Runs functions until shutdown; then finishes those that are under way.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let shared = Arc::clone(&self.shared);
        tracing::info!(runner = shared.name, "the runner is running");
        // It must live as long as anything is under way.
        let over = CancellationToken::new();
        let keeper = tokio::spawn(vital(
            "the keeper of runs",
            Keeper::new(Arc::clone(&shared), self.cancels).run(over.clone()),
        ));
        let provider = tokio::spawn(vital(
            "the registry of Rust functions",
            provide::run(Arc::clone(&shared), shutdown.clone()),
        ));
        let (ended, receiver) = mpsc::channel(shared.settings.concurrency);
        let settler =
            tokio::spawn(vital("the settler of runs", Settler::new(Arc::clone(&shared)).run(receiver)));
        let mut work = Work {
            shared: Arc::clone(&shared),
            attempts: JoinSet::new(),
            tenants: HashMap::new(),
            served_last: [None; 2],
            ended,
        };
        let mut is_full = false;

        while !shutdown.is_cancelled() {
            // Before the claim, so that a hint during the claim is not lost.
            self.wakeups.mark_unchanged();
            work.take_ends();
            // Whoever left nothing to the other kind last time comes second.
            let order = if is_full { [Kind::Sql, Kind::Other] } else { [Kind::Other, Kind::Sql] };
            is_full = false;
            for kind in order {
                is_full |= work.claim(kind).await;
            }
            // A full claim means that there is more.
            if is_full && work.free() > 0 {
                continue;
            }
            let leaves_some = is_full || work.is_starved();
            let pause = if work.attempts.len() < SEVERAL { Duration::ZERO } else { CLAIMS_APART };
            let rested = Instant::now() + pause;
            let next_poll = tokio::time::sleep(shared.settings.poll_interval);
            tokio::pin!(next_poll);
            // A notification is a hint; the poll is the guarantee. An end matters to those for whom there was no room.
            loop {
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    Ok(()) = hinted(&mut self.wakeups, rested), if work.free() > 0 => break,
                    () = work.next_end() => if leaves_some { break },
                    () = &mut next_poll => break,
                }
            }
        }

        tracing::info!(under_way = work.attempts.len(), "the runner finishes what it holds");
        work.finish().await;
        let _ = settler.await;
        over.cancel();
        let _ = keeper.await;
        let _ = provider.await;
        tracing::info!(runner = shared.name, "the runner has stopped");
    }
}

/// A hint, but none before that time. Nothing is lost when this is dropped.
async fn hinted(wakeups: &mut Wakeups, rested: Instant) -> Result<(), RecvError> {
    tokio::time::sleep_until(rested).await;
    wakeups.changed().await
}

/// What is claimed by itself: functions in the database must not take the places of others while they wait for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Other,
    Sql,
}

/// Running attempts of one tenant.
#[derive(Debug, Clone, Copy, Default)]
struct Busy {
    /// All attempts.
    attempts: usize,
    /// Those of SQL functions.
    sql: usize,
}

/// What is under way.
struct Work {
    shared: Arc<Shared>,
    attempts: JoinSet<(TenantId, Kind)>,
    tenants: HashMap<TenantId, Busy>,
    /// By kind.
    served_last: [Option<TenantId>; 2],
    ended: mpsc::Sender<EndedRun>,
}

impl Work {
    /// Claims runs of a kind and begins them. Whether there may be more.
    async fn claim(&mut self, kind: Kind) -> bool {
        let room = self.room(kind);
        if room.limit == 0 {
            self.shared.health.passed();
            return false;
        }
        match within(job_runs::claim(&self.shared.pool, &self.shared.name, &room)).await {
            Ok(claimed) => {
                self.shared.health.passed();
                let is_full = claimed.len() >= room.limit;
                self.begin(claimed, kind);
                is_full
            }
            Err(error) => {
                self.shared.health.failed(&error);
                tracing::error!(error = ?error, "the runner failed to claim runs: {error}");
                false
            }
        }
    }

    /// How many more there may be.
    fn free(&self) -> usize {
        self.shared.settings.concurrency.saturating_sub(self.attempts.len())
    }

    /// How many SQL functions are under way.
    fn sql_attempts(&self) -> usize {
        self.tenants.values().map(|busy| busy.sql).sum()
    }

    /// Whether somebody may have been left behind for want of room.
    fn is_starved(&self) -> bool {
        let settings = &self.shared.settings;
        self.free() == 0
            || self.sql_attempts() >= settings.sql_concurrency
            || self.tenants.values().any(|busy| {
                busy.attempts >= settings.tenant_concurrency || busy.sql >= settings.sql_tenant_concurrency
            })
    }

    /// What there is room for.
    fn room(&self, kind: Kind) -> Room {
        let Shared { functions, settings, master_key, .. } = &*self.shared;
        let (limit, kinds): (_, &[&str]) = match kind {
            Kind::Sql => (settings.sql_concurrency.saturating_sub(self.sql_attempts()), &["sql"]),
            Kind::Other if master_key.is_some() => (usize::MAX, &["builtin", "http"]),
            // Without the key others are better off with what is behind a URL.
            Kind::Other => (usize::MAX, &["builtin"]),
        };
        // Number of further attempts that a tenant may start.
        let share = |busy: Busy| {
            let all = settings.tenant_concurrency.saturating_sub(busy.attempts);
            match kind {
                Kind::Sql => all.min(settings.sql_tenant_concurrency.saturating_sub(busy.sql)),
                Kind::Other => all,
            }
        };
        Room {
            limit: limit.min(self.free()),
            per_tenant: share(Busy::default()),
            tenants: self.tenants.iter().map(|(tenant, busy)| (*tenant, share(*busy))).collect(),
            after: self.served_last[kind as usize],
            kinds: kinds.iter().map(ToString::to_string).collect(),
            builtins: functions.names().map(str::to_owned).collect(),
        }
    }

    fn begin(&mut self, claimed: Vec<ClaimedRun>, kind: Kind) {
        let last = &mut self.served_last[kind as usize];
        *last = served_last(*last, claimed.iter().map(|run| run.tenant));
        for run in claimed {
            let busy = self.tenants.entry(run.tenant).or_default();
            busy.attempts += 1;
            busy.sql += usize::from(kind == Kind::Sql);
            let cancelled = self.shared.held.take(&run);
            let (shared, ended) = (Arc::clone(&self.shared), self.ended.clone());
            self.attempts.spawn(async move {
                let (id, claim, tenant) = (run.id, run.claim(), run.tenant);
                let attempt = attempt(&shared, run, &cancelled, &ended);
                if AssertUnwindSafe(attempt).catch_unwind().await.is_err() {
                    tracing::error!(job_id = %id.0, "an attempt panicked; its run is taken up like one of a dead process");
                    shared.held.let_go(id, claim);
                }
                (tenant, kind)
            });
        }
    }

    /// Waits for the end of an attempt; for ever if there is none.
    async fn next_end(&mut self) {
        match self.attempts.join_next().await {
            Some(ended) => ended.into_iter().for_each(|(tenant, kind)| self.end(tenant, kind)),
            None => std::future::pending().await,
        }
    }

    /// Takes the ends of all attempts that have ended.
    fn take_ends(&mut self) {
        while let Some(ended) = self.attempts.try_join_next() {
            ended.into_iter().for_each(|(tenant, kind)| self.end(tenant, kind));
        }
    }

    fn end(&mut self, tenant: TenantId, kind: Kind) {
        if let Some(busy) = self.tenants.get_mut(&tenant) {
            busy.attempts -= 1;
            busy.sql -= usize::from(kind == Kind::Sql);
            if busy.attempts == 0 {
                self.tenants.remove(&tenant);
            }
        }
    }

    async fn finish(mut self) {
        while self.attempts.join_next().await.is_some() {}
    }
}

/// One attempt at a run, to its end.
async fn attempt(
    shared: &Shared,
    run: ClaimedRun,
    cancelled: &CancellationToken,
    ended: &mpsc::Sender<EndedRun>,
) {
    match perform::perform(shared, &run, cancelled).await {
        // The settler outlives every attempt, and lets go of the run when its end is written down.
        Performed::Ended(end) => {
            let _ = ended.send(run.end(end)).await;
        }
        Performed::Committed => {
            shared.held.let_go(run.id, run.claim());
            shared.ends.send();
        }
        Performed::Abandoned => shared.held.let_go(run.id, run.claim()),
    }
}

/// The runs that this process holds: kept alive until their end is written down.
#[derive(Default)]
struct Held(Mutex<HashMap<JobRunId, (i32, CancellationToken)>>);

impl Held {
    /// Remembers a run. The token is cancelled when the run is not ours any more.
    fn take(&self, run: &ClaimedRun) -> CancellationToken {
        let cancelled = CancellationToken::new();
        // An older claim of ours, which was taken from us: two attempts must not go on side by side.
        if let Some((_, old)) = self.lock().insert(run.id, (run.claim(), cancelled.clone())) {
            old.cancel();
        }
        cancelled
    }

    /// Forgets a run, unless it is held under another claim by now.
    fn let_go(&self, id: JobRunId, claim: i32) {
        let mut held = self.lock();
        if held.get(&id).is_some_and(|(known, _)| *known == claim) {
            held.remove(&id);
        }
    }

    fn all(&self) -> Vec<(JobRunId, i32)> {
        self.lock().iter().map(|(id, (claim, _))| (*id, *claim)).collect()
    }

    /// Gives a run up, if it is still held under this claim.
    fn lose(&self, id: JobRunId, claim: i32) -> bool {
        let mut held = self.lock();
        let is_held = held.get(&id).is_some_and(|(known, _)| *known == claim);
        if is_held && let Some((_, cancelled)) = held.remove(&id) {
            cancelled.cancel();
        }
        is_held
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobRunId, (i32, CancellationToken)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

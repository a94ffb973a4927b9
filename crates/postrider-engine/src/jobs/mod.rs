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
pub mod scheduler;
mod settle;

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use postrider_model::{ids::TenantId, seal::MasterKey};
use postrider_providers::GuardedClient;
use postrider_store::{
    Pool, StoreError,
    job_runs::{self, ClaimedRun, EndedRun, Room},
    wakeups::Wakeups,
};
use tokio::{
    sync::{mpsc, watch::error::RecvError},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use self::functions::{BUILTINS, Function, FunctionError, Functions, Invoked};
use self::{keep::Keeper, perform::Performed, settle::Settler};
use crate::common::{
    attempts::Attempts, health::Health, held::Held, recorder::record_all, round::within, supervised::supervised, wakeup::Hints,
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
    held: Held<RunRef, i32>,
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
        let keeper = tokio::spawn(supervised(
            "keeper of runs",
            Keeper::new(Arc::clone(&shared), self.cancels).run(over.clone()),
        ));
        let (ended, receiver) = mpsc::channel(shared.settings.concurrency);
        let settler = tokio::spawn(supervised(
            "settler of runs",
            record_all(Settler::new(Arc::clone(&shared)), receiver),
        ));
        let mut work = Work {
            shared: Arc::clone(&shared),
            attempts: Attempts::default(),
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
            let mut failure = None;
            for kind in order {
                match work.claim(kind).await {
                    Ok(kind_is_full) => is_full |= kind_is_full,
                    Err(error) => {
                        tracing::error!(?error, "the runner failed to claim runs: {error}");
                        failure = Some(error);
                    }
                }
            }
            // A pass failed if the claim of either kind did.
            match failure {
                None => shared.health.passed(),
                Some(error) => shared.health.failed(&error),
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
        let Work { attempts, ended, .. } = work;
        attempts.finish().await;
        // The last sender: the settler finishes its queue and ends.
        drop(ended);
        let _ = settler.await;
        over.cancel();
        let _ = keeper.await;
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
    attempts: Attempts<(TenantId, Kind)>,
    tenants: HashMap<TenantId, Busy>,
    /// By kind.
    served_last: [Option<TenantId>; 2],
    ended: mpsc::Sender<EndedRun>,
}

impl Work {
    /// Claims runs of a kind and begins them. Whether there may be more.
    async fn claim(&mut self, kind: Kind) -> Result<bool, StoreError> {
        let room = self.room(kind);
        if room.limit == 0 {
            return Ok(false);
        }
        let chosen = within(job_runs::choose(&self.shared.pool, &room)).await?;
        let (mut claimed, wanted) = (0, chosen.iter().map(|due| due.runs).sum::<i32>());
        // One transaction per tenant: an attempt begins as soon as its run is claimed.
        for due in chosen {
            // Before the claim, so that a tenant whose claim fails does not hold up the tenants after it.
            self.served_last[kind as usize] = Some(due.tenant);
            let runs = within(job_runs::claim(&self.shared.pool, &self.shared.name, due, &room)).await?;
            claimed += runs.len();
            self.begin(runs, kind);
        }
        // If other runners took every run, they also take the rest.
        Ok(claimed > 0 && usize::try_from(wanted).is_ok_and(|wanted| wanted >= room.limit))
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
        for run in claimed {
            let busy = self.tenants.entry(run.tenant).or_default();
            busy.attempts += 1;
            busy.sql += usize::from(kind == Kind::Sql);
            let cancelled = self.shared.held.take(run.run(), run.claim());
            let (shared, ended) = (Arc::clone(&self.shared), self.ended.clone());
            self.attempts.spawn(async move {
                let (held, claim) = (run.run(), run.claim());
                let attempt = attempt(&shared, run, &cancelled, &ended);
                if AssertUnwindSafe(attempt).catch_unwind().await.is_err() {
                    tracing::error!(job_id = %held.id.0, "an attempt panicked; its run is recovered like one of a dead process");
                    shared.held.release(held, claim);
                }
                (held.tenant, kind)
            });
        }
    }

    /// Waits for the end of an attempt; for ever if there is none.
    async fn next_end(&mut self) {
        if let Some((tenant, kind)) = self.attempts.next_end().await {
            self.end(tenant, kind);
        }
    }

    fn take_ends(&mut self) {
        for (tenant, kind) in self.attempts.take_ended() {
            self.end(tenant, kind);
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

}

/// One attempt at a run, to its end.
async fn attempt(
    shared: &Shared,
    run: ClaimedRun,
    cancelled: &CancellationToken,
    ended: &mpsc::Sender<EndedRun>,
) {
    match perform::perform(shared, &run, cancelled).await {
        // The settler outlives every attempt, and releases the run when its end is recorded.
        Performed::Ended(end) => {
            let _ = ended.send(run.end(end)).await;
        }
        Performed::Committed => {
            shared.held.release(run.run(), run.claim());
            shared.ends.send();
        }
        Performed::Abandoned => shared.held.release(run.run(), run.claim()),
    }
}

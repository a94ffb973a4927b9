//! The runner claims job runs, performs their functions, and records the results under its claims.
//!
//! ```text
//! claim ──▶ perform (HTTP · SQL · Rust, within the timeout) ──▶ settle
//!   ▲ tenant by tenant, after the one that was served last
//! heartbeat: renews claims; cancels the tasks of lost runs; fails the runs of dead processes, which are then retried
//! ```
//!
//! A failed run is retried at `retry_at`, which only the database computes. Any runner may claim it then
//! (docs/decisions/0016-a-run-is-picked-up-and-grains-are-those-of-utc.md).

pub mod builtin;
mod functions;
mod heartbeat;
mod perform;
mod provide;
pub mod scheduler;
mod settle;

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use postrider_model::{ids::TenantId, seal::MasterKey};
use postrider_providers::GuardedClient;
use postrider_store::{
    Pool, StoreError,
    jobs::runs::{self, Capacity, ClaimedRun, EndedRun, RunRef},
    postgres::wakeups::Wakeups,
};
use tokio::{
    sync::{mpsc, watch::error::RecvError},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use self::functions::{BUILTINS, Builtin, Function, FunctionError, Functions, Invoked, unknown};
use self::{heartbeat::Heartbeat, perform::Performed, settle::Settler};
use crate::common::{
    attempts::Attempts, health::Health, held::Held, recorder::record_all, round::within,
    supervised::supervised, wakeup::Hints,
};

/// Minimum time between two claims by hints while this many attempts are running, so that one claim takes many runs under load.
const CLAIM_INTERVAL_MIN: Duration = Duration::from_millis(10);
const SPACED_CLAIMS_FROM: usize = 4;

/// Settings of the runner.
#[derive(Debug, Clone)]
pub struct RunnerSettings {
    /// Maximum concurrent runs.
    pub concurrency: usize,
    /// Maximum concurrent runs per tenant.
    pub tenant_concurrency: usize,
    /// A run without a heartbeat for this long has failed, and is retried.
    pub lease: Duration,
    /// Time between claims without a hint.
    pub poll_interval: Duration,
    /// Maximum concurrent SQL functions; each holds a connection.
    pub sql_concurrency: usize,
    /// Maximum concurrent SQL functions per tenant. Less than the total, so that one tenant's slow functions do not block other tenants.
    pub sql_tenant_concurrency: usize,
    /// The schemas whose functions may be run; none if empty.
    pub sql_schemas: Vec<String>,
}

/// The dependencies of a runner.
pub struct RunnerParts {
    /// Connections of the worker.
    pub pool: Pool,
    /// Connections for SQL functions. Separate, because claims, heartbeats and results must not wait for slow functions.
    pub sql_pool: Pool,
    /// Rust functions.
    pub functions: Functions,
    /// Client for HTTP functions.
    pub client: GuardedClient,
    /// Opens the secrets of HTTP functions. Without the key other processes run them.
    pub master_key: Option<MasterKey>,
    /// Hints that runs have ended.
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
    /// New at every start, so that a restarted process never settles under a claim of its predecessor.
    name: String,
    functions: Functions,
    client: GuardedClient,
    master_key: Option<MasterKey>,
    end_hints: Hints,
    held: Held<RunRef, i32>,
    sql_pool: Pool,
    settings: RunnerSettings,
    health: Health,
}

impl Runner {
    /// Creates a runner. `wakeups` are hints that runs are due, `cancels` that runs were cancelled.
    #[must_use]
    pub fn new(parts: RunnerParts, wakeups: Wakeups, cancels: Wakeups, settings: RunnerSettings) -> Self {
        let RunnerParts { pool, sql_pool, functions, client, master_key, ends: end_hints } = parts;
        let name = format!("runner-{}", uuid::Uuid::now_v7());
        let held = Held::default();
        let health = Health::new("scheduler");
        let shared =
            Shared { pool, name, functions, client, master_key, end_hints, held, sql_pool, settings, health };
        Self { shared: Arc::new(shared), wakeups, cancels }
    }

    /// The health of the runner, which belongs to the role `scheduler`, while it runs.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health.clone()
    }

    /// Runs functions until shutdown; then finishes the running attempts.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let shared = Arc::clone(&self.shared);
        tracing::info!(runner = shared.name, "the runner is running");
        // The heartbeat must run until the last attempt has ended and its result is recorded.
        let finished = CancellationToken::new();
        let heartbeat = tokio::spawn(supervised(
            "job run heartbeat",
            Heartbeat::new(Arc::clone(&shared), self.cancels).run(finished.clone()),
        ));
        let provider = tokio::spawn(supervised(
            "registry of Rust functions",
            provide::run(Arc::clone(&shared), shutdown.clone()),
        ));
        let (ended, receiver) = mpsc::channel(shared.settings.concurrency);
        let settler = tokio::spawn(supervised(
            "job run settler",
            record_all(Settler::new(Arc::clone(&shared)), receiver),
        ));
        let mut in_flight = InFlight {
            shared: Arc::clone(&shared),
            attempts: Attempts::default(),
            tenants: HashMap::new(),
            served_last: [None; 2],
            ended,
        };
        let mut is_full = false;

        while !shutdown.is_cancelled() {
            // Marked before the claim, so that a hint during the claim is not lost.
            self.wakeups.mark_unchanged();
            in_flight.collect_ended();
            // If the last claims used the whole capacity, the other kind is claimed first.
            let order = if is_full { [Kind::Sql, Kind::Other] } else { [Kind::Other, Kind::Sql] };
            is_full = false;
            let mut failure = None;
            for kind in order {
                match in_flight.claim(kind).await {
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
            // A full claim means that more runs may be due.
            if is_full && in_flight.free() > 0 {
                continue;
            }
            let may_have_more = is_full || in_flight.is_at_limit();
            let is_spaced = in_flight.attempts.len() >= SPACED_CLAIMS_FROM;
            let pause = if is_spaced { CLAIM_INTERVAL_MIN } else { Duration::ZERO };
            let next_claim_at = Instant::now() + pause;
            let next_poll = tokio::time::sleep(shared.settings.poll_interval);
            tokio::pin!(next_poll);
            // A notification is only a hint; the poll guarantees pickup. After a limit was reached, each ended attempt leads to a claim.
            loop {
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    Ok(()) = hint_after(&mut self.wakeups, next_claim_at), if in_flight.free() > 0 => break,
                    () = in_flight.next_end() => if may_have_more { break },
                    () = &mut next_poll => break,
                }
            }
        }

        tracing::info!(in_flight = in_flight.attempts.len(), "the runner finishes its attempts");
        let InFlight { attempts, ended, .. } = in_flight;
        attempts.finish().await;
        // This is the last sender, so the settler finishes its queue and ends.
        drop(ended);
        let _ = settler.await;
        finished.cancel();
        let _ = heartbeat.await;
        let _ = provider.await;
        tracing::info!(runner = shared.name, "the runner has stopped");
    }
}

/// Waits for a hint, and at least until `earliest`. Cancel safe.
async fn hint_after(wakeups: &mut Wakeups, earliest: Instant) -> Result<(), RecvError> {
    tokio::time::sleep_until(earliest).await;
    wakeups.changed().await
}

/// Kinds of functions that are claimed separately: SQL functions that wait for a connection must not use the capacity of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Other,
    Sql,
}

/// Running attempts of one tenant.
#[derive(Debug, Clone, Copy, Default)]
struct TenantLoad {
    /// All attempts.
    attempts: usize,
    /// Attempts at SQL functions.
    sql: usize,
}

/// The running attempts, and the limits for further ones.
struct InFlight {
    shared: Arc<Shared>,
    attempts: Attempts<(TenantId, Kind)>,
    tenants: HashMap<TenantId, TenantLoad>,
    /// Last tenant of the previous claim, by kind.
    served_last: [Option<TenantId>; 2],
    ended: mpsc::Sender<EndedRun>,
}

impl InFlight {
    /// Claims runs of a kind and begins their attempts. Returns whether more may be due.
    async fn claim(&mut self, kind: Kind) -> Result<bool, StoreError> {
        let capacity = self.capacity(kind);
        if capacity.limit == 0 {
            return Ok(false);
        }
        let chosen = within(runs::choose(&self.shared.pool, &capacity)).await?;
        let (mut claimed, wanted) = (0, chosen.iter().map(|due| due.runs).sum::<i32>());
        // One transaction per tenant: an attempt begins as soon as its run is claimed.
        for due in chosen {
            // Set before the claim, so that a tenant whose claim fails does not delay the next tenants.
            self.served_last[kind as usize] = Some(due.tenant);
            let runs = within(runs::claim(&self.shared.pool, &self.shared.name, due, &capacity)).await?;
            claimed += runs.len();
            self.begin(runs, kind);
        }
        // If other runners claimed all of the chosen runs, they also claim the rest.
        Ok(claimed > 0 && usize::try_from(wanted).is_ok_and(|wanted| wanted >= capacity.limit))
    }

    /// Number of further attempts that may begin.
    fn free(&self) -> usize {
        self.shared.settings.concurrency.saturating_sub(self.attempts.len())
    }

    /// Number of running attempts at SQL functions.
    fn sql_attempts(&self) -> usize {
        self.tenants.values().map(|load| load.sql).sum()
    }

    /// Whether a limit may have kept due runs from being claimed.
    fn is_at_limit(&self) -> bool {
        let settings = &self.shared.settings;
        self.free() == 0
            || self.sql_attempts() >= settings.sql_concurrency
            || self.tenants.values().any(|load| {
                load.attempts >= settings.tenant_concurrency || load.sql >= settings.sql_tenant_concurrency
            })
    }

    /// The capacity for further attempts of a kind.
    fn capacity(&self, kind: Kind) -> Capacity {
        let Shared { functions, settings, master_key, .. } = &*self.shared;
        let (limit, kinds): (_, &[&str]) = match kind {
            Kind::Sql => (settings.sql_concurrency.saturating_sub(self.sql_attempts()), &["sql"]),
            Kind::Other if master_key.is_some() => (usize::MAX, &["builtin", "http"]),
            // HTTP functions need the key to open their secrets, so other processes run them.
            Kind::Other => (usize::MAX, &["builtin"]),
        };
        // Number of further attempts that a tenant may start.
        let share = |load: TenantLoad| {
            let all = settings.tenant_concurrency.saturating_sub(load.attempts);
            match kind {
                Kind::Sql => all.min(settings.sql_tenant_concurrency.saturating_sub(load.sql)),
                Kind::Other => all,
            }
        };
        Capacity {
            limit: limit.min(self.free()),
            per_tenant: share(TenantLoad::default()),
            tenants: self.tenants.iter().map(|(tenant, load)| (*tenant, share(*load))).collect(),
            after: self.served_last[kind as usize],
            kinds: kinds.iter().map(ToString::to_string).collect(),
            builtins: functions.names().map(str::to_owned).collect(),
        }
    }

    fn begin(&mut self, claimed: Vec<ClaimedRun>, kind: Kind) {
        for run in claimed {
            let load = self.tenants.entry(run.tenant).or_default();
            load.attempts += 1;
            load.sql += usize::from(kind == Kind::Sql);
            let cancelled = self.shared.held.take(run.run(), run.claim());
            let (shared, ended) = (Arc::clone(&self.shared), self.ended.clone());
            self.attempts.spawn(async move {
                let (held, claim) = (run.run(), run.claim());
                let attempt = attempt(&shared, run, &cancelled, &ended);
                if AssertUnwindSafe(attempt).catch_unwind().await.is_err() {
                    tracing::error!(job_id = %held.id.0, "an attempt panicked; its run is recovered after the lease");
                    shared.held.release(held, claim);
                }
                (held.tenant, kind)
            });
        }
    }

    /// Waits for the end of an attempt. Never returns if no attempt is running.
    async fn next_end(&mut self) {
        if let Some((tenant, kind)) = self.attempts.next_end().await {
            self.end(tenant, kind);
        }
    }

    fn collect_ended(&mut self) {
        for (tenant, kind) in self.attempts.take_ended() {
            self.end(tenant, kind);
        }
    }

    fn end(&mut self, tenant: TenantId, kind: Kind) {
        if let Some(load) = self.tenants.get_mut(&tenant) {
            load.attempts -= 1;
            load.sql -= usize::from(kind == Kind::Sql);
            if load.attempts == 0 {
                self.tenants.remove(&tenant);
            }
        }
    }
}

/// Makes one attempt at a run, and passes the result to the settler.
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
            shared.end_hints.send();
        }
        Performed::Abandoned => shared.held.release(run.run(), run.claim()),
    }
}

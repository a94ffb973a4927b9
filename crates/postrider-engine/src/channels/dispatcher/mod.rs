//! The dispatcher claims replies, sends them at least once, and records the results.
//!
//! ```text
//! choose ──▶ claim ──▶ attempt (delivery proven? look up? call) ──▶ decide ──▶ settle
//!   ▲ accounts of all tenants, after the one that was served last; each has a lane. A claim takes replies of one tenant.
//! sweep: expired locks, messages with expired leases, kept replies
//! ```

mod attempt;
mod decide;
mod lane;
mod settle;
mod sweep;

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use postrider_model::{
    channels::RetrySchedule,
    ids::{ProviderAccountId, TenantId},
    seal::MasterKey,
};
use postrider_providers::Adapters;
use postrider_store::{
    Pool, StoreError,
    channels::replies::{self, Capacity, ClaimedReply},
    postgres::wakeups::Wakeups,
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::sweep::Sweep;
use self::{
    attempt::Accounts,
    lane::{AccountSignal, Lane},
    settle::{Settled, Settler},
};
use crate::common::{
    attempts::Attempts,
    health::Health,
    periodic::work_or_poll,
    recorder::record_all,
    round::{served_last, within},
    supervised::supervised,
};

/// Settings of the dispatcher.
#[derive(Debug, Clone)]
pub struct DispatcherSettings {
    /// Maximum replies per claim.
    pub batch_size: usize,
    /// Maximum concurrent attempts.
    pub concurrency: usize,
    /// Maximum concurrent attempts per account.
    pub account_concurrency: usize,
    /// Maximum duration of one call.
    pub call_timeout: Duration,
    /// The sweep reclaims a reply that a dispatcher has held for longer.
    pub lock_timeout: Duration,
    /// Backoff of failed replies.
    pub retries: RetrySchedule,
    /// Time between claims without a hint.
    pub poll_interval: Duration,
}

/// One dispatcher.
pub struct Dispatcher {
    shared: Arc<Shared>,
    wakeups: Wakeups,
}

struct Shared {
    pool: Pool,
    /// New at every start, so that a restarted process never settles under a lock of its predecessor.
    name: String,
    accounts: Accounts,
    settings: DispatcherSettings,
    health: Health,
}

impl Dispatcher {
    /// Creates a dispatcher for replies of these providers.
    #[must_use]
    pub fn new(
        pool: Pool,
        wakeups: Wakeups,
        adapters: Adapters,
        master_key: MasterKey,
        settings: DispatcherSettings,
    ) -> Self {
        let name = format!("dispatcher-{}", uuid::Uuid::now_v7());
        let accounts = Accounts::new(pool.clone(), adapters, master_key);
        let health = Health::new("dispatcher");
        Self { shared: Arc::new(Shared { pool, name, accounts, settings, health }), wakeups }
    }

    /// The health of the dispatcher while it runs.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health.clone()
    }

    /// Sends replies until shutdown; then finishes the running attempts.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let shared = Arc::clone(&self.shared);
        tracing::info!(dispatcher = shared.name, "the dispatcher is running");
        let (results, receiver) = mpsc::channel(shared.settings.concurrency);
        let settler = tokio::spawn(supervised("reply settler", record_all(Settler::new(&shared), receiver)));
        let mut in_flight = InFlight::new(Arc::clone(&shared), results);

        while !shutdown.is_cancelled() {
            // Marked before the claim, so that a hint during the claim is not lost.
            self.wakeups.mark_unchanged();
            in_flight.collect_ended();
            let capacity = in_flight.capacity();
            let is_full = match capacity.limit {
                0 => {
                    shared.health.passed();
                    false
                }
                _ => match in_flight.claim(&capacity).await {
                    Ok(is_full) => {
                        shared.health.passed();
                        is_full
                    }
                    Err(error) => {
                        shared.health.failed(&error);
                        tracing::error!(error = ?error, "the dispatcher failed to claim replies: {error}");
                        false
                    }
                },
            };
            // A full claim means that more replies may be due.
            if is_full {
                continue;
            }
            let opens_in = in_flight.opens_in().unwrap_or(shared.settings.poll_interval);
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = in_flight.next_end() => {}
                () = work_or_poll(&mut self.wakeups, opens_in.min(shared.settings.poll_interval)) => {}
            }
        }

        tracing::info!(in_flight = in_flight.attempts.len(), "the dispatcher finishes its attempts");
        let InFlight { attempts, results, .. } = in_flight;
        attempts.finish().await;
        // This is the last sender, so the settler finishes its queue and ends.
        drop(results);
        let _ = settler.await;
        tracing::info!(dispatcher = shared.name, "the dispatcher has stopped");
    }
}

type AccountKey = (TenantId, ProviderAccountId);

/// The running attempts, and the limits for further ones.
struct InFlight {
    shared: Arc<Shared>,
    attempts: Attempts<(AccountKey, AccountSignal)>,
    lanes: HashMap<AccountKey, Lane>,
    served_last: Option<AccountKey>,
    results: mpsc::Sender<Settled>,
}

impl InFlight {
    fn new(shared: Arc<Shared>, results: mpsc::Sender<Settled>) -> Self {
        Self { shared, attempts: Attempts::default(), lanes: HashMap::new(), served_last: None, results }
    }

    /// The capacity for further attempts.
    fn capacity(&self) -> Capacity {
        let (settings, now) = (&self.shared.settings, Instant::now());
        let free = settings.concurrency.saturating_sub(self.attempts.len());
        Capacity {
            limit: free.min(settings.batch_size),
            per_account: settings.account_concurrency,
            accounts: self
                .lanes
                .iter()
                .map(|(account, lane)| (*account, lane.capacity(settings.account_concurrency, now)))
                .collect(),
            after: self.served_last,
        }
    }

    /// Claims replies tenant by tenant and begins their attempts. Returns whether the claims used the whole capacity.
    async fn claim(&mut self, capacity: &Capacity) -> Result<bool, StoreError> {
        let shared = Arc::clone(&self.shared);
        let mut left = capacity.limit;
        for share in within(replies::choose(&shared.pool, capacity)).await? {
            if left == 0 {
                break;
            }
            let claimed = within(replies::claim(&shared.pool, &shared.name, &share, left)).await?;
            left = left.saturating_sub(claimed.len());
            self.remember_served(&claimed);
            claimed.into_iter().for_each(|reply| self.begin(reply));
        }
        Ok(left == 0)
    }

    fn remember_served(&mut self, claimed: &[ClaimedReply]) {
        let accounts = claimed.iter().map(|reply| (reply.account.tenant, reply.account.id));
        self.served_last = served_last(self.served_last, accounts);
    }

    fn begin(&mut self, reply: ClaimedReply) {
        let account = (reply.account.tenant, reply.account.id);
        self.lanes.entry(account).or_default().begin();
        let (shared, results) = (Arc::clone(&self.shared), self.results.clone());
        self.attempts.spawn(async move {
            match AssertUnwindSafe(attempt::attempt(&shared, reply)).catch_unwind().await {
                Ok((settled, signal)) => {
                    // The settler outlives every attempt.
                    let _ = results.send(settled).await;
                    (account, signal)
                }
                Err(_) => {
                    tracing::error!("an attempt panicked; its reply is retried after the lock timeout");
                    (account, AccountSignal::Failing)
                }
            }
        });
    }

    /// Waits for the end of an attempt. Never returns if no attempt is running.
    async fn next_end(&mut self) {
        if let Some(ended) = self.attempts.next_end().await {
            self.end(ended);
        }
    }

    /// Records the ended attempts in their lanes, and removes idle lanes.
    fn collect_ended(&mut self) {
        for ended in self.attempts.take_ended() {
            self.end(ended);
        }
        let now = Instant::now();
        self.lanes.retain(|_, lane| !lane.is_idle(now));
    }

    fn end(&mut self, (account, signal): (AccountKey, AccountSignal)) {
        if let Some(lane) = self.lanes.get_mut(&account) {
            lane.end(signal, self.shared.settings.account_concurrency, Instant::now());
        }
    }

    /// Time until the next closed lane opens.
    fn opens_in(&self) -> Option<Duration> {
        let now = Instant::now();
        let next = self.lanes.values().filter_map(Lane::opens_at).filter(|at| *at > now).min();
        next.map(|at| at - now)
    }
}

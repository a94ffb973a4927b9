//! The dispatcher: claims replies, sends them, and records what became of each. At least once.
//!
//! ```text
//! choose ──▶ claim ──▶ attempt (proven? asked? called) ──▶ decide ──▶ settle
//!   ▲ accounts of all tenants in turns; each has a lane. The claim takes one tenant at a time.
//! sweep: locks that are too old, messages whose process died, replies that were kept
//! ```

mod attempt;
mod decide;
mod lane;
mod settle;
mod sweep;

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use postrider_model::{
    chat::RetrySchedule,
    ids::{ProviderAccountId, TenantId},
    seal::MasterKey,
};
use postrider_providers::Adapters;
use postrider_store::{
    Pool, StoreError,
    replies::{self, ClaimedReply, Room},
    wakeups::Wakeups,
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::sweep::Sweep;
use self::{
    attempt::Accounts,
    lane::{Lane, Went},
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

/// What can be set.
#[derive(Debug, Clone)]
pub struct DispatcherSettings {
    /// Most replies taken by one claim.
    pub batch_size: usize,
    /// Most attempts at a time.
    pub concurrency: usize,
    /// Most of them with one account.
    pub account_concurrency: usize,
    /// How long one attempt may take.
    pub call_timeout: Duration,
    /// A reply that is held for longer is taken from its dispatcher.
    pub lock_timeout: Duration,
    /// When what failed is tried again.
    pub retries: RetrySchedule,
    /// How often to look without a hint.
    pub poll_interval: Duration,
}

/// One dispatcher.
pub struct Dispatcher {
    shared: Arc<Shared>,
    wakeups: Wakeups,
}

struct Shared {
    pool: Pool,
    /// New at every start, so that nobody is taken for the process that died under the same name.
    name: String,
    accounts: Accounts,
    settings: DispatcherSettings,
    health: Health,
}

impl Dispatcher {
    /// A dispatcher for the replies of these vendors.
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

    /// Whether it can work, once it runs.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health.clone()
    }

    /// Sends until shutdown; then finishes the attempts that are under way.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let shared = Arc::clone(&self.shared);
        tracing::info!(dispatcher = shared.name, "the dispatcher is running");
        let (results, receiver) = mpsc::channel(shared.settings.concurrency);
        let settler = tokio::spawn(supervised("settler of replies", record_all(Settler::new(&shared), receiver)));
        let mut work = Work::new(Arc::clone(&shared), results);

        while !shutdown.is_cancelled() {
            // Before the claim, so that a hint during the claim is not lost.
            self.wakeups.mark_unchanged();
            work.take_ends();
            let room = work.room();
            let is_full = match room.limit {
                0 => {
                    shared.health.passed();
                    false
                }
                _ => match work.claim(&room).await {
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
            // A full claim means that there is more.
            if is_full {
                continue;
            }
            let opens_in = work.opens_in().unwrap_or(shared.settings.poll_interval);
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = work.next_end() => {}
                () = work_or_poll(&mut self.wakeups, opens_in.min(shared.settings.poll_interval)) => {}
            }
        }

        tracing::info!(in_flight = work.attempts.len(), "the dispatcher finishes what it holds");
        let Work { attempts, results, .. } = work;
        attempts.finish().await;
        // The last sender: the settler finishes its queue and ends.
        drop(results);
        let _ = settler.await;
        tracing::info!(dispatcher = shared.name, "the dispatcher has stopped");
    }
}

type AccountKey = (TenantId, ProviderAccountId);

/// What is under way.
struct Work {
    shared: Arc<Shared>,
    attempts: Attempts<(AccountKey, Went)>,
    lanes: HashMap<AccountKey, Lane>,
    served_last: Option<AccountKey>,
    results: mpsc::Sender<Settled>,
}

impl Work {
    fn new(shared: Arc<Shared>, results: mpsc::Sender<Settled>) -> Self {
        Self { shared, attempts: Attempts::default(), lanes: HashMap::new(), served_last: None, results }
    }

    /// What there is room for.
    fn room(&self) -> Room {
        let (settings, now) = (&self.shared.settings, Instant::now());
        let free = settings.concurrency.saturating_sub(self.attempts.len());
        Room {
            limit: free.min(settings.batch_size),
            per_account: settings.account_concurrency,
            accounts: self
                .lanes
                .iter()
                .map(|(account, lane)| (*account, lane.room(settings.account_concurrency, now)))
                .collect(),
            after: self.served_last,
        }
    }

    /// Claims replies tenant by tenant and begins their attempts. Returns whether the claims used all the room.
    async fn claim(&mut self, room: &Room) -> Result<bool, StoreError> {
        let shared = Arc::clone(&self.shared);
        let mut left = room.limit;
        for share in within(replies::choose(&shared.pool, room)).await? {
            if left == 0 {
                break;
            }
            let claimed = within(replies::claim(&shared.pool, &shared.name, &share, left)).await?;
            left = left.saturating_sub(claimed.len());
            self.note_turns(&claimed);
            claimed.into_iter().for_each(|reply| self.begin(reply));
        }
        Ok(left == 0)
    }

    fn note_turns(&mut self, claimed: &[ClaimedReply]) {
        let accounts = claimed.iter().map(|reply| (reply.account.tenant, reply.account.id));
        self.served_last = served_last(self.served_last, accounts);
    }

    fn begin(&mut self, reply: ClaimedReply) {
        let account = (reply.account.tenant, reply.account.id);
        self.lanes.entry(account).or_default().begin();
        let (shared, results) = (Arc::clone(&self.shared), self.results.clone());
        self.attempts.spawn(async move {
            match AssertUnwindSafe(attempt::attempt(&shared, reply)).catch_unwind().await {
                Ok((settled, went)) => {
                    // The settler outlives every attempt.
                    let _ = results.send(settled).await;
                    (account, went)
                }
                Err(_) => {
                    tracing::error!("an attempt panicked; its reply comes again when its lock is too old");
                    (account, Went::Badly)
                }
            }
        });
    }

    /// Waits for the end of an attempt; for ever if there is none.
    async fn next_end(&mut self) {
        if let Some(ended) = self.attempts.next_end().await {
            self.end(ended);
        }
    }

    /// Takes the ends of all attempts that have ended.
    fn take_ends(&mut self) {
        for ended in self.attempts.take_ended() {
            self.end(ended);
        }
        let now = Instant::now();
        self.lanes.retain(|_, lane| !lane.is_idle(now));
    }

    fn end(&mut self, (account, went): (AccountKey, Went)) {
        if let Some(lane) = self.lanes.get_mut(&account) {
            lane.end(went, self.shared.settings.account_concurrency, Instant::now());
        }
    }

    /// How long until a closed lane opens.
    fn opens_in(&self) -> Option<Duration> {
        let now = Instant::now();
        let next = self.lanes.values().filter_map(Lane::opens_at).filter(|at| *at > now).min();
        next.map(|at| at - now)
    }
}

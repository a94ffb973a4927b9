//! An account as one send job uses it: its provider, its limits, and the state that all send jobs of the process share.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{Timestamp, tz::TimeZone};
use metrics::{Counter, Histogram};
use postrider_model::{Limits, Outcome, Rate, Why, campaigns::limits::By};
use postrider_providers::{Account, Provider};
use postrider_store::campaigns::{
    limits::{self, Ask, CallTokens, JobAccount},
    send_jobs::{ClaimedJob, OpenAccount},
};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    account::{AccountSignal, AccountState, Availability},
    choice::{IN_PLACE, batch},
};
use crate::campaigns::{ASK_AGAIN, Shared};

/// A wait for the rate during which send jobs are put off, and not held.
const LONG_WAIT: Duration = Duration::from_secs(60);

/// A usable account.
pub(in crate::campaigns) struct Route {
    at: JobAccount,
    pub(in crate::campaigns) provider: Arc<dyn Provider>,
    pub(in crate::campaigns) state: Arc<AccountState>,
    pub(in crate::campaigns) limits: Limits,
    pub(in crate::campaigns) zone: TimeZone,
    /// The provider's rate for an account without one.
    default_rate: Option<f64>,
    /// The provider's quota for an account without one.
    default_quota: Option<Rate>,
    calls: Calls,
    claim_to_call: Histogram,
}

/// Why an account cannot be used.
pub(in crate::campaigns) enum NoRoute {
    /// Another worker may be able to use it.
    NotHere(String),
    /// The account cannot work as it is set up.
    Unfit(String),
}

impl Route {
    pub(in crate::campaigns) fn open(
        shared: &Shared,
        job: &ClaimedJob,
        account: &OpenAccount,
        is_failover: bool,
    ) -> Result<Self, NoRoute> {
        let Some(adapter) = shared.adapters.get(&account.provider) else {
            return Err(NoRoute::NotHere(format!("this one has no provider `{}`", account.provider)));
        };
        let unfit =
            |problem: String| NoRoute::Unfit(format!("the provider account {}: {problem}", account.id));
        let provider = adapter
            .open(&Account { id: account.id, settings: &account.settings, secret: &account.secret })
            .map_err(|error| unfit(error.to_string()))?;
        let limits = Limits::read(&account.limits).map_err(|error| unfit(error.to_string()))?;
        let manifest = adapter.manifest();
        let concurrency =
            limits.concurrency.or(manifest.concurrency).map_or(usize::MAX, |most| most as usize);
        let state = shared.account_state(job.hold.tenant_id, account.id, concurrency);
        state.join(job.hold, job.run_id);
        state.learn(Instant::now(), account.known);
        Ok(Self {
            at: JobAccount { hold: job.hold, is_failover },
            provider,
            state,
            zone: limits.zone(),
            default_rate: manifest.rate.map(|rate| rate.per_second()),
            default_quota: manifest.quota,
            limits,
            calls: Calls::of(&account.provider),
            claim_to_call: metrics::histogram!("postrider_item_claim_to_call_seconds", "provider" => account.provider.clone()),
        })
    }

    fn rate(&self) -> Option<f64> {
        self.limits.rate_per_second.or(self.default_rate)
    }

    /// Whether calls need call tokens. An account without limits never asks the database.
    pub(in crate::campaigns) fn is_counted(&self) -> bool {
        self.rate().is_some() || self.is_exact()
    }

    /// Whether calls are counted over a longer time, so that call tokens must not be given up.
    pub(in crate::campaigns) fn is_exact(&self) -> bool {
        self.limits.daily.is_some() || self.limits.quota.is_some() || self.default_quota.is_some()
    }

    /// Most call tokens to request at a time.
    pub(in crate::campaigns) fn batch(&self) -> usize {
        batch(self.rate())
    }

    pub(in crate::campaigns) fn availability(&self) -> Availability {
        let by_account = self.limits.hours.as_ref().filter(|hours| hours.by == By::Account);
        if let Some(hours) = by_account {
            let now = Timestamp::now();
            if let Some(opens) = hours.opens_at(now, &self.zone) {
                return Availability::Wait { wait: until(opens, now), why: Why::Hours };
            }
        }
        self.state.availability(Instant::now())
    }

    fn ask(&self, wanted: usize, is_again: bool) -> Ask {
        Ask { at: self.at, wanted, rate: self.default_rate, quota: self.default_quota, is_again }
    }

    /// Requests call tokens and waits until they may be used. The state of the account keeps the reason of a refusal.
    pub(in crate::campaigns) async fn take_tokens(&self, shared: &Shared, wanted: usize) -> Taken {
        let ask = self.ask(wanted, false);
        let CallTokens { granted, wait, why } =
            match limits::take_call_tokens(&shared.pool, &shared.worker, ask).await {
                Ok(tokens) => tokens,
                Err(error) => {
                    tracing::warn!(error = ?error, "failed to take call tokens of the account: {error}");
                    return Taken::AskIn(ASK_AGAIN);
                }
            };
        let now = Instant::now();
        match why {
            // The quota of the period is used up.
            Some(Why::Rate) if granted == 0 && wait > LONG_WAIT => self.state.hold(now, wait, Why::Rate),
            Some(Why::Rate) => self.state.note_slow(now),
            Some(Why::Circuit) if wait > Duration::from_secs(1) => self.state.open_for(now, wait),
            // The provider asked for it, the day's calls are used up, or another send job makes the probing call.
            Some(why) => self.state.hold(now, wait, why),
            None => {}
        }
        if granted == 0 {
            return Taken::AskIn(wait.min(IN_PLACE));
        }
        tokio::time::sleep(wait).await;
        Taken::Granted(granted)
    }

    /// A permit and a call token for one item that comes from another account; `None` if they do not come within this time.
    pub(in crate::campaigns) async fn take_one(
        &self,
        shared: &Shared,
        within: Duration,
    ) -> Option<OwnedSemaphorePermit> {
        let taking = async {
            let permit = Arc::clone(&self.state.permits).acquire_owned().await.ok()?;
            loop {
                match self.availability() {
                    Availability::Clear if !self.is_counted() => return Some(permit),
                    Availability::Clear | Availability::HalfOpen => match self.take_tokens(shared, 1).await {
                        Taken::Granted(_) => return Some(permit),
                        Taken::AskIn(wait) => tokio::time::sleep(wait).await,
                    },
                    Availability::Wait { wait, .. } if wait <= IN_PLACE => tokio::time::sleep(wait).await,
                    Availability::Wait { .. } => return None,
                }
            }
        };
        tokio::time::timeout(within, taking).await.ok().flatten()
    }

    /// A call token for another call of an item that was provably not sent. While the database is unavailable, the pause alone spaces
    /// the calls.
    pub(in crate::campaigns) async fn take_again(&self, shared: &Shared) {
        if !self.is_counted() {
            return;
        }
        let ask = self.ask(1, true);
        while let Ok(CallTokens { granted, wait, .. }) =
            limits::take_call_tokens(&shared.pool, &shared.worker, ask).await
        {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = shared.hurry.cancelled() => return,
            }
            if granted > 0 {
                return;
            }
        }
    }

    /// Records how long after the claim of its send job an item is called.
    pub(in crate::campaigns) fn record_wait(&self, claimed_at: Instant) {
        self.claim_to_call.record(claimed_at.elapsed());
    }

    /// Counts a call. Returns what other processes must learn from it about the account.
    pub(in crate::campaigns) fn note(
        &self,
        shared: &Shared,
        outcome: &Outcome,
        took: Duration,
    ) -> Option<AccountSignal> {
        self.calls.count(outcome, took);
        self.state.note(Instant::now(), outcome, shared.settings.circuit_after)
    }

    /// Records for all processes what a call has shown about the account.
    pub(in crate::campaigns) async fn publish(&self, shared: &Shared, signal: AccountSignal) {
        let (pool, worker) = (&shared.pool, &*shared.worker);
        let published = match &signal {
            AccountSignal::Failing(reason) => {
                tracing::warn!(reason, "a provider fails; the circuit breaker of the account is open");
                limits::open_circuit(pool, worker, self.at, reason, false).await.map(|open| {
                    self.state.open_for(Instant::now(), open);
                })
            }
            AccountSignal::Refused { reason, is_login } => {
                tracing::error!(
                    reason,
                    is_login,
                    "a provider refuses the account; its circuit breaker is open"
                );
                limits::open_circuit(pool, worker, self.at, reason, *is_login).await.map(|open| {
                    self.state.open_for(Instant::now(), open);
                })
            }
            AccountSignal::Answering => limits::close_circuit(pool, worker, self.at).await,
            AccountSignal::Waiting(wait, reason) => {
                limits::hold_account(pool, worker, self.at, *wait, reason).await
            }
        };
        if let Err(error) = published {
            tracing::warn!(error = ?error, "the state of the account was not recorded for other processes: {error}");
        }
        shared.circuits_changed.notify_one();
    }
}

/// The result of a request for call tokens.
#[derive(Debug, Clone, Copy)]
pub(in crate::campaigns) enum Taken {
    /// So many may be used now.
    Granted(usize),
    /// None was granted; request again after so long.
    AskIn(Duration),
}

/// The time from `now` until `then`.
pub(in crate::campaigns) fn until(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}

/// The counters of a provider's calls, by outcome, and the durations of the calls. Looking one up takes longer than counting.
struct Calls {
    outcomes: [(&'static str, Counter); 5],
    durations: Histogram,
}

impl Calls {
    fn of(provider: &str) -> Self {
        let outcomes = Outcome::KINDS.map(|kind| {
            let counter = metrics::counter!("postrider_calls_total", "provider" => provider.to_owned(), "outcome" => kind);
            (kind, counter)
        });
        let durations = metrics::histogram!("postrider_call_seconds", "provider" => provider.to_owned());
        Self { outcomes, durations }
    }

    fn count(&self, outcome: &Outcome, took: Duration) {
        self.durations.record(took);
        for (_, counter) in self.outcomes.iter().filter(|(kind, _)| *kind == outcome.kind()) {
            counter.increment(1);
        }
    }
}

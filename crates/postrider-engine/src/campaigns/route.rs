//! An account as one job uses it: the provider behind it, what it may be asked, and the gate that all jobs share.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{Timestamp, tz::TimeZone};
use metrics::{Counter, Histogram};
use postrider_model::{Limits, Outcome, Why, limits::By};
use postrider_providers::{Account, Provider};
use postrider_store::{
    jobs::{ClaimedJob, OpenAccount},
    limits::{self, Ask, JobAccount, Turns},
};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Shared,
    gate::{Gate, Look, News},
    turns::{IN_PLACE, batch},
};

/// A way to the outside.
pub(super) struct Route {
    pub(super) at: JobAccount,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) gate: Arc<Gate>,
    pub(super) limits: Limits,
    pub(super) zone: TimeZone,
    /// What the provider allows where the account does not say.
    default_rate: Option<f64>,
    calls: Calls,
    claim_to_call: Histogram,
}

/// Why there is no way.
pub(super) enum NoRoute {
    /// Another worker may have it.
    NotHere(String),
    /// The account cannot work as it is set up.
    Unfit(String),
}

impl Route {
    pub(super) fn open(
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
        let gate = shared.gate_of(job.hold.tenant_id, account.id, concurrency);
        gate.join(job.hold, job.run_id);
        gate.learn(Instant::now(), account.known);
        Ok(Self {
            at: JobAccount { hold: job.hold, is_failover },
            provider,
            gate,
            zone: limits.zone(),
            default_rate: manifest.rate.map(|rate| f64::from(rate.calls) / rate.per.as_secs_f64().max(0.001)),
            limits,
            calls: Calls::of(&account.provider),
            claim_to_call: metrics::histogram!("postrider_item_claim_to_call_seconds", "provider" => account.provider.clone()),
        })
    }

    fn rate(&self) -> Option<f64> {
        self.limits.rate_per_second.or(self.default_rate)
    }

    /// Whether its turns are counted. One that is not limited never asks the database.
    pub(super) fn is_counted(&self) -> bool {
        self.rate().is_some() || self.limits.daily.is_some()
    }

    /// Most turns to ask for at a time.
    pub(super) fn batch(&self) -> usize {
        batch(self.rate())
    }

    pub(super) fn look(&self) -> Look {
        let by_account = self.limits.hours.as_ref().filter(|hours| hours.by == By::Account);
        if let Some(hours) = by_account {
            let now = Timestamp::now();
            if let Some(opens) = hours.opens_at(now, &self.zone) {
                return Look::Wait { wait: until(opens, now), why: Why::Hours };
            }
        }
        self.gate.look(Instant::now())
    }

    /// Asks for turns, and waits until they may be used. What stands in the way is left at the gate.
    pub(super) async fn take(&self, shared: &Shared, wanted: usize) -> Taken {
        let ask = Ask { at: self.at, wanted, rate: self.default_rate, is_again: false };
        let Turns { granted, wait, why } = match limits::take_turns(&shared.pool, &shared.worker, ask).await {
            Ok(turns) => turns,
            Err(error) => {
                tracing::warn!(error = ?error, "no turns at the account: {error}");
                return Taken::AskIn(super::ASK_AGAIN);
            }
        };
        let now = Instant::now();
        match why {
            Some(Why::Rate) => self.gate.note_slow(now),
            Some(Why::Circuit) if wait > Duration::from_secs(1) => self.gate.open_for(now, wait),
            // The provider's wish, the end of the day; or somebody else is just finding out.
            Some(why) => self.gate.hold(now, wait, why),
            None => {}
        }
        if granted == 0 {
            return Taken::AskIn(wait.min(IN_PLACE));
        }
        tokio::time::sleep(wait).await;
        Taken::Turns(granted)
    }

    /// A permit and a turn for one item that comes from another account. `None`: not within so long.
    pub(super) async fn take_one(&self, shared: &Shared, within: Duration) -> Option<OwnedSemaphorePermit> {
        let taking = async {
            let permit = Arc::clone(&self.gate.permits).acquire_owned().await.ok()?;
            loop {
                match self.look() {
                    Look::Clear if !self.is_counted() => return Some(permit),
                    Look::Clear | Look::HalfOpen => match self.take(shared, 1).await {
                        Taken::Turns(_) => return Some(permit),
                        Taken::AskIn(wait) => tokio::time::sleep(wait).await,
                    },
                    Look::Wait { wait, .. } if wait <= IN_PLACE => tokio::time::sleep(wait).await,
                    Look::Wait { .. } => return None,
                }
            }
        };
        tokio::time::timeout(within, taking).await.ok().flatten()
    }

    /// A turn for calling an item again that was provably not sent. When the database is away, the pause must do.
    pub(super) async fn take_again(&self, shared: &Shared) {
        if !self.is_counted() {
            return;
        }
        let ask = Ask { at: self.at, wanted: 1, rate: self.default_rate, is_again: true };
        while let Ok(Turns { granted, wait, .. }) =
            limits::take_turns(&shared.pool, &shared.worker, ask).await
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

    /// Records how long after the claim of its job an item is called.
    pub(super) fn record_wait(&self, claimed_at: Instant) {
        self.claim_to_call.record(claimed_at.elapsed());
    }

    /// Counts a call, and says what it tells about the account that others do not know yet.
    pub(super) fn note(&self, shared: &Shared, outcome: &Outcome, took: Duration) -> Option<News> {
        self.calls.count(outcome, took);
        self.gate.note(Instant::now(), outcome, shared.settings.circuit_after)
    }

    /// Tells the others what a call said about the account.
    pub(super) async fn tell(&self, shared: &Shared, news: News) {
        let (pool, worker) = (&shared.pool, &*shared.worker);
        let told = match &news {
            News::Fails(reason) => {
                tracing::warn!(reason, "a provider fails; the circuit of the account is open");
                limits::open_circuit(pool, worker, self.at, reason).await.map(|open| {
                    self.gate.open_for(Instant::now(), open);
                })
            }
            News::Answers => limits::close_circuit(pool, worker, self.at).await,
            News::Holds(wait, reason) => limits::hold_account(pool, worker, self.at, *wait, reason).await,
        };
        if let Err(error) = told {
            tracing::warn!(error = ?error, "other workers were not told about the account: {error}");
        }
        shared.circuits_changed.notify_one();
    }
}

/// What came of asking for turns.
#[derive(Debug, Clone, Copy)]
pub(super) enum Taken {
    /// They may be used now.
    Turns(usize),
    /// There are none; it makes sense to look again after so long.
    AskIn(Duration),
}

/// From now until then.
pub(super) fn until(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}

/// The counters of a provider's calls, by outcome, and the durations of the calls. Looking one up takes longer than counting.
struct Calls {
    outcomes: [(&'static str, Counter); 4],
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

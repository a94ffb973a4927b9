//! The resolver settles items in doubt: calls whose result is unknown. It asks the provider or repeats the call where this is harmless,
//! and leaves the other items to a person.
//!
//! ```text
//! claim doubts that are due ─▶ render again, compare ─▶ repeat or look up ─▶ conclude (decide.rs) ─▶ settle with evidence
//!      ▲                                                                            └─▶ retry later, or a person
//!      └─────────────── a lease and the number of the claim fence late results ────────────┘
//! ```

mod decide;
mod settled_by;

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use postrider_model::{
    DoubtClass, Finding, Limits, Manifest, Message, campaigns::limits::By, jobs::schedule::Zone,
    seal::MasterKey,
};
use postrider_providers::{Account, Adapters};
use postrider_store::{
    Pool, StoreError,
    campaigns::{
        doubts::Resolution,
        resolving::{self, AccountRef, CallToken, ClaimedDoubt, PutOff},
        send_jobs,
    },
    postgres::pool,
};
use tokio_util::sync::CancellationToken;

use self::decide::{Facts, Step, Verdict, conclude, conclude_repeat, step};
pub use self::{
    decide::Pause,
    settled_by::{SettledBy, settled_at, settled_by, settled_by_class, settled_in},
};
use super::render::message_now;
use crate::common::{attempts::Attempts, health::Health};

/// Settings of the resolver.
#[derive(Debug, Clone)]
pub struct ResolverSettings {
    /// Maximum concurrent attempts to settle doubts.
    pub concurrency: usize,
    /// Maximum concurrent attempts per account.
    pub account_concurrency: usize,
    /// Maximum duration of one look-up or repeat.
    pub call_timeout: Duration,
    /// Backoff after an attempt without a result.
    pub pause: Pause,
    /// Time between claims.
    pub poll_interval: Duration,
}

impl Default for ResolverSettings {
    fn default() -> Self {
        Self {
            concurrency: 32,
            account_concurrency: 8,
            call_timeout: Duration::from_secs(60),
            pause: Pause { min: Duration::from_secs(2), max: Duration::from_secs(300) },
            poll_interval: Duration::from_secs(1),
        }
    }
}

/// One resolver.
pub struct Resolver {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    /// New at every start, so that a restarted process never settles under a lease of its predecessor.
    name: String,
    adapters: Adapters,
    master_key: MasterKey,
    settings: ResolverSettings,
    health: Health,
}

impl Resolver {
    /// Creates a resolver for doubts of these providers.
    #[must_use]
    pub fn new(pool: Pool, adapters: Adapters, master_key: MasterKey, settings: ResolverSettings) -> Self {
        let name = format!("resolver-{}", uuid::Uuid::now_v7());
        let health = Health::new("resolver");
        Self { shared: Arc::new(Shared { pool, name, adapters, master_key, settings, health }) }
    }

    /// The health of the resolver while it runs.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health.clone()
    }

    /// Settles doubts until shutdown; then finishes the running attempts.
    pub async fn run(self, shutdown: CancellationToken) {
        let shared = self.shared;
        tracing::info!(resolver = shared.name, "the resolver is running");
        let providers = shared.resolvable_providers();
        let mut attempts: Attempts<AccountRef> = Attempts::default();
        let attempts_max = shared.settings.account_concurrency;
        let mut busy = BusyAccounts { attempts: HashMap::new(), attempts_max };
        while !shutdown.is_cancelled() {
            let capacity = shared.settings.concurrency.saturating_sub(attempts.len());
            let claimed = if capacity == 0 {
                shared.health.passed();
                Vec::new()
            } else {
                shared.claim(&providers, capacity, &busy.accounts()).await
            };
            let claimed_count = claimed.len();
            for doubt in claimed {
                let account = (doubt.doubt.tenant_id(), doubt.account_id);
                let is_busy = busy.begin(account);
                let shared = Arc::clone(&shared);
                attempts.spawn(async move {
                    let resolving = AssertUnwindSafe(shared.resolve(doubt, is_busy)).catch_unwind();
                    if resolving.await.is_err() {
                        tracing::error!("an attempt panicked; its doubt is claimed again after the lease");
                    }
                    account
                });
            }
            // A full claim means that more doubts may be due.
            if claimed_count < capacity || capacity == 0 {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    Some(account) = attempts.next_end() => busy.end(account),
                    () = tokio::time::sleep(shared.settings.poll_interval) => {}
                }
            }
            attempts.take_ended().into_iter().for_each(|account| busy.end(account));
        }
        attempts.finish().await;
        tracing::info!(resolver = shared.name, "the resolver has stopped");
    }
}

/// Running attempts by account.
struct BusyAccounts {
    attempts: HashMap<AccountRef, usize>,
    attempts_max: usize,
}

impl BusyAccounts {
    /// Accounts with the maximum of attempts.
    fn accounts(&self) -> Vec<AccountRef> {
        let busy = self.attempts.iter().filter(|(_, attempts)| **attempts >= self.attempts_max);
        busy.map(|(account, _)| *account).collect()
    }

    /// Counts an attempt. Returns whether the account exceeds the maximum.
    fn begin(&mut self, account: AccountRef) -> bool {
        let attempts = self.attempts.entry(account).or_default();
        *attempts += 1;
        *attempts > self.attempts_max
    }

    fn end(&mut self, account: AccountRef) {
        if let Some(attempts) = self.attempts.get_mut(&account) {
            *attempts -= 1;
            if *attempts == 0 {
                self.attempts.remove(&account);
            }
        }
    }
}

impl Shared {
    /// Providers whose doubts can be settled without a person.
    fn resolvable_providers(&self) -> Vec<&'static str> {
        let manifests = self.adapters.manifests();
        manifests
            .filter(|manifest| manifest.doubt != DoubtClass::Person)
            .map(|manifest| manifest.name)
            .collect()
    }

    /// Lease of a doubt. Longer than an attempt can take, so that no other resolver attempts the same doubt.
    fn lease(&self) -> Duration {
        self.settings.call_timeout * 3 + Duration::from_secs(30)
    }

    async fn claim(&self, providers: &[&str], limit: usize, busy: &[AccountRef]) -> Vec<ClaimedDoubt> {
        let (lease, key) = (self.lease(), &self.master_key);
        match resolving::claim(&self.pool, &self.name, key, providers, limit, lease, busy).await {
            Ok(claimed) => {
                self.health.passed();
                claimed
            }
            Err(error) => {
                self.health.failed(&error);
                tracing::error!(error = ?error, "the resolver failed to claim doubts: {error}");
                tokio::time::sleep(self.settings.poll_interval).await;
                Vec::new()
            }
        }
    }

    /// Makes one attempt to settle a doubt, and records the verdict.
    async fn resolve(&self, claimed: ClaimedDoubt, is_busy: bool) {
        let id = claimed.doubt.outbox_id();
        let verdict = if is_busy {
            let at = claimed.looked_at + self.settings.poll_interval;
            Verdict::RetryAt { at, note: "other items of its account are being resolved".to_owned() }
        } else {
            self.judge(&claimed).await
        };
        let provider = claimed.provider.clone();
        let recorded = match &verdict {
            Verdict::Sent { message_id, evidence } => {
                let resolution = Resolution::Sent { message_id: Some(message_id) };
                self.settle(&claimed, resolution, evidence, "sent").await
            }
            Verdict::Failed { evidence } => {
                self.settle(&claimed, Resolution::Failed, evidence, "failed").await
            }
            Verdict::RetryAt { at, note } => {
                resolving::put_off(&self.pool, &self.name, &claimed.doubt, PutOff::Until(*at), note).await
            }
            Verdict::Person { note } => {
                metrics::counter!("postrider_doubts_left_to_people_total", "provider" => provider)
                    .increment(1);
                tracing::warn!(item.id = %id, "the resolver left {id} to a person: {note}");
                resolving::put_off(&self.pool, &self.name, &claimed.doubt, PutOff::ToAPerson, note).await
            }
        };
        match recorded {
            Ok(()) => {}
            Err(StoreError::ClaimNotHeld { .. }) => {
                // A late answer to the worker, a callback or a person settled the item first.
                tracing::info!(item.id = %id, "the resolver dropped a verdict: {id} was settled in the meantime");
            }
            Err(error) => {
                tracing::error!(error = ?error, item.id = %id, "failed to record the verdict on {id}; retrying when the lease expires: {error}");
            }
        }
    }

    async fn settle(
        &self,
        claimed: &ClaimedDoubt,
        resolution: Resolution<'_>,
        evidence: &str,
        word: &'static str,
    ) -> Result<(), StoreError> {
        let id = claimed.doubt.outbox_id();
        let status = resolving::settle(&self.pool, &self.name, &claimed.doubt, resolution, evidence).await?;
        metrics::counter!("postrider_doubts_settled_total", "provider" => claimed.provider.clone(), "as" => word)
            .increment(1);
        tracing::info!(item.id = %id, run.id = %claimed.run_id, "the resolver settled {id} as {status}: {evidence}");
        // The item's send job may be able to end now. A lost hint costs a poll interval.
        let mut transaction = pool::begin(&self.pool).await?;
        send_jobs::hint(&mut transaction).await?;
        pool::commit(transaction).await
    }

    /// Decides on a doubt, after a look-up or a repeat where one is possible.
    async fn judge(&self, claimed: &ClaimedDoubt) -> Verdict {
        if let Some(message_id) = &claimed.echo {
            let evidence = format!("{} reported {message_id} in a callback", claimed.provider);
            return Verdict::Sent { message_id: message_id.clone(), evidence };
        }
        let later = |note: String| Verdict::RetryAt { at: claimed.looked_at + self.settings.pause.max, note };
        let Some(adapter) = self.adapters.get(&claimed.provider) else {
            return later(format!("this resolver has no provider `{}`", claimed.provider));
        };
        let provider = match &claimed.account {
            None => {
                let note = "its account was removed, so the provider cannot be asked".to_owned();
                return Verdict::Person { note };
            }
            // Another resolver may have the key.
            Some((_, Err(error))) => return later(format!("the account's secret does not open: {error}")),
            Some((settings, Ok(secret))) => {
                match adapter.open(&Account { id: claimed.account_id, settings, secret }) {
                    Ok(provider) => provider,
                    Err(error) => return later(format!("the account cannot be used: {error}")),
                }
            }
        };
        let message = same_message(claimed);
        let facts = facts(adapter.manifest(), claimed, message.is_some());
        let look_up = || self.ask(claimed, async || provider.look_up(&claimed.doubt, message.as_ref()).await);
        match (step(&facts), &message) {
            (Step::Wait(at), _) => Verdict::RetryAt { at, note: "the quiet time is not over".to_owned() },
            (Step::Person(why), _) => Verdict::Person { note: why.to_owned() },
            (Step::Repeat, Some(message)) => {
                if let Err(later) = self.may_call(adapter.manifest(), &facts, claimed).await {
                    return later;
                }
                let found = self.ask(claimed, async || provider.repeat(&claimed.doubt, message).await).await;
                match conclude_repeat(&facts, found, &self.settings.pause) {
                    Ok(verdict) => verdict,
                    // The provider may have refused because it has the message.
                    Err(refusal) => match conclude(&facts, look_up().await, &self.settings.pause) {
                        Verdict::Person { note } => Verdict::Person { note: format!("{refusal}; {note}") },
                        verdict => verdict,
                    },
                }
            }
            (Step::Repeat | Step::LookUp, _) => {
                let no_repeat = match message {
                    None => "the message cannot be rendered as it was, so it must not be sent again; ",
                    Some(_) if claimed.is_suppressed => {
                        "its reader has unsubscribed, so it must not be sent again; "
                    }
                    Some(_) => "",
                };
                match conclude(&facts, look_up().await, &self.settings.pause) {
                    Verdict::Person { note } => Verdict::Person { note: format!("{no_repeat}{note}") },
                    verdict => verdict,
                }
            }
        }
    }

    /// Checks that a repeat may be made. A repeat is a call like any other: it keeps the calling hours and the rate limit, and a resolver
    /// that was delayed does not make it (docs/decisions/0011-a-call-begins-soon-or-not-at-all.md).
    async fn may_call(
        &self,
        manifest: &Manifest,
        facts: &Facts,
        claimed: &ClaimedDoubt,
    ) -> Result<(), Verdict> {
        let later = |wait: Duration, note: &str| {
            let wait = wait.max(self.settings.poll_interval).min(self.settings.pause.max);
            Verdict::RetryAt { at: claimed.looked_at + wait, note: note.to_owned() }
        };
        if let Some(at) = opens_at(claimed) {
            return Err(Verdict::RetryAt { at, note: "outside the calling hours".to_owned() });
        }
        self.await_call_token(manifest, claimed)
            .await
            .map_err(|wait| later(wait, "the limits of the account delay the repeat"))?;
        let age = claimed.doubt.age();
        let is_late = facts.repeat_until.is_some_and(|until| facts.now + age >= until);
        if is_late || age > self.lease() / 2 {
            return Err(later(Duration::ZERO, "the resolver was delayed before the repeat"));
        }
        Ok(())
    }

    /// Takes a call token of the account and waits until it is valid, or returns the time until a later attempt.
    async fn await_call_token(&self, manifest: &Manifest, claimed: &ClaimedDoubt) -> Result<(), Duration> {
        let rate = manifest.rate.map(|rate| rate.per_second());
        match resolving::take_call_token(&self.pool, &self.name, &claimed.doubt, rate, manifest.quota).await {
            Ok(CallToken::In(wait)) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            Ok(CallToken::NotBefore(wait)) => Err(wait.min(self.settings.pause.max)),
            Err(error) => {
                tracing::warn!(error = ?error, "failed to take a call token of an account: {error}");
                Err(self.settings.pause.min)
            }
        }
    }

    /// Asks the provider, within the call timeout.
    async fn ask(&self, claimed: &ClaimedDoubt, question: impl AsyncFnOnce() -> Finding) -> Finding {
        let unclear = |reason: String| Finding::Unclear { reason };
        let asking = AssertUnwindSafe(question()).catch_unwind();
        match tokio::time::timeout(self.settings.call_timeout, asking).await {
            Ok(Ok(finding)) => finding,
            Ok(Err(_)) => {
                tracing::error!(provider = claimed.provider, "an adapter panicked in the resolver");
                unclear("the adapter panicked".to_owned())
            }
            Err(_) => unclear(format!("no answer within {:?}", self.settings.call_timeout)),
        }
    }
}

/// The time at which the calling hours of the account open for this lead; `None` when they are open.
fn opens_at(claimed: &ClaimedDoubt) -> Option<jiff::Timestamp> {
    let limits = Limits::read(&claimed.limits).ok()?;
    let hours = limits.hours.as_ref()?;
    let of_lead =
        claimed.lead.as_ref().filter(|_| hours.by == By::Lead).and_then(|lead| lead.timezone.as_deref());
    let (of_lead, of_account) = (of_lead.and_then(Zone::find), limits.zone());
    hours.opens_at(claimed.looked_at, of_lead.as_ref().map_or(&of_account, Zone::time_zone))
}

fn facts(manifest: &Manifest, claimed: &ClaimedDoubt, is_same_message: bool) -> Facts {
    let doubt = &claimed.doubt;
    Facts {
        class: manifest.doubt,
        now: claimed.looked_at,
        quiet_until: doubt.quiet_until(),
        repeat_from: repeat_from(claimed),
        // Counted from the reservation, which is before the first call.
        repeat_until: manifest.repeat_within().map(|within| doubt.reserved_at() + within),
        may_repeat: is_same_message && !claimed.is_suppressed,
        secret_is_newer: claimed.secret_is_newer,
        age: Duration::try_from(claimed.looked_at.duration_since(doubt.doubted_since())).unwrap_or_default(),
    }
}

/// The end of the quiet time after the last call, whether a worker or a resolver made it and whatever its result was.
fn repeat_from(claimed: &ClaimedDoubt) -> jiff::Timestamp {
    let doubt = &claimed.doubt;
    let quiet = doubt.quiet_until().duration_since(doubt.doubted_since());
    claimed.repeated_at.map_or(doubt.quiet_until(), |last| doubt.quiet_until().max(last + quiet))
}

/// The message as it was reserved; `None` if the lead or the template has changed since, because no other message may be sent under
/// the same key. An item that an adoption put in doubt has no reserved message here, so the message is rendered as of now: a provider
/// that deduplicates by the key treats it as the same (docs/decisions/0019-a-copy-waits-for-adopt.md).
fn same_message(claimed: &ClaimedDoubt) -> Option<Message> {
    let is_same = |message: &Message| match claimed.message_hash.as_deref() {
        Some(hash) => message.hash().as_slice() == hash,
        None => true,
    };
    message_now(claimed.doubt.channel(), &claimed.content, claimed.lead.as_ref()).filter(is_same)
}

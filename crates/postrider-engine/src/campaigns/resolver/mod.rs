//! The resolver: what left and was not answered is found, settled where the provider allows it, and left to a person where
//! it does not.
//!
//! ```text
//! claim doubts that are due ─▶ render again, compare ─▶ repeat or look up ─▶ conclude (decide.rs) ─▶ settle with evidence
//!      ▲                                                                            └─▶ look again later, or a person
//!      └─────────────── a lease and the number of the look fence whoever comes back late ──┘
//! ```

mod decide;
mod settled_by;

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use postrider_model::{
    DoubtClass, Finding, Limits, Manifest, Message, limits::By, schedule::Zone,
    seal::MasterKey,
};
use postrider_providers::{Account, Adapters};
use postrider_store::{
    Pool, StoreError,
    doubts::Resolution,
    jobs, pool,
    resolving::{self, AccountRef, ClaimedDoubt, PutOff, Turn},
};
use tokio_util::sync::CancellationToken;

use self::decide::{Facts, Step, Verdict, conclude, conclude_repeat, step};
pub use self::{
    decide::Pause,
    settled_by::{SettledBy, settled_by},
};
use super::render::{Template, address_of};
use crate::common::{attempts::Attempts, health::Health};

/// How the resolver behaves.
#[derive(Debug, Clone)]
pub struct ResolverSettings {
    /// Most doubts that are looked into at a time.
    pub concurrency: usize,
    /// Most of them at one account.
    pub account_concurrency: usize,
    /// How long one question or repeat may take.
    pub call_timeout: Duration,
    /// How long to wait after a look that told nothing.
    pub pause: Pause,
    /// How often to look for doubts.
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
    /// New at every start, so that nobody is taken for the process that died under the same name.
    name: String,
    adapters: Adapters,
    master_key: MasterKey,
    settings: ResolverSettings,
    health: Health,
}

impl Resolver {
    /// A resolver for the doubts of these vendors.
    #[must_use]
    pub fn new(pool: Pool, adapters: Adapters, master_key: MasterKey, settings: ResolverSettings) -> Self {
        let name = format!("resolver-{}", uuid::Uuid::now_v7());
        let health = Health::new("resolver");
        Self { shared: Arc::new(Shared { pool, name, adapters, master_key, settings, health }) }
    }

    /// Whether it can work, once it runs.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health.clone()
    }

    /// Settles until shutdown; then finishes the looks that are under way.
    pub async fn run(self, shutdown: CancellationToken) {
        let shared = self.shared;
        tracing::info!(resolver = shared.name, "the resolver is running");
        let vendors = shared.vendors();
        let mut looks: Attempts<AccountRef> = Attempts::default();
        let mut busy = BusyAccounts { looks: HashMap::new(), looks_max: shared.settings.account_concurrency };
        while !shutdown.is_cancelled() {
            let capacity = shared.settings.concurrency.saturating_sub(looks.len());
            let claimed = if capacity == 0 {
                shared.health.passed();
                Vec::new()
            } else {
                shared.claim(&vendors, capacity, &busy.accounts()).await
            };
            let found = claimed.len();
            for doubt in claimed {
                let account = (doubt.doubt.tenant_id(), doubt.account_id);
                let is_busy = busy.begin(account);
                let shared = Arc::clone(&shared);
                looks.spawn(async move {
                    let looking = AssertUnwindSafe(shared.look(doubt, is_busy)).catch_unwind();
                    if looking.await.is_err() {
                        tracing::error!("a look at a doubt panicked; it is claimed again when its lease expires");
                    }
                    account
                });
            }
            // A full claim means that there is more.
            if found < capacity || capacity == 0 {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    Some(account) = looks.next_end() => busy.end(account),
                    () = tokio::time::sleep(shared.settings.poll_interval) => {}
                }
            }
            looks.take_ended().into_iter().for_each(|account| busy.end(account));
        }
        looks.finish().await;
        tracing::info!(resolver = shared.name, "the resolver has stopped");
    }
}

/// Running looks by account.
struct BusyAccounts {
    looks: HashMap<AccountRef, usize>,
    looks_max: usize,
}

impl BusyAccounts {
    /// Accounts with enough looks.
    fn accounts(&self) -> Vec<AccountRef> {
        self.looks.iter().filter(|(_, looks)| **looks >= self.looks_max).map(|(account, _)| *account).collect()
    }

    /// Counts a look. Returns whether the account had enough already.
    fn begin(&mut self, account: AccountRef) -> bool {
        let looks = self.looks.entry(account).or_default();
        *looks += 1;
        *looks > self.looks_max
    }

    fn end(&mut self, account: AccountRef) {
        if let Some(looks) = self.looks.get_mut(&account) {
            *looks -= 1;
            if *looks == 0 {
                self.looks.remove(&account);
            }
        }
    }
}

impl Shared {
    /// Those whose doubts can be settled without a person.
    fn vendors(&self) -> Vec<&'static str> {
        let manifests = self.adapters.manifests();
        manifests
            .filter(|manifest| manifest.doubt != DoubtClass::Person)
            .map(|manifest| manifest.name)
            .collect()
    }

    /// Longer than a look can take, so that nobody else looks at the same time.
    fn lease(&self) -> Duration {
        self.settings.call_timeout * 3 + Duration::from_secs(30)
    }

    async fn claim(&self, vendors: &[&str], room: usize, busy: &[AccountRef]) -> Vec<ClaimedDoubt> {
        let (lease, key) = (self.lease(), &self.master_key);
        match resolving::claim(&self.pool, &self.name, key, vendors, room, lease, busy).await {
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

    /// Looks into one doubt, and writes down what follows.
    async fn look(&self, claimed: ClaimedDoubt, is_busy: bool) {
        let id = claimed.doubt.outbox_id();
        let verdict = if is_busy {
            let at = claimed.looked_at + self.settings.poll_interval;
            Verdict::LookAgain { at, note: "others of its account are being looked into".to_owned() }
        } else {
            self.judge(&claimed).await
        };
        let provider = claimed.provider.clone();
        let written = match &verdict {
            Verdict::Sent { message_id, evidence } => {
                let resolution = Resolution::Sent { message_id: Some(message_id) };
                self.settle(&claimed, resolution, evidence, "sent").await
            }
            Verdict::Failed { evidence } => {
                self.settle(&claimed, Resolution::Failed, evidence, "failed").await
            }
            Verdict::LookAgain { at, note } => {
                resolving::put_off(&self.pool, &self.name, &claimed.doubt, PutOff::Until(*at), note).await
            }
            Verdict::Person { note } => {
                metrics::counter!("postrider_doubts_left_to_people_total", "provider" => provider)
                    .increment(1);
                tracing::warn!(item.id = %id, "{id} is left to a person: {note}");
                resolving::put_off(&self.pool, &self.name, &claimed.doubt, PutOff::ToAPerson, note).await
            }
        };
        match written {
            Ok(()) => {}
            Err(StoreError::ClaimNotHeld { .. }) => {
                // The worker's late answer came first, or somebody decided.
                tracing::info!(item.id = %id, "{id} was settled by somebody else in the meantime");
            }
            Err(error) => {
                tracing::error!(error = ?error, item.id = %id, "what was found about {id} was not recorded, and is looked for again: {error}");
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
        tracing::info!(item.id = %id, run.id = %claimed.run_id, "{id} is {status} after all: {evidence}");
        // Its job may be able to end now. The hint is no more than one.
        let mut transaction = pool::begin(&self.pool).await?;
        jobs::hint(&mut transaction).await?;
        pool::commit(transaction).await
    }

    /// Finds out what there is to find out.
    async fn judge(&self, claimed: &ClaimedDoubt) -> Verdict {
        if let Some(message_id) = &claimed.echo {
            let evidence = format!("{} had called back about {message_id}", claimed.provider);
            return Verdict::Sent { message_id: message_id.clone(), evidence };
        }
        let later =
            |note: String| Verdict::LookAgain { at: claimed.looked_at + self.settings.pause.max, note };
        let Some(adapter) = self.adapters.get(&claimed.provider) else {
            return later(format!("this resolver has no provider `{}`", claimed.provider));
        };
        let provider = match &claimed.account {
            None => {
                let note = "its account was removed, and nobody else can be asked".to_owned();
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
            (Step::Wait(at), _) => Verdict::LookAgain { at, note: "the quiet time is not over".to_owned() },
            (Step::Person(why), _) => Verdict::Person { note: why.to_owned() },
            (Step::Repeat, Some(message)) => {
                if let Err(later) = self.may_call(adapter.manifest(), &facts, claimed).await {
                    return later;
                }
                let found = self.ask(claimed, async || provider.repeat(&claimed.doubt, message).await).await;
                match conclude_repeat(&facts, found, &self.settings.pause) {
                    Ok(verdict) => verdict,
                    // Perhaps because it has it.
                    Err(refusal) => match conclude(&facts, look_up().await, &self.settings.pause) {
                        Verdict::Person { note } => Verdict::Person { note: format!("{refusal}; {note}") },
                        verdict => verdict,
                    },
                }
            }
            (Step::Repeat | Step::LookUp, _) => {
                let not_again = match message {
                    None => "the message cannot be rendered as it was, so it must not be sent again; ",
                    Some(_) if claimed.is_suppressed => {
                        "its reader has unsubscribed, so it must not be sent again; "
                    }
                    Some(_) => "",
                };
                match conclude(&facts, look_up().await, &self.settings.pause) {
                    Verdict::Person { note } => Verdict::Person { note: format!("{not_again}{note}") },
                    verdict => verdict,
                }
            }
        }
    }

    /// A repeat is a call to the provider like any other: at its hour, in its turn, and not by somebody who was held up.
    async fn may_call(
        &self,
        manifest: &Manifest,
        facts: &Facts,
        claimed: &ClaimedDoubt,
    ) -> Result<(), Verdict> {
        let later = |wait: Duration, note: &str| {
            let wait = wait.max(self.settings.poll_interval).min(self.settings.pause.max);
            Verdict::LookAgain { at: claimed.looked_at + wait, note: note.to_owned() }
        };
        if let Some(at) = opens_at(claimed) {
            return Err(Verdict::LookAgain { at, note: "it is not the hour to call".to_owned() });
        }
        self.turn(manifest, claimed)
            .await
            .map_err(|wait| later(wait, "its account must wait before it is called again"))?;
        let age = claimed.doubt.age();
        let is_late = facts.repeat_until.is_some_and(|until| facts.now + age >= until);
        if is_late || age > self.lease() / 2 {
            return Err(later(Duration::ZERO, "the resolver was held up before the call"));
        }
        Ok(())
    }

    /// Waits for a turn at the account, or says when to come back.
    async fn turn(&self, manifest: &Manifest, claimed: &ClaimedDoubt) -> Result<(), Duration> {
        let rate = manifest.rate.map(|rate| f64::from(rate.calls) / rate.per.as_secs_f64().max(0.001));
        match resolving::take_turn(&self.pool, &self.name, &claimed.doubt, rate).await {
            Ok(Turn::In(wait)) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            Ok(Turn::NotBefore(wait)) => Err(wait.min(self.settings.pause.max)),
            Err(error) => {
                tracing::warn!(error = ?error, "no turn at the account: {error}");
                Err(self.settings.pause.min)
            }
        }
    }

    /// Asks, for so long and no longer.
    async fn ask(&self, claimed: &ClaimedDoubt, question: impl AsyncFnOnce() -> Finding) -> Finding {
        let unclear = |reason: String| Finding::Unclear { reason };
        let asking = AssertUnwindSafe(question()).catch_unwind();
        match tokio::time::timeout(self.settings.call_timeout, asking).await {
            Ok(Ok(finding)) => finding,
            Ok(Err(_)) => {
                tracing::error!(provider = claimed.provider, "an adapter panicked");
                unclear("the adapter panicked".to_owned())
            }
            Err(_) => unclear(format!("no answer within {:?}", self.settings.call_timeout)),
        }
    }
}

/// When the account may call this lead again; `None` when it may now.
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
        // From the reservation on, which is before the first call.
        repeat_until: manifest.repeat_within().map(|within| doubt.reserved_at() + within),
        may_repeat: is_same_message && !claimed.is_suppressed,
        secret_is_newer: claimed.secret_is_newer,
        age: Duration::try_from(claimed.looked_at.duration_since(doubt.doubted_since())).unwrap_or_default(),
    }
}

/// The quiet time after the last call, whoever made it and whatever became of it.
fn repeat_from(claimed: &ClaimedDoubt) -> jiff::Timestamp {
    let doubt = &claimed.doubt;
    let quiet = doubt.quiet_until().duration_since(doubt.doubted_since());
    claimed.repeated_at.map_or(doubt.quiet_until(), |last| doubt.quiet_until().max(last + quiet))
}

/// The message as it was reserved, or nothing: whatever a lead or a rule has changed since, nothing else is sent under the
/// same key. Of an item that an adoption put in doubt nothing was reserved here: it is the message as it would be sent now, and a
/// provider that deduplicates by the key takes it for the same.
fn same_message(claimed: &ClaimedDoubt) -> Option<Message> {
    let channel = claimed.doubt.channel();
    let lead = claimed.lead.as_ref();
    let address = lead.and_then(|lead| address_of(channel, lead));
    let template = Template::compile(channel, &claimed.content).ok()?;
    let rendered = std::panic::catch_unwind(AssertUnwindSafe(|| template.render(lead, address))).ok()?;
    let is_same = |message: &Message| match claimed.message_hash.as_deref() {
        Some(hash) => message.hash().as_slice() == hash,
        None => true,
    };
    rendered.ok().filter(is_same)
}

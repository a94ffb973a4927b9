//! The resolver: what left and was not answered is found, settled where the provider allows it, and left to a person where
//! it does not.
//!
//! ```text
//! claim doubts that are due ─▶ render again, compare ─▶ repeat or look up ─▶ conclude (decide.rs) ─▶ settle with evidence
//!      ▲                                                                            └─▶ look again later, or a person
//!      └─────────────── a lease and the number of the look fence whoever comes back late ──┘
//! ```

mod decide;

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use postrider_model::{DoubtClass, Finding, Manifest, Message, ids::ProviderAccountId, seal::MasterKey};
use postrider_providers::{Account, Adapters, Provider};
use postrider_store::{
    Pool, StoreError,
    doubts::Resolution,
    jobs, pool,
    resolving::{self, ClaimedDoubt, PutOff, Turn},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use self::decide::Pause;
use self::decide::{Facts, Step, Verdict, conclude, step};
use crate::render::{Template, address_of};

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
}

impl Resolver {
    /// A resolver for the doubts of these vendors.
    #[must_use]
    pub fn new(pool: Pool, adapters: Adapters, master_key: MasterKey, settings: ResolverSettings) -> Self {
        let name = format!("resolver-{}", uuid::Uuid::now_v7());
        Self { shared: Arc::new(Shared { pool, name, adapters, master_key, settings }) }
    }

    /// Settles until shutdown; then finishes the looks that are under way.
    pub async fn run(self, shutdown: CancellationToken) {
        let shared = self.shared;
        tracing::info!(resolver = shared.name, "the resolver is running");
        let vendors = shared.vendors();
        let mut looks: JoinSet<ProviderAccountId> = JoinSet::new();
        let mut of_account: HashMap<ProviderAccountId, usize> = HashMap::new();
        while !shutdown.is_cancelled() {
            let room = shared.settings.concurrency.saturating_sub(looks.len());
            let claimed = match room {
                0 => Vec::new(),
                _ => shared.claim(&vendors, room).await,
            };
            let found = claimed.len();
            for doubt in claimed {
                let asked = of_account.entry(doubt.account_id).or_default();
                let account = doubt.account_id;
                let is_busy = *asked >= shared.settings.account_concurrency;
                *asked += 1;
                let shared = Arc::clone(&shared);
                looks.spawn(async move {
                    let looking = AssertUnwindSafe(shared.look(doubt, is_busy)).catch_unwind();
                    if looking.await.is_err() {
                        tracing::error!("a look at a doubt panicked; it comes again when its lease is over");
                    }
                    account
                });
            }
            let ended = |of_account: &mut HashMap<ProviderAccountId, usize>, account| {
                if let Some(asked) = of_account.get_mut(&account) {
                    *asked -= 1;
                    if *asked == 0 {
                        of_account.remove(&account);
                    }
                }
            };
            // A full claim means that there is more.
            if found < room || room == 0 {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    Some(Ok(account)) = looks.join_next(), if !looks.is_empty() => ended(&mut of_account, account),
                    () = tokio::time::sleep(shared.settings.poll_interval) => {}
                }
            }
            while let Some(Ok(account)) = looks.try_join_next() {
                ended(&mut of_account, account);
            }
        }
        while looks.join_next().await.is_some() {}
        tracing::info!(resolver = shared.name, "the resolver has stopped");
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

    async fn claim(&self, vendors: &[&str], room: usize) -> Vec<ClaimedDoubt> {
        // Longer than a look can take, so that nobody else looks at the same time.
        let lease = self.settings.call_timeout * 2 + Duration::from_secs(30);
        match resolving::claim(&self.pool, &self.name, &self.master_key, vendors, room, lease).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::error!(error = ?error, "no doubts were claimed: {error}");
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
        let asked = step(&facts);
        let finding = match asked {
            Step::Wait(at) => {
                return Verdict::LookAgain { at, note: "the quiet time is not over".to_owned() };
            }
            Step::Person(why) => return Verdict::Person { note: why.to_owned() },
            Step::Repeat => match self.turn(adapter.manifest(), claimed).await {
                Ok(()) => self.ask(&*provider, claimed, asked, message.as_ref()).await,
                Err(wait) => {
                    let note = "its account must wait before it is called again".to_owned();
                    return Verdict::LookAgain {
                        at: claimed.looked_at + wait.max(self.settings.poll_interval),
                        note,
                    };
                }
            },
            Step::LookUp => self.ask(&*provider, claimed, asked, message.as_ref()).await,
        };
        conclude(&facts, asked, finding, &self.settings.pause)
    }

    /// A repeat is a call to the provider like any other. Waits for its turn, or says when to come back.
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

    async fn ask(
        &self,
        provider: &dyn Provider,
        claimed: &ClaimedDoubt,
        asked: Step,
        message: Option<&Message>,
    ) -> Finding {
        let doubt = &claimed.doubt;
        let asking = async {
            match (asked, message) {
                (Step::Repeat, Some(message)) => provider.repeat(doubt, message).await,
                (_, message) => provider.look_up(doubt, message).await,
            }
        };
        let unclear = |reason: String| Finding::Unclear { reason };
        match tokio::time::timeout(self.settings.call_timeout, AssertUnwindSafe(asking).catch_unwind()).await
        {
            Ok(Ok(finding)) => finding,
            Ok(Err(_)) => unclear("the adapter panicked".to_owned()),
            Err(_) => unclear(format!("no answer within {:?}", self.settings.call_timeout)),
        }
    }
}

fn facts(manifest: &Manifest, claimed: &ClaimedDoubt, is_same_message: bool) -> Facts {
    let doubt = &claimed.doubt;
    Facts {
        class: manifest.doubt,
        now: claimed.looked_at,
        quiet_until: doubt.quiet_until(),
        // From the reservation on, which is before the first call.
        repeat_until: manifest.repeat_within().map(|within| doubt.reserved_at() + within),
        is_same_message,
        age: Duration::try_from(claimed.looked_at.duration_since(doubt.doubted_since())).unwrap_or_default(),
    }
}

/// The message as it was reserved, or nothing: whatever a lead or a rule has changed since, nothing else is sent under the
/// same key.
fn same_message(claimed: &ClaimedDoubt) -> Option<Message> {
    let channel = claimed.doubt.channel();
    let lead = claimed.lead.as_ref();
    let address = lead.and_then(|lead| address_of(channel, lead));
    let template = Template::compile(channel, &claimed.content).ok()?;
    let rendered = std::panic::catch_unwind(AssertUnwindSafe(|| template.render(lead, address))).ok()?;
    rendered.ok().filter(|message| Some(message.hash().as_slice()) == claimed.message_hash.as_deref())
}

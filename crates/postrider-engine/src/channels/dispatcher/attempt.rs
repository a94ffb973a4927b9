//! One attempt at one reply.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::FutureExt;
use jiff::Timestamp;
use postrider_model::{DoubtClass, Finding, Outcome, ids::ProviderAccountId, seal::MasterKey};
use postrider_providers::{Account, Adapters, Provider};
use postrider_store::{
    Pool, crash_point,
    replies::{self, AccountVersion, ClaimedReply, Verdict},
};

use super::{
    Shared,
    decide::{CALLBACK_WITHIN, Pausing, after_call, after_look_up},
    lane::Went,
    settle::{About, Settled},
};
use crate::common::round::within;

/// A reply of a vendor that this process does not know is left to others for so long.
const LEAVE_ALONE: Duration = Duration::from_secs(60);
/// Accounts that are kept open.
const OPEN_MAX: usize = 10_000;

/// Tries a reply, and says what became of it.
pub(super) async fn attempt(shared: &Shared, reply: ClaimedReply) -> (Settled, Went) {
    let about = About::new(&reply);
    tracing::info!(
        correlation_id = %about.correlation_id,
        channel_message_id = %about.message_id.0,
        outbox_id = %about.id.0,
        provider = about.provider,
        attempt = reply.attempt_count + 1,
        "a reply was claimed"
    );
    let (verdict, went) = judge(shared, &reply).await;
    (Settled { reply: reply.settle(verdict), about }, went)
}

async fn judge(shared: &Shared, reply: &ClaimedReply) -> (Verdict, Went) {
    if let Some(message_id) = reply.proven.clone() {
        return (Verdict::Sent { message_id }, Went::Well);
    }
    let settings = &shared.settings;
    let pausing =
        Pausing { schedule: &settings.retries, attempt_count: reply.attempt_count, random: random() };
    let (class, provider) = match shared.accounts.open(reply.account, &reply.provider).await {
        Ok(opened) => opened,
        Err(NotOpen::Removed) => {
            return (Verdict::Dead { error: "its account was removed".to_owned() }, Went::Well);
        }
        Err(NotOpen::NotHere) => {
            tracing::warn!(provider = reply.provider, "this process does not know the provider; others may");
            return (Verdict::Release { pause: LEAVE_ALONE, reason: None }, Went::Well);
        }
        // Not the provider's fault, nor the reply's: another process may have the key, or the database answers later.
        Err(NotOpen::NotNow(reason)) => {
            tracing::warn!(account.id = %reply.account.id, reason, "an account could not be read");
            return (Verdict::Release { pause: LEAVE_ALONE, reason: Some(reason) }, Went::Well);
        }
        Err(NotOpen::Unfit(reason)) => {
            return after_call(Outcome::NotSent { reason, retry_after: None }, DoubtClass::Person, &pausing);
        }
    };
    // A dispatcher died while it was sending: the provider's callback may be on its way.
    let doubted_for =
        reply.doubt().map(|doubt| Timestamp::now().duration_since(doubt.doubted_since()).unsigned_abs());
    if let Some(wait) =
        doubted_for.and_then(|age| CALLBACK_WITHIN.checked_sub(age)).filter(|_| class == DoubtClass::Echo)
    {
        return (Verdict::Release { pause: wait, reason: None }, Went::Well);
    }
    if let Some(doubt) = reply.doubt().filter(|_| class == DoubtClass::Lookup) {
        let looking = AssertUnwindSafe(provider.look_up(doubt, Some(&reply.message))).catch_unwind();
        let finding = match tokio::time::timeout(settings.call_timeout, looking).await {
            Ok(Ok(finding)) => finding,
            Ok(Err(_)) => Finding::Unclear { reason: "the adapter panicked".to_owned() },
            Err(_) => Finding::Unclear { reason: "no answer in time".to_owned() },
        };
        if let Some(decided) = after_look_up(finding, &pausing) {
            return decided;
        }
    }
    // A process that stood still must not call: the reply may be somebody else's by now.
    if reply.age() + settings.call_timeout >= settings.lock_timeout {
        return (Verdict::Release { pause: Duration::ZERO, reason: None }, Went::Well);
    }
    crash_point!("reply.before_call");
    if reply.attempt_count == 0 {
        let waited = Timestamp::now().duration_since(reply.created_at);
        metrics::histogram!("postrider_reply_commit_to_call_seconds", "provider" => reply.provider.clone())
            .record(waited.as_secs_f64().max(0.0));
    }
    let began = Instant::now();
    let calling = AssertUnwindSafe(provider.call(reply.reservation(), &reply.message)).catch_unwind();
    let outcome = match tokio::time::timeout(settings.call_timeout, calling).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Outcome::Unknown { reason: "the adapter panicked".to_owned() },
        Err(_) => Outcome::Unknown { reason: format!("no answer within {:?}", settings.call_timeout) },
    };
    crash_point!("reply.after_call");
    metrics::histogram!("postrider_reply_call_seconds", "provider" => reply.provider.clone())
        .record(began.elapsed());
    metrics::counter!("postrider_reply_attempts_total", "provider" => reply.provider.clone(), "outcome" => outcome.kind())
        .increment(1);
    after_call(outcome, class, &pausing)
}

/// Between 0 and 1, for jitter.
fn random() -> f64 {
    (RandomState::new().build_hasher().finish() >> 11) as f64 / (1u64 << 53) as f64
}

/// Why an account cannot be used.
enum NotOpen {
    Removed,
    NotHere,
    NotNow(String),
    Unfit(String),
}

type Opened = (DoubtClass, Arc<dyn Provider>);

/// Accounts that were opened, as long as they do not change.
pub(super) struct Accounts {
    pool: Pool,
    adapters: Adapters,
    master_key: MasterKey,
    open: Mutex<HashMap<ProviderAccountId, (Timestamp, Opened)>>,
}

impl Accounts {
    pub(super) fn new(pool: Pool, adapters: Adapters, master_key: MasterKey) -> Self {
        Self { pool, adapters, master_key, open: Mutex::default() }
    }

    async fn open(&self, account: AccountVersion, provider: &str) -> Result<Opened, NotOpen> {
        let version = account.changed_at.ok_or(NotOpen::Removed)?;
        let adapter = self.adapters.get(provider).ok_or(NotOpen::NotHere)?;
        let known = {
            let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.get(&account.id).filter(|(known, _)| *known == version).map(|(_, opened)| opened.clone())
        };
        if let Some(opened) = known {
            return Ok(opened);
        }
        let read = within(replies::account(&self.pool, &self.master_key, account)).await;
        let (settings, secret) =
            read.map_err(|error| NotOpen::NotNow(error.to_string()))?.ok_or(NotOpen::Removed)?;
        let opened = adapter
            .open(&Account { id: account.id, settings: &settings, secret: &secret })
            .map_err(|error| NotOpen::Unfit(error.to_string()))?;
        let opened = (adapter.manifest().doubt, opened);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= OPEN_MAX {
            open.clear();
        }
        open.insert(account.id, (version, opened.clone()));
        Ok(opened)
    }
}

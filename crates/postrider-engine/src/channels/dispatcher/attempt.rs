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
use postrider_model::{DoubtClass, Finding, Manifest, Outcome, ids::ProviderAccountId, seal::MasterKey};
use postrider_providers::{Account, Adapters, Provider};
use postrider_store::{
    Pool,
    channels::replies::{self, AccountNote, AccountVersion, ClaimedReply, Verdict},
    crash_point,
};

use super::{
    Shared,
    decide::{Backoff, CALLBACK_WITHIN, Decision, Doubted, after_call, after_look_up, without_look_up},
    lane::AccountSignal,
    settle::{ReplyFields, Settled},
};
use crate::common::round::within;

/// Pause of a reply that only another process may be able to send.
const RELEASE_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of cached accounts.
const OPEN_MAX: usize = 10_000;

/// Attempts to send a reply. Returns the result, and how the account responded.
pub(super) async fn attempt(shared: &Shared, reply: ClaimedReply) -> (Settled, AccountSignal) {
    let fields = ReplyFields::new(&reply);
    tracing::info!(
        correlation_id = %fields.correlation_id,
        channel_message_id = %fields.message_id.0,
        outbox_id = %fields.id.0,
        provider = fields.provider,
        attempt = reply.attempt_count + 1,
        "a reply was claimed"
    );
    let (verdict, signal, note) = judge(shared, &reply).await;
    // The probing call of a half-open circuit was answered.
    let answers = reply.is_probe && signal == AccountSignal::Healthy;
    let note = note.or(answers.then_some(AccountNote::Answers));
    (Settled { reply: reply.settle(verdict).noting(note), fields }, signal)
}

async fn judge(shared: &Shared, reply: &ClaimedReply) -> Decision {
    let release = |pause, reason| (Verdict::Release { pause, reason }, AccountSignal::Neutral, None);
    if let Some(message_id) = reply.proven.clone() {
        return (Verdict::Sent { message_id }, AccountSignal::Neutral, None);
    }
    let settings = &shared.settings;
    let backoff =
        Backoff { schedule: &settings.retries, attempt_count: reply.attempt_count, random: random() };
    let Opened { manifest, provider } = match shared.accounts.open(reply.account, &reply.provider).await {
        Ok(opened) => opened,
        Err(OpenError::Removed) => {
            let error = "its account was removed".to_owned();
            return (Verdict::Dead { error }, AccountSignal::Neutral, None);
        }
        Err(OpenError::UnknownProvider) => {
            tracing::warn!(provider = reply.provider, "a reply of an unknown provider was released");
            return release(RELEASE_PAUSE, None);
        }
        // The failure concerns neither the provider nor the reply: another process may have the key, or the database may answer later.
        Err(OpenError::Unavailable(reason)) => {
            tracing::warn!(account.id = %reply.account.id, reason, "failed to read a reply's account");
            return release(RELEASE_PAUSE, Some(reason));
        }
        Err(OpenError::Invalid(reason)) => {
            let outcome = Outcome::AccountRefused { reason, is_login: false };
            return after_call(outcome, DoubtClass::Person, &backoff);
        }
    };
    let class = manifest.doubt;
    // The result of an earlier call is unknown, and the provider's callback may still arrive.
    let doubted_for =
        reply.doubt().map(|doubt| Timestamp::now().duration_since(doubt.doubted_since()).unsigned_abs());
    if let Some(wait) =
        doubted_for.and_then(|age| CALLBACK_WITHIN.checked_sub(age)).filter(|_| class == DoubtClass::Echo)
    {
        return release(wait, None);
    }
    if let Some(doubt) = reply.doubt().filter(|_| class == DoubtClass::Lookup) {
        let every = manifest.look_ups.map(|rate| rate.every());
        let turn = match within(replies::take_look_up(&shared.pool, reply.account, every)).await {
            Ok(turn) => turn,
            Err(error) => return release(RELEASE_PAUSE, Some(error.to_string())),
        };
        let doubted = Doubted {
            age: doubted_for.unwrap_or_default(),
            is_requeued: reply.is_requeued,
            every: turn.every,
            pause_min: settings.retries.base,
            random: random(),
        };
        if let Some(wait) = turn.wait {
            return without_look_up(wait, doubted);
        }
        let looking = AssertUnwindSafe(provider.look_up(doubt, Some(&reply.message))).catch_unwind();
        let finding = match tokio::time::timeout(settings.call_timeout, looking).await {
            Ok(Ok(finding)) => finding,
            Ok(Err(_)) => Finding::Unclear { reason: "the adapter panicked".to_owned() },
            Err(_) => Finding::Unclear { reason: format!("no answer within {:?}", settings.call_timeout) },
        };
        if let Some(decided) = after_look_up(finding, doubted) {
            return decided;
        }
    }
    // A process that was stopped must not call: another dispatcher may hold the reply.
    // docs/decisions/0011-a-call-begins-soon-or-not-at-all.md
    if reply.age() + settings.call_timeout >= settings.lock_timeout {
        return release(Duration::ZERO, None);
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
    after_call(outcome, class, &backoff)
}

/// A random number between 0 and 1, for jitter.
fn random() -> f64 {
    (RandomState::new().build_hasher().finish() >> 11) as f64 / (1u64 << 53) as f64
}

/// The reason why an account cannot be used.
enum OpenError {
    Removed,
    /// This process has no adapter for the provider.
    UnknownProvider,
    /// The account could not be read.
    Unavailable(String),
    /// The adapter refused the account's settings or secret.
    Invalid(String),
}

/// An account that can be called.
#[derive(Clone)]
struct Opened {
    manifest: &'static Manifest,
    provider: Arc<dyn Provider>,
}

/// A cache of opened accounts by version.
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

    async fn open(&self, account: AccountVersion, provider: &str) -> Result<Opened, OpenError> {
        let version = account.changed_at.ok_or(OpenError::Removed)?;
        let adapter = self.adapters.get(provider).ok_or(OpenError::UnknownProvider)?;
        let known = {
            let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.get(&account.id).filter(|(known, _)| *known == version).map(|(_, opened)| opened.clone())
        };
        if let Some(opened) = known {
            return Ok(opened);
        }
        let read = within(replies::account(&self.pool, &self.master_key, account)).await;
        let (settings, secret) =
            read.map_err(|error| OpenError::Unavailable(error.to_string()))?.ok_or(OpenError::Removed)?;
        let opened = adapter
            .open(&Account { id: account.id, settings: &settings, secret: &secret })
            .map_err(|error| OpenError::Invalid(error.to_string()))?;
        let opened = Opened { manifest: adapter.manifest(), provider: opened };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= OPEN_MAX {
            open.clear();
        }
        open.insert(account.id, (version, opened.clone()));
        Ok(opened)
    }
}

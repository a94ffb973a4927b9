//! Chat: what comes in, and the replies to it.

use serde::{Deserialize, Serialize};

use super::{Bounded, within};

/// Chat messages and replies.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Channels {
    /// The dispatcher of replies.
    pub outbox: ChannelOutbox,
    /// A message whose execution has not ended after so long is executed again: its process is gone.
    pub execution_lease_seconds: u64,
    /// Days to keep messages that are over, with their replies. 0 keeps them for ever.
    pub retention_days: u32,
}

const RETENTION_DAYS_MIN: u32 = 8;

impl Default for Channels {
    fn default() -> Self {
        Self { outbox: ChannelOutbox::default(), execution_lease_seconds: 120, retention_days: 90 }
    }
}

/// The dispatcher of replies.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelOutbox {
    /// Whether replies are sent by a process that has the role for it. Without, they wait.
    pub enabled: bool,
    /// How often to look without a hint.
    pub poll_interval_seconds: f64,
    /// Most replies taken at a time.
    pub claim_batch_size: usize,
    /// A reply that is held for longer is taken from its dispatcher.
    pub lock_timeout_seconds: u64,
    /// A reply that failed so often is dead.
    pub max_attempts: u32,
    /// The pause after the first failure; then twice as long each time.
    pub base_retry_seconds: f64,
    /// Longest pause.
    pub retry_seconds_max: u64,
    /// Each pause is multiplied by a number between this …
    pub jitter_min: f64,
    /// … and this.
    pub jitter_max: f64,
    /// How long one attempt may take.
    pub call_timeout_seconds: u64,
    /// Most attempts at a time.
    pub concurrency: usize,
    /// Most of them with one account.
    pub account_concurrency: usize,
}

impl Default for ChannelOutbox {
    fn default() -> Self {
        Self {
            enabled: true,
            poll_interval_seconds: 1.0,
            claim_batch_size: 100,
            lock_timeout_seconds: 120,
            max_attempts: 5,
            base_retry_seconds: 10.0,
            retry_seconds_max: 900,
            jitter_min: 0.5,
            jitter_max: 1.5,
            call_timeout_seconds: 20,
            concurrency: 256,
            account_concurrency: 32,
        }
    }
}

impl Channels {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let outbox = &self.outbox;
        let bounds: [Bounded; 2] = [
            (
                "execution_lease_seconds",
                self.execution_lease_seconds,
                110..=3600,
                ": an executor may take a minute, and the database its time",
            ),
            ("retention_days", u64::from(self.retention_days), 0..=100_000, ""),
        ];
        within("channels", bounds)?;
        // A repeated delivery of a removed message cannot be recognised.
        anyhow::ensure!(
            self.retention_days == 0 || self.retention_days >= RETENTION_DAYS_MIN,
            "channels.retention_days must be at least {RETENTION_DAYS_MIN}, or 0: providers deliver a message again for up to a week"
        );
        let bounds: [Bounded; 7] = [
            ("claim_batch_size", outbox.claim_batch_size as u64, 1..=10_000, ""),
            ("lock_timeout_seconds", outbox.lock_timeout_seconds, 1..=3600, ""),
            ("max_attempts", u64::from(outbox.max_attempts), 1..=1000, ""),
            ("retry_seconds_max", outbox.retry_seconds_max, 1..=86_400, ""),
            ("call_timeout_seconds", outbox.call_timeout_seconds, 1..=120, ""),
            ("concurrency", outbox.concurrency as u64, 1..=10_000, ""),
            ("account_concurrency", outbox.account_concurrency as u64, 1..=10_000, ""),
        ];
        within("channels.outbox", bounds)?;
        for (key, value, bounds) in [
            ("poll_interval_seconds", outbox.poll_interval_seconds, 0.01..=60.0),
            ("base_retry_seconds", outbox.base_retry_seconds, 0.001..=3600.0),
            ("jitter_min", outbox.jitter_min, 0.0..=10.0),
            ("jitter_max", outbox.jitter_max, 0.0..=10.0),
        ] {
            anyhow::ensure!(
                bounds.contains(&value),
                "channels.outbox.{key} must lie between {} and {}",
                bounds.start(),
                bounds.end()
            );
        }
        anyhow::ensure!(
            outbox.jitter_min <= outbox.jitter_max,
            "channels.outbox.jitter_min must not be larger than jitter_max"
        );
        // It may be asked about first, and its result must be written down.
        let least = outbox.call_timeout_seconds * 2 + 5;
        anyhow::ensure!(
            outbox.lock_timeout_seconds >= least,
            "channels.outbox.lock_timeout_seconds must be at least {least}: an attempt with a call_timeout_seconds of {} can take so long",
            outbox.call_timeout_seconds
        );
        Ok(())
    }
}

//! Campaigns, and what settles their doubts.

use std::path::PathBuf;

use postrider_model::campaigns::unsubscribe::{PublicUrl, UnsubscribeScope};
use serde::{Deserialize, Serialize};

use super::{Bounded, within};

/// The campaign worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Campaigns {
    /// Most send jobs that one process works on at a time.
    pub jobs_max: usize,
    /// Most of them for one tenant.
    pub jobs_per_tenant_max: usize,
    /// Most items of one send job that are being called: what a crash can put in doubt.
    pub window: usize,
    /// Most calls at a time with one account, per process.
    pub account_concurrency: usize,
    /// How many connections write reservations and outcomes.
    pub commit_connections: u32,
    /// How long one provider call may take.
    pub call_timeout_seconds: u64,
    /// A call begins within so long after its reservation, or not at all.
    pub call_within_seconds: u64,
    /// Most calls for one item, where provably nothing was sent.
    pub tries_max: u32,
    /// Longest time to wait for a provider that asks for it.
    pub wait_max_seconds: u64,
    /// An account that failed so many times in a row is left alone for a while.
    pub circuit_after: u32,
    /// How long a send job stays away after its first attempt; then twice as long each time.
    pub retry_pause_seconds: u64,
    /// How often the worker renews the locks of its jobs.
    pub heartbeat_interval_seconds: u64,
    /// How often to look for send jobs without a hint.
    pub poll_interval_ms: u64,
    /// Days to keep what happened to campaigns. 0 keeps it for ever.
    pub history_days: u32,
    /// Days to keep the send jobs and items of a run after its end. 0 keeps them for ever.
    pub retention_days: u32,
    /// Directory that gets them as NDJSON before they are deleted.
    pub export_dir: Option<PathBuf>,
    /// Public address of this installation, for links to unsubscribe. Without it, mails have none.
    pub public_url: Option<String>,
    /// The campaigns that a person unsubscribes from with one click in the mail program.
    pub unsubscribe_scope: UnsubscribeScope,
}

impl Default for Campaigns {
    fn default() -> Self {
        Self {
            jobs_max: 16,
            jobs_per_tenant_max: 12,
            window: 64,
            account_concurrency: 64,
            commit_connections: 2,
            call_timeout_seconds: 60,
            call_within_seconds: 120,
            tries_max: 8,
            wait_max_seconds: 60,
            circuit_after: 10,
            retry_pause_seconds: 60,
            heartbeat_interval_seconds: 20,
            poll_interval_ms: 500,
            history_days: 90,
            retention_days: 0,
            export_dir: None,
            public_url: None,
            unsubscribe_scope: UnsubscribeScope::Workspace,
        }
    }
}

impl Campaigns {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let bounds: [Bounded; 15] = [
            ("jobs_max", self.jobs_max as u64, 1..=1000, ""),
            ("jobs_per_tenant_max", self.jobs_per_tenant_max as u64, 1..=1000, ""),
            ("window", self.window as u64, 1..=1000, ""),
            ("account_concurrency", self.account_concurrency as u64, 1..=100_000, ""),
            ("commit_connections", u64::from(self.commit_connections), 1..=16, ""),
            ("call_timeout_seconds", self.call_timeout_seconds, 1..=120, ""),
            (
                "call_within_seconds",
                self.call_within_seconds,
                1..=300,
                ": negative evidence counts after the quiet time",
            ),
            ("tries_max", u64::from(self.tries_max), 1..=100, ""),
            ("wait_max_seconds", self.wait_max_seconds, 0..=300, ""),
            ("circuit_after", u64::from(self.circuit_after), 1..=1_000_000, ""),
            ("retry_pause_seconds", self.retry_pause_seconds, 1..=3600, ""),
            (
                "heartbeat_interval_seconds",
                self.heartbeat_interval_seconds,
                1..=60,
                ": a lock lasts five minutes",
            ),
            ("poll_interval_ms", self.poll_interval_ms, 10..=60_000, ""),
            ("history_days", u64::from(self.history_days), 0..=100_000, ""),
            ("retention_days", u64::from(self.retention_days), 0..=100_000, ""),
        ];
        within("campaigns", bounds)?;
        self.public_url().map(drop)
    }

    /// The public address, read.
    pub fn public_url(&self) -> anyhow::Result<Option<PublicUrl>> {
        let Some(url) = &self.public_url else { return Ok(None) };
        let read = PublicUrl::parse(url);
        read.map(Some).map_err(|wrong| anyhow::anyhow!("campaigns.public_url: `{url}` {wrong}"))
    }
}

/// The resolver of items in doubt.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resolver {
    /// Most items in doubt that one process looks into at a time.
    pub concurrency: usize,
    /// Most of them at one account.
    pub account_concurrency: usize,
    /// After a look that told nothing, half as long as the doubt is old is waited, and at least so long.
    pub retry_pause_seconds: u64,
    /// Longest such wait.
    pub retry_pause_max_seconds: u64,
    /// How often to look for items in doubt.
    pub poll_interval_ms: u64,
}

impl Default for Resolver {
    fn default() -> Self {
        Self {
            concurrency: 32,
            account_concurrency: 8,
            retry_pause_seconds: 2,
            retry_pause_max_seconds: 300,
            poll_interval_ms: 1000,
        }
    }
}

impl Resolver {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        within(
            "resolver",
            [
                ("concurrency", self.concurrency as u64, 1..=1000, ""),
                ("account_concurrency", self.account_concurrency as u64, 1..=1000, ""),
                ("retry_pause_seconds", self.retry_pause_seconds, 1..=3600, ""),
                ("retry_pause_max_seconds", self.retry_pause_max_seconds, 1..=3600, ""),
                ("poll_interval_ms", self.poll_interval_ms, 10..=60_000, ""),
            ],
        )
    }
}

//! Scheduled jobs.

use serde::{Deserialize, Serialize};

use super::{Bounded, within};

/// The scheduler and the job runner.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Jobs {
    /// Most runs at a time in one process.
    pub concurrency: usize,
    /// Most of them of one tenant.
    pub tenant_concurrency: usize,
    /// Most SQL functions at a time; each holds a connection.
    pub sql_concurrency: usize,
    /// Most of them of one tenant. One of `sql_concurrency` is always left to the others.
    pub sql_tenant_concurrency: usize,
    /// The schemas whose functions job runs may call. None, if none is named.
    pub sql_schemas: Vec<String>,
    /// A job run without a heartbeat for this long fails and is retried.
    pub lease_seconds: u64,
    /// How often to look without a hint.
    pub poll_interval_ms: u64,
    /// A firing that is late by no more than this is not late.
    pub misfire_grace_seconds: u64,
    /// How long a firing waits for what it depends on.
    pub dependency_wait_hours: u64,
    /// How long runs that are over are kept, with their firings, errors and alerts. 0 is for ever.
    pub retention_days: u32,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            concurrency: 64,
            tenant_concurrency: 16,
            sql_concurrency: 4,
            sql_tenant_concurrency: 2,
            sql_schemas: Vec::new(),
            lease_seconds: 30,
            poll_interval_ms: 500,
            misfire_grace_seconds: 60,
            dependency_wait_hours: 24,
            retention_days: 90,
        }
    }
}

/// A removed run no longer blocks its grain, and alerts read the runs of the last day.
const RETENTION_DAYS_MIN: u32 = 3;

impl Jobs {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let bounds: [Bounded; 9] = [
            ("concurrency", self.concurrency as u64, 1..=10_000, ""),
            ("tenant_concurrency", self.tenant_concurrency as u64, 1..=10_000, ""),
            ("sql_concurrency", self.sql_concurrency as u64, 1..=100, ""),
            ("sql_tenant_concurrency", self.sql_tenant_concurrency as u64, 1..=100, ""),
            ("lease_seconds", self.lease_seconds, 1..=3600, ""),
            ("poll_interval_ms", self.poll_interval_ms, 10..=60_000, ""),
            ("misfire_grace_seconds", self.misfire_grace_seconds, 1..=86_400, ""),
            ("dependency_wait_hours", self.dependency_wait_hours, 1..=720, ""),
            ("retention_days", u64::from(self.retention_days), 0..=100_000, ""),
        ];
        within("jobs", bounds)?;
        anyhow::ensure!(
            self.retention_days == 0 || self.retention_days >= RETENTION_DAYS_MIN,
            "jobs.retention_days must be at least {RETENTION_DAYS_MIN}, or 0: a run that is forgotten does not keep its grain from running again"
        );
        // A firing that waits needs the runs that it waits for, and those of its own grain.
        let least = self.dependency_wait_hours.div_ceil(24) + 2;
        anyhow::ensure!(
            self.retention_days == 0 || u64::from(self.retention_days) >= least,
            "jobs.retention_days must be at least {least}, or 0: firings wait for up to {} hours (jobs.dependency_wait_hours)",
            self.dependency_wait_hours
        );
        Ok(())
    }
}

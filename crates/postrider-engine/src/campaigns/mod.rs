//! The campaign worker: no recipient is called twice and none is forgotten, whatever crashes.
//!
//! ```text
//! claim send jobs ──▶ a task per send job (send_job.rs): admit ─▶ reserve ─▶ call ─▶ decide ─▶ record ──▶ complete
//!     ▲                   │        ▲ settlements and reservations of all send jobs, one transaction for many (committer.rs)
//!     └── a send job ends ◀────────┘ heartbeats renew the locks of all send jobs (upkeep.rs)
//! ```
//!
//! A crash can put in doubt the items that are reserved, and those are being called: at most a window per send job.
//! `resolver` settles items in doubt, `render` makes messages from assets and leads, `reserved` compares them with what was reserved, `drafts`
//! checks campaigns before they are created, `export` writes items as CSV or NDJSON.

mod admission;
mod call;
mod calls;
mod committer;
mod decide;
pub mod drafts;
pub mod export;
mod failover;
pub mod messages;
mod prepare;
pub mod render;
pub mod reserved;
pub mod resolver;
mod send_job;
mod shared;
mod submission;
mod upkeep;
mod writing;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use postrider_model::seal::MasterKey;
use postrider_providers::Adapters;
use postrider_store::{
    Pool, campaigns::send_jobs::ClaimedJob, postgres::wakeups::Wakeups, tenancy::fence::Fence,
};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::decide::RetryPolicy;
use self::{
    committer::Committer,
    shared::{HeldJob, Shared},
    writing::Writing,
};
use crate::common::{health::Health, periodic::work_or_poll, supervised::supervised};

/// Settings of the worker.
#[derive(Debug, Clone)]
pub struct CampaignSettings {
    /// Most send jobs at a time.
    pub jobs_max: usize,
    /// Most send jobs of one tenant at a time, so that slots are free when another tenant has send jobs.
    pub jobs_per_tenant_max: usize,
    /// Most items of one send job that are reserved and being called. A crash can put them in doubt.
    pub window: usize,
    /// Most calls at a time with one account, unless its own limits are lower.
    pub account_concurrency: usize,
    /// Number of connections that write.
    pub commit_connections: usize,
    /// Longest duration of one call.
    pub call_timeout: Duration,
    /// A call that has not begun within this time after its reservation is not made. Far below every quiet time.
    pub call_within: Duration,
    /// Retries of calls that provably sent nothing.
    pub retry: RetryPolicy,
    /// Number of failed calls in a row after which the circuit of an account opens.
    pub circuit_after: u32,
    /// Pause of a send job after its first attempt; each further pause is twice as long.
    pub retry_pause: Duration,
    /// Interval of the heartbeats that renew locks.
    pub heartbeat_interval: Duration,
    /// Interval at which the worker looks for send jobs without a hint.
    pub poll_interval: Duration,
}

impl Default for CampaignSettings {
    fn default() -> Self {
        Self {
            jobs_max: 16,
            jobs_per_tenant_max: 12,
            window: 64,
            account_concurrency: 64,
            commit_connections: 2,
            call_timeout: Duration::from_secs(60),
            call_within: Duration::from_secs(120),
            retry: RetryPolicy::default(),
            circuit_after: 10,
            retry_pause: Duration::from_secs(60),
            heartbeat_interval: Duration::from_secs(20),
            poll_interval: Duration::from_millis(500),
        }
    }
}

/// One worker of campaigns.
pub struct CampaignWorker {
    shared: Shared,
    committer: Committer,
    wakeups: Wakeups,
}

/// The least time between two claims while more than half of the slots are taken.
const CLAIMS_APART: Duration = Duration::from_millis(50);
/// How long to wait before an unavailable database is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Submissions that may wait for the committer: a few per send job.
const SUBMISSIONS_MAX: usize = 256;

impl CampaignWorker {
    /// A worker. `writes` are connections for the committer alone, so that an outcome never waits for a read.
    #[must_use]
    pub fn new(
        pool: Pool,
        writes: Pool,
        wakeups: Wakeups,
        adapters: Adapters,
        master_key: MasterKey,
        settings: CampaignSettings,
    ) -> Self {
        let worker: Arc<str> = format!("worker-{}", uuid::Uuid::now_v7()).into();
        let (submissions, queue) = mpsc::channel(SUBMISSIONS_MAX);
        let writing = Arc::new(Writing::new(writes, pool.clone()));
        let committer = Committer::new(Arc::clone(&writing), Arc::clone(&worker), queue);
        let shared = Shared::new(pool, worker, settings, adapters, master_key, submissions, writing);
        Self { shared, committer, wakeups }
    }

    /// The health of its loops.
    #[must_use]
    pub fn health(&self) -> [Health; 2] {
        [self.shared.health.clone(), self.shared.writing.health.clone()]
    }

    /// Claims and reserves only while this fence is open.
    #[must_use]
    pub fn fenced(mut self, fence: Fence) -> Self {
        self.shared.fence = fence.clone();
        Self { committer: self.committer.fenced(fence), ..self }
    }

    /// Works until shutdown; then finishes the calls in flight and releases the rest.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { shared, committer, mut wakeups } = self;
        let shared = Arc::new(shared);
        tracing::info!(worker = %shared.worker, "the campaign worker is running");
        metrics::counter!("postrider_send_jobs_claimed_total").increment(0);
        metrics::counter!("postrider_commits_total").increment(0);
        let committers = TaskTracker::new();
        for _ in 0..shared.settings.commit_connections.max(1) {
            committers.spawn(supervised("committer", committer.clone().run()));
        }
        drop(committer);
        let ended = CancellationToken::new();
        let upkeep = upkeep::spawn(&shared, &ended);
        let jobs = TaskTracker::new();
        let mut was_unavailable = false;
        let mut claimed_at: Option<Instant> = None;

        while !shutdown.is_cancelled() {
            // Where send jobs end quickly, one claim is for several. The other send jobs use the processor meanwhile.
            if let Some(rest) = claimed_at.and_then(|at| CLAIMS_APART.checked_sub(at.elapsed()))
                && shared.held.len() > shared.settings.jobs_max / 2
            {
                tokio::time::sleep(rest).await;
            }
            claimed_at = Some(Instant::now());
            // Before the claim, so that a hint during the claim is not lost.
            wakeups.mark_unchanged();
            let job_ended = shared.job_ended.notified();
            if was_unavailable {
                // Before the claim, which would take over our own send jobs like those of a dead worker.
                shared.heartbeat().await;
            }
            match shared.claim().await {
                Ok(claimed) if !claimed.is_empty() => {
                    shared.health.passed();
                    claimed.into_iter().for_each(|job| begin(&shared, &jobs, job));
                    continue;
                }
                Ok(_) => {
                    was_unavailable = false;
                    shared.health.passed();
                }
                Err(error) => {
                    was_unavailable = true;
                    shared.health.failed(&error);
                    tracing::error!(error = ?error, "the campaign worker failed to claim send jobs: {error}");
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = job_ended => {}
                () = work_or_poll(&mut wakeups, shared.settings.poll_interval) => {}
            }
        }

        tracing::info!(jobs = jobs.len(), "the campaign worker finishes its calls");
        shared.stopping.cancel();
        jobs.close();
        if tokio::time::timeout(shared.settings.call_timeout, jobs.wait()).await.is_err() {
            shared.hurry.cancel();
            jobs.wait().await;
        }
        ended.cancel();
        upkeep.wait().await;
        let worker = Arc::clone(&shared.worker);
        // The last sender: the committers finish their queue and end.
        drop(shared);
        committers.close();
        committers.wait().await;
        tracing::info!(%worker, "the campaign worker has stopped");
    }
}

/// Starts the task of a claimed send job.
fn begin(shared: &Arc<Shared>, jobs: &TaskTracker, job: ClaimedJob) {
    let (held, lost) = HeldJob::new(shared, job.hold);
    jobs.spawn(async move { send_job::work(&held.shared, job, lost).await });
}

//! One send job, from its items to its end.
//!
//! ```text
//!            ┌───────── a call has ended: record it, and reserve as many items again ◀────────┐
//!            ▼                                                                                │
//! admit ─▶ reserve (committed) ─▶ call, at most a window of items at once ─▶ decide ─▶ record ─┘─▶ complete
//!   ▲                    └─ the account must wait: move (committed) ─▶ call at the failover account
//!   └── capacity, account, hours, permit, call tokens; or the send job is released until there are some
//! ```
//!
//! | step | where |
//! |---|---|
//! | admit | [`Admission`]: which items may be reserved now, and at which account |
//! | reserve, record | [`Submitter`] hands settlements and the next window to the committer, which commits them together |
//! | call, decide | [`Calls`]: each reserved item is called once (`call.rs`), and `decide.rs` turns the outcome into a settlement |
//! | complete | [`record`]: the send job, its run and its phase get their computed statuses |

use std::time::Duration;

use postrider_model::{Span, campaigns::JobStatus};
use postrider_store::{
    StoreError,
    campaigns::{
        limits::{self, PutOff},
        send_jobs::{self, ClaimedJob},
    },
    tenancy::fence::Fence,
};
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    admission::{Admission, Admitted},
    calls::Calls,
    decide::job_pause,
    prepare::Prepared,
    submission::Submitter,
};

/// A send job that this worker cannot do stays away as long as after so many attempts, so that another worker finds it first.
const NOT_OURS_PAUSE: i32 = 4;
/// How long a send job stays away after the database refused its reservations: the witness looks once a second.
const CLOSED_PAUSE: Duration = Duration::from_secs(1);

/// How an attempt ended.
pub(super) enum Ended {
    /// Every item was tried.
    Done,
    /// Some items were not begun; other workers may go on with them.
    Released(Released),
    /// Its account must wait, under these limits.
    PutOff(PutOff, serde_json::Value),
    /// Another worker holds the send job.
    Lost,
    /// This worker cannot do it, but another may: it lacks the vendor, or the key to the account.
    NotOurs(String),
    /// It cannot be done as it is set up.
    Failed(String),
}

/// The reason for a release. Every call has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Released {
    /// The worker is stopping.
    Interrupted,
    /// Its account has more send jobs in this process than call tokens.
    Crowded,
    /// Its phase is paused.
    Paused,
    /// The worker gets no database connection to write with.
    Starved,
    /// Nothing may be sent from the database at the moment.
    Closed,
}

/// Works on a send job until its end is recorded. `lost` is cancelled when its lock is lost.
pub(super) async fn work(shared: &Shared, job: ClaimedJob, lost: CancellationToken) {
    let ended = match Prepared::new(shared, &job).await {
        Ok(prepared) => send(shared, &job, &prepared, lost).await,
        Err(ended) => ended,
    };
    let id = job.hold.job_id;
    match record(shared, &job, ended).await {
        Ok(Some(status)) => {
            metrics::counter!("postrider_send_jobs_ended_total", "status" => status.as_str()).increment(1);
            tracing::info!(
                job.id = %id, run.id = %job.run_id, correlation_id = %job.correlation_id, attempt = job.hold.attempt,
                "{id} is now {status}"
            );
        }
        Ok(None) => {}
        Err(StoreError::ClaimNotHeld { .. }) => {
            // Or it had ended, and only the response was lost.
            tracing::warn!(job.id = %id, "{id} is not held any more");
        }
        Err(error) => {
            tracing::error!(error = ?error, job.id = %id, "the end of {id} was not recorded: {error}");
        }
    }
}

/// Sends the items of a send job until each was tried, or no further item may begin.
async fn send(shared: &Shared, job: &ClaimedJob, prepared: &Prepared, lost: CancellationToken) -> Ended {
    let mut admission = Admission::new(shared, job, prepared, lost);
    let mut calls = Calls::new(shared, job, prepared);
    let mut submitter = Submitter::new(shared, job);
    let mut settled = Vec::new();
    loop {
        settled.append(&mut calls.take_settled());
        if submitter.is_idle() {
            let window = match admission.next(calls.in_flight()) {
                Admitted::Window(window) => Some(window),
                Admitted::Nothing if calls.in_flight() == 0 && settled.is_empty() => {
                    return admission.ended(calls.have_put_back());
                }
                Admitted::Nothing | Admitted::Later => None,
            };
            if window.is_some() || !settled.is_empty() {
                submitter.submit(std::mem::take(&mut settled), window).await;
            }
        }
        tokio::select! {
            biased;
            reserved = submitter.committed(), if !submitter.is_idle() => match reserved {
                Ok(window) => calls.begin(window),
                Err(stop) => admission.stop(stop),
            },
            () = calls.next(), if calls.in_flight() > 0 => {}
            () = admission.changed(), if admission.waits() => {}
            else => {}
        }
    }
}

/// Records how an attempt ended. Returns the new status of the send job.
async fn record(shared: &Shared, job: &ClaimedJob, ended: Ended) -> Result<Option<JobStatus>, StoreError> {
    let hold = job.hold;
    let id = hold.job_id;
    let pause = job_pause(shared.settings.retry_pause, hold.attempt);
    let release = |pause| {
        shared.retry_while_unavailable(move |pool, worker| send_jobs::release(pool, worker, hold, pause))
    };
    match ended {
        Ended::Done => shared
            .retry_while_unavailable(|pool, worker| send_jobs::complete(pool, worker, hold, pause))
            .await
            .map(Some),
        Ended::Failed(error) => {
            tracing::error!(job.id = %id, run.id = %job.run_id, correlation_id = %job.correlation_id, "{id} cannot be done: {error}");
            shared
                .retry_while_unavailable(|pool, worker| send_jobs::fail(pool, worker, hold, &error, pause))
                .await
                .map(Some)
        }
        Ended::Released(released) => {
            release(released.pause(&shared.fence)).await?;
            released.log(job);
            Ok(Some(JobStatus::Queued))
        }
        Ended::PutOff(put_off, under) => {
            let jobs = shared
                .retry_while_unavailable(|pool, worker| limits::put_off(pool, worker, hold, put_off, &under))
                .await?;
            metrics::counter!("postrider_send_jobs_put_off_total", "why" => put_off.why.as_str())
                .increment(1);
            tracing::info!(
                job.id = %id, run.id = %job.run_id, correlation_id = %job.correlation_id, jobs,
                "{id} waits {}: {}", Span(put_off.wait), put_off.why.sentence()
            );
            Ok(Some(JobStatus::Queued))
        }
        Ended::NotOurs(reason) => {
            tracing::error!(job.id = %id, "{id} cannot be done by this worker: {reason}");
            release(job_pause(shared.settings.retry_pause, NOT_OURS_PAUSE)).await?;
            Ok(Some(JobStatus::Queued))
        }
        Ended::Lost => {
            tracing::warn!(job.id = %id, "{id} is held by another worker now");
            Ok(None)
        }
    }
}

impl Released {
    /// How long the send job stays away. Not at all while the fence is closed: this worker claims none then, and another worker may
    /// reserve.
    fn pause(self, fence: &Fence) -> Duration {
        match self {
            Self::Closed if fence.is_open() => CLOSED_PAUSE,
            _ => Duration::ZERO,
        }
    }

    fn log(self, job: &ClaimedJob) {
        let id = job.hold.job_id;
        let reason = match self {
            Self::Interrupted => "the worker stops",
            Self::Crowded => "its account has no call tokens to spare",
            Self::Paused => "its phase is paused",
            Self::Starved => "this worker cannot write to the database",
            Self::Closed => "this process has not compared the database with its witness, so it may not send",
        };
        match self {
            Self::Crowded => {
                tracing::debug!(job.id = %id, run.id = %job.run_id, "{id} was released: {reason}");
            }
            Self::Starved => {
                tracing::warn!(job.id = %id, run.id = %job.run_id, "{id} was released: {reason}");
            }
            Self::Interrupted | Self::Paused | Self::Closed => {
                tracing::info!(job.id = %id, run.id = %job.run_id, "{id} was released: {reason}");
            }
        }
    }
}

//! Runs, send jobs, items and lines of the log, as answers show them.

use jiff::Timestamp;
use postrider_model::{
    Channel,
    campaigns::{ItemStatus, JobOutcome, JobStatus, RunCause, RunStatus, limits::Why},
};
use postrider_store::campaigns::{
    failures::Failure,
    items::Item,
    limits::Waiting,
    runs::{Certificate, Evidence, JobCounts, Progress, Run},
    trace::{AuditLine, TracedItem, TracedJob, TracedRun},
};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::common::words;

/// One execution of a phase, or a run of single messages.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Run)]
pub(crate) struct RunBody {
    id: Uuid,
    /// Absent for a run of single messages.
    campaign_id: Option<Uuid>,
    /// Name of the campaign. Absent for a run of single messages.
    campaign: Option<String>,
    /// Absent for a run of single messages.
    phase_id: Option<Uuid>,
    /// The name of the phase. Absent for a run of single messages.
    phase: Option<String>,
    #[schema(value_type = words::RunStatus)]
    status: RunStatus,
    #[schema(value_type = words::RunCause)]
    cause: RunCause,
    #[schema(value_type = words::Channel)]
    channel: Channel,
    /// The vendor.
    provider: String,
    /// The asset that is sent. Absent for a run of single messages, each of which has its own.
    asset_id: Option<Uuid>,
    /// Nothing is sent before this time.
    scheduled_for: Option<Timestamp>,
    /// Number of items to bring to an end.
    intended: i32,
    /// Leads that have the same address as another one, and were left out.
    same_address: i32,
    /// Correlation id in logs.
    correlation_id: Uuid,
    created_at: Timestamp,
    /// When its first send job was taken.
    started_at: Option<Timestamp>,
    /// When its last send job ended.
    finished_at: Option<Timestamp>,
    /// Time since which retention deletes its send jobs and items. The counts and the launch certificate stay.
    archived_at: Option<Timestamp>,
}

impl From<Run> for RunBody {
    fn from(run: Run) -> Self {
        Self {
            id: run.id.0,
            campaign_id: run.campaign_id.map(|id| id.0),
            campaign: run.campaign,
            phase_id: run.phase_id.map(|id| id.0),
            phase: run.phase,
            status: run.status,
            cause: run.cause,
            channel: run.channel,
            provider: run.provider,
            asset_id: run.asset_id.map(|id| id.0),
            scheduled_for: run.scheduled_for,
            intended: run.intended,
            same_address: run.same_address,
            correlation_id: run.correlation_id,
            created_at: run.created_at,
            started_at: run.started_at,
            finished_at: run.finished_at,
            archived_at: run.archived_at,
        }
    }
}

/// A run and its progress.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunWithProgress {
    #[serde(flatten)]
    run: RunBody,
    progress: ProgressBody,
    /// The reason why it waits, if its account's limits hold it up.
    waiting: Option<WaitingBody>,
}

impl RunWithProgress {
    pub(crate) fn of(run: Run, progress: Progress, waiting: Option<Waiting>) -> Self {
        let waiting = waiting.map(|Waiting { jobs, why, until }| WaitingBody { jobs, why, until });
        Self { run: run.into(), progress: progress.into(), waiting }
    }
}

/// Progress of a run.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Progress)]
pub(crate) struct ProgressBody {
    /// Items that must come to an end.
    intended: i64,
    /// Items sent, called or posted.
    succeeded: i64,
    /// Items that the provider refused, or that provably never left.
    failed: i64,
    /// Items left out on purpose.
    skipped: i64,
    /// Items in doubt.
    in_doubt: i64,
    /// Items that a worker is processing.
    in_flight: i64,
    jobs: JobCountsBody,
}

/// Send jobs by their state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = JobCounts)]
pub(crate) struct JobCountsBody {
    /// They wait for a worker.
    queued: i64,
    /// A worker holds them.
    locked: i64,
    /// They come again later.
    retrying: i64,
    /// They have ended.
    completed: i64,
    /// They have ended with nothing left to try.
    dead: i64,
}

impl From<Progress> for ProgressBody {
    fn from(progress: Progress) -> Self {
        let JobCounts { queued, locked, retrying, completed, dead } = progress.jobs;
        Self {
            intended: progress.intended,
            succeeded: progress.succeeded,
            failed: progress.failed,
            skipped: progress.skipped,
            in_doubt: progress.in_doubt,
            in_flight: progress.in_flight,
            jobs: JobCountsBody { queued, locked, retrying, completed, dead },
        }
    }
}

/// Waiting send jobs, and the reason.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Waiting)]
pub(crate) struct WaitingBody {
    /// Number of send jobs.
    jobs: i64,
    /// Reason of the send jobs that are due first.
    #[schema(value_type = words::Why)]
    why: Why,
    until: Timestamp,
}

/// An item that was reserved: one key, at most one call.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Item)]
pub(crate) struct ItemBody {
    id: Uuid,
    job_id: Uuid,
    /// The lead, or the post.
    recipient_id: Option<Uuid>,
    /// The address.
    recipient: Option<String>,
    /// Idempotency key of the call.
    idempotency_key: String,
    #[schema(value_type = words::ItemStatus)]
    status: ItemStatus,
    /// The vendor.
    provider: String,
    /// The provider's id of the message, call or post.
    provider_message_id: Option<String>,
    /// Reason why it failed, was left out or is in doubt.
    error: Option<String>,
    /// Worker that reserved it.
    reserved_by: Option<String>,
    /// Attempt of its send job that reserved it.
    attempt: Option<i32>,
    /// When it was reserved.
    created_at: Timestamp,
    /// When it ended.
    finalized_at: Option<Timestamp>,
    /// Time since which it is in doubt, if it is.
    doubted_since: Option<Timestamp>,
}

impl From<Item> for ItemBody {
    fn from(item: Item) -> Self {
        Self {
            id: item.id.0,
            job_id: item.job_id.0,
            recipient_id: item.recipient_id,
            recipient: item.recipient,
            idempotency_key: item.idempotency_key.to_string(),
            status: item.status,
            provider: item.provider,
            provider_message_id: item.provider_message_id,
            error: item.error,
            reserved_by: item.reserved_by,
            attempt: item.attempt,
            created_at: item.created_at,
            finalized_at: item.finalized_at,
            doubted_since: item.doubted_since,
        }
    }
}

/// An error, and the items that failed with it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RunFailure)]
pub(crate) struct FailureBody {
    /// Empty for items that failed without one.
    error: String,
    /// Number of items.
    count: i64,
    /// Three of them, the first in the order of the run.
    #[schema(max_items = 3)]
    item_ids: Vec<Uuid>,
}

impl From<Failure> for FailureBody {
    fn from(failure: Failure) -> Self {
        let item_ids = failure.item_ids.into_iter().map(|id| id.0).collect();
        Self { error: failure.error, count: failure.count, item_ids }
    }
}

/// The launch certificate of a run.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LaunchCertificate)]
pub(crate) struct CertificateBody {
    run_id: Uuid,
    #[schema(value_type = words::RunStatus)]
    run_status: RunStatus,
    /// Items that must have an end.
    intended: i64,
    /// E-mails that the provider took.
    sent: i64,
    /// Calls that the provider placed.
    called: i64,
    /// Posts that the provider published.
    posted: i64,
    failed: i64,
    /// Items left out on purpose.
    skipped: i64,
    /// Items reserved and without an end.
    in_doubt: i64,
    /// Items that were never reserved.
    missing: i64,
    /// The first condition.
    run_is_terminal: bool,
    /// The second.
    every_item_is_terminal: bool,
    /// The third: the guards against a second call are in place, and the database is not a restored copy that waits for adopt.
    duplicates_are_impossible: bool,
    /// All three.
    launched: bool,
    /// When the items were counted.
    verified_at: Timestamp,
    /// The evidence for the third condition.
    evidence: EvidenceBody,
}

/// The database that the certificate speaks of, and the comparison with it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LaunchEvidence)]
pub(crate) struct EvidenceBody {
    /// Absent when no process ever sent from this database.
    installation_id: Option<Uuid>,
    /// 1 since the first start, and one more with each adoption after a restore.
    epoch: Option<i32>,
    /// How the epoch began: `enrolled`, `adopted` or `moved`.
    cause: Option<String>,
    /// When the epoch began.
    #[schema(value_type = Option<String>, format = DateTime)]
    epoch_began_at: Option<Timestamp>,
    /// The cluster.
    system_identifier: String,
    /// The database.
    database_name: String,
    /// When a sending process last found nothing missing in the database.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_compared_at: Option<Timestamp>,
    /// Whether the database is taken for a restored copy, on which nothing is certified about second calls.
    restored_copy: bool,
    /// Items of the run that an adoption put in doubt.
    items_adopted: i64,
}

impl From<Evidence> for EvidenceBody {
    fn from(evidence: Evidence) -> Self {
        Self {
            installation_id: evidence.installation_id,
            epoch: evidence.epoch,
            cause: evidence.cause,
            epoch_began_at: evidence.epoch_began_at,
            system_identifier: evidence.system_identifier,
            database_name: evidence.database_name,
            last_compared_at: evidence.last_compared_at,
            restored_copy: evidence.restored_copy.is_some(),
            items_adopted: evidence.items_adopted,
        }
    }
}

impl From<Certificate> for CertificateBody {
    fn from(certificate: Certificate) -> Self {
        Self {
            run_id: certificate.run_id.0,
            run_status: certificate.run_status,
            intended: certificate.intended,
            sent: certificate.sent,
            called: certificate.called,
            posted: certificate.posted,
            failed: certificate.failed,
            skipped: certificate.skipped,
            in_doubt: certificate.in_doubt,
            missing: certificate.missing,
            run_is_terminal: certificate.run_is_terminal,
            every_item_is_terminal: certificate.every_item_is_terminal,
            duplicates_are_impossible: certificate.duplicates_are_impossible,
            launched: certificate.launched,
            verified_at: certificate.verified_at,
            evidence: certificate.evidence.into(),
        }
    }
}

/// The trace of a run.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Trace)]
pub(crate) struct TraceBody {
    run: RunBody,
    /// Its send jobs, in their order.
    jobs: Vec<TracedJobBody>,
    /// Send jobs that did not fit.
    jobs_left_out: i64,
    /// The log, oldest line first.
    audit: Vec<AuditLineBody>,
    /// Older lines that did not fit.
    audit_left_out: i64,
}

impl TraceBody {
    pub(crate) fn of(traced: TracedRun, audit: Vec<AuditLine>, audit_left_out: i64) -> Self {
        Self {
            run: traced.run.into(),
            jobs: traced.jobs.into_iter().map(TracedJobBody::from).collect(),
            jobs_left_out: traced.jobs_left_out,
            audit: audit.into_iter().map(AuditLineBody::from).collect(),
            audit_left_out,
        }
    }
}

/// A send job in a trace.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TracedJob)]
pub(crate) struct TracedJobBody {
    id: Uuid,
    /// Its place in the run, from 1.
    position: i32,
    /// Type of the send job.
    job_type: String,
    #[schema(value_type = words::JobStatus)]
    status: JobStatus,
    /// Result of the send job.
    #[schema(value_type = Option<words::JobOutcome>)]
    outcome: Option<JobOutcome>,
    /// Attempts that began.
    attempts: i32,
    max_attempts: i32,
    /// Earliest time at which a worker may claim it; absent while its phase is paused.
    run_after: Option<Timestamp>,
    /// Worker that holds it.
    locked_by: Option<String>,
    /// Time of its worker's last heartbeat.
    locked_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    /// Reason why it was put off.
    last_error: Option<String>,
    /// Items that it must bring to an end.
    intended: i64,
    succeeded: i64,
    failed: i64,
    skipped: i64,
    /// Items that a worker is processing.
    in_flight: i64,
    /// Items in doubt.
    in_doubt: i64,
    /// Its items that were reserved, oldest first.
    items: Vec<TracedItemBody>,
    /// Items that did not fit.
    items_left_out: i64,
}

impl From<TracedJob> for TracedJobBody {
    fn from(job: TracedJob) -> Self {
        Self {
            id: job.id.0,
            position: job.position,
            job_type: job.job_type,
            status: job.status,
            outcome: job.outcome,
            attempts: job.attempts,
            max_attempts: job.max_attempts,
            run_after: job.run_after,
            locked_by: job.locked_by,
            locked_at: job.locked_at,
            finished_at: job.finished_at,
            last_error: job.last_error,
            intended: job.intended,
            succeeded: job.succeeded,
            failed: job.failed,
            skipped: job.skipped,
            in_flight: job.in_flight,
            in_doubt: job.in_doubt,
            items: job.items.into_iter().map(TracedItemBody::from).collect(),
            items_left_out: job.items_left_out,
        }
    }
}

/// An item in a trace.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TracedItem)]
pub(crate) struct TracedItemBody {
    id: Uuid,
    /// The lead, or the post.
    recipient_id: Option<Uuid>,
    /// The address.
    recipient: Option<String>,
    /// Idempotency key of the call.
    idempotency_key: String,
    #[schema(value_type = words::ItemStatus)]
    status: ItemStatus,
    /// The provider's id of the message, call or post.
    provider_message_id: Option<String>,
    /// Reason why it failed, was left out or is in doubt.
    error: Option<String>,
    /// Worker that reserved it.
    reserved_by: Option<String>,
    /// Attempt of its send job that reserved it.
    attempt: Option<i32>,
    /// When it was reserved.
    created_at: Timestamp,
    /// When it ended.
    finalized_at: Option<Timestamp>,
    /// Time since which it is in doubt, if it is.
    doubted_since: Option<Timestamp>,
}

impl From<TracedItem> for TracedItemBody {
    fn from(item: TracedItem) -> Self {
        Self {
            id: item.id.0,
            recipient_id: item.recipient_id,
            recipient: item.recipient,
            idempotency_key: item.idempotency_key.to_string(),
            status: item.status,
            provider_message_id: item.provider_message_id,
            error: item.error,
            reserved_by: item.reserved_by,
            attempt: item.attempt,
            created_at: item.created_at,
            finalized_at: item.finalized_at,
            doubted_since: item.doubted_since,
        }
    }
}

/// A line of the log.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CampaignAuditLine)]
pub(crate) struct AuditLineBody {
    /// Its number.
    id: i64,
    at: Timestamp,
    actor: String,
    action: String,
    /// Details.
    note: Option<String>,
    run_id: Option<Uuid>,
    job_id: Option<Uuid>,
    outbox_id: Option<Uuid>,
}

impl From<AuditLine> for AuditLineBody {
    fn from(line: AuditLine) -> Self {
        Self {
            id: line.id,
            at: line.at,
            actor: line.actor,
            action: line.action,
            note: line.note,
            run_id: line.run_id.map(|id| id.0),
            job_id: line.job_id.map(|id| id.0),
            outbox_id: line.outbox_id.map(|id| id.0),
        }
    }
}

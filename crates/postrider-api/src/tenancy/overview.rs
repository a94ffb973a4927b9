//! The overview: the numbers of a tenant that say whether something is wrong.

use axum::{Json, extract::State};
use jiff::Timestamp;
use postrider_engine::campaigns::resolver::{SettledBy, settled_by_class};
use postrider_model::ids::TenantId;
use postrider_providers::Adapters;
use postrider_store::{
    Pool, StoreError,
    tenancy::overview::{self, Counts, Marks, ROWS_MAX},
};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    App,
    common::{auth::Viewer, error::ApiResult},
};

/// The numbers of a tenant. A number stops at 10,000; then `capped` names it. Ages are in seconds, and absent where nothing waits.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Overview {
    /// Time of the numbers, by the database's clock.
    pub at: Timestamp,
    /// Phases of campaigns.
    pub phases: Phases,
    /// Items of campaigns.
    pub items: Items,
    /// The 50 campaigns with the most items in doubt.
    pub in_doubt_by_campaign: Vec<DoubtsOfCampaign>,
    /// Send jobs of campaigns.
    pub jobs: Jobs,
    /// Provider accounts.
    pub accounts: Accounts,
    /// Replies to messages.
    pub replies: Replies,
    /// Messages of chats.
    pub messages: Messages,
    /// Domain events.
    pub events: Events,
    /// Job runs.
    pub job_runs: JobRuns,
    /// Schedules.
    pub schedules: Schedules,
    /// Work for a person.
    pub attention: Attention,
    /// Names of the numbers whose counting stopped at 10,000 rows, such as `items.in_doubt`: there may be more.
    pub capped: Vec<String>,
}

impl Overview {
    /// All ages, which grow with time alone.
    pub(crate) fn ages(&mut self) -> [&mut Option<i64>; 10] {
        [
            &mut self.phases.oldest_failed_seconds,
            &mut self.items.oldest_doubt_seconds,
            &mut self.jobs.oldest_lock_seconds,
            &mut self.replies.oldest_seconds,
            &mut self.replies.oldest_dead_seconds,
            &mut self.messages.oldest_failed_seconds,
            &mut self.events.oldest_ready_seconds,
            &mut self.schedules.overdue_seconds,
            &mut self.attention.oldest_sync_error_seconds,
            &mut self.attention.oldest_decision_card_seconds,
        ]
    }
}

/// The items in doubt of one campaign.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OverviewDoubts)]
pub struct DoubtsOfCampaign {
    /// Id of the campaign.
    pub campaign_id: Uuid,
    /// Its items in doubt.
    pub count: i64,
}

/// Phases by state; completed ones are not counted.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OverviewPhases)]
pub struct Phases {
    /// Phases that have not started.
    pub not_started: i64,
    /// Phases in progress.
    pub in_progress: i64,
    /// Paused phases.
    pub paused: i64,
    /// Failed phases.
    pub failed: i64,
    /// Time since the oldest of them failed.
    pub oldest_failed_seconds: Option<i64>,
}

/// Items of campaigns.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OverviewItems)]
pub struct Items {
    /// Items that are reserved and being called.
    pub in_flight: i64,
    /// Items that are marked as in doubt. An item whose worker has just died is marked within some minutes; `GET /in-doubt` lists it before that.
    pub in_doubt: i64,
    /// Those of them that a person must settle.
    pub in_doubt_for_person: i64,
    /// Age of the oldest doubt.
    pub oldest_doubt_seconds: Option<i64>,
}

/// Send jobs of campaigns.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OverviewJobs)]
pub struct Jobs {
    /// Queued send jobs that are due.
    pub waiting: i64,
    /// Send jobs that a worker holds.
    pub locked: i64,
    /// Send jobs that are not due: their account or their retry waits, or their phase is paused.
    pub put_off: i64,
    /// Age of the oldest heartbeat of a worker that holds one.
    pub oldest_lock_seconds: Option<i64>,
}

/// Provider accounts.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OverviewAccounts)]
pub struct Accounts {
    /// All accounts.
    pub total: i64,
    /// Accounts whose circuit breaker is open or half open.
    pub circuit_open: i64,
    /// Accounts whose provider asked for no calls for a while.
    pub waiting: i64,
}

/// Replies to messages.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OverviewReplies)]
pub struct Replies {
    /// Replies that wait for an attempt.
    pub pending: i64,
    /// Pending replies that may be tried now.
    pub due: i64,
    /// Replies that are not sent and were tried before.
    pub retrying: i64,
    /// Replies whose last attempt may have arrived.
    pub in_doubt: i64,
    /// Dead replies.
    pub dead: i64,
    /// Age of the oldest reply that is neither sent nor dead.
    pub oldest_seconds: Option<i64>,
    /// Time since the oldest dead reply died.
    pub oldest_dead_seconds: Option<i64>,
}

/// Messages of chats.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OverviewMessages)]
pub struct Messages {
    /// Messages that are being executed, or wait for it.
    pub unfinished: i64,
    /// Messages whose execution failed; it is retried.
    pub dispatch_failed: i64,
    /// Age of the oldest message in state `dispatch_failed`.
    pub oldest_failed_seconds: Option<i64>,
}

/// Domain events.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OverviewEvents)]
pub struct Events {
    /// Events that are not processed.
    pub pending: i64,
    /// Events that failed more often than `relay.stuck_after_retries` and are still retried.
    pub stuck: i64,
    /// Age of the oldest event that may be delivered now.
    pub oldest_ready_seconds: Option<i64>,
}

/// Job runs.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OverviewJobRuns)]
pub struct JobRuns {
    /// Job runs that a runner holds.
    pub running: i64,
    /// Job runs that wait for a runner.
    pub waiting: i64,
    /// Failed job runs that wait for their retry.
    pub retry_pending: i64,
    /// Failed job runs among those of the last 24 hours.
    pub failed_24h: i64,
    /// Job runs of the last 24 hours.
    pub total_24h: i64,
    /// Share of them that was retried, from 0 to 1.
    pub retry_rate_24h: f64,
    /// Job runs that take longer than the rule of `detect-alerts` allows.
    pub long_running: i64,
}

/// Schedules.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OverviewSchedules)]
pub struct Schedules {
    /// Enabled schedules.
    pub enabled: i64,
    /// Firings that wait for functions on which they depend.
    pub firings_waiting: i64,
    /// Time since the oldest firing that is due and has not happened.
    pub overdue_seconds: Option<i64>,
}

/// Work for a person.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OverviewAttention)]
pub struct Attention {
    /// Dead letters that are not resolved.
    pub sync_errors: i64,
    /// Open alerts.
    pub alerts: i64,
    /// Cards without a decision.
    pub decision_cards: i64,
    /// Age of the oldest open dead letter.
    pub oldest_sync_error_seconds: Option<i64>,
    /// Age of the oldest card without a decision.
    pub oldest_decision_card_seconds: Option<i64>,
}

impl From<Counts> for Overview {
    fn from(counts: Counts) -> Self {
        let capped = capped(&counts);
        let seconds = |seconds: Option<f64>| seconds.map(|seconds| seconds.max(0.0) as i64);
        let most = |number: i64| number.min(ROWS_MAX);
        Self {
            at: counts.at,
            phases: Phases {
                not_started: counts.phases_not_started,
                in_progress: counts.phases_in_progress,
                paused: counts.phases_paused,
                failed: counts.phases_failed,
                oldest_failed_seconds: seconds(counts.phases_oldest_failed_seconds),
            },
            items: Items {
                in_flight: counts.items_in_flight,
                in_doubt: counts.items_in_doubt,
                in_doubt_for_person: counts.items_in_doubt_for_person,
                oldest_doubt_seconds: seconds(counts.items_oldest_doubt_seconds),
            },
            in_doubt_by_campaign: counts
                .doubted_campaigns
                .into_iter()
                .zip(counts.doubts_by_campaign)
                .map(|(campaign_id, count)| DoubtsOfCampaign { campaign_id, count })
                .collect(),
            jobs: Jobs {
                waiting: counts.jobs_waiting,
                locked: counts.jobs_locked,
                put_off: most(counts.jobs_put_off),
                oldest_lock_seconds: seconds(counts.jobs_oldest_lock_seconds),
            },
            accounts: Accounts {
                total: counts.accounts_total,
                circuit_open: counts.accounts_circuit_open,
                waiting: counts.accounts_waiting,
            },
            replies: Replies {
                pending: counts.replies_pending,
                due: counts.replies_due,
                retrying: counts.replies_retrying,
                in_doubt: counts.replies_in_doubt,
                dead: counts.replies_dead,
                oldest_seconds: seconds(counts.replies_oldest_seconds),
                oldest_dead_seconds: seconds(counts.replies_oldest_dead_seconds),
            },
            messages: Messages {
                unfinished: counts.messages_unfinished,
                dispatch_failed: counts.messages_dispatch_failed,
                oldest_failed_seconds: seconds(counts.messages_oldest_failed_seconds),
            },
            events: Events {
                pending: counts.events_pending,
                stuck: counts.events_stuck,
                oldest_ready_seconds: seconds(counts.events_oldest_ready_seconds),
            },
            job_runs: JobRuns {
                running: counts.job_runs_running,
                waiting: counts.job_runs_waiting,
                retry_pending: counts.job_runs_retry_pending,
                failed_24h: counts.job_runs_failed_24h,
                total_24h: counts.job_runs_total_24h,
                retry_rate_24h: share(counts.job_runs_retried_24h, counts.job_runs_total_24h),
                long_running: most(counts.job_runs_long_running),
            },
            schedules: Schedules {
                enabled: counts.schedules_enabled,
                firings_waiting: counts.schedules_firings_waiting,
                overdue_seconds: seconds(counts.schedules_overdue_seconds),
            },
            attention: Attention {
                sync_errors: counts.sync_errors,
                alerts: counts.alerts,
                decision_cards: counts.decision_cards,
                oldest_sync_error_seconds: seconds(counts.oldest_sync_error_seconds),
                oldest_decision_card_seconds: seconds(counts.oldest_decision_card_seconds),
            },
            capped,
        }
    }
}

/// Names of the numbers that are incomplete, because the rows behind them reached the limit.
fn capped(counts: &Counts) -> Vec<String> {
    let rows: &[(i64, &[&str])] = &[
        (counts.phases_not_started, &["phases.not_started"]),
        (counts.phases_in_progress, &["phases.in_progress"]),
        (counts.phases_paused, &["phases.paused"]),
        (counts.phases_failed, &["phases.failed"]),
        (counts.items_begun, &["items.in_flight"]),
        (counts.items_in_doubt, &["items.in_doubt", "items.in_doubt_for_person", "in_doubt_by_campaign"]),
        (counts.jobs_waiting, &["jobs.waiting"]),
        (counts.jobs_locked, &["jobs.locked"]),
        (counts.jobs_put_off, &["jobs.put_off"]),
        (counts.accounts_total, &["accounts.total", "accounts.circuit_open", "accounts.waiting"]),
        (counts.replies_unsent, &["replies.pending", "replies.due", "replies.retrying", "replies.in_doubt"]),
        (counts.replies_dead, &["replies.dead"]),
        (counts.messages_unfinished, &["messages.unfinished"]),
        (counts.messages_dispatch_failed, &["messages.dispatch_failed"]),
        (counts.events_pending, &["events.pending"]),
        (counts.events_stuck, &["events.stuck"]),
        (counts.job_runs_running, &["job_runs.running", "job_runs.long_running"]),
        (
            counts.job_runs_unfinished,
            &["job_runs.waiting", "job_runs.retry_pending", "job_runs.long_running"],
        ),
        (
            counts.job_runs_total_24h,
            &["job_runs.failed_24h", "job_runs.total_24h", "job_runs.retry_rate_24h"],
        ),
        (counts.schedules_enabled, &["schedules.enabled"]),
        (counts.schedules_firings_waiting, &["schedules.firings_waiting"]),
        (counts.sync_errors, &["attention.sync_errors"]),
        (counts.alerts, &["attention.alerts"]),
        (counts.decision_cards, &["attention.decision_cards"]),
    ];
    let names = rows.iter().filter(|(read, _)| *read >= ROWS_MAX).flat_map(|(_, names)| *names);
    let mut names: Vec<String> = names.map(|name| (*name).to_owned()).collect();
    names.dedup();
    names
}

#[expect(clippy::cast_precision_loss, reason = "both numbers are at most 10,000")]
fn share(part: i64, whole: i64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Reads overviews of tenants.
#[derive(Clone)]
pub struct Overviews {
    pool: Pool,
    stuck_after: i32,
    /// Providers whose items in doubt are settled without a person.
    without_person: std::sync::Arc<[String]>,
}

impl Overviews {
    /// Reads with these connections. An event with more failures than `stuck_after` is stuck.
    #[must_use]
    pub fn new(pool: Pool, adapters: &Adapters, stuck_after: i32) -> Self {
        let without_person = adapters
            .manifests()
            .filter(|manifest| settled_by_class(Some(manifest.doubt)) != SettledBy::Person)
            .map(|manifest| manifest.name.to_owned())
            .collect();
        Self { pool, stuck_after, without_person }
    }

    /// The numbers of a tenant, and the marks of its lists.
    pub(crate) async fn read(&self, tenant: TenantId) -> Result<(Overview, Marks), StoreError> {
        let mut counts = overview::read(&self.pool, tenant, self.stuck_after, &self.without_person).await?;
        let marks = std::mem::take(&mut counts.marks);
        Ok((counts.into(), marks))
    }

    /// The numbers of a tenant.
    pub async fn read_numbers(&self, tenant: TenantId) -> Result<Overview, StoreError> {
        Ok(self.read(tenant).await?.0)
    }
}

/// The numbers of the tenant that say whether something is wrong.
///
/// No number reads more than 10,000 rows, so the answer costs little however much there is; it takes a second at most, or is a 503.
/// `GET /stream` sends the same numbers whenever they change.
#[utoipa::path(
    get,
    path = "/overview",
    operation_id = "get_overview",
    tag = "overview",
    responses((status = 200, description = "The numbers of the tenant", body = Overview)),
)]
pub(crate) async fn show(State(app): State<App>, Viewer(caller): Viewer) -> ApiResult<Json<Overview>> {
    Ok(Json(app.overviews.read_numbers(caller.tenant_id).await?))
}

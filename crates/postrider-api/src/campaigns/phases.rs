//! Phases: their states and controls.
//!
//! The response to a control is 200 when it was carried out or the phase is in the target state already, and otherwise 409 with the
//! phase's state and the allowed controls. A control is safe to repeat. The transitions are a table in `postrider-model`.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_model::{
    campaigns::{PhaseKind, PhaseStatus, PhaseTrigger},
    ids::{CampaignId, TenantId},
};
use postrider_store::{
    StoreError,
    campaigns::{
        self, PhaseState, Snapshot,
        phases::{self, Control, Controlled, Reach, Standing},
        send_jobs,
    },
    postgres::pool,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::common::words;
use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Body, MaybeBody, Path, Query},
        error::{ApiError, ApiResult},
        requests::{Repeatable, Taken, Writing, replay},
    },
};

/// Longest reason, in characters.
const REASON_MAX: usize = 2000;

/// The state of a campaign at one moment.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    campaign_id: Uuid,
    name: String,
    /// Whether a phase that completes starts the next one.
    auto_advance: bool,
    /// The number of the last event that this includes: read the stream from here on.
    sequence: i64,
    timestamp: Timestamp,
    /// Whether a next phase is about to be started by itself.
    advancing: bool,
    /// Why a phase was not started by itself, if that happened last.
    not_advanced: Option<String>,
    phases: Vec<PhaseStanding>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PhaseStanding {
    phase: String,
    #[schema(value_type = words::PhaseKind)]
    kind: PhaseKind,
    #[schema(value_type = words::PhaseStatus)]
    status: PhaseStatus,
    /// Whether it failed because its newest run was canceled.
    canceled: bool,
    #[schema(minimum = 0, maximum = 100)]
    progress_percentage: f64,
    /// Controls that are allowed now.
    #[schema(value_type = Vec<words::PhaseTrigger>)]
    allowed: Vec<PhaseTrigger>,
    scheduled_for: Option<Timestamp>,
    run: Option<RunStanding>,
}

/// The newest run of a phase, and its items.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunStanding {
    id: Uuid,
    #[schema(value_type = words::RunStatus)]
    status: String,
    intended: i64,
    succeeded: i64,
    failed: i64,
    skipped: i64,
    in_doubt: i64,
    in_flight: i64,
    /// The reason why it waits, if its account's limits hold it up.
    waiting: Option<WaitingJobs>,
}

/// Send jobs that wait for their account.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WaitingJobs {
    jobs: i64,
    /// The reason in words.
    why: String,
    until: Timestamp,
}

impl From<PhaseState> for PhaseStanding {
    fn from(phase: PhaseState) -> Self {
        Self {
            allowed: phase.status.allowed(phase.kind).collect(),
            phase: phase.phase,
            kind: phase.kind,
            status: phase.status,
            canceled: phase.canceled,
            progress_percentage: phase.progress,
            scheduled_for: phase.scheduled_for,
            run: phase.run.map(|state| RunStanding {
                id: state.run.id.0,
                status: state.run.status.to_string(),
                intended: state.progress.intended,
                succeeded: state.progress.succeeded,
                failed: state.progress.failed,
                skipped: state.progress.skipped,
                in_doubt: state.progress.in_doubt,
                in_flight: state.progress.in_flight,
                waiting: state.waiting.map(|waiting| WaitingJobs {
                    jobs: waiting.jobs,
                    why: waiting.why.sentence().to_owned(),
                    until: waiting.until,
                }),
            }),
        }
    }
}

impl From<Snapshot> for Status {
    fn from(snapshot: Snapshot) -> Self {
        Self {
            campaign_id: snapshot.campaign.id.0,
            name: snapshot.campaign.name,
            auto_advance: snapshot.campaign.auto_advance,
            sequence: snapshot.sequence,
            timestamp: snapshot.taken_at,
            advancing: snapshot.advancing,
            not_advanced: snapshot.not_advanced,
            phases: snapshot.phases.into_iter().map(PhaseStanding::from).collect(),
        }
    }
}

/// Shows the state of a campaign. It is authoritative; events may lag behind it.
#[utoipa::path(
    get,
    path = "/campaigns/{id}/status",
    operation_id = "campaign_status",
    tag = "phases",
    params(("id" = Uuid, Path, description = "The campaign's id")),
    responses((status = 200, description = "The campaign and its phases at one moment", body = Status)),
)]
pub(crate) async fn status(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(campaign): Path<CampaignId>,
) -> ApiResult<Json<Status>> {
    let snapshot = campaigns::snapshot(&app.pool, caller.tenant_id, campaign).await?;
    Ok(Json(snapshot.ok_or(ApiError::NotFound("campaign"))?.into()))
}

/// The body of a control.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ControlRequest {
    /// Carries the control out only if the phase is in this state, or in the control's target state.
    #[schema(value_type = Option<words::PhaseStatus>)]
    #[serde(default)]
    expected_state: Option<PhaseStatus>,
    /// Carries the control out only if the phase's state has not changed after this event, or is the control's target state. A repeated
    /// request then changes nothing.
    #[schema(minimum = 0)]
    #[serde(default)]
    expected_sequence: Option<i64>,
    /// For `retry`: sends the items that were canceled, too.
    #[serde(default)]
    include_canceled: bool,
    /// For `rerun`: sends only these items, instead of the whole list.
    #[serde(default)]
    only: Option<RerunOnly>,
    /// The reason, for the history.
    #[schema(max_length = 2000)]
    #[serde(default)]
    reason: Option<String>,
}

/// Items of a rerun.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RerunOnly {
    /// Those that certainly failed.
    Failed,
}

impl ControlRequest {
    /// The items that the control takes.
    fn reach(&self, control: PhaseTrigger) -> Result<Reach, ApiError> {
        match (control, self.include_canceled, self.only) {
            (_, false, None) => Ok(Reach::Usual),
            (PhaseTrigger::Retry, true, None) => Ok(Reach::WithCanceled),
            (PhaseTrigger::Rerun, false, Some(RerunOnly::Failed)) => Ok(Reach::OnlyFailed),
            (_, true, _) => Err(ApiError::unprocessable("include_canceled", "is for `retry`".to_owned())),
            (_, _, Some(_)) => Err(ApiError::unprocessable("only", "is for `rerun`".to_owned())),
        }
    }
}

/// The state of a phase after a control.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ControlAnswer {
    campaign_id: Uuid,
    phase: String,
    #[schema(value_type = words::PhaseStatus)]
    status: PhaseStatus,
    /// Whether this request changed the phase. Otherwise it was in the target state already, or this was a dry run.
    changed: bool,
    /// For a dry run: whether the control would change the phase. `items` and `secondMessages` are those that it would have.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    would_change: Option<bool>,
    /// The number of the event about the change; that of the campaign's newest event, when nothing was changed.
    sequence: i64,
    /// Controls that are allowed now.
    #[schema(value_type = Vec<words::PhaseTrigger>)]
    allowed: Vec<PhaseTrigger>,
    /// Its newest run.
    run_id: Option<Uuid>,
    /// Number of items of that run.
    items: Option<i64>,
    /// Number of items that were sent before, or may have been: for `retry` and `rerun`.
    second_messages: Option<i64>,
    /// For `pause` and `cancel`: items whose calls were under way when it was answered. They finish and are recorded; nothing new is reserved. An
    /// answer that is given again under its `Idempotency-Key` leaves it out.
    in_flight: Option<i64>,
}

impl ControlAnswer {
    fn new(campaign: CampaignId, phase: &str, changed: bool, standing: &Standing) -> Self {
        Self {
            campaign_id: campaign.0,
            phase: phase.to_owned(),
            status: standing.status,
            changed,
            would_change: None,
            sequence: standing.sequence,
            allowed: standing.status.allowed(standing.kind).collect(),
            run_id: standing.run_id.map(|run| run.0),
            items: standing.items,
            second_messages: standing.second_messages,
            in_flight: standing.in_flight,
        }
    }
}

/// The way in which a control is carried out.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ControlQuery {
    /// Executes the control and rolls it back: nothing changes, and the answer has the counts that the control would have. The
    /// `Idempotency-Key` is not used.
    #[serde(default)]
    #[param(required = false)]
    dry_run: bool,
}

/// Starts, pauses, resumes, retries, reruns or cancels a phase; completes or fails one that another service carries out.
///
/// `cancel` skips the items that were not tried, with the reason `canceled`, and fails the phase; `retry` continues it.
#[utoipa::path(
    post,
    path = "/campaigns/{id}/phases/{phase}/{control}",
    operation_id = "control_phase",
    tag = "phases",
    params(
        ("id" = Uuid, Path, description = "The campaign's id"),
        ("phase" = String, Path, description = "The phase's name", pattern = "^[a-z0-9][a-z0-9_-]{0,62}$"),
        ("control" = words::PhaseTrigger, Path, description = "The control"),
        ControlQuery,
        Repeatable,
    ),
    request_body(content = Option<ControlRequest>),
    responses(
        (status = 200, description = "The control was carried out, or the phase was in its target state already", body = ControlAnswer),
        (status = 409, description = "The phase's state does not allow the control: `currentState` names the state, `allowed` the allowed controls"),
    ),
)]
pub(crate) async fn control(
    State(app): State<App>,
    Operator(caller): Operator,
    Path((campaign, phase, word)): Path<(CampaignId, String, String)>,
    Query(query): Query<ControlQuery>,
    MaybeBody { value: request, fingerprint }: MaybeBody<ControlRequest>,
) -> ApiResult<Response> {
    let trigger: PhaseTrigger = word.parse().map_err(|_| ApiError::NotFound("control"))?;
    let request = request.unwrap_or_default();
    if request.reason.as_ref().is_some_and(|reason| reason.chars().count() > REASON_MAX) {
        return Err(ApiError::unprocessable("reason", format!("has at most {REASON_MAX} characters")));
    }
    let actor = caller.actor();
    let control = Control {
        campaign,
        phase: &phase,
        trigger,
        expected: request.expected_state,
        expected_sequence: request.expected_sequence,
        reach: request.reach(trigger)?,
        reason: request.reason.as_deref(),
        actor: &actor,
    };
    if query.dry_run {
        return dry_run(&app, caller.tenant_id, control).await;
    }
    let is_exact = phases::stops(trigger);
    let exact = async || {
        let waited = phases::await_reservations(&app.pool, caller.tenant_id, campaign, &phase).await;
        waited.map_err(|error| match error {
            // The phase is stopped; workers may still be reserving items.
            StoreError::Conflict { message } => ApiError::NotReady(message),
            error => error.into(),
        })
    };
    let mut writing = match Writing::take(&app.pool, caller, &fingerprint).await? {
        Taken::Before(answer) => {
            let response = replay(answer)?;
            if is_exact {
                exact().await?;
            }
            return Ok(response);
        }
        Taken::Fresh(writing) => writing,
    };
    let (changed, standing) = match phases::apply(writing.connection(), caller.tenant_id, control).await? {
        Controlled::Changed(standing) => (true, standing),
        Controlled::Unchanged(standing) => (false, standing),
        refused => return Err(refusal(control, refused)),
    };
    let mut answer = ControlAnswer::new(campaign, &phase, changed, &standing);
    let response = writing.answer(StatusCode::OK, &answer).await?;
    if changed {
        wake_workers(&app).await;
    }
    if !is_exact {
        return Ok(response);
    }
    answer.in_flight = Some(exact().await?);
    Ok(axum::response::IntoResponse::into_response(Json(answer)))
}

async fn dry_run(app: &App, tenant: TenantId, control: Control<'_>) -> ApiResult<Response> {
    let controlled = phases::dry_run(&app.pool, tenant, control).await.map_err(|error| {
        if error.is_timeout() {
            let problem = "there are too many items to count exactly within 5 s, or another control of the campaign takes long";
            return ApiError::unprocessable("dry_run", problem);
        }
        error.into()
    })?;
    let (would_change, standing) = match controlled {
        Controlled::Changed(standing) => (true, standing),
        Controlled::Unchanged(standing) => (false, standing),
        refused => return Err(refusal(control, refused)),
    };
    let answer = ControlAnswer::new(control.campaign, control.phase, false, &standing);
    let answer = ControlAnswer { would_change: Some(would_change), ..answer };
    Ok(axum::response::IntoResponse::into_response(Json(answer)))
}

/// Progress of a phase that another service carries out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ProgressReport {
    #[schema(minimum = 0, maximum = 100)]
    progress_percentage: f64,
}

/// Records the progress of a phase that another service carries out. It never touches the phase's state.
#[utoipa::path(
    post,
    path = "/campaigns/{id}/phases/{phase}/progress",
    operation_id = "report_progress",
    tag = "phases",
    params(
        ("id" = Uuid, Path, description = "The campaign's id"),
        ("phase" = String, Path, description = "The phase's name", pattern = "^[a-z0-9][a-z0-9_-]{0,62}$"),
    ),
    request_body = ProgressReport,
    responses(
        (status = 200, description = "The progress was recorded; the stream has it within a second or two", body = ControlAnswer),
        (status = 409, description = "The phase is a delivery, or is not under way"),
    ),
)]
pub(crate) async fn progress(
    State(app): State<App>,
    Operator(caller): Operator,
    Path((campaign, phase)): Path<(CampaignId, String)>,
    Body { value: report, .. }: Body<ProgressReport>,
) -> ApiResult<Json<ControlAnswer>> {
    if !(0.0..=100.0).contains(&report.progress_percentage) {
        return Err(ApiError::unprocessable("progressPercentage", "must lie between 0 and 100"));
    }
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    let reported = phases::report_progress(
        &mut transaction,
        caller.tenant_id,
        campaign,
        &phase,
        report.progress_percentage,
        &caller.actor(),
    )
    .await?;
    let standing = match reported {
        Controlled::Changed(standing) | Controlled::Unchanged(standing) => standing,
        refused => return Err(problem(refused)),
    };
    pool::commit(transaction).await?;
    Ok(Json(ControlAnswer::new(campaign, &phase, false, &standing)))
}

/// Logs the reason why a control was refused.
fn refusal(control: Control<'_>, refused: Controlled) -> ApiError {
    if let Controlled::Conflict { reason, .. } = &refused {
        tracing::info!(
            campaign.id = %control.campaign, phase = %control.phase, control = %control.trigger, actor = %control.actor,
            "{} of phase {} was refused: {reason}", control.trigger, control.phase
        );
    }
    problem(refused)
}

fn problem(refused: Controlled) -> ApiError {
    match refused {
        Controlled::Conflict { standing, reason } => ApiError::conflict(reason)
            .with("currentState", standing.status)
            .with("allowed", standing.status.allowed(standing.kind).collect::<Vec<_>>()),
        _ => ApiError::NotFound("campaign or phase"),
    }
}

/// Wakes the workers, because there may be send jobs now. Without the hint the poll finds them.
async fn wake_workers(app: &App) {
    let hinted = async {
        let mut transaction = pool::begin(&app.pool).await?;
        send_jobs::hint(&mut transaction).await?;
        pool::commit(transaction).await
    };
    if let Err(error) = hinted.await {
        tracing::debug!(?error, "the workers were not woken");
    }
}

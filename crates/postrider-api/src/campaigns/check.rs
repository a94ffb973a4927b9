//! The preflight check: the same as before a campaign is created, with its findings.

use axum::{Json, extract::State};
use postrider_engine::campaigns::preflight::{AccountReport, Checker, PhaseReport, Renders, Report};
use postrider_model::{
    campaigns::{estimate::Estimate, limits::Why},
    ids::{TenantId, WorkspaceId},
};
use postrider_store::{
    PgConnection, StoreError,
    campaigns::{Mistake, NewCampaign, leads::Audience},
    postgres::pool,
    tenancy::accounts::Circuit,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::CampaignRequest;
use crate::{
    App,
    common::{
        auth::Operator,
        body::Body,
        error::{ApiError, ApiResult, FieldError},
        words,
    },
    tenancy::{accounts::ShownCircuit, workspace},
};

/// The findings about a campaign that is not created yet.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CampaignCheck {
    /// Reasons why it cannot be created.
    errors: Vec<CheckError>,
    /// Its phases, in order. None of them when the campaign contradicts itself.
    phases: Vec<PhaseCheck>,
}

/// A reason why a campaign cannot be created.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckError {
    /// Path of the field, such as `phases[0].list`.
    field: String,
    /// The problem and its correction.
    detail: String,
}

/// The findings about a phase.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PhaseCheck {
    phase: String,
    /// Counts of its list. None for a post without a list, for a phase that another service carries out, and where counting took too long.
    audience: Option<AudienceCheck>,
    /// The sample for which its message was rendered.
    renders: Option<RenderCheck>,
    account: Option<AccountCheck>,
    /// The time that its calls take. None where no limit delays them: then the speed of the provider decides.
    estimate: Option<EstimateCheck>,
    /// Risks.
    warnings: Vec<String>,
}

/// Counts of a list, as the phase would address it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AudienceCheck {
    members: i64,
    /// Members that the other counts are about: all of them, or the first 100,000.
    counted: i64,
    /// Leads that would get a message.
    reachable: i64,
    /// Leads that are suppressed, or share their address with one that is.
    suppressed: i64,
    /// Leads without an address on the channel.
    without_address: i64,
    /// Leads that are left out because an earlier member has their address.
    same_address: i64,
}

/// The sample for which a message was rendered.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RenderCheck {
    /// Leads that were tried, at most 1,000, spread over the list. One for a post.
    checked: usize,
    /// Leads for which the message cannot be rendered.
    failed: usize,
    first_problem: Option<String>,
    /// Variables that leads lack, the most frequent first.
    missing: Vec<MissingVariable>,
}

/// A variable of the template that leads lack.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MissingVariable {
    /// Its name, such as `first_name` or `order.id`.
    variable: String,
    /// Number of leads of the sample that lack it where the template needs it.
    leads: usize,
}

/// The account of a phase.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountCheck {
    name: String,
    /// Calls per second, by its own limit or its provider's.
    rate_per_second: Option<f64>,
    /// Calls per day.
    daily: Option<u64>,
    /// Calls of today, by the account's clock, where they are counted.
    used_today: i64,
    #[schema(value_type = ShownCircuit)]
    circuit: Circuit,
}

/// How long calls take under the limits and sending hours of their account.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EstimateCheck {
    /// Time from the start, or from `scheduled_for`, to the last call; ten years at most.
    seconds: i64,
    /// The limit that takes most of it.
    #[schema(value_type = words::Why)]
    because: Why,
}

impl From<Report> for CampaignCheck {
    fn from(report: Report) -> Self {
        let error = |mistake: Mistake| CheckError { field: mistake.path(), detail: mistake.to_string() };
        Self {
            errors: report.errors.into_iter().map(error).collect(),
            phases: report.phases.into_iter().map(PhaseCheck::from).collect(),
        }
    }
}

impl From<PhaseReport> for PhaseCheck {
    fn from(report: PhaseReport) -> Self {
        let audience = |audience: Audience| AudienceCheck {
            members: audience.members,
            counted: audience.counted,
            reachable: audience.reachable,
            suppressed: audience.suppressed,
            without_address: audience.without_address,
            same_address: audience.same_address,
        };
        let missing = |(variable, leads): (String, usize)| MissingVariable { variable, leads };
        let renders = |renders: Renders| RenderCheck {
            checked: renders.checked,
            failed: renders.failed,
            first_problem: renders.first_problem,
            missing: renders.missing.into_iter().map(missing).collect(),
        };
        let account = |account: AccountReport| AccountCheck {
            name: account.name,
            rate_per_second: account.rate_per_second,
            daily: account.daily,
            used_today: account.used_today,
            circuit: account.circuit,
        };
        Self {
            phase: report.phase,
            audience: report.audience.map(audience),
            renders: report.renders.map(renders),
            account: report.account.map(account),
            estimate: report.estimate.map(|Estimate { seconds, because }| EstimateCheck { seconds, because }),
            warnings: report.warnings,
        }
    }
}

/// Checks a campaign without creating it. Counts are exact up to 100,000 members of a list, and messages are rendered for a sample.
#[utoipa::path(
    post,
    path = "/campaigns/check",
    operation_id = "check_campaign",
    tag = "campaigns",
    request_body = CampaignRequest,
    responses((status = 200, description = "The findings about the campaign, also when it cannot be created", body = CampaignCheck)),
)]
pub(crate) async fn check(
    State(app): State<App>,
    Operator(caller): Operator,
    Body { value: new, .. }: Body<CampaignRequest>,
) -> ApiResult<Json<CampaignCheck>> {
    let wanted = new.workspace_id.map(WorkspaceId);
    let campaign = NewCampaign::from(new);
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    let workspace = workspace(&mut transaction, caller.tenant_id, wanted).await?;
    let report = report(&app, &mut transaction, caller.tenant_id, workspace, &campaign).await?;
    pool::rollback(transaction).await?;
    Ok(Json(report.into()))
}

/// Refuses a campaign that has errors.
pub(super) async fn require_sound(
    app: &App,
    connection: &mut PgConnection,
    tenant: TenantId,
    workspace: WorkspaceId,
    campaign: &NewCampaign,
) -> ApiResult<()> {
    let report = report(app, connection, tenant, workspace, campaign).await?;
    let error = |mistake: &Mistake| FieldError::new(mistake.path(), mistake.problem.clone());
    let errors: Vec<FieldError> = report.errors.iter().map(error).collect();
    if errors.is_empty() { Ok(()) } else { Err(ApiError::Unprocessable(errors)) }
}

async fn report(
    app: &App,
    connection: &mut PgConnection,
    tenant: TenantId,
    workspace: WorkspaceId,
    campaign: &NewCampaign,
) -> Result<Report, StoreError> {
    let checker = Checker {
        adapters: &app.adapters,
        master_key: app.callbacks.as_ref().map(|keys| &keys.master_key),
        call_max: app.call_max,
        links_to_unsubscribe: app.unsubscribing.public_url.is_some(),
    };
    checker.check(connection, tenant, workspace, campaign).await
}

//! Controls of phases. The transitions are a table in the model; the database decides by the same one, under a lock.

use std::time::Duration;

use postrider_model::{
    campaigns::{PhaseKind, PhaseStatus, PhaseTrigger},
    ids::{CampaignId, RunId, TenantId},
};
use sqlx::PgConnection;

use crate::{
    Pool, StoreError,
    campaigns::{JOB_SIZE, history},
    postgres::{pool, unprepared::unprepared, values::word},
};

/// A control of a phase.
#[derive(Debug, Clone, Copy)]
pub struct Control<'a> {
    /// The campaign.
    pub campaign: CampaignId,
    /// The phase.
    pub phase: &'a str,
    /// The control.
    pub trigger: PhaseTrigger,
    /// The state that the phase must have, if that matters.
    pub expected: Option<PhaseStatus>,
    /// The control is refused if the state of the phase changed after this event, so that a repeated request changes nothing.
    pub expected_sequence: Option<i64>,
    /// The items that a retry or a rerun takes.
    pub reach: Reach,
    /// The reason in words, for the history.
    pub reason: Option<&'a str>,
    /// The actor.
    pub actor: &'a str,
}

/// The items that a retry or a rerun takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reach {
    /// A retry takes those that certainly failed, a rerun the whole audience.
    #[default]
    Usual,
    /// A retry takes those that were canceled, too.
    WithCanceled,
    /// A rerun takes those that certainly failed.
    OnlyFailed,
}

/// Result of a control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Controlled {
    /// The phase was changed.
    Changed(Standing),
    /// The phase was in the target state already; nothing was written.
    Unchanged(Standing),
    /// The phase's state does not allow the control.
    Conflict {
        /// The phase's state.
        standing: Standing,
        /// The reason.
        reason: String,
    },
    /// The tenant has no such campaign, or the campaign no such phase.
    Unknown {
        /// The missing one.
        reason: String,
    },
}

/// The state of a phase after a control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Its state.
    pub status: PhaseStatus,
    /// Its kind: Postrider delivers it, or another service carries it out.
    pub kind: PhaseKind,
    /// The number of the event about the change, or of the campaign's newest event.
    pub sequence: i64,
    /// Its newest run.
    pub run_id: Option<RunId>,
    /// Number of items of that run.
    pub items: Option<i64>,
    /// Number of items that were sent before, or may have been: for `retry` and `rerun`.
    pub second_messages: Option<i64>,
    /// Calls that were under way when a pause or a cancel was answered.
    pub in_flight: Option<i64>,
}

/// Controls a phase, commits, and waits until a pause or a cancel is exact: after this has returned, no reservation of the phase commits.
/// Wake the workers with [`crate::campaigns::send_jobs::hint`] when something was changed.
pub async fn control(pool: &Pool, tenant: TenantId, control: Control<'_>) -> Result<Controlled, StoreError> {
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let mut controlled = apply(&mut transaction, tenant, control).await?;
    pool::commit(transaction).await?;
    if let Controlled::Changed(standing) | Controlled::Unchanged(standing) = &mut controlled
        && stops(control.trigger)
    {
        standing.in_flight = Some(await_reservations(pool, tenant, control.campaign, control.phase).await?);
    }
    Ok(controlled)
}

/// Whether a control stops reservations: its answer waits for [`await_reservations`].
pub fn stops(control: PhaseTrigger) -> bool {
    matches!(control, PhaseTrigger::Pause | PhaseTrigger::Cancel)
}

/// How long one statement of a dry run may take: it holds the campaign's lock while it counts.
const DRY_RUN_MAX: Duration = Duration::from_secs(5);

/// Applies a control and rolls it back, so nothing changes. [`Controlled::Changed`] means that the control would change the phase: its
/// status and sequence are those of now, its counts those that the control would have, and it names no run that the control would make.
/// The error [`StoreError::is_timeout`] means that there are too many items to count exactly.
pub async fn dry_run(pool: &Pool, tenant: TenantId, control: Control<'_>) -> Result<Controlled, StoreError> {
    let mut transaction = pool::begin_as(pool, tenant).await?;
    pool::limit_statements(&mut transaction, DRY_RUN_MAX).await?;
    let extent = history::extents(&mut transaction, tenant, &[control.campaign]).await?;
    let newest = extent.first().map_or(0, |extent| extent.newest);
    let before = status(&mut transaction, tenant, control).await?;
    let mut controlled = apply(&mut transaction, tenant, control).await?;
    pool::rollback(transaction).await?;
    if let Controlled::Changed(standing) = &mut controlled {
        standing.status = before.unwrap_or(standing.status);
        standing.sequence = newest;
        if matches!(control.trigger, PhaseTrigger::Start | PhaseTrigger::Retry | PhaseTrigger::Rerun) {
            standing.run_id = None;
        }
    }
    Ok(controlled)
}

async fn status(
    connection: &mut PgConnection,
    tenant: TenantId,
    control: Control<'_>,
) -> Result<Option<PhaseStatus>, StoreError> {
    let status = sqlx::query_scalar!(
        r#"
        select status
          from execution.campaign_phases
         where tenant_id = $1
           and campaign_id = $2
           and phase = $3
        "#,
        tenant.0,
        control.campaign.0,
        control.phase,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the state of the phase"))?;
    status.as_deref().map(word).transpose()
}

/// Controls a phase of the tenant. A pause or a cancel is exact once [`await_reservations`] has answered after the commit.
pub async fn apply(
    connection: &mut PgConnection,
    tenant: TenantId,
    control: Control<'_>,
) -> Result<Controlled, StoreError> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!",
               status as "status!",
               kind as "kind!",
               reason,
               sequence as "sequence!",
               run_id,
               items,
               second_messages
          from execution.control_phase($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        "#,
        tenant.0,
        control.campaign.0,
        control.phase,
        control.trigger.as_str(),
        control.expected.map(PhaseStatus::as_str),
        control.actor,
        control.reason,
        JOB_SIZE,
        control.expected_sequence,
        control.reach == Reach::WithCanceled,
        control.reach == Reach::OnlyFailed,
    )
    .fetch_one(unprepared(connection))
    .await;
    let row = match row {
        Err(error) if is_unknown(&error) => return Ok(unknown(&error)),
        row => row.map_err(StoreError::on("controlling the phase"))?,
    };
    let standing = Standing {
        status: word(&row.status)?,
        kind: word(&row.kind)?,
        sequence: row.sequence,
        run_id: row.run_id.map(RunId),
        items: row.items,
        second_messages: row.second_messages,
        in_flight: None,
    };
    Ok(controlled(&row.outcome, row.reason, standing))
}

fn controlled(outcome: &str, reason: Option<String>, standing: Standing) -> Controlled {
    match outcome {
        "changed" => Controlled::Changed(standing),
        "unchanged" => Controlled::Unchanged(standing),
        _ => Controlled::Conflict { standing, reason: reason.unwrap_or_default() },
    }
}

/// SQLSTATE of a lock that another session held for too long.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Whether the function reports with this code that there is no such campaign or phase.
fn is_unknown(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| code == "P0002")
}

fn unknown(error: &sqlx::Error) -> Controlled {
    let reason =
        error.as_database_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    Controlled::Unknown { reason }
}

/// Waits for the workers that were reserving items of a phase when its pause or cancel committed, and returns the number of calls under
/// way.
pub async fn await_reservations(
    pool: &Pool,
    tenant: TenantId,
    campaign: CampaignId,
    phase: &str,
) -> Result<i64, StoreError> {
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let in_flight = sqlx::query_scalar!(
        r#"select execution.await_reservations($1, $2, $3) as "in_flight!""#,
        tenant.0,
        campaign.0,
        phase,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(|error| match error.as_database_error().and_then(sqlx::error::DatabaseError::code) {
        Some(code) if code == LOCK_NOT_AVAILABLE => StoreError::Conflict {
            message: "the phase is stopped, but a worker that was reserving has not finished yet; repeat the request to be \
                      sure that nothing is reserved any more"
                .to_owned(),
        },
        _ => StoreError::on("waiting for reservations")(error),
    })?;
    pool::commit(transaction).await?;
    Ok(in_flight)
}

/// Records how far another service is with a phase of the tenant that it does. It never touches the phase's state.
pub async fn report_progress(
    connection: &mut PgConnection,
    tenant: TenantId,
    campaign: CampaignId,
    phase: &str,
    percentage: f64,
    actor: &str,
) -> Result<Controlled, StoreError> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!",
               status as "status!",
               kind as "kind!",
               reason,
               sequence as "sequence!"
          from execution.report_progress($1, $2, $3, $4::double precision::numeric, $5)
        "#,
        tenant.0,
        campaign.0,
        phase,
        percentage,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await;
    let row = match row {
        Err(error) if is_unknown(&error) => return Ok(unknown(&error)),
        row => row.map_err(StoreError::on("recording the progress"))?,
    };
    let standing = Standing {
        status: word(&row.status)?,
        kind: word(&row.kind)?,
        sequence: row.sequence,
        run_id: None,
        items: None,
        second_messages: None,
        in_flight: None,
    };
    Ok(controlled(&row.outcome, row.reason, standing))
}

/// Writes progress events for the runs that a worker works on, and for reports that wait for their event: chooses tenants, and then
/// writes in one transaction per tenant.
pub async fn note_progress(pool: &Pool, worker: &str) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let tenants = sqlx::query_scalar!(
        r#"select tenant_id as "tenant_id!" from execution.tenants_with_due_progress($1)"#,
        worker,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("choosing campaigns whose progress is due"))?;
    pool::commit(transaction).await?;
    for tenant in tenants {
        let mut transaction = pool::begin(pool).await?;
        sqlx::query!("select execution.note_progress($1, $2)", tenant, worker)
            .fetch_one(unprepared(&mut transaction))
            .await
            .map_err(StoreError::on("noting the progress"))?;
        pool::commit(transaction).await?;
    }
    Ok(())
}

/// Ends one phase that is due to end, or starts the next phase of a campaign that advances by itself. False when there was nothing
/// to do.
pub async fn advance(pool: &Pool, actor: &str) -> Result<bool, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let tenant =
        sqlx::query_scalar!(r#"select tenant_id as "tenant_id!" from execution.tenants_with_due_phases(1)"#)
            .fetch_optional(unprepared(&mut transaction))
            .await
            .map_err(StoreError::on("choosing a phase"))?;
    pool::commit(transaction).await?;
    let Some(tenant) = tenant else { return Ok(false) };
    let mut transaction = pool::begin(pool).await?;
    let found = sqlx::query_scalar!(r#"select execution.tend_phase($1, $2) as "found!""#, tenant, actor)
        .fetch_one(unprepared(&mut transaction))
        .await
        .map_err(StoreError::on("ending or starting a phase"))?;
    pool::commit(transaction).await?;
    Ok(found)
}

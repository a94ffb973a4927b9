//! `postrider campaign start|pause|resume|retry|rerun|cancel|complete|fail`: controls of a phase.

use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use postrider_model::{
    campaigns::{PhaseStatus, PhaseTrigger},
    ids::TenantId,
};
use postrider_store::{
    Pool,
    campaigns::{
        self, Campaign, PhaseState,
        phases::{self, Control, Controlled, Reach, Standing},
        send_jobs,
    },
    postgres::pool,
    tenancy::tenants::Tenant,
};

use super::target;
use crate::{
    cli::{ForTenant, actor, ask, output, with_installation},
    config::Config,
    installation::Installation,
};

#[derive(Args)]
pub struct ControlArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The campaign, by name or id
    campaign: String,
    /// Control this phase [default: the only phase that allows the command]
    #[arg(long, value_name = "PHASE")]
    phase: Option<String>,
    /// Refuse unless the phase is in this state, or already in the state that the command sets
    #[arg(long, value_name = "STATE", value_parser = |text: &str| text.parse::<PhaseStatus>())]
    expected_state: Option<PhaseStatus>,
    /// Refuse if the phase changed after this event (`sequence` of `campaign status --json`), so that a repeated command changes nothing
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(0..))]
    expected_sequence: Option<i64>,
    /// Record this reason in the history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct RetryArgs {
    #[command(flatten)]
    control: ControlArgs,
    /// Send the items that were canceled, too
    #[arg(long)]
    include_canceled: bool,
    /// Count the items that would be sent again, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct CancelArgs {
    #[command(flatten)]
    control: ControlArgs,
    /// Cancel without asking
    #[arg(long)]
    yes: bool,
}

/// The items of a rerun.
#[derive(Clone, Copy, ValueEnum)]
enum Only {
    /// The items that certainly failed
    Failed,
}

#[derive(Args)]
pub struct RerunArgs {
    #[command(flatten)]
    control: ControlArgs,
    /// Send only these items instead of the whole list
    #[arg(long, value_enum)]
    only: Option<Only>,
    /// Count the items and the second messages that would be sent, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Send second messages without asking
    #[arg(long)]
    yes: bool,
}

/// Whether a command asks before it acts.
#[derive(Clone, Copy)]
enum Consent {
    /// Ask if people get the message a second time.
    ForSecondMessages,
    /// Ask with the number of items that are not tried any more.
    ForCancel,
    Given,
    /// Change nothing, and print the numbers.
    DryRun,
}

pub async fn run(trigger: PhaseTrigger, args: ControlArgs, config: &Config) -> anyhow::Result<ExitCode> {
    control(trigger, Reach::Usual, &args, Consent::Given, config).await
}

pub async fn retry(args: RetryArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let reach = if args.include_canceled { Reach::WithCanceled } else { Reach::Usual };
    let consent = if args.dry_run { Consent::DryRun } else { Consent::Given };
    control(PhaseTrigger::Retry, reach, &args.control, consent, config).await
}

pub async fn cancel(args: CancelArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let consent = if args.yes { Consent::Given } else { Consent::ForCancel };
    control(PhaseTrigger::Cancel, Reach::Usual, &args.control, consent, config).await
}

pub async fn rerun(args: RerunArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let consent = match (args.dry_run, args.yes) {
        (true, _) => Consent::DryRun,
        (false, true) => Consent::Given,
        (false, false) => Consent::ForSecondMessages,
    };
    let reach = args.only.map_or(Reach::Usual, |Only::Failed| Reach::OnlyFailed);
    control(PhaseTrigger::Rerun, reach, &args.control, consent, config).await
}

async fn control(
    trigger: PhaseTrigger,
    reach: Reach,
    args: &ControlArgs,
    consent: Consent,
    config: &Config,
) -> anyhow::Result<ExitCode> {
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (tenant, campaign, phase) = find(trigger, args, &pool, installation).await?;
        let actor = actor();
        let control = Control {
            campaign: campaign.id,
            phase: &phase,
            trigger,
            expected: args.expected_state,
            expected_sequence: args.expected_sequence,
            reach,
            reason: args.reason.as_deref(),
            actor: &actor,
        };
        if matches!(consent, Consent::ForCancel) {
            confirm_cancel(&pool, tenant.id, control).await?;
        }
        let controlled = match consent {
            Consent::Given | Consent::ForCancel => phases::control(&pool, tenant.id, control).await?,
            Consent::ForSecondMessages => control_if_confirmed(&pool, tenant.id, control).await?,
            Consent::DryRun => phases::dry_run(&pool, tenant.id, control).await.map_err(|error| {
                if error.is_timeout() {
                    anyhow::anyhow!(
                        "there are too many items to count exactly within 5 s, or another control of the campaign takes long; \
                         run the command again, or without --dry-run"
                    )
                } else {
                    error.into()
                }
            })?,
        };
        let is_dry_run = matches!(consent, Consent::DryRun);
        let (changed, standing) = match controlled {
            Controlled::Changed(standing) => (true, standing),
            Controlled::Unchanged(standing) => (false, standing),
            Controlled::Conflict { standing, reason } => {
                anyhow::bail!("phase `{phase}`: {reason}; {}", may_be(&standing))
            }
            Controlled::Unknown { reason } => {
                anyhow::bail!("{reason}; `postrider campaign status` lists campaigns and their phases")
            }
        };
        if is_dry_run {
            print_dry_run(args, &campaign, &phase, changed, &standing)?;
            return Ok(ExitCode::SUCCESS);
        }
        if changed {
            // After the commit, so that the workers find the send jobs when they wake up.
            let mut hinting = pool::begin(&pool).await?;
            send_jobs::hint(&mut hinting).await?;
            pool::commit(hinting).await?;
        }
        print(args, &campaign, &phase, changed, &standing)?;
        if changed && trigger == PhaseTrigger::Cancel {
            message!("items that were not tried are skipped; `postrider campaign retry --include-canceled` sends them");
        }
        Ok(ExitCode::SUCCESS)
    })
    .await
}

/// Asks before a cancel, with the number of items that no worker has tried yet. Without a run under way there is nothing to ask.
async fn confirm_cancel(pool: &Pool, tenant: TenantId, control: Control<'_>) -> anyhow::Result<()> {
    let mut reading = pool::begin_as(pool, tenant).await?;
    let phases = campaigns::status(&mut reading, tenant, control.campaign).await?;
    pool::rollback(reading).await?;
    let phase = phases.iter().find(|phase| phase.phase == control.phase);
    let Some(run) =
        phase.and_then(|phase| phase.run.as_ref()).filter(|state| !state.run.status.is_terminal())
    else {
        return Ok(());
    };
    let (left, intended) = (run.progress.not_started(), run.progress.intended);
    let consequence =
        format!("{left} of {intended} items that were not tried yet are skipped, and the phase fails");
    ask::confirm(false, &consequence, "nothing was canceled")
}

/// Counts the second messages in a transaction that is rolled back, asks, and applies the control unless the count has grown.
async fn control_if_confirmed(
    pool: &Pool,
    tenant: TenantId,
    control: Control<'_>,
) -> anyhow::Result<Controlled> {
    const UNCHANGED: &str = "nothing was sent";
    let count = |controlled: &Controlled| match controlled {
        Controlled::Changed(standing) => standing.second_messages.unwrap_or_default(),
        _ => 0,
    };
    let mut trial = pool::begin_as(pool, tenant).await?;
    let second = count(&phases::apply(&mut trial, tenant, control).await?);
    // No lock is held while the command waits for the answer.
    pool::rollback(trial).await?;
    if second > 0 {
        let people = if second == 1 { "1 person gets".to_owned() } else { format!("{second} people get") };
        ask::confirm(false, &format!("{people} this message a second time, or may"), UNCHANGED)?;
    }
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let controlled = phases::apply(&mut transaction, tenant, control).await?;
    let now = count(&controlled);
    anyhow::ensure!(
        now <= second,
        "by now {now} people would get this message a second time, not {second}; {UNCHANGED}; run the command again"
    );
    pool::commit(transaction).await?;
    Ok(controlled)
}

async fn find(
    trigger: PhaseTrigger,
    args: &ControlArgs,
    pool: &Pool,
    installation: &Installation,
) -> anyhow::Result<(Tenant, Campaign, String)> {
    let (mut transaction, tenant) = args.of.begin(pool, installation).await?;
    let campaign = target::campaign(&mut transaction, tenant.id, &args.campaign).await?;
    let phase = match &args.phase {
        Some(phase) => phase.clone(),
        None => the_one(trigger, &campaigns::status(&mut transaction, tenant.id, campaign.id).await?)?,
    };
    Ok((tenant, campaign, phase))
}

/// The only phase that allows the trigger; or the only one already in its target state, so that a repeated command is no error.
fn the_one(trigger: PhaseTrigger, phases: &[PhaseState]) -> anyhow::Result<String> {
    let can: Vec<&PhaseState> = phases
        .iter()
        .filter(|phase| phase.status.allowed(phase.kind).any(|allowed| allowed == trigger))
        .collect();
    let there: Vec<&PhaseState> =
        phases.iter().filter(|phase| phase.status == trigger.goal() && trigger.is_for(phase.kind)).collect();
    // Phases start in their order.
    let first = (trigger == PhaseTrigger::Start && there.is_empty()).then(|| can.first()).flatten();
    let one = match (can.as_slice(), there.as_slice()) {
        _ if first.is_some() => first,
        ([one], _) | ([], [one]) => Some(one),
        _ => None,
    };
    one.map(|phase| phase.phase.clone()).with_context(|| {
        let stand = phases.iter().map(|phase| format!("{} is {}", phase.phase, phase.status));
        format!("cannot choose the phase; name one with --phase: {}", stand.collect::<Vec<_>>().join(", "))
    })
}

fn may_be(standing: &Standing) -> String {
    let allowed: Vec<&str> = standing.status.allowed(standing.kind).map(PhaseTrigger::as_str).collect();
    match allowed.as_slice() {
        [] => "no command can change the phase now".to_owned(),
        allowed => format!("it can: {}", allowed.join(", ")),
    }
}

fn print_dry_run(
    args: &ControlArgs,
    campaign: &Campaign,
    phase: &str,
    would_change: bool,
    standing: &Standing,
) -> anyhow::Result<()> {
    if args.json {
        return output::json(&serde_json::json!({
            "campaign_id": campaign.id,
            "phase": phase,
            "status": standing.status,
            "changed": false,
            "would_change": would_change,
            "sequence": standing.sequence,
            "items": standing.items,
            "second_messages": standing.second_messages,
        }));
    }
    output::line(standing.status)?;
    if !would_change {
        message!(
            "phase `{phase}` of `{}` is {} already; nothing would change",
            campaign.name,
            standing.status
        );
        return Ok(());
    }
    let items = standing.items.unwrap_or_default();
    match standing.second_messages {
        Some(count) if count > 0 => message!(
            "{items} items would be sent, {count} of them to people who got this message before, or may have; nothing was changed"
        ),
        _ => message!("{items} items would be sent; nothing was changed"),
    }
    Ok(())
}

fn print(
    args: &ControlArgs,
    campaign: &Campaign,
    phase: &str,
    changed: bool,
    standing: &Standing,
) -> anyhow::Result<()> {
    if args.json {
        return output::json(&serde_json::json!({
            "campaign_id": campaign.id,
            "phase": phase,
            "status": standing.status,
            "changed": changed,
            "sequence": standing.sequence,
            "run_id": standing.run_id,
            "items": standing.items,
            "second_messages": standing.second_messages,
            "in_flight": standing.in_flight,
        }));
    }
    output::line(standing.status)?;
    if !changed {
        message!(
            "phase `{phase}` of `{}` was {} already; nothing was changed",
            campaign.name,
            standing.status
        );
    } else {
        message!(
            "phase `{phase}` of `{}` is {} (event {})",
            campaign.name,
            standing.status,
            standing.sequence
        );
    }
    match standing.in_flight {
        Some(0) => message!("no call is in progress, and no item is reserved any more"),
        Some(1) => message!("1 call in progress finishes and is recorded; no item is reserved any more"),
        Some(count) => {
            message!("{count} calls in progress finish and are recorded; no item is reserved any more");
        }
        None => {}
    }
    if let Some(count) = standing.second_messages.filter(|count| *count > 0) {
        message!(
            "{count} of {} items go to people who got this message before, or may have",
            standing.items.unwrap_or_default()
        );
    } else if changed && let (Some(run), Some(items)) = (standing.run_id, standing.items) {
        message!("run {} has {items} items", run.0);
    }
    Ok(())
}

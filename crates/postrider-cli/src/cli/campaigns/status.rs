//! `postrider campaign status`: all campaigns, or the state of one.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use postrider_model::campaigns::{PhaseKind, PhaseStatus};
use postrider_store::campaigns::{self, Listed, ListedPhase, PhaseState, Snapshot, runs::Progress};

use super::{target, watch};
use crate::{
    cli::{ForTenant, output, with_installation},
    config::Config,
};

#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The campaign, by name or id [default: list them all]
    campaign: Option<String>,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: StatusArgs, config: &Config) -> anyhow::Result<ExitCode> {
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
        match &args.campaign {
            Some(campaign) => {
                let campaign = target::campaign(&mut transaction, tenant.id, campaign).await?;
                drop(transaction);
                let snapshot = campaigns::snapshot(&pool, tenant.id, campaign.id).await?;
                show_one(&snapshot.context("the campaign does not exist any more")?, args.json)
            }
            None => show_all(&campaigns::list(&mut transaction, tenant.id, args.limit).await?, args.json),
        }
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

fn show_all(listed: &[Listed], json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(&listed);
    }
    let rows = listed
        .iter()
        .map(|listed| {
            [
                listed.campaign.name.clone(),
                listed.campaign.id.to_string(),
                phase_counts(&listed.phases),
                output::time(listed.campaign.created_at),
            ]
        })
        .collect();
    output::table(
        ["name", "id", "phases", "created"],
        rows,
        "this tenant has no campaigns; `postrider campaign create FILE` creates one",
    )
}

/// Such as `1 completed, 2 not started`.
fn phase_counts(phases: &[ListedPhase]) -> String {
    let counted = PhaseStatus::ALL.iter().filter_map(|status| {
        let count = phases.iter().filter(|phase| phase.status == *status).count();
        (count > 0).then(|| format!("{count} {}", label(*status)))
    });
    counted.collect::<Vec<_>>().join(", ")
}

fn label(status: PhaseStatus) -> String {
    status.as_str().replace('_', " ")
}

fn show_one(snapshot: &Snapshot, json: bool) -> anyhow::Result<()> {
    let phases = &snapshot.phases;
    if json {
        return output::json(&serde_json::json!({
            "campaign": snapshot.campaign,
            "sequence": snapshot.sequence,
            "not_advanced": snapshot.not_advanced,
            "phases": phases,
        }));
    }
    output::table(
        ["phase", "channel", "status", "run", "run status", "done", "sent", "failed", "skipped", "in doubt"],
        phases.iter().map(row).collect(),
        "the campaign has no phases",
    )?;
    for state in phases.iter().filter_map(|phase| phase.run.as_ref()) {
        let in_doubt = state.progress.in_doubt;
        if let Some(waits) = watch::waits::of_run(state) {
            let account = match state.waiting {
                Some(_) => "; `postrider accounts list` shows the state of the account",
                None => "",
            };
            message!("{}: {waits}{account}", state.run.phase_name());
        }
        match watch::one_run::why_it_waits(state) {
            Some(why) => message!("{}: {why}", state.run.phase_name()),
            None if in_doubt > 0 => {
                message!(
                    "{}: {in_doubt} in doubt; `postrider in-doubt list` shows them",
                    state.run.phase_name()
                );
            }
            None => {}
        }
    }
    for phase in phases.iter().filter(|phase| phase.status == PhaseStatus::Paused) {
        message!("{}: no call begins until `postrider campaign resume`", phase.phase);
    }
    if let Some(why) = &snapshot.not_advanced {
        message!("{why}: the phase was not started automatically; `postrider campaign start` tries again");
    }
    Ok(())
}

fn row(phase: &PhaseState) -> [String; 10] {
    let channel = phase.channel.map_or_else(|| phase.kind.to_string(), |channel| channel.to_string());
    let dash = || "-".to_owned();
    let run = phase.run.as_ref().map(|state| &state.run);
    let progress = phase.run.as_ref().map(|state| &state.progress);
    let count = |of: fn(&Progress) -> i64| progress.map_or_else(dash, |progress| of(progress).to_string());
    [
        phase.phase.clone(),
        channel,
        label(phase.status),
        run.map_or_else(dash, |run| run.id.to_string()),
        run.map_or_else(dash, |run| run.status.to_string()),
        match progress {
            Some(progress) => format!("{}/{}", progress.done(), progress.intended),
            None if phase.kind == PhaseKind::External => format!("{:.1} %", phase.progress),
            None => dash(),
        },
        count(|progress| progress.succeeded),
        count(|progress| progress.failed),
        count(|progress| progress.skipped),
        count(|progress| progress.in_doubt),
    ]
}

//! `postrider campaign verify`: the launch certificate.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use postrider_model::{campaign::PhaseKind, ids::TenantId};
use postrider_store::{
    PgConnection, campaigns,
    runs::{self, Certificate, Run},
};
use serde::Serialize;

use super::target::{self, Target};
use crate::{
    cli::{ForTenant, output, with_installation},
    config::Config,
};

#[derive(Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    of: ForTenant,
    /// A campaign, by name or id, or a run
    #[arg(value_name = "CAMPAIGN|RUN")]
    what: String,
    /// Only this phase of the campaign
    #[arg(long, value_name = "PHASE")]
    phase: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// The answer: of a campaign, about the newest run of everybody in each phase that we deliver, and its retries.
#[derive(Serialize)]
struct Answer {
    launched: bool,
    certificates: Vec<Certified>,
    not_deployed: Vec<String>,
}

#[derive(Serialize)]
struct Certified {
    campaign: String,
    phase: String,
    #[serde(flatten)]
    certificate: Certificate,
}

pub async fn run(args: VerifyArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let answer = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
        let (runs, not_deployed) =
            wanted_runs(&mut transaction, tenant.id, &args.what, args.phase.as_deref()).await?;
        let mut certificates = Vec::new();
        for run in runs {
            let certificate = runs::verify(&mut transaction, run.id).await?;
            certificates.push(Certified { campaign: run.campaign, phase: run.phase, certificate });
        }
        let launched = not_deployed.is_empty() && certificates.iter().all(|one| one.certificate.launched);
        Ok(Answer { launched, certificates, not_deployed })
    })
    .await?;
    if args.json {
        output::json(&answer)?;
    } else {
        for certified in &answer.certificates {
            show(certified)?;
        }
        for phase in &answer.not_deployed {
            tell!("phase `{phase}` was not deployed; --phase verifies another one alone");
        }
    }
    Ok(if answer.launched { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The runs to verify, and the phases that have none.
async fn wanted_runs(
    connection: &mut PgConnection,
    tenant: TenantId,
    what: &str,
    phase: Option<&str>,
) -> anyhow::Result<(Vec<Run>, Vec<String>)> {
    let campaign = match target::find(connection, tenant, what).await? {
        Target::Campaign(campaign) => campaign,
        Target::Run(run) => {
            anyhow::ensure!(phase.is_none(), "`{what}` is a run, and has one phase; leave --phase out");
            return Ok((vec![*run], Vec::new()));
        }
    };
    let mut phases = campaigns::status(connection, tenant, campaign.id).await?;
    if let Some(wanted) = phase {
        let names: Vec<String> = phases.iter().map(|phase| phase.phase.clone()).collect();
        phases.retain(|phase| phase.phase == wanted);
        let found = phases.first().with_context(|| {
            format!("`{}` has no phase `{wanted}`; it has {}", campaign.name, names.join(", "))
        })?;
        anyhow::ensure!(
            found.kind == PhaseKind::Delivery,
            "phase `{wanted}` is done by another service, and there is nothing to verify"
        );
    }
    let (mut runs, mut not_deployed) = (Vec::new(), Vec::new());
    for phase in phases.into_iter().filter(|phase| phase.kind == PhaseKind::Delivery) {
        match phase.run {
            // A retry alone says nothing about those who were not in it.
            Some(_) => runs.extend(runs::since_all(connection, tenant, phase.id).await?),
            None => not_deployed.push(phase.phase),
        }
    }
    Ok((runs, not_deployed))
}

fn show(certified: &Certified) -> anyhow::Result<()> {
    let Certified { campaign, phase, certificate } = certified;
    let items = [
        (certificate.sent, "sent"),
        (certificate.called, "called"),
        (certificate.posted, "posted"),
        (certificate.failed, "failed"),
        (certificate.skipped, "skipped"),
        (certificate.in_doubt, "in doubt"),
        (certificate.missing, "missing"),
    ];
    let items: Vec<String> =
        items.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    let walls = match certificate.duplicates_are_impossible {
        true => "one row per key, which never goes and never reopens",
        false => "a constraint or a trigger is missing: run `postrider doctor`",
    };
    let conditions = [
        (certificate.run_is_terminal, "the run has ended", certificate.run_status.to_string()),
        (
            certificate.every_item_is_terminal,
            "every intended item has an end",
            format!("{} intended: {}", certificate.intended, items.join(", ")),
        ),
        (certificate.duplicates_are_impossible, "a second call is impossible", walls.to_owned()),
    ];
    let verdict = if certificate.launched { "launched" } else { "not launched" };
    output::line(format_args!("{campaign}, phase {phase}, {}: {verdict}", certificate.run_id))?;
    for (holds, condition, shown) in conditions {
        let mark = if holds { '✓' } else { '✗' };
        output::line(format_args!("  {mark} {condition:<31} {shown}"))?;
    }
    Ok(())
}

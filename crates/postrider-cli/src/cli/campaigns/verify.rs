//! `postrider campaign verify`: the launch certificate.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use postrider_model::{
    campaigns::{ItemStatus, PhaseKind},
    ids::TenantId,
};
use postrider_store::{
    PgConnection,
    campaigns::{
        self,
        runs::{Certificate, Evidence, Run},
    },
};
use serde::Serialize;

use super::{
    result::{self, LaunchResult, PhaseResult},
    target::{self, Target},
};
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
    /// Verify only this phase of the campaign
    #[arg(long, value_name = "PHASE")]
    phase: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The answer. For a campaign it covers each delivery phase: the newest run of the whole list, and its retries.
#[derive(Serialize)]
struct Answer {
    launched: bool,
    result: LaunchResult,
    phases: Vec<PhaseResult>,
    certificates: Vec<Certified>,
    not_deployed: Vec<String>,
}

#[derive(Serialize)]
struct Certified {
    campaign: String,
    phase: String,
    #[serde(flatten)]
    certificate: Certificate,
    /// The status of a successful item of the channel.
    #[serde(skip)]
    success: ItemStatus,
}

pub async fn run(args: VerifyArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let answer = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
        let (phases, not_deployed) =
            wanted_runs(&mut transaction, tenant.id, &args.what, args.phase.as_deref()).await?;
        let outcomes: Vec<PhaseResult> = phases.iter().filter_map(|runs| PhaseResult::of(runs)).collect();
        let worst = outcomes.iter().map(|outcome| outcome.result).max().unwrap_or(LaunchResult::NotLaunched);
        let result = if not_deployed.is_empty() { worst } else { LaunchResult::NotLaunched };
        let certificates = phases.into_iter().flatten().map(|(run, certificate)| Certified {
            campaign: run.campaign_name().to_owned(),
            phase: run.phase_name().to_owned(),
            certificate,
            success: run.channel.success(),
        });
        Ok(Answer {
            launched: result != LaunchResult::NotLaunched,
            result,
            phases: outcomes,
            certificates: certificates.collect(),
            not_deployed,
        })
    })
    .await?;
    if args.json {
        output::json(&answer)?;
    } else {
        for certified in &answer.certificates {
            show(certified)?;
        }
        for outcome in answer.phases.iter().filter(|outcome| outcome.result != LaunchResult::NotLaunched) {
            message!("{}", outcome.sentence());
        }
        for phase in &answer.not_deployed {
            message!("phase `{phase}` was not deployed; --phase verifies one phase alone");
        }
    }
    Ok(answer.result.exit_code())
}

type CertifiedRuns = Vec<(Run, Certificate)>;

/// The runs to verify, phase by phase, and the phases that have none.
async fn wanted_runs(
    connection: &mut PgConnection,
    tenant: TenantId,
    what: &str,
    phase: Option<&str>,
) -> anyhow::Result<(Vec<CertifiedRuns>, Vec<String>)> {
    let campaign = match target::find(connection, tenant, what).await? {
        Target::Campaign(campaign) => campaign,
        Target::Run(run) => {
            anyhow::ensure!(phase.is_none(), "`{what}` is a run of one phase; leave --phase out");
            return Ok((vec![result::certify(connection, tenant, vec![*run]).await?], Vec::new()));
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
            "another service performs phase `{wanted}`, so there is no certificate to verify"
        );
    }
    let (mut runs, mut not_deployed) = (Vec::new(), Vec::new());
    for phase in phases.into_iter().filter(|phase| phase.kind == PhaseKind::Delivery) {
        match phase.run {
            Some(_) => runs.push(result::certify_phase(connection, tenant, phase.id).await?),
            None => not_deployed.push(phase.phase),
        }
    }
    Ok((runs, not_deployed))
}

fn show(certified: &Certified) -> anyhow::Result<()> {
    let Certified { campaign, phase, certificate, success } = certified;
    let succeeded = certificate.sent + certificate.called + certificate.posted;
    let Certificate { intended, failed, skipped, in_doubt, missing, .. } = certificate;
    let evidence = &certificate.evidence;
    let walls = match (&evidence.restored_copy, certificate.duplicates_are_impossible) {
        (Some(_), _) => "restored copy: sending waits for adopt",
        (None, true) => "one row per key, which never goes and never reopens",
        (None, false) => "a constraint or a trigger is missing: run `postrider doctor`",
    };
    let conditions = [
        (certificate.run_is_terminal, "the run has ended", certificate.run_status.to_string()),
        (
            certificate.every_item_is_terminal,
            "every intended item has an end",
            format!("{} of {intended}", succeeded + failed + skipped),
        ),
        (certificate.duplicates_are_impossible, "a second call is impossible", walls.to_owned()),
    ];
    let result = if certificate.launched { "launched" } else { "not launched" };
    output::line(format_args!(
        "{campaign}, phase {phase}, {}: {succeeded} {success}, {failed} failed, {skipped} skipped, {in_doubt} in doubt, \
         {missing} missing of {intended}; {result}",
        certificate.run_id
    ))?;
    for (holds, condition, shown) in conditions {
        let mark = if holds { '✓' } else { '✗' };
        output::line(format_args!("  {mark} {condition:<31} {shown}"))?;
    }
    output::line(format_args!("  based on: {}", based_on(evidence)))
}

/// The evidence for the third condition.
fn based_on(evidence: &Evidence) -> String {
    let database = format!("database {} of cluster {}", evidence.database_name, evidence.system_identifier);
    if let Some(why) = &evidence.restored_copy {
        return format!("{database}, which is a restored copy: {why}");
    }
    let (Some(epoch), Some(cause), Some(began_at)) =
        (evidence.epoch, &evidence.cause, evidence.epoch_began_at)
    else {
        return format!("{database}, from which no process has sent");
    };
    let mut text = format!("{database}, {cause} {}, epoch {epoch}", output::time(began_at));
    if let Some(at) = evidence.last_compared_at {
        text.push_str(&format!(", last compared with a witness {}", output::time(at)));
    }
    if evidence.items_adopted > 0 {
        text.push_str(&format!("; {} items were put in doubt when it was adopted", evidence.items_adopted));
    }
    text
}

//! `postrider campaign check`: the findings about a campaign file, without creating the campaign.

use std::process::ExitCode;

use clap::Args;
use postrider_engine::campaigns::preflight::{Checker, PhaseReport, Report};
use postrider_model::{campaigns::limits::Why, seal::MasterKey};
use postrider_providers::Adapters;
use postrider_store::{postgres::pool, tenancy::accounts::Circuit};

use super::{create, file};
use crate::{
    cli::{ForWorkspace, output, with_installation},
    config::Config,
    wire,
};

#[derive(Args)]
pub struct CheckArgs {
    #[command(flatten)]
    of: ForWorkspace,
    /// The campaign, as TOML or JSON; `-` reads stdin
    file: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: CheckArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let file = file::read(&args.file)?;
    file.check()?;
    let adapters = wire::adapters(config)?;
    let report = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, mut tenant) = args.of.tenant.begin(&pool, installation).await?;
        tenant.workspace_id = args.of.workspace(&mut transaction, &tenant).await?;
        // The assets of the file's content exist until the rollback.
        let campaign = create::complete(&mut transaction, &tenant, &file).await?;
        let key = installation.master_key(config).ok();
        let checker = checker(&adapters, key.as_ref(), config);
        let report = checker.check(&mut transaction, tenant.id, tenant.workspace_id, &campaign).await?;
        pool::rollback(transaction).await?;
        Ok(report)
    })
    .await?;
    if args.json {
        output::json(&json(&report))?;
    } else {
        print(&report)?;
    }
    for warning in warnings(&report) {
        message!("warning: {warning}");
    }
    for error in &report.errors {
        message!("error: {error}");
    }
    Ok(if report.errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The checker of this command's configuration. Without the master key the accounts are not opened; the server opens them.
pub(super) fn checker<'a>(
    adapters: &'a Adapters,
    master_key: Option<&'a MasterKey>,
    config: &Config,
) -> Checker<'a> {
    Checker {
        adapters,
        master_key,
        call_max: wire::call_max(config),
        links_to_unsubscribe: config.campaigns.public_url.is_some(),
    }
}

/// The warnings of all phases.
pub(super) fn warnings(report: &Report) -> impl Iterator<Item = String> {
    report.phases.iter().flat_map(|phase| {
        phase.warnings.iter().map(move |warning| format!("phase `{}`: {warning}", phase.phase))
    })
}

fn print(report: &Report) -> anyhow::Result<()> {
    output::table(
        [
            "phase",
            "members",
            "reachable",
            "suppressed",
            "no address",
            "same address",
            "rendered",
            "account",
            "takes",
        ],
        report.phases.iter().map(row).collect(),
        "the campaign has no phases that can be checked",
    )?;
    for phase in &report.phases {
        let Some(renders) = &phase.renders else { continue };
        for (name, leads) in &renders.missing {
            message!("{}: `{name}` is undefined for {leads} of {} leads", phase.phase, renders.checked);
        }
    }
    Ok(())
}

fn row(phase: &PhaseReport) -> [String; 9] {
    let dash = || "-".to_owned();
    let count = |of: fn(&postrider_store::campaigns::leads::Audience) -> i64| {
        phase.audience.as_ref().map_or_else(dash, |audience| of(audience).to_string())
    };
    [
        phase.phase.clone(),
        count(|audience| audience.members),
        count(|audience| audience.reachable),
        count(|audience| audience.suppressed),
        count(|audience| audience.without_address),
        count(|audience| audience.same_address),
        phase
            .renders
            .as_ref()
            .map_or_else(dash, |renders| format!("{}/{}", renders.checked - renders.failed, renders.checked)),
        phase.account.as_ref().map_or_else(dash, |account| {
            let rate = account.rate_per_second.map(|rate| format!("{rate}/s"));
            let daily = account.daily.map(|daily| format!("{}/{daily} today", account.used_today));
            let circuit = (account.circuit != Circuit::Closed).then(|| "circuit open".to_owned());
            let limits: Vec<String> = rate.into_iter().chain(daily).chain(circuit).collect();
            format!("{} {}", account.name, limits.join(", ")).trim().to_owned()
        }),
        phase.estimate.as_ref().map_or_else(dash, |estimate| {
            format!("{} ({})", duration(estimate.seconds), because(estimate.because))
        }),
    ]
}

/// A duration in its two largest units, such as `2 d 3 h`.
fn duration(seconds: i64) -> String {
    let units = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let mut left = seconds;
    let mut words = Vec::new();
    for (unit, length) in units {
        if left >= length && words.len() < 2 {
            words.push(format!("{} {unit}", left / length));
            left %= length;
        }
    }
    if words.is_empty() { "0 s".to_owned() } else { words.join(" ") }
}

fn because(why: Why) -> &'static str {
    match why {
        Why::Daily => "daily limit",
        Why::Hours => "sending hours",
        Why::Rate | Why::RetryAfter | Why::Circuit => "rate",
    }
}

fn json(report: &Report) -> serde_json::Value {
    let phases = report.phases.iter().map(|phase| {
        serde_json::json!({
            "phase": phase.phase,
            "audience": phase.audience.map(|audience| serde_json::json!({
                "members": audience.members,
                "counted": audience.counted,
                "reachable": audience.reachable,
                "suppressed": audience.suppressed,
                "without_address": audience.without_address,
                "same_address": audience.same_address,
            })),
            "renders": phase.renders.as_ref().map(|renders| serde_json::json!({
                "checked": renders.checked,
                "failed": renders.failed,
                "first_problem": renders.first_problem,
                "missing": renders.missing.iter().map(|(variable, leads)| {
                    serde_json::json!({ "variable": variable, "leads": leads })
                }).collect::<Vec<_>>(),
            })),
            "account": phase.account.as_ref().map(|account| serde_json::json!({
                "name": account.name,
                "rate_per_second": account.rate_per_second,
                "daily": account.daily,
                "used_today": account.used_today,
                "circuit": account.circuit,
            })),
            "estimate": phase.estimate.map(|estimate| serde_json::json!({
                "seconds": estimate.seconds,
                "because": estimate.because,
            })),
            "warnings": phase.warnings,
        })
    });
    let errors = report
        .errors
        .iter()
        .map(|error| serde_json::json!({ "field": error.path(), "detail": error.to_string() }));
    serde_json::json!({ "errors": errors.collect::<Vec<_>>(), "phases": phases.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_its_two_largest_units() {
        let table = [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3_600, "1 h"), (183_845, "2 d 3 h")];
        for (seconds, expected) in table {
            assert_eq!(duration(seconds), expected);
        }
    }
}

//! `postrider doctor`: prints a line per check. Exits with 1, and with advice, when a check fails.

use std::process::ExitCode;

use clap::Args;
use postrider_engine::{sinks_of, tenancy::witness};
use postrider_model::error_chain;
use postrider_store::{
    Pool,
    events::sinks,
    postgres::{
        doctor::{self, Finding, Severity},
        pool,
    },
};

use postrider::{Role, logins};

use super::{
    open, output,
    serve::{NO_SINKS, ServeRole, is_relay_without_sinks, roles},
};
use crate::{config::Config, connections, installation::NO_MASTER_KEY, wire};

#[derive(Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Check for these roles of `serve` [default: all roles]
    #[arg(long, value_enum, value_delimiter = ',')]
    roles: Vec<ServeRole>,
}

pub async fn run(args: &DoctorArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let installation = open(config).await?;
    let examined = async {
        let pool = installation.unchecked_admin_pool().await?;
        let mut transaction = pool::begin(&pool).await?;
        let mut findings = doctor::examine(&mut transaction).await?;
        let roles = roles(&args.roles);
        let needs = Role::need_key_for(&roles);
        if !needs.is_empty() && !findings.iter().any(Finding::is_missing_schema) {
            let key = match installation.known_master_key(config) {
                // The key is generated with the first secret.
                Ok(None) if installation.is_private() => None,
                Ok(None) => Some(Err(NO_MASTER_KEY.to_owned())),
                Ok(Some(key)) => Some(Ok(key)),
                Err(error) => Some(Err(error_chain(error.as_ref()))),
            };
            findings.push(doctor::master_key(&mut transaction, key, &needs.join(", ")).await?);
        }
        drop(transaction);
        if !findings.iter().any(Finding::is_missing_schema) {
            findings.extend(logins::examine(&roles, &installation).await);
        }
        findings.push(connections::examine(config, &roles, &installation).await);
        if roles.contains(&Role::Relay) {
            findings.extend(sinks(&pool, config, &args.roles).await?);
        }
        // The witness of this machine is compared unless the database is known as a copy already.
        let is_clear = findings
            .iter()
            .any(|finding| finding.check == "restored copy" && finding.severity == Severity::Ok);
        if is_clear {
            let place = wire::witness_place(config, &installation).await?;
            if let Some(why) = witness::missing(&pool, &place).await? {
                findings.retain(|finding| finding.check != "restored copy");
                findings.push(doctor::restored(&why));
            }
        }
        anyhow::Ok(findings)
    }
    .await;
    installation.close().await?;
    let findings = examined?;

    if args.json {
        output::json(&findings)?;
    } else {
        for finding in &findings {
            let mark = match finding.severity {
                Severity::Ok => "ok  ",
                Severity::Warning => "WARN",
                Severity::Failure => "FAIL",
            };
            output::line(format_args!("{mark}  {:<20} {}", finding.check, finding.found))?;
            if let Some(advice) = &finding.advice {
                output::line(format_args!("      {:<20} → {advice}", ""))?;
            }
        }
    }
    let failures = findings.iter().filter(|finding| finding.severity == Severity::Failure).count();
    if failures > 0 {
        message!(
            "{failures} of {} checks failed; the lines with an arrow say how to fix them",
            findings.len()
        );
        return Ok(ExitCode::FAILURE);
    }
    message!("{} checks, none failed", findings.len());
    Ok(ExitCode::SUCCESS)
}

/// Whether a relay with this configuration would start and deliver. `None` if no sinks are registered.
async fn sinks(pool: &Pool, config: &Config, selected: &[ServeRole]) -> anyhow::Result<Option<Finding>> {
    const CHECK: &str = "sinks";
    if is_relay_without_sinks(selected, config) {
        let (found, advice) = NO_SINKS.split_once("; ").unwrap_or((NO_SINKS, ""));
        return Ok(Some(Finding::failure(CHECK, found, advice)));
    }
    let ours = sinks_of(&wire::routes(config)?)?;
    if ours.sinks().is_empty() {
        return Ok(Some(Finding::warning(
            CHECK,
            "no sinks are configured, so no relay runs and events wait in the outbox",
            "set relay.sinks, or name the roles that this configuration is for with --roles",
        )));
    }
    let mut transaction = pool::begin(pool).await?;
    let Ok(Some(registered)) = sinks::registered(&mut transaction).await else { return Ok(None) };
    let changes = ours.changes_from(&registered.sinks);
    Ok(Some(if changes.is_empty() {
        Finding::ok(CHECK, format!("{} registered, as configured here", ours.sinks().len()))
    } else {
        Finding::failure(
            CHECK,
            format!("relay.sinks differs from the registered sinks: {}", changes.join("; ")),
            "correct relay.sinks, or register it with `postrider relay sinks set`",
        )
    }))
}

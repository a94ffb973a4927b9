//! `postrider jobs`: functions, their runs, schedules, errors and alerts.

mod alerts;
mod errors;
mod firings;
mod functions;
mod health;
mod input;
mod invoke;
mod monitor;
mod runs;
mod schedules;
mod show;

use std::process::ExitCode;

use clap::Subcommand;
use postrider_engine::jobs::BUILTINS;
use postrider_store::{
    PgConnection,
    jobs::functions::{FunctionState, find, put_builtin},
    tenancy::tenants::Tenant,
};

use self::{
    alerts::{AlertsArgs, CardsArgs, DecideArgs},
    errors::{ErrorsArgs, ResolveArgs},
    functions::FunctionCommand,
    health::HealthArgs,
    invoke::InvokeArgs,
    monitor::MonitorArgs,
    runs::{CancelArgs, ListArgs, RetryArgs},
    schedules::ScheduleCommand,
    show::ShowArgs,
};
use super::{ForTenant, Listing};
use crate::config::Config;

#[derive(Subcommand)]
pub enum JobsCommand {
    /// List runs, newest first
    List(ListArgs),
    /// Show everything about a run
    Show(ShowArgs),
    /// Run a function unless it completed in this grain; prints its result as JSON
    ///
    /// Exits with 0 when the run completed, with 1 when it failed or another run has its lock key, and with 2 when it has not ended
    /// within the wait; then the run's id is printed instead.
    Invoke(InvokeArgs),
    /// Retry a failed run at once
    Retry(RetryArgs),
    /// Cancel a run for ever; the runner that holds it stops
    Cancel(CancelArgs),
    /// Show statistics of the last day's runs beside the thresholds of alerts
    Health(HealthArgs),
    /// List open errors: runs that failed for good
    Errors(ErrorsArgs),
    /// Resolve an error without a retry; needs a note, which is kept
    Resolve(ResolveArgs),
    /// List active alerts
    Alerts(AlertsArgs),
    /// List decision cards that wait for a decision
    Cards(CardsArgs),
    /// Set the status of a decision card
    Decide(DecideArgs),
    /// Manage functions
    #[command(subcommand)]
    Function(FunctionCommand),
    /// Manage schedules of functions
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Check job runs every five minutes, and notify people about alerts
    Monitor(MonitorArgs),
}

pub async fn run(command: JobsCommand, config: &Config) -> anyhow::Result<ExitCode> {
    match command {
        JobsCommand::Invoke(args) => return invoke::invoke(&args, config).await,
        JobsCommand::List(args) => runs::list(&args, config).await,
        JobsCommand::Show(args) => show::show(&args, config).await,
        JobsCommand::Retry(args) => runs::retry(&args, config).await,
        JobsCommand::Cancel(args) => runs::cancel(&args, config).await,
        JobsCommand::Health(args) => health::health(&args, config).await,
        JobsCommand::Errors(args) => errors::list(&args, config).await,
        JobsCommand::Resolve(args) => errors::resolve(&args, config).await,
        JobsCommand::Alerts(args) => alerts::list(&args, config).await,
        JobsCommand::Cards(args) => alerts::cards(&args, config).await,
        JobsCommand::Decide(args) => alerts::decide(&args, config).await,
        JobsCommand::Function(command) => functions::run(command, config).await,
        JobsCommand::Schedule(command) => schedules::run(command, config).await,
        JobsCommand::Monitor(args) => monitor::monitor(&args, config).await,
    }?;
    Ok(ExitCode::SUCCESS)
}

/// A function of the tenant. A function of Postrider is created when it is first used.
async fn function(
    connection: &mut PgConnection,
    of: &ForTenant,
    tenant: &Tenant,
    name: &str,
) -> anyhow::Result<FunctionState> {
    if let Some(known) = find(connection, tenant.id, name).await? {
        return Ok(known);
    }
    if let Some(builtin) = BUILTINS.iter().find(|builtin| builtin.name == name) {
        put_builtin(connection, tenant.id, builtin.name, builtin.grain).await?;
        if let Some(made) = find(connection, tenant.id, name).await? {
            return Ok(made);
        }
    }
    anyhow::bail!(
        "tenant `{}` has no function `{name}`; `{}` shows them, `postrider jobs function put` creates one",
        tenant.name,
        of.command(&["jobs", "function", "list"])
    )
}

/// A count with its noun.
fn count(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

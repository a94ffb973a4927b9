//! `postrider jobs`: functions, their runs, when they run by themselves, and what people must look at.

mod alerts;
mod errors;
mod firings;
mod functions;
mod given;
mod health;
mod invoke;
mod monitor;
mod runs;
mod schedules;
mod story;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use postrider_engine::jobs::BUILTINS;
use postrider_store::{
    PgConnection,
    functions::{FunctionState, find, put_builtin},
    tenants::Tenant,
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
    story::ShowArgs,
};
use super::ForTenant;
use crate::config::Config;

#[derive(Subcommand)]
pub enum JobsCommand {
    /// List runs, newest first
    List(ListArgs),
    /// Show everything about a run
    Show(ShowArgs),
    /// Run a function, unless it ran in this grain; prints its result as JSON
    ///
    /// Exits with 0 when it is completed, with 1 when it failed or another run has its lock key, and with 2 when it has not ended
    /// within the wait; then the run's id is printed instead.
    Invoke(InvokeArgs),
    /// Run a failed run again, at once
    Retry(RetryArgs),
    /// Give a run up, for ever; who is at it is stopped
    Cancel(CancelArgs),
    /// Say how the jobs of the last day are doing, beside the thresholds of alerts
    Health(HealthArgs),
    /// List runs that failed for good and that nobody has resolved
    Errors(ErrorsArgs),
    /// Close an error without running it again; needs a note, which is kept
    Resolve(ResolveArgs),
    /// List alerts that hold
    Alerts(AlertsArgs),
    /// List decision cards that wait for somebody
    Cards(CardsArgs),
    /// Decide about a card
    Decide(DecideArgs),
    /// Say what can be run
    #[command(subcommand)]
    Function(FunctionCommand),
    /// Say when functions run by themselves
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Watch the jobs every five minutes, and tell people about alerts
    Monitor(MonitorArgs),
}

/// How a list is shown.
#[derive(Args)]
pub struct Listing {
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(command: JobsCommand, config: &Config) -> anyhow::Result<ExitCode> {
    match command {
        JobsCommand::Invoke(args) => return invoke::invoke(&args, config).await,
        JobsCommand::List(args) => runs::list(&args, config).await,
        JobsCommand::Show(args) => story::show(&args, config).await,
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

/// A function of the tenant. What comes with Postrider is made when it is first asked for.
async fn function(
    connection: &mut PgConnection,
    of: &ForTenant,
    tenant: &Tenant,
    name: &str,
) -> anyhow::Result<FunctionState> {
    if let Some(known) = find(connection, tenant.id, name).await? {
        return Ok(known);
    }
    if let Some((name, grain)) = BUILTINS.iter().find(|(builtin, _)| *builtin == name) {
        put_builtin(connection, tenant.id, name, *grain).await?;
        if let Some(made) = find(connection, tenant.id, name).await? {
            return Ok(made);
        }
    }
    anyhow::bail!(
        "tenant `{}` has no function `{name}`; `{}` shows them, `postrider jobs function put` makes one",
        tenant.name,
        of.command(&["jobs", "function", "list"])
    )
}

/// So many of something.
fn count(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

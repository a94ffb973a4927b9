//! `postrider campaign`: one file per subcommand.
mod control;
mod create;
mod deploy;
mod file;
mod import;
pub mod in_doubt;
mod items;
pub mod leads;
mod person;
mod result;
pub mod send;
mod status;
mod target;
pub mod trace;
mod verify;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;
use postrider_model::campaigns::PhaseTrigger;

use crate::config::Config;

#[derive(Subcommand)]
pub enum CampaignCommand {
    /// Put the people of a CSV or NDJSON file on a list
    Import(import::ImportArgs),
    /// Create a campaign from a TOML or JSON file; prints its id
    Create(create::CreateArgs),
    /// Deploy a phase; prints the id of its run
    Deploy(deploy::DeployArgs),
    /// Start a phase, including one that another service performs
    Start(control::ControlArgs),
    /// Pause a phase: no new call begins
    Pause(control::ControlArgs),
    /// Resume a paused phase
    Resume(control::ControlArgs),
    /// Send only the failed items of a phase again
    Retry(control::RetryArgs),
    /// Send a phase to its whole list again; asks first if people get the message a second time
    Rerun(control::RerunArgs),
    /// Mark a phase that another service performs as completed
    Complete(control::ControlArgs),
    /// Mark a phase that another service performs as failed
    Fail(control::ControlArgs),
    /// List campaigns, or show the state of one
    Status(status::StatusArgs),
    /// Show the phases and what they wait for, live, until they end
    #[command(after_help = result::EXIT_CODES)]
    Watch(watch::WatchArgs),
    /// Count the outcomes of all items, and show the launch certificate
    #[command(after_help = result::EXIT_CODES)]
    Verify(verify::VerifyArgs),
    /// Write the items of a run to stdout, as CSV for spreadsheets or NDJSON for programs
    Export(items::ExportArgs),
    /// Show the most frequent errors of a run's failed items, with examples
    Failures(items::FailuresArgs),
}

pub async fn run(command: CampaignCommand, config: &Config) -> anyhow::Result<ExitCode> {
    match command {
        CampaignCommand::Import(args) => import::run(args, config).await,
        CampaignCommand::Create(args) => create::run(args, config).await,
        CampaignCommand::Deploy(args) => deploy::run(args, config).await,
        CampaignCommand::Start(args) => control::run(PhaseTrigger::Start, args, config).await,
        CampaignCommand::Pause(args) => control::run(PhaseTrigger::Pause, args, config).await,
        CampaignCommand::Resume(args) => control::run(PhaseTrigger::Resume, args, config).await,
        CampaignCommand::Retry(args) => control::retry(args, config).await,
        CampaignCommand::Rerun(args) => control::rerun(args, config).await,
        CampaignCommand::Complete(args) => control::run(PhaseTrigger::Complete, args, config).await,
        CampaignCommand::Fail(args) => control::run(PhaseTrigger::Fail, args, config).await,
        CampaignCommand::Status(args) => status::run(args, config).await,
        CampaignCommand::Watch(args) => watch::run(args, config).await,
        CampaignCommand::Verify(args) => verify::run(args, config).await,
        CampaignCommand::Export(args) => items::export(args, config).await,
        CampaignCommand::Failures(args) => items::failures(args, config).await,
    }
}

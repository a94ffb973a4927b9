//! `postrider campaign`: one file per subcommand.

mod control;
mod create;
mod deploy;
mod file;
mod import;
mod status;
mod target;
mod verdict;
mod verify;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;
use postrider_model::campaign::PhaseTrigger;

use crate::config::Config;

#[derive(Subcommand)]
pub enum CampaignCommand {
    /// Put the people of a CSV or NDJSON file on a list
    Import(import::ImportArgs),
    /// Create a campaign from a TOML or JSON file; prints its id
    Create(create::CreateArgs),
    /// Start a phase; prints the id of its run
    Deploy(deploy::DeployArgs),
    /// Start a phase, also one that another service does
    Start(control::ControlArgs),
    /// Stop a phase from beginning anything new, at once
    Pause(control::ControlArgs),
    /// Let a phase go on that was paused
    Resume(control::ControlArgs),
    /// Send what failed in a phase again, and nothing else
    Retry(control::ControlArgs),
    /// Send a phase to everybody again; asks first when people get the message a second time
    Rerun(control::RerunArgs),
    /// Say that a phase is done that another service does
    Complete(control::ControlArgs),
    /// Say that a phase has failed that another service does
    Fail(control::ControlArgs),
    /// List campaigns, or show how one stands
    Status(status::StatusArgs),
    /// Show the phases live until they end, and what they wait for
    #[command(after_help = verdict::EXIT_CODES)]
    Watch(watch::WatchArgs),
    /// Count what became of every item, and show the launch certificate
    #[command(after_help = verdict::EXIT_CODES)]
    Verify(verify::VerifyArgs),
}

pub async fn run(command: CampaignCommand, config: &Config) -> anyhow::Result<ExitCode> {
    match command {
        CampaignCommand::Import(args) => import::run(args, config).await,
        CampaignCommand::Create(args) => create::run(args, config).await,
        CampaignCommand::Deploy(args) => deploy::run(args, config).await,
        CampaignCommand::Start(args) => control::run(PhaseTrigger::Start, args, config).await,
        CampaignCommand::Pause(args) => control::run(PhaseTrigger::Pause, args, config).await,
        CampaignCommand::Resume(args) => control::run(PhaseTrigger::Resume, args, config).await,
        CampaignCommand::Retry(args) => control::run(PhaseTrigger::Retry, args, config).await,
        CampaignCommand::Rerun(args) => control::rerun(args, config).await,
        CampaignCommand::Complete(args) => control::run(PhaseTrigger::Complete, args, config).await,
        CampaignCommand::Fail(args) => control::run(PhaseTrigger::Fail, args, config).await,
        CampaignCommand::Status(args) => status::run(args, config).await,
        CampaignCommand::Watch(args) => watch::run(args, config).await,
        CampaignCommand::Verify(args) => verify::run(args, config).await,
    }
}

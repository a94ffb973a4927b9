//! `postrider campaign`: one file per subcommand.

mod create;
mod deploy;
mod file;
mod import;
mod status;
mod target;
mod verify;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;

use crate::config::Config;

#[derive(Subcommand)]
pub enum CampaignCommand {
    /// Put the people of a CSV or NDJSON file on a list
    Import(import::ImportArgs),
    /// Create a campaign from a TOML or JSON file; prints its id
    Create(create::CreateArgs),
    /// Start a phase; prints the id of its run
    Deploy(deploy::DeployArgs),
    /// List campaigns, or show how one stands
    Status(status::StatusArgs),
    /// Show progress until the run ends; exits 0 when it is launched
    Watch(watch::WatchArgs),
    /// Show the launch certificate; exits 0 when it is launched
    Verify(verify::VerifyArgs),
}

pub async fn run(command: CampaignCommand, config: &Config) -> anyhow::Result<ExitCode> {
    match command {
        CampaignCommand::Import(args) => import::run(args, config).await,
        CampaignCommand::Create(args) => create::run(args, config).await,
        CampaignCommand::Deploy(args) => deploy::run(args, config).await,
        CampaignCommand::Status(args) => status::run(args, config).await,
        CampaignCommand::Watch(args) => watch::run(args, config).await,
        CampaignCommand::Verify(args) => verify::run(args, config).await,
    }
}

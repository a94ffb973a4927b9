//! `postrider migrate`.

use std::process::ExitCode;

use clap::Args;
use postrider_store::migrate;

use super::output;
use crate::{config::Config, installation::Installation};

#[derive(Args)]
pub struct MigrateArgs {
    /// Print all migrations as one SQL script instead of running them
    #[arg(long)]
    dump: bool,
    /// As JSON
    #[arg(long, conflicts_with = "dump")]
    json: bool,
}

pub async fn run(args: &MigrateArgs, config: &Config) -> anyhow::Result<ExitCode> {
    if args.dump {
        output::text(&migrate::script())?;
        return Ok(ExitCode::SUCCESS);
    }
    // Opening a private installation migrates it, too.
    let installation = Installation::open(config).await?;
    let applied = installation.migrate().await;
    installation.close().await?;
    let applied: Vec<&str> = applied?.iter().map(|step| step.path).collect();
    if args.json {
        output::json(&serde_json::json!({ "applied": applied, "steps": migrate::MIGRATIONS.len() }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for path in applied {
        output::line(path)?;
    }
    tell!("the schema is up to date: {} migrations", migrate::MIGRATIONS.len());
    Ok(ExitCode::SUCCESS)
}

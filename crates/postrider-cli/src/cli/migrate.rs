//! `postrider migrate`.

use std::process::ExitCode;

use clap::Args;
use postrider_store::postgres::migrate;

use super::{open, output};
use crate::config::Config;

#[derive(Args)]
pub struct MigrateArgs {
    /// Print the schema of an empty database as one SQL script instead of migrating
    #[arg(long)]
    dump: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "dump")]
    json: bool,
}

pub async fn run(args: &MigrateArgs, config: &Config) -> anyhow::Result<ExitCode> {
    if args.dump {
        output::text(&migrate::script())?;
        return Ok(ExitCode::SUCCESS);
    }
    // Opening a private installation also migrates it.
    let installation = open(config).await?;
    let applied = installation.migrate().await;
    installation.close().await?;
    let applied = applied?;
    if args.json {
        output::json(&serde_json::json!({ "applied": applied, "files": migrate::files() }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for path in applied {
        output::line(&path)?;
    }
    message!("the schema is up to date: {} files", migrate::files());
    Ok(ExitCode::SUCCESS)
}

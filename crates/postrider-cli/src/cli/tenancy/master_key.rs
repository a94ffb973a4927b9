//! `postrider master-key`: generates, rotates and replaces master keys. A key is never an argument of a command.

use std::{io::Write, os::unix::fs::OpenOptionsExt, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{Args, Subcommand};
use postrider_model::seal::MasterKey;
use postrider_store::{
    crash_point,
    postgres::pool,
    tenancy::master_key::{self, Rotated},
};

use crate::cli::{actor, ask, output, with_installation};
use crate::{
    config::Config,
    installation::{Installation, NO_MASTER_KEY},
};

#[derive(Subcommand)]
pub enum MasterKeyCommand {
    /// Generate a new key and print it
    Generate(GenerateArgs),
    /// Seal every secret under `master_key`; `master_key_previous` is the key that they are sealed under now
    ///
    /// First restart every process with both keys set, then run this, then remove `master_key_previous`. In embedded mode a new key is
    /// generated and kept in the data directory; no other process may use the directory meanwhile.
    Rotate(RotateArgs),
    /// Register `master_key` although the key that the secrets are sealed under is lost
    ///
    /// The secrets stay as they are and cannot be opened: set each of them again with `accounts rotate`, `channels executor set` and
    /// `jobs function put`.
    ReplaceLost(ReplaceArgs),
}

#[derive(Args)]
pub struct GenerateArgs {
    /// Write the key to this new file, which only its owner may read, instead of stdout
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Args)]
pub struct RotateArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct ReplaceArgs {
    /// Confirm that the old key is lost, without a question
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(command: MasterKeyCommand, config: &Config) -> anyhow::Result<ExitCode> {
    match command {
        MasterKeyCommand::Generate(args) => generate(&args)?,
        MasterKeyCommand::Rotate(args) => {
            let rotated =
                with_installation(config, async |installation| rotate(installation, config).await).await?;
            if args.json {
                output::json(&rotated)?;
            }
            let Rotated { accounts, executors, functions } = rotated;
            message!(
                "sealed under the new key: {accounts} of accounts, {executors} of executors, {functions} of functions"
            );
            if config.master_key_previous.is_some() || config.master_key_previous_file.is_some() {
                message!(
                    "remove master_key_previous and restart every process; then the old key is needed only for old backups"
                );
            }
        }
        MasterKeyCommand::ReplaceLost(args) => {
            let consequence = "every secret that is sealed under the lost key must be set again afterwards";
            ask::confirm(args.yes, consequence, "no key was registered")?;
            let left =
                with_installation(config, async |installation| replace_lost(installation, config).await)
                    .await?;
            if args.json {
                output::json(&serde_json::json!({ "secrets_to_set_again": left }))?;
            }
            message!("the key is registered; {left} secrets do not open under it and must be set again");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn generate(args: &GenerateArgs) -> anyhow::Result<()> {
    let key = MasterKey::generate()?.to_base64();
    let Some(file) = &args.file else { return output::line(key.as_str()) };
    let written = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).and_then(
        |mut file| {
            writeln!(file, "{}", key.as_str())?;
            file.sync_all()
        },
    );
    written.with_context(|| format!("cannot write the key to {}", file.display()))
}

async fn rotate(installation: &Installation, config: &Config) -> anyhow::Result<Rotated> {
    if !installation.keeps_master_key(config) {
        let key = installation.known_master_key(config)?.context(NO_MASTER_KEY)?;
        anyhow::ensure!(
            key.previous().is_some(),
            "master_key_previous is not set; set master_key to the new key and master_key_previous to the one in use"
        );
        return seal_anew(installation, &key).await;
    }
    let alone = installation
        .alone()?
        .context("another process uses this data directory and would not get the new key; stop it first")?;
    let pool = installation.admin_pool().await?;
    let mut transaction = pool::begin(&pool).await?;
    let current = installation.checked_master_key(config, &mut transaction).await?;
    pool::commit(transaction).await?;
    let next = installation.next_master_key()?;
    let rotated = seal_anew(installation, &next.with_previous(current)).await?;
    installation.keep_next_master_key()?;
    drop(alone);
    Ok(rotated)
}

async fn seal_anew(installation: &Installation, key: &MasterKey) -> anyhow::Result<Rotated> {
    let pool = installation.admin_pool().await?;
    let mut transaction = pool::begin(&pool).await?;
    let rotated = master_key::rotate(&mut transaction, key, &actor()).await?;
    crash_point!("master_key.resealed");
    pool::commit(transaction).await?;
    crash_point!("master_key.rotated");
    Ok(rotated)
}

async fn replace_lost(installation: &Installation, config: &Config) -> anyhow::Result<i64> {
    let key = installation.master_key(config)?;
    let pool = installation.admin_pool().await?;
    let mut transaction = pool::begin(&pool).await?;
    let left = master_key::replace_lost(&mut transaction, &key, &actor()).await?;
    pool::commit(transaction).await?;
    Ok(left)
}

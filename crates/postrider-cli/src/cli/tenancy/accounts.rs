//! `postrider accounts`: accounts of tenants at providers. Secrets are read from stdin or a file, never from a flag that
//! the process list would show, and are never printed.

use std::{
    io::{IsTerminal, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, Subcommand};
use postrider_model::{
    Limits,
    ids::{ProviderAccountId, TenantId},
    seal::Place,
};
use postrider_providers::{Account, SECRET_BYTES_MAX};
use postrider_store::{
    PgConnection,
    campaigns::send_jobs,
    postgres::pool,
    tenancy::accounts::{self, Circuit, NewAccount, ProviderAccount},
};
use secrecy::SecretString;

use crate::cli::{ForTenant, ForWorkspace, actor, output, with_installation};
use crate::{config::Config, installation::Installation, wire};

#[derive(Subcommand)]
pub enum AccountsCommand {
    /// Add an account; its secret is read from stdin
    Add {
        #[command(flatten)]
        of: ForWorkspace,
        /// The account's name
        name: String,
        /// Use this provider, such as `twilio`
        #[arg(long)]
        provider: String,
        /// Set these settings, a JSON object without secrets
        #[arg(long, value_name = "JSON", default_value = "{}")]
        settings: String,
        /// Set these limits, a JSON object such as `{"rate_per_second": 10}`
        #[arg(long, value_name = "JSON", default_value = "{}")]
        limits: String,
        #[command(flatten)]
        secret: SecretSource,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set the limits of an account; `{}` removes all limits
    Limit {
        #[command(flatten)]
        of: ForTenant,
        /// The account's name
        name: String,
        /// Set these limits, a JSON object such as `{"rate_per_second": 10, "daily": 5000}`
        #[arg(long, value_name = "JSON")]
        limits: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change the settings of an account: new calls use them, and items that were called before keep theirs
    Update {
        #[command(flatten)]
        of: ForTenant,
        /// The account's name
        name: String,
        /// Set these settings, a JSON object without secrets; it replaces the old one
        #[arg(long, value_name = "JSON")]
        settings: String,
        /// Read a new secret from stdin, or from --secret-file; without it the account keeps its secret
        #[arg(long)]
        new_secret: bool,
        /// Read the new secret from this file instead of stdin
        #[arg(long, value_name = "FILE", requires = "new_secret")]
        secret_file: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Retire an account: no new campaign and no new run uses it, and runs under way finish
    Retire {
        #[command(flatten)]
        of: ForTenant,
        /// The account's name
        name: String,
        /// Let campaigns use the account again
        #[arg(long)]
        undo: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the accounts of a tenant with their state, without their secrets
    List {
        #[command(flatten)]
        of: ForTenant,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set a new secret, read from stdin
    Rotate {
        #[command(flatten)]
        of: ForTenant,
        /// The account's name
        name: String,
        #[command(flatten)]
        secret: SecretSource,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove an account and its secret
    Remove {
        #[command(flatten)]
        of: ForTenant,
        /// The account's name
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check that the secret of every account opens under the master key
    Check {
        #[command(flatten)]
        of: ForTenant,
    },
}

#[derive(Args)]
pub struct SecretSource {
    /// Read the secret from this file instead of stdin
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Store no secret, for a relay without a password or a provider without a token
    #[arg(long, conflicts_with = "secret_file")]
    no_secret: bool,
}

impl SecretSource {
    fn read(&self) -> anyhow::Result<SecretString> {
        if self.no_secret {
            return Ok(SecretString::default());
        }
        let secret = read_secret(self.secret_file.as_deref())?;
        secret.context("the secret is empty; pipe it in, name a file with --secret-file, or use --no-secret")
    }
}

/// The secret in a file or on stdin; `None` when it is empty.
pub fn read_secret(file: Option<&Path>) -> anyhow::Result<Option<SecretString>> {
    let mut text = String::new();
    // One byte more than allowed, so that a longer secret is refused and not cut.
    let limit = SECRET_BYTES_MAX as u64 + 1;
    match file {
        Some(file) => std::fs::File::open(file)
            .and_then(|file| file.take(limit).read_to_string(&mut text))
            .with_context(|| format!("cannot read the secret from {}", file.display()))?,
        None => {
            let stdin = std::io::stdin();
            if stdin.is_terminal() {
                message!("type the secret, then a new line and Ctrl-D");
            }
            stdin.take(limit).read_to_string(&mut text).context("cannot read the secret from stdin")?
        }
    };
    anyhow::ensure!(text.len() <= SECRET_BYTES_MAX, "the secret is longer than {SECRET_BYTES_MAX} bytes");
    let trimmed = text.trim_end_matches(['\r', '\n']);
    Ok((!trimmed.is_empty()).then(|| trimmed.into()))
}

pub async fn run(command: AccountsCommand, config: &Config) -> anyhow::Result<ExitCode> {
    // The input is checked before the database is opened, the provider before the secret is read. No connection is open while a
    // person types.
    if let AccountsCommand::Add { provider, .. } = &command {
        wire::adapters(config)?.require(provider)?;
    }
    let input = Input::read(&command)?;
    if let AccountsCommand::Add { provider, .. } = &command {
        let account =
            Account { id: ProviderAccountId::new(), settings: &input.settings, secret: &input.secret };
        wire::adapters(config)?.check(provider, &account)?;
    }
    with_installation(config, async |installation| act(command, input, installation, config).await).await?;
    Ok(ExitCode::SUCCESS)
}

/// Input that is read and checked before the database is opened.
#[derive(Default)]
struct Input {
    settings: serde_json::Value,
    limits: Limits,
    secret: SecretString,
}

impl Input {
    fn read(command: &AccountsCommand) -> anyhow::Result<Self> {
        Ok(match command {
            AccountsCommand::Add { settings, limits, secret, .. } => {
                let limits = read_limits(limits)?;
                Self { settings: read_settings(settings)?, limits, secret: secret.read()? }
            }
            AccountsCommand::Update { settings, new_secret, secret_file, .. } => {
                let settings = read_settings(settings)?;
                let source = SecretSource { secret_file: secret_file.clone(), no_secret: !new_secret };
                Self { settings, secret: source.read()?, ..Self::default() }
            }
            AccountsCommand::Limit { limits, .. } => Self { limits: read_limits(limits)?, ..Self::default() },
            AccountsCommand::Rotate { secret, .. } => Self { secret: secret.read()?, ..Self::default() },
            _ => Self::default(),
        })
    }
}

fn read_settings(text: &str) -> anyhow::Result<serde_json::Value> {
    serde_json::from_str(text).map_err(|error| {
        anyhow::anyhow!("--settings is not JSON: {error}; quote it for the shell, as in --settings '{{\"from\": \"+49\"}}'")
    })
}

fn read_limits(text: &str) -> anyhow::Result<Limits> {
    let value = serde_json::from_str(text).map_err(|error| {
        anyhow::anyhow!("--limits is not JSON: {error}; quote it for the shell, as in --limits '{{\"rate_per_second\": 10}}'")
    })?;
    Limits::read(&value).map_err(|error| anyhow::anyhow!("--limits: {error}"))
}

async fn act(
    command: AccountsCommand,
    input: Input,
    installation: &Installation,
    config: &Config,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let mut transaction = pool::begin(&pool).await?;
    match command {
        AccountsCommand::Add { of, name, provider, json, .. } => {
            let key = installation.checked_master_key(config, &mut transaction).await?;
            let tenant = of.tenant.find(&mut transaction, installation).await?;
            pool::act_as(&mut transaction, tenant.id).await?;
            let account = NewAccount {
                tenant: tenant.id,
                workspace: of.workspace(&mut transaction, &tenant).await?,
                name: &name,
                provider: &provider,
                settings: &input.settings,
                secret: &input.secret,
            };
            let id = accounts::create(&mut transaction, &key, &account, &actor()).await?;
            if input.limits != Limits::default() {
                accounts::limit(&mut transaction, tenant.id, id, &input.limits, &actor()).await?;
            }
            let added = accounts::find(&mut transaction, tenant.id, id).await?;
            pool::commit(transaction).await?;
            if json {
                return output::json(&added);
            }
            output::line(id.0)?;
        }
        AccountsCommand::List { of, json } => {
            let tenant = of.find(&mut transaction, installation).await?;
            let accounts = accounts::list(&mut transaction, tenant.id).await?;
            if json {
                return output::json(&accounts);
            }
            let rows = accounts
                .into_iter()
                .map(|a| {
                    let state = state_text(&a);
                    [
                        a.name,
                        a.provider,
                        a.id.0.to_string(),
                        a.settings.to_string(),
                        a.limits.to_string(),
                        state,
                        output::time(a.updated_at),
                    ]
                })
                .collect();
            output::table(
                ["name", "provider", "id", "settings", "limits", "state", "secret set"],
                rows,
                "this tenant has no accounts; `postrider accounts add` adds one",
            )?;
        }
        AccountsCommand::Limit { of, name, json, .. } => {
            let tenant = of.find(&mut transaction, installation).await?;
            pool::act_as(&mut transaction, tenant.id).await?;
            let id = find(&mut transaction, tenant.id, &name).await?.id;
            accounts::limit(&mut transaction, tenant.id, id, &input.limits, &actor()).await?;
            let limited = accounts::find(&mut transaction, tenant.id, id).await?;
            pool::commit(transaction).await?;
            // Jobs that waited for the old limits may continue.
            let mut hint = pool::begin(&pool).await?;
            send_jobs::hint(&mut hint).await?;
            pool::commit(hint).await?;
            if json {
                return output::json(&limited);
            }
            message!("`{name}` has new limits");
        }
        AccountsCommand::Update { of, name, new_secret, json, .. } => {
            let key = installation.checked_master_key(config, &mut transaction).await?;
            let tenant = of.find(&mut transaction, installation).await?;
            pool::act_as(&mut transaction, tenant.id).await?;
            let found = find(&mut transaction, tenant.id, &name).await?;
            let place = Place { tenant: tenant.id, account: found.id };
            let kept = match new_secret {
                true => None,
                false => accounts::open_secret(&mut transaction, &key, place).await?,
            };
            let secret = kept.as_ref().unwrap_or(&input.secret);
            let account = Account { id: found.id, settings: &input.settings, secret };
            wire::adapters(config)?.check(&found.provider, &account)?;
            let new = new_secret.then_some(&input.secret);
            accounts::update(&mut transaction, &key, place, &input.settings, new, &actor()).await?;
            let updated = accounts::find(&mut transaction, tenant.id, place.account).await?;
            pool::commit(transaction).await?;
            if json {
                return output::json(&updated);
            }
            match updated.map(|account| account.version) {
                Some(version) if version == found.version => message!("`{name}` has these settings already"),
                Some(version) => message!("`{name}` has new settings, version {version}; new calls use them"),
                None => {}
            }
        }
        AccountsCommand::Retire { of, name, undo, json } => {
            let tenant = of.find(&mut transaction, installation).await?;
            pool::act_as(&mut transaction, tenant.id).await?;
            let id = find(&mut transaction, tenant.id, &name).await?.id;
            accounts::retire(&mut transaction, tenant.id, id, !undo, &actor()).await?;
            let retired = accounts::find(&mut transaction, tenant.id, id).await?;
            pool::commit(transaction).await?;
            if json {
                return output::json(&retired);
            }
            if undo {
                message!("campaigns can use `{name}` again");
            } else {
                message!(
                    "`{name}` is retired: no new campaign and no new run uses it; runs under way finish"
                );
            }
        }
        AccountsCommand::Rotate { of, name, json, .. } => {
            let key = installation.checked_master_key(config, &mut transaction).await?;
            let tenant = of.find(&mut transaction, installation).await?;
            pool::act_as(&mut transaction, tenant.id).await?;
            let found = find(&mut transaction, tenant.id, &name).await?;
            let account = Account { id: found.id, settings: &found.settings, secret: &input.secret };
            wire::adapters(config)?.check(&found.provider, &account)?;
            let place = Place { tenant: tenant.id, account: found.id };
            accounts::rotate(&mut transaction, &key, place, &input.secret, &actor()).await?;
            let rotated = accounts::find(&mut transaction, tenant.id, place.account).await?;
            pool::commit(transaction).await?;
            if json {
                return output::json(&rotated);
            }
            message!("`{name}` has a new secret");
        }
        AccountsCommand::Remove { of, name, json } => {
            let tenant = of.find(&mut transaction, installation).await?;
            pool::act_as(&mut transaction, tenant.id).await?;
            let id = find(&mut transaction, tenant.id, &name).await?.id;
            let removed = accounts::find(&mut transaction, tenant.id, id).await?;
            accounts::remove(&mut transaction, tenant.id, id, &actor()).await?;
            pool::commit(transaction).await?;
            if json {
                return output::json(&removed);
            }
            message!("removed `{name}` and its secret");
        }
        AccountsCommand::Check { of } => {
            let key = installation.master_key(config)?;
            let tenant = of.find(&mut transaction, installation).await?;
            pool::act_as(&mut transaction, tenant.id).await?;
            let accounts = accounts::list(&mut transaction, tenant.id).await?;
            let mut closed = Vec::new();
            for account in &accounts {
                let place = Place { tenant: tenant.id, account: account.id };
                if let Err(error) = accounts::open_secret(&mut transaction, &key, place).await {
                    closed.push(format!("`{}`: {error}", account.name));
                }
            }
            anyhow::ensure!(
                closed.is_empty(),
                "{} of {} secrets do not open: {}; `postrider accounts rotate` sets a new secret",
                closed.len(),
                accounts.len(),
                closed.join("; ")
            );
            let plural = if accounts.len() == 1 { " opens" } else { "s open" };
            message!("{} secret{plural} under this master key", accounts.len());
        }
    }
    Ok(())
}

/// The state of an account in words, such as `120 calls today; waits until … : …`.
fn state_text(account: &ProviderAccount) -> String {
    let state = &account.state;
    let mut words = Vec::new();
    if account.retired_at.is_some() {
        words.push("retired".to_owned());
    }
    if state.used_today > 0 {
        words.push(format!("{} calls today", state.used_today));
    }
    let because =
        |reason: &Option<String>| reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    if let Some(until) = state.waits_until {
        words.push(format!("waits until {}{}", output::time(until), because(&state.waits_because)));
    }
    match (state.circuit, state.circuit_open_until) {
        (Circuit::Open, Some(until)) => {
            words.push(format!(
                "circuit open until {}{}",
                output::time(until),
                because(&state.circuit_reason)
            ));
        }
        (Circuit::HalfOpen, _) => words.push(format!("circuit half open{}", because(&state.circuit_reason))),
        _ => {}
    }
    if words.is_empty() { "-".to_owned() } else { words.join("; ") }
}

async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    name: &str,
) -> anyhow::Result<ProviderAccount> {
    let accounts = accounts::list(connection, tenant).await?;
    accounts
        .into_iter()
        .find(|account| account.name == name)
        .with_context(|| format!("there is no account `{name}`; `postrider accounts list` shows them"))
}

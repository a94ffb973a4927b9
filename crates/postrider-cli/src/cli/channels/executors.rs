//! Executors: the agents that execute the messages of senders.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use postrider_model::{channels::Sentinel, ids::ExecutorId, tenancy::Role};
use postrider_providers::{check_secret, read_url};
use postrider_store::{
    channels::executors::{self, ExecutorSettings, Kind, NewExecutor},
    postgres::pool,
};
use secrecy::SecretString;

use crate::{config::Config, installation::Installation, wire};
use {
    super::{
        super::{ForTenant, actor, output, with_installation},
        Names, maybe_account,
    },
    crate::cli::tenancy::accounts::read_secret,
};

#[derive(Subcommand)]
pub enum ExecutorCommand {
    /// Set the executor for the messages of an account, and replace the previous one; prints its id
    ///
    /// An agent gets signed requests; the secret, `whsec_…`, is read from stdin or from a file.
    Set(SetArgs),
    /// Remove an executor; messages without another executor are refused, and providers deliver them again
    Remove {
        #[command(flatten)]
        of: ForTenant,
        /// The executor, as `channels executors` shows it
        id: ExecutorId,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct SetArgs {
    #[command(flatten)]
    of: ForTenant,
    /// Execute the messages of this account, by name or id [default: of every account without an executor of its own]
    #[arg(long, value_name = "ACCOUNT")]
    account: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
    /// Read the secret from this file instead of stdin
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Fail an execution after this many seconds
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=60))]
    timeout_seconds: u32,
    /// Deny senders below this role: viewer, operator or admin
    #[arg(long, value_name = "ROLE", default_value_t = Role::Operator)]
    required_role: Role,
    /// Deny messages with this word or phrase; may be given several times
    #[arg(long = "blocked-word", value_name = "WORD")]
    blocked_words: Vec<String>,
    /// Deny messages of a sender above this rate
    #[arg(long, value_name = "N")]
    messages_per_minute: Option<u32>,
    /// Ask the sentinel at this URL, after all other checks, whether a message may be executed
    #[arg(long, value_name = "URL")]
    sentinel_url: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct TargetArgs {
    /// Reply with the text of the message, to try out an account
    #[arg(long)]
    echo: bool,
    /// Send messages to the agent at this URL
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

/// Arguments of `set` that passed all checks that need no database.
struct CheckedInput {
    kind: Kind,
    secret: Option<SecretString>,
    sentinel: Sentinel,
}

pub async fn run(command: ExecutorCommand, config: &Config) -> anyhow::Result<()> {
    match command {
        ExecutorCommand::Set(args) => {
            // The input is checked before the database is opened, and no connection is open while a person types.
            let input = check(&args, config)?;
            with_installation(config, async |installation| set(&args, &input, installation, config).await)
                .await
        }
        ExecutorCommand::Remove { of, id, json } => {
            with_installation(config, async |installation| remove(&of, id, json, installation).await).await
        }
    }
}

fn check(args: &SetArgs, config: &Config) -> anyhow::Result<CheckedInput> {
    let policy = wire::outbound(config);
    let kind = match &args.target.url {
        Some(url) => {
            read_url(url, &policy).map_err(|refused| anyhow::anyhow!("--url: {refused}"))?;
            Kind::Http { url: url.clone() }
        }
        None => Kind::Echo,
    };
    if let Some(url) = &args.sentinel_url {
        read_url(url, &policy).map_err(|refused| anyhow::anyhow!("--sentinel-url: {refused}"))?;
    }
    let sentinel = Sentinel {
        blocked_words: args.blocked_words.clone(),
        messages_per_minute: args.messages_per_minute,
        url: args.sentinel_url.clone(),
    };
    if let Some(problem) = sentinel.problem() {
        anyhow::bail!("{problem}");
    }
    let make_one = "make one with `echo \"whsec_$(openssl rand -base64 32)\"` and give it to the receiver";
    let signs = kind != Kind::Echo || sentinel.url.is_some();
    anyhow::ensure!(
        signs || args.secret_file.is_none(),
        "only requests to --url or --sentinel-url are signed with a secret; leave --secret-file out, or give one of these"
    );
    let secret = if signs {
        let secret = read_secret(args.secret_file.as_deref())?;
        let secret = secret.with_context(|| {
            format!("no secret is given to sign requests with; pipe one in, or name a file with --secret-file; {make_one}")
        })?;
        check_secret(&secret).map_err(|problem| anyhow::anyhow!("the secret {problem}; {make_one}"))?;
        Some(secret)
    } else {
        None
    };
    Ok(CheckedInput { kind, secret, sentinel })
}

async fn set(
    args: &SetArgs,
    input: &CheckedInput,
    installation: &Installation,
    config: &Config,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
    let key = installation.checked_master_key(config, &mut transaction).await?;
    let account = maybe_account(&mut transaction, tenant.id, args.account.as_deref()).await?;
    let executor = NewExecutor {
        account,
        kind: input.kind.clone(),
        timeout_seconds: args.timeout_seconds,
        secret: input.secret.as_ref(),
        required_role: args.required_role,
        sentinel: &input.sentinel,
    };
    let id = executors::put(&mut transaction, &key, tenant.id, &executor, &actor()).await?;
    let made = executors::find(&mut transaction, tenant.id, id).await?;
    pool::commit(transaction).await?;
    if args.json {
        return output::json(&made);
    }
    output::line(id.0)?;
    Ok(())
}

async fn remove(
    of: &ForTenant,
    id: ExecutorId,
    json: bool,
    installation: &Installation,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let removed = executors::find(&mut transaction, tenant.id, id).await?;
    let is_known = executors::remove(&mut transaction, tenant.id, id, &actor()).await?;
    anyhow::ensure!(
        is_known,
        "tenant `{}` has no executor {}; `postrider channels executors` shows them",
        tenant.name,
        id.0
    );
    pool::commit(transaction).await?;
    if json {
        return output::json(&removed);
    }
    message!("removed {id}");
    Ok(())
}

pub async fn list(of: &ForTenant, json: bool, installation: &Installation) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let executors = executors::list(&mut transaction, tenant.id).await?;
    if json {
        return output::json(&executors);
    }
    let names = Names::read(&mut transaction, tenant.id).await?;
    let rows = executors.into_iter().map(|executor| row(executor, &names)).collect();
    output::table(
        ["executor", "account", "executes", "timeout", "needs", "sentinel", "since"],
        rows,
        "there are no executors, so messages are refused; `postrider channels executor set --echo` sets one to try out an account",
    )
}

fn row(executor: ExecutorSettings, names: &Names) -> [String; 7] {
    let Sentinel { blocked_words, messages_per_minute, url } = executor.sentinel;
    let words = match blocked_words.len() {
        0 => None,
        1 => Some("1 blocked word".to_owned()),
        count => Some(format!("{count} blocked words")),
    };
    let rate = messages_per_minute.map(|rate| format!("{rate} a minute"));
    let sentinel: Vec<String> = [words, rate, url].into_iter().flatten().collect();
    [
        executor.id.to_string(),
        executor.account_id.map_or_else(|| "(all others)".to_owned(), |account| names.of(account)),
        match executor.kind {
            Kind::Echo => "echo".to_owned(),
            Kind::Http { url } => url,
        },
        format!("{} s", executor.timeout_seconds),
        executor.required_role.to_string(),
        if sentinel.is_empty() { "-".to_owned() } else { sentinel.join(", ") },
        output::time(executor.created_at),
    ]
}

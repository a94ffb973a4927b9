//! What executes messages.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use postrider_model::{chat::Sentinel, ids::ExecutorId, tenancy::Role};
use postrider_providers::{check_secret, read_url};
use postrider_store::{
    executors::{self, ExecutorSettings, Kind, NewExecutor},
    pool,
};
use secrecy::SecretString;

use super::{
    super::{ForTenant, accounts::read_secret, actor, output, with_installation},
    Names, maybe_account,
};
use crate::{config::Config, installation::Installation, wire};

#[derive(Subcommand)]
pub enum ExecutorCommand {
    /// Say what executes the messages of an account, in place of what did; prints its id
    ///
    /// An agent gets signed requests; the secret, `whsec_…`, is read from stdin or from a file.
    Set(SetArgs),
    /// Take an executor away: messages that nothing else executes are refused, and providers deliver them again
    Remove {
        #[command(flatten)]
        of: ForTenant,
        /// The executor, as `channels executors` shows it
        id: ExecutorId,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct SetArgs {
    #[command(flatten)]
    of: ForTenant,
    /// Whose messages, by name or id [default: those of every account that has none of its own]
    #[arg(long, value_name = "ACCOUNT")]
    account: Option<String>,
    #[command(flatten)]
    what: What,
    /// Read the secret from this file instead of stdin
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// How long it may take
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=60))]
    timeout_seconds: u32,
    /// What a sender must be at least: viewer, operator or admin
    #[arg(long, value_name = "ROLE", default_value_t = Role::Operator)]
    required_role: Role,
    /// Deny messages with this word or phrase; may be given several times
    #[arg(long = "blocked-word", value_name = "WORD")]
    blocked_words: Vec<String>,
    /// Deny what a sender writes beyond so many messages in a minute
    #[arg(long, value_name = "N")]
    messages_per_minute: Option<u32>,
    /// Who is asked last whether a message may be executed
    #[arg(long, value_name = "URL")]
    sentinel_url: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct What {
    /// Say back what was said, for trying things out
    #[arg(long)]
    echo: bool,
    /// Where the agent is
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

/// What was given, and makes sense.
struct Given {
    kind: Kind,
    secret: Option<SecretString>,
    sentinel: Sentinel,
}

pub async fn run(command: ExecutorCommand, config: &Config) -> anyhow::Result<()> {
    match command {
        ExecutorCommand::Set(args) => {
            // What is wrong with the input is said before anything is started, and nothing is open while a person types.
            let given = check(&args, config)?;
            with_installation(config, async |installation| set(&args, &given, installation, config).await)
                .await
        }
        ExecutorCommand::Remove { of, id, json } => {
            with_installation(config, async |installation| remove(&of, id, json, installation).await).await
        }
    }
}

fn check(args: &SetArgs, config: &Config) -> anyhow::Result<Given> {
    let policy = wire::outbound(config);
    let kind = match &args.what.url {
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
        "nothing would be signed with a secret; leave --secret-file out, or give --url or --sentinel-url"
    );
    let secret = if signs {
        let secret = read_secret(args.secret_file.as_deref())?;
        let secret = secret.with_context(|| {
            format!("requests are signed, so pipe a secret in or name a file with --secret-file; {make_one}")
        })?;
        check_secret(&secret).map_err(|problem| anyhow::anyhow!("the secret {problem}; {make_one}"))?;
        Some(secret)
    } else {
        None
    };
    Ok(Given { kind, secret, sentinel })
}

async fn set(
    args: &SetArgs,
    given: &Given,
    installation: &Installation,
    config: &Config,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
    let key = installation.checked_master_key(config, &mut transaction).await?;
    let account = maybe_account(&mut transaction, tenant.id, args.account.as_deref()).await?;
    let executor = NewExecutor {
        account,
        kind: given.kind.clone(),
        timeout_seconds: args.timeout_seconds,
        secret: given.secret.as_ref(),
        required_role: args.required_role,
        sentinel: &given.sentinel,
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
    tell!("removed {id}");
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
        "nothing executes messages; `postrider channels executor set --echo` tries things out",
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

//! Every command, in one list. Data goes to stdout, words to stderr, and an error ends with what to try next.

mod accounts;
mod bench;
mod campaign;
mod channels;
mod demo;
mod doctor;
mod events;
mod in_doubt;
mod jobs;
mod keys;
mod migrate;
mod output;
mod serve;
mod tenants;
mod trace;

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use postrider_store::{
    PgConnection, Pool, StoreError, Transaction, pool,
    tenants::{Tenant, find},
};

pub use self::output::ReadEnough;
use crate::{
    config::{Config, LogFormat, Overrides},
    installation::{DEFAULT_TENANT, Installation},
    logging, shutdown, sim,
};

/// An execution kernel for outbound side effects on Postgres.
#[derive(Parser)]
#[command(name = "postrider", version, max_term_width = 110)]
pub struct Cli {
    #[command(flatten, next_help_heading = "Global options")]
    global: Global,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What every command takes.
#[derive(Args)]
struct Global {
    /// Configuration file [default: postrider.toml, if there is one]
    #[arg(long, global = true, value_name = "FILE", env = "POSTRIDER_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Where the private cluster lives when no database URL is given
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// A database that runs already; with it nothing is ever started
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// How log lines look
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// What to log, such as `info` or `warn,postrider_engine=debug`
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,
    /// Print the configuration as it is understood, without secrets, and exit
    #[arg(long, global = true)]
    print_config: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Show the whole thing at work on this machine, in less than a minute
    Demo(demo::DemoArgs),
    /// Run the server: HTTP and the loops
    Serve(serve::ServeArgs),
    /// Bring the schema of the database forward
    Migrate(migrate::MigrateArgs),
    /// Say what is right and wrong with the database, and what to do about it
    Doctor(doctor::DoctorArgs),
    /// Create and list tenants
    #[command(subcommand)]
    Tenants(tenants::TenantsCommand),
    /// Create, list and revoke API keys
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Manage the accounts of tenants at providers
    #[command(subcommand)]
    Accounts(accounts::AccountsCommand),
    /// Import leads, create, deploy and follow campaigns
    #[command(subcommand)]
    Campaign(campaign::CampaignCommand),
    /// List and resolve items of which nobody knows whether they were sent
    #[command(subcommand)]
    InDoubt(in_doubt::InDoubtCommand),
    /// Say who writes and what executes, list messages and replies, and queue dead replies again
    #[command(subcommand)]
    Channels(channels::ChannelsCommand),
    /// Run functions, now or by a schedule, and look after what failed
    #[command(subcommand)]
    Jobs(jobs::JobsCommand),
    /// Show the whole story of a campaign, a run, a job or an item
    Trace(trace::TraceArgs),
    /// Publish, list, retry and close domain events
    #[command(subcommand)]
    Events(events::EventsCommand),
    /// Measure speed beside the raw SQL limit, on a cluster made for it
    Bench(bench::BenchArgs),
    /// Play the outside world on loopback, with faults and receipts
    Sim(sim::SimArgs),
}

/// Runs one command.
pub async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let Cli { global, command } = cli;
    let listen = match &command {
        Some(Command::Serve(serve)) => serve.listen,
        _ => None,
    };
    let config = Config::load(global.config.as_deref(), &overrides(&global, listen))?;
    if global.print_config {
        output::text(&config.print()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(command) = command else {
        <Cli as clap::CommandFactory>::command().print_help()?;
        return Ok(ExitCode::from(2));
    };
    logging::start(&for_command(&command, &config.log, &global))?;

    match command {
        Command::Demo(args) => demo::run(args).await,
        Command::Serve(args) => serve::run(args, &config).await,
        Command::Migrate(args) => migrate::run(&args, &config).await,
        Command::Doctor(args) => doctor::run(&args, &config).await,
        Command::Tenants(command) => tenants::run(command, &config).await,
        Command::Keys(command) => keys::run(command, &config).await,
        Command::Accounts(command) => accounts::run(command, &config).await,
        Command::Campaign(command) => campaign::run(command, &config).await,
        Command::InDoubt(command) => in_doubt::run(command, &config).await,
        Command::Channels(command) => channels::run(command, &config).await,
        Command::Jobs(command) => jobs::run(command, &config).await,
        Command::Trace(args) => trace::run(args, &config).await,
        Command::Events(command) => events::run(command, &config).await,
        Command::Bench(args) => bench::run(args).await,
        Command::Sim(args) => sim::run(args, shutdown::on_signal()?).await.map(|()| ExitCode::SUCCESS),
    }
    .map_err(advised)
}

/// What the database refused, with what it advises.
fn advised(error: anyhow::Error) -> anyhow::Error {
    let hint = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(StoreError::Refused { hint: Some(hint), .. }) => Some(hint.clone()),
        _ => None,
    });
    let Some(hint) = hint else { return error };
    let mut words = hint.trim_end_matches('.').chars();
    let first = words.next().map(|first| first.to_lowercase().to_string()).unwrap_or_default();
    anyhow::anyhow!("{error:#}; {first}{}", words.as_str())
}

fn overrides(global: &Global, listen: Option<SocketAddr>) -> Overrides {
    let one = |key, value: Option<String>| value.map(|value| (key, value));
    let format = global.log_format.map(|format| match format {
        LogFormat::Text => "text".to_owned(),
        LogFormat::Json => "json".to_owned(),
    });
    Overrides {
        data_dir: global.data_dir.clone(),
        // The flag is about the whole command: no other URL from a file or the environment may stand beside it.
        database: ["url", "admin_url", "app_url", "listen_url"]
            .into_iter()
            .filter_map(|key| one(key, global.database_url.clone()))
            .collect(),
        http: one("listen", listen.map(|address| address.to_string())).into_iter().collect(),
        log: BTreeMap::from_iter(
            [one("format", format), one("filter", global.log.clone())].into_iter().flatten(),
        ),
    }
}

/// A server logs what it does; a command that answers a person only warns, unless told otherwise.
fn for_command(command: &Command, log: &crate::config::Log, global: &Global) -> crate::config::Log {
    let quiet = !matches!(command, Command::Serve(_)) && global.log.is_none() && log.filter == "info";
    // That a statement takes its time is no news to whoever waits for it.
    let filter = if quiet { "warn,sqlx::query=error".to_owned() } else { log.filter.clone() };
    crate::config::Log { filter, ..log.clone() }
}

/// Opens the database, acts there, and leaves it however that ended.
async fn with_installation<T>(
    config: &Config,
    act: impl AsyncFnOnce(&Installation) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let installation = Installation::open(config).await?;
    let done = act(&installation).await;
    let closed = installation.close().await;
    let done = done?;
    closed?;
    Ok(done)
}

/// Which tenant a command is about.
#[derive(Args)]
struct ForTenant {
    /// Tenant, by name or id [default: `default` in a private installation]
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

impl ForTenant {
    async fn find(
        &self,
        connection: &mut PgConnection,
        installation: &Installation,
    ) -> anyhow::Result<Tenant> {
        let wanted = match &self.tenant {
            Some(wanted) => wanted,
            None if installation.is_private() => DEFAULT_TENANT,
            None => anyhow::bail!("say which tenant with --tenant; `postrider tenants list` shows them"),
        };
        Ok(find(connection, wanted).await?)
    }

    /// A transaction as this tenant.
    async fn begin(&self, pool: &Pool, installation: &Installation) -> anyhow::Result<(Transaction, Tenant)> {
        let mut transaction = pool::begin(pool).await?;
        let tenant = self.find(&mut transaction, installation).await?;
        pool::act_as(&mut transaction, tenant.id).await?;
        Ok((transaction, tenant))
    }

    /// A command about the same tenant, to be typed next.
    fn command(&self, words: &[&str]) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./@".contains(c);
        let tenant = self.tenant.as_deref().map(|tenant| ["--tenant", tenant]);
        let quoted =
            ["postrider"].iter().chain(words).copied().chain(tenant.into_iter().flatten()).map(|word| {
                if word.chars().all(plain) {
                    word.to_owned()
                } else {
                    format!("'{}'", word.replace('\'', r"'\''"))
                }
            });
        quoted.collect::<Vec<_>>().join(" ")
    }
}

/// Who is at the keyboard, for the audit log.
fn actor() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| {
        let uid = std::fs::metadata("/proc/self").map(|me| std::os::unix::fs::MetadataExt::uid(&me));
        uid.map_or_else(|_| "unknown".to_owned(), |uid| format!("uid-{uid}"))
    });
    format!("cli:{user}")
}

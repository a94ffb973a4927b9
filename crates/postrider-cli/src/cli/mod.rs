//! The list of commands. Data goes to stdout, messages go to stderr, and an error ends with advice.

mod ask;
mod bench;
mod campaigns;
mod catalogue;
mod channels;
mod completions;
mod demo;
mod doctor;
mod events;
mod jobs;
mod migrate;
mod output;
mod reading;
mod serve;
mod tenancy;

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use postrider_model::{error_chain, ids::WorkspaceId};
use postrider_store::{
    PgConnection, Pool, StoreError, Transaction,
    postgres::pool,
    tenancy::tenants::{Tenant, find, workspace, workspaces},
};

use postrider_sim as sim;

pub use self::output::OutputClosed;
use crate::{
    config::Config,
    configuration::{self, Overrides},
    installation::{DEFAULT_TENANT, Installation},
    logging, shutdown,
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

/// Options of every command.
#[derive(Args)]
struct Global {
    /// Read this configuration file [default: postrider.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE", env = "POSTRIDER_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Keep the private cluster in this directory when no database URL is given
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Use this running database; Postrider then starts no private cluster
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// Write log lines in this format
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Log what this filter selects, such as `info` or `warn,postrider_engine=debug`
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,
    /// Print the effective configuration, without secrets, and exit
    #[arg(long, global = true)]
    print_config: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Demonstrate a campaign and a crash on this machine, in less than a minute
    Demo(demo::DemoArgs),
    /// Run the server: the HTTP API and the workers
    Serve(serve::ServeArgs),
    /// Migrate the schema of the database to this version
    Migrate(migrate::MigrateArgs),
    /// Check the database, and print how to fix each problem
    Doctor(doctor::DoctorArgs),
    /// Allow a restored copy of the database to send, and put in doubt everything that the original may have sent
    Adopt(tenancy::adopt::AdoptArgs),
    /// Create, list and remove tenants
    #[command(subcommand)]
    Tenants(tenancy::tenants::TenantsCommand),
    /// Create, list and revoke API keys
    #[command(subcommand)]
    Keys(tenancy::keys::KeysCommand),
    /// Print an address that signs in to the dashboard once
    Dashboard(tenancy::dashboard::DashboardArgs),
    /// Generate, rotate and replace master keys
    #[command(subcommand)]
    MasterKey(tenancy::master_key::MasterKeyCommand),
    /// Manage the accounts of tenants at providers
    #[command(subcommand)]
    Accounts(tenancy::accounts::AccountsCommand),
    /// Import leads, create, deploy and follow campaigns
    #[command(subcommand)]
    Campaign(campaigns::CampaignCommand),
    /// List, show, suppress and erase people
    #[command(subcommand)]
    Leads(campaigns::leads::LeadsCommand),
    /// List and resolve items that may or may not have been sent
    #[command(subcommand)]
    InDoubt(campaigns::in_doubt::InDoubtCommand),
    /// Link senders, set executors, list messages and replies, and requeue dead replies
    #[command(subcommand)]
    Channels(channels::ChannelsCommand),
    /// Run functions, now or by a schedule, and handle failed runs
    #[command(subcommand)]
    Jobs(jobs::JobsCommand),
    /// Show the numbers of a tenant that say whether something is wrong
    Overview(tenancy::overview::OverviewArgs),
    /// List the providers with their settings, and the functions that come with Postrider
    Catalogue(catalogue::CatalogueArgs),
    /// Send one message outside a campaign
    Send(campaigns::send::SendArgs),
    /// Show the complete history of a campaign, a run, a send job, an item or a person
    Trace(campaigns::trace::TraceArgs),
    /// Publish, list, retry and close domain events
    #[command(subcommand)]
    Events(events::EventsCommand),
    /// Show and replace the sinks that every relay delivers to
    #[command(subcommand)]
    Relay(events::relay::RelayCommand),
    /// Measure speed beside the raw SQL limit, on a temporary cluster
    Bench(bench::BenchArgs),
    /// Run simulated providers on loopback, with faults and receipts
    Sim(sim::SimArgs),
    /// Print a script that completes commands in a shell
    ///
    /// For bash: `postrider completions bash > /etc/bash_completion.d/postrider`. For zsh, put it as `_postrider` into a directory of
    /// $fpath. For fish: `postrider completions fish > ~/.config/fish/completions/postrider.fish`.
    Completions(completions::CompletionsArgs),
    /// Print the man page, or write the man pages of all commands into a directory
    Man(completions::ManArgs),
}

/// The command line, and the path of its command, such as `campaign status`.
pub struct Invocation {
    cli: Cli,
    path: String,
}

impl Invocation {
    /// Reads the command line. Exits when the command line is wrong or asks for help.
    pub fn parse() -> Self {
        let mut matches = Cli::command().get_matches();
        let path = path_of(&matches);
        let cli = Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.exit());
        Self { cli, path }
    }
}

fn path_of(matches: &ArgMatches) -> String {
    let mut names = Vec::new();
    let mut at = matches;
    while let Some((name, below)) = at.subcommand() {
        names.push(name);
        at = below;
    }
    names.join(" ")
}

/// Runs one command.
pub async fn run(invocation: Invocation) -> anyhow::Result<ExitCode> {
    let Invocation { cli: Cli { global, command }, path } = invocation;
    // These commands need no configuration, so a wrong one does not make them fail.
    match &command {
        Some(Command::Completions(args)) => return completions::print(args),
        Some(Command::Man(args)) => return completions::man(args),
        _ => {}
    }
    let listen = match &command {
        Some(Command::Serve(serve)) => serve.listen,
        _ => None,
    };
    let mut config = configuration::load(global.config.as_deref(), &overrides(&global, listen))?;
    config.database.is_flag = global.database_url.is_some();
    config.only_reads = reading::COMMANDS.contains(&path.as_str());
    if global.print_config {
        output::text(&config.print()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(command) = command else {
        Cli::command().print_help()?;
        return Ok(ExitCode::from(2));
    };
    refuse_database(&command, &global)?;
    logging::start(&for_command(&command, &config.log, &global))?;

    match command {
        Command::Demo(args) => demo::run(args, &config).await,
        Command::Serve(args) => serve::run(args, &config).await,
        Command::Migrate(args) => migrate::run(&args, &config).await,
        Command::Doctor(args) => doctor::run(&args, &config).await,
        Command::Adopt(args) => tenancy::adopt::run(&args, &config).await,
        Command::Tenants(command) => tenancy::tenants::run(command, &config).await,
        Command::Keys(command) => tenancy::keys::run(command, &config).await,
        Command::Dashboard(args) => tenancy::dashboard::run(args, &config).await,
        Command::MasterKey(command) => tenancy::master_key::run(command, &config).await,
        Command::Accounts(command) => tenancy::accounts::run(command, &config).await,
        Command::Campaign(command) => campaigns::run(command, &config).await,
        Command::Leads(command) => campaigns::leads::run(command, &config).await,
        Command::InDoubt(command) => campaigns::in_doubt::run(command, &config).await,
        Command::Channels(command) => channels::run(command, &config).await,
        Command::Jobs(command) => jobs::run(command, &config).await,
        Command::Overview(args) => tenancy::overview::run(&args, &config).await.map(|()| ExitCode::SUCCESS),
        Command::Catalogue(args) => catalogue::run(&args, &config),
        Command::Send(args) => campaigns::send::run(args, &config).await,
        Command::Trace(args) => campaigns::trace::run(args, &config).await,
        Command::Events(command) => events::run(command, &config).await,
        Command::Relay(command) => events::relay::run(command, &config).await,
        Command::Bench(args) => bench::run(args).await,
        Command::Sim(args) => sim::run(args, shutdown::on_signal()?).await.map(|()| ExitCode::SUCCESS),
        // Done before the configuration was read.
        Command::Completions(_) | Command::Man(_) => Ok(ExitCode::SUCCESS),
    }
    .map_err(advised)
}

/// Refuses the database flags for commands that use no database, or a temporary one, instead of ignoring the flags.
fn refuse_database(command: &Command, global: &Global) -> anyhow::Result<()> {
    let why = match command {
        Command::Demo(_) => "the demo creates its own private cluster and removes it at the end",
        Command::Bench(_) => "the benchmark creates its own private cluster and removes it at the end",
        Command::Sim(_) => "the sim uses no database",
        Command::Catalogue(_) => "the catalogue describes the program and uses no database",
        _ => return Ok(()),
    };
    for (flag, is_given) in
        [("--database-url", global.database_url.is_some()), ("--data-dir", global.data_dir.is_some())]
    {
        anyhow::ensure!(!is_given, "{flag} is not allowed with this command: {why}; leave the flag out");
    }
    Ok(())
}

/// The error with the hint of the database, if the database refused the statement with one.
fn advised(error: anyhow::Error) -> anyhow::Error {
    let hint = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(StoreError::Refused { hint: Some(hint), .. }) => Some(hint.clone()),
        _ => None,
    });
    let Some(hint) = hint else { return error };
    let mut words = hint.trim_end_matches('.').chars();
    let first = words.next().map(|first| first.to_lowercase().to_string()).unwrap_or_default();
    anyhow::anyhow!("{}; {first}{}", error_chain(error.as_ref()), words.as_str())
}

fn overrides(global: &Global, listen: Option<SocketAddr>) -> Overrides {
    let one = |key, value: Option<String>| value.map(|value| (key, value));
    let format = global.log_format.map(|format| match format {
        LogFormat::Text => "text".to_owned(),
        LogFormat::Json => "json".to_owned(),
    });
    Overrides {
        data_dir: global.data_dir.clone(),
        // The flag applies to the whole command: it overrides every URL from the file or the environment.
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

/// The server logs at level `info` by default; other commands log only warnings unless a filter is set.
fn for_command(command: &Command, log: &crate::config::Log, global: &Global) -> crate::config::Log {
    let quiet = !matches!(command, Command::Serve(_)) && global.log.is_none() && log.filter == "info";
    // A person who waits for a command sees for themselves that a statement is slow.
    let filter = if quiet { "warn,sqlx::query=error".to_owned() } else { log.filter.clone() };
    crate::config::Log { filter, ..log.clone() }
}

/// Opens the database, and prints the directory of a private cluster that was created for it.
async fn open(config: &Config) -> anyhow::Result<Installation> {
    let installation = Installation::open(config).await?;
    if let Some(data_dir) = installation.made_in() {
        message!("no database URL is set: created a private PostgreSQL in {}", data_dir.display());
    }
    Ok(installation)
}

/// Opens the database, calls `act` and closes the database, also when `act` failed.
async fn with_installation<T>(
    config: &Config,
    act: impl AsyncFnOnce(&Installation) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let installation = open(config).await?;
    let done = act(&installation).await;
    let closed = installation.close().await;
    let done = done?;
    closed?;
    Ok(done)
}

/// The tenant of a command.
#[derive(Args)]
struct ForTenant {
    /// Act for this tenant, by name or id [env: POSTRIDER_TENANT] [default: `default` in a private installation]
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

/// Options of a list.
#[derive(Args)]
struct Listing {
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The tenant of a command, and the workspace in which the command creates something.
#[derive(Args)]
struct ForWorkspace {
    #[command(flatten)]
    tenant: ForTenant,
    /// Use this workspace of the tenant, by id [env: POSTRIDER_WORKSPACE] [default: the tenant's first]
    #[arg(long, value_name = "WORKSPACE")]
    workspace: Option<WorkspaceId>,
}

impl ForWorkspace {
    async fn workspace(&self, connection: &mut PgConnection, tenant: &Tenant) -> anyhow::Result<WorkspaceId> {
        let wanted = match (self.workspace, variable(WORKSPACE)) {
            (None, Some(text)) => {
                Some(text.parse().map_err(|error| anyhow::anyhow!("{WORKSPACE}: {error}"))?)
            }
            (wanted, _) => wanted,
        };
        let found = workspace(connection, tenant.id, wanted).await?;
        if let Some(found) = found {
            return Ok(found);
        }
        let all = workspaces(connection, tenant.id).await?;
        let all: Vec<String> = all.iter().map(|id| id.0.to_string()).collect();
        let wanted = wanted.map(|id| id.0.to_string()).unwrap_or_default();
        anyhow::bail!("tenant `{}` has no workspace {wanted}; it has {}", tenant.name, all.join(", "))
    }
}

/// The variables that set `--tenant` and `--workspace`.
const TENANT: &str = "POSTRIDER_TENANT";
const WORKSPACE: &str = "POSTRIDER_WORKSPACE";

/// A variable of the environment, unless it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl ForTenant {
    async fn find(
        &self,
        connection: &mut PgConnection,
        installation: &Installation,
    ) -> anyhow::Result<Tenant> {
        let wanted = match self.tenant.clone().or_else(|| variable(TENANT)) {
            Some(wanted) => wanted,
            None if installation.is_private() => DEFAULT_TENANT.to_owned(),
            None => anyhow::bail!(
                "no tenant is given; name one with --tenant or {TENANT}; `postrider tenants list` shows them"
            ),
        };
        Ok(find(connection, &wanted).await?)
    }

    /// Begins a transaction as this tenant.
    async fn begin(&self, pool: &Pool, installation: &Installation) -> anyhow::Result<(Transaction, Tenant)> {
        let mut transaction = pool::begin(pool).await?;
        let tenant = self.find(&mut transaction, installation).await?;
        pool::act_as(&mut transaction, tenant.id).await?;
        Ok((transaction, tenant))
    }

    /// A command for the same tenant, as advice in a message.
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

/// The user who runs the command, for the audit log.
fn actor() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| {
        let uid = std::fs::metadata("/proc/self").map(|me| std::os::unix::fs::MetadataExt::uid(&me));
        uid.map_or_else(|_| "unknown".to_owned(), |uid| format!("uid-{uid}"))
    });
    format!("cli:{user}")
}

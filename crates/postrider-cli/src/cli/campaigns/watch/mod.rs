//! `postrider campaign watch`: shows the phases of a campaign from its history until they end.

mod board;
mod display;
pub mod one_run;
mod source;
pub mod waits;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use postrider_model::{campaigns::PhaseStatus, ids::CampaignId};
use postrider_providers::remote::Remote;
use postrider_store::{Pool, campaigns, postgres::pool, tenancy::tenants::Tenant};
use secrecy::SecretString;
use url::Url;

use self::{
    board::Board,
    display::Display,
    source::{Source, Update},
};
use super::{
    result::{self, LaunchResult},
    target::{self, Target},
};
use crate::{
    cli::{ForTenant, with_installation},
    config::Config,
    shutdown,
};

/// How often to read a snapshot: the history does not contain the reasons why send jobs wait.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct WatchArgs {
    #[command(flatten)]
    of: ForTenant,
    /// A campaign, by name or id, or a run
    #[arg(value_name = "CAMPAIGN|RUN")]
    what: String,
    /// Print each event as a line of JSON; for a run, each change
    #[arg(long)]
    json: bool,
    /// Begin after this event; 0 prints all stored events [default: only new events]
    #[arg(long, value_name = "SEQUENCE", requires = "json", value_parser = clap::value_parser!(i64).range(0..))]
    after: Option<i64>,
    /// Read from this server instead of from the database
    #[arg(long, value_name = "URL", conflicts_with = "tenant")]
    url: Option<Url>,
    /// Use this API key for `--url` [env: POSTRIDER_API_KEY]
    // Not clap's `env`, because the variable would then require `--url` as the flag does.
    #[arg(long, value_name = "KEY", requires = "url")]
    key: Option<String>,
}

pub async fn run(args: WatchArgs, config: &Config) -> anyhow::Result<ExitCode> {
    if let Some(url) = &args.url {
        return watch_server(&args, url).await;
    }
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
        let campaign = match target::find(&mut transaction, tenant.id, &args.what).await? {
            Target::Campaign(campaign) => campaign,
            Target::Run(run) => {
                drop(transaction);
                return one_run::follow(&pool, &tenant, run.id, args.json).await;
            }
        };
        drop(transaction);
        let server = match installation.server_of(tenant.id) {
            Some((url, key)) => Some(Remote::new(&url, &key)?),
            None => None,
        };
        let source = Source::local(campaign.id, pool.clone(), tenant.id, server);
        let advice = args.of.command(&["campaign", "deploy", &args.what]);
        match follow(source, &args, &format!("`{advice}` starts one")).await? {
            Some(board) => verdict_of_database(&pool, &tenant, &board).await,
            None => Ok(ExitCode::from(130)),
        }
    })
    .await
}

async fn watch_server(args: &WatchArgs, url: &Url) -> anyhow::Result<ExitCode> {
    let Some(key) = args.key.clone().or_else(|| std::env::var("POSTRIDER_API_KEY").ok()) else {
        anyhow::bail!("no API key for {url} is given; set --key or POSTRIDER_API_KEY");
    };
    let Ok(campaign) = args.what.parse::<CampaignId>() else {
        anyhow::bail!(
            "--url needs the id of the campaign, and `{}` is not an id; `GET /api/v2/campaigns` lists the campaigns",
            args.what
        );
    };
    let remote = Remote::new(url, &SecretString::from(key))?;
    match follow(Source::remote(campaign, remote), args, "start one").await? {
        Some(board) => Ok(verdict_of_server(&board)),
        None => Ok(ExitCode::from(130)),
    }
}

/// Shows events until no phase continues automatically. `None` when a signal stopped the command before.
async fn follow(mut source: Source, args: &WatchArgs, advice: &str) -> anyhow::Result<Option<Board>> {
    let stop = shutdown::on_signal()?;
    let mut board = source.snapshot().await?;
    anyhow::ensure!(
        board.phases.iter().any(|phase| phase.status != PhaseStatus::NotStarted),
        "no phase of `{}` was started; {advice}",
        args.what
    );
    let mut display = Display::new(args.json);
    source.continue_after(args.after.unwrap_or(board.sequence));
    let mut refreshed_at = Instant::now();
    loop {
        display.show(&board)?;
        if board.is_over() && source.position() >= board.sequence {
            return Ok(Some(board));
        }
        let refresh = tokio::time::sleep(SNAPSHOT_INTERVAL.saturating_sub(refreshed_at.elapsed()));
        tokio::select! {
            () = stop.cancelled() => {
                display.print("stopped watching; the campaign continues");
                return Ok(None);
            }
            update = source.next(&mut display) => match update? {
                Update::Event(event, text) => {
                    display.event(&text)?;
                    board.apply(&event);
                }
                Update::SnapshotRequired => {
                    board = source.snapshot_with_retry(&mut display).await?;
                    source.continue_after(board.sequence);
                }
            },
            () = refresh => {
                refreshed_at = Instant::now();
                // A server that does not answer now is no reason to end: the next event or the next refresh shows the state.
                if let Ok(fresh) = source.snapshot().await {
                    board = fresh;
                    board.hints().into_iter().for_each(|hint| display.print_once(hint));
                }
            }
        }
    }
}

/// The exit code, from the certificates in the database.
async fn verdict_of_database(pool: &Pool, tenant: &Tenant, board: &Board) -> anyhow::Result<ExitCode> {
    let mut transaction = pool::begin_as(pool, tenant.id).await?;
    let mut certified = Vec::new();
    for phase in campaigns::status(&mut transaction, tenant.id, board.campaign).await? {
        if phase.run.is_some() {
            certified.push(result::certify_phase(&mut transaction, tenant.id, phase.id).await?);
        }
    }
    Ok(one_run::print_results(certified).max(print_external_phases(board)).exit_code())
}

/// The exit code, from the counts of the server.
fn verdict_of_server(board: &Board) -> ExitCode {
    let mut worst = print_external_phases(board);
    for (phase, run) in board.phases.iter().filter_map(|phase| Some((phase, phase.run.as_ref()?))) {
        let name = &phase.name;
        let result = match run.in_doubt {
            0 if run.status.is_terminal() => LaunchResult::of_launched(run.succeeded, run.failed),
            _ => LaunchResult::NotLaunched,
        };
        match result {
            LaunchResult::NotLaunched => message!("{name}: not launched, {} in doubt", run.in_doubt),
            LaunchResult::AllFailed => message!("{name}: every item that was tried failed"),
            LaunchResult::SomeFailed => {
                message!("{name}: launched, {} of {} failed", run.failed, run.intended);
            }
            LaunchResult::Launched => message!("{name}: launched"),
        }
        worst = worst.max(result);
    }
    worst.exit_code()
}

/// Prints the outcomes of phases that other services performed.
fn print_external_phases(board: &Board) -> LaunchResult {
    let mut worst = LaunchResult::Launched;
    for phase in board.phases.iter().filter(|phase| phase.run.is_none()) {
        match phase.status {
            PhaseStatus::Completed => message!("{}: completed", phase.name),
            PhaseStatus::Failed => {
                worst = LaunchResult::AllFailed;
                message!("{}: failed", phase.name);
            }
            _ => {}
        }
    }
    worst
}

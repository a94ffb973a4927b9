//! `postrider serve`: HTTP and the loops, until a signal.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::{Args, ValueEnum};
use postrider_api::{App, CallbackKeys, Ends, Hub, Ingress, Jobs};
use postrider_engine::{
    Bell, CampaignWorker, Dispatcher, Hints, Relay, Resolver, Runner, Scheduler,
    vital::{self, vital},
};
use postrider_model::seal::MasterKey;
use postrider_store::{Pool, doctor, events, job_runs, jobs, migrate, pool, replies, wakeups};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{config::Config, installation::Installation, shutdown, wire};

#[derive(Args)]
pub struct ServeArgs {
    /// What this process does [default: everything]
    #[arg(long, value_enum, value_delimiter = ',')]
    roles: Vec<ServeRole>,
    /// Where to serve HTTP; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ServeRole {
    /// The HTTP API
    Api,
    /// Campaigns: jobs, reservations, provider calls
    Campaigns,
    /// Items in doubt: settles what can be settled without a person
    Resolver,
    /// Replies in chats: sends them, and takes up what dead processes left
    Dispatcher,
    /// Domain events to their sinks
    Relay,
    /// Scheduled jobs: fires schedules, and runs functions
    Scheduler,
}

impl ServeRole {
    /// What it does with the master key; nothing where it needs none.
    const fn without_key(self) -> Option<&'static str> {
        match self {
            Self::Campaigns => Some("campaigns are not served, their jobs wait"),
            Self::Resolver => Some("doubts are not settled, they wait"),
            Self::Dispatcher => Some("replies are not sent, they wait"),
            Self::Api => Some("callbacks and webhooks of providers cannot be verified, they are put off"),
            Self::Scheduler => {
                Some("functions behind URLs are not called and nobody is told about alerts, their runs wait")
            }
            Self::Relay => None,
        }
    }
}

/// How long everything else may take to finish what is under way when one of the loops has panicked: a call and its record.
const FINISH_WITHIN: Duration = Duration::from_secs(150);

pub async fn run(args: ServeArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let draining = shutdown::on_signal()?;
    let explicit = !args.roles.is_empty();
    let roles = if args.roles.is_empty() { ServeRole::value_variants().to_vec() } else { args.roles };
    // What can be refused is refused before anything is started.
    let routes = wire::routes(config)?;
    let adapters = wire::adapters(config)?;
    let listener = bind(config.http.listen).await?;
    let http_url = format!("http://{}", listener.local_addr()?);
    let metrics = postrider_api::collect_metrics().context("cannot collect metrics")?;

    let installation = Installation::open(config).await?;
    let served = async {
        let connections = config.database.connections_max;
        let app_pool = checked(installation.app_pool(connections).await?, APP).await?;
        let loops = TaskTracker::new();
        if roles.contains(&ServeRole::Relay) {
            let worker_pool = checked(installation.worker_pool(connections).await?, RELAY).await?;
            if routes.is_empty() {
                // Without a sink every event would count as delivered. Nothing accepted is lost, so they wait.
                tracing::warn!("no sinks are configured, so events wait in the outbox; see relay.sinks");
            } else {
                let (hints, listening) =
                    wakeups::listen(installation.listen_url(), events::HINT_CHANNEL, draining.clone())?;
                loops.spawn(vital("the listener", listening));
                let relay = Relay::new(worker_pool.clone(), hints, routes, wire::relay_settings(config));
                loops.spawn(vital("the relay", relay.run(draining.clone())));
            }
        }
        let master_key = master_key(&roles, explicit, &installation, config)?;
        if let Some(master_key) = master_key.clone().filter(|_| roles.contains(&ServeRole::Campaigns)) {
            let pool = checked(installation.worker_pool(connections).await?, CAMPAIGNS).await?;
            let writes = installation.worker_pool(config.campaigns.commit_connections).await?;
            let (hints, listening) =
                wakeups::listen(installation.listen_url(), jobs::HINT_CHANNEL, draining.clone())?;
            loops.spawn(vital("the listener", listening));
            let settings = wire::campaign_settings(config);
            let worker = CampaignWorker::new(pool, writes, hints, adapters.clone(), master_key, settings);
            loops.spawn(vital("the campaign worker", worker.run(draining.clone())));
        }
        if let Some(master_key) = master_key.clone().filter(|_| roles.contains(&ServeRole::Resolver)) {
            let pool = checked(installation.worker_pool(connections).await?, RESOLVER).await?;
            let settings = wire::resolver_settings(config);
            let resolver = Resolver::new(pool, adapters.clone(), master_key, settings);
            loops.spawn(vital("the resolver", resolver.run(draining.clone())));
        }
        let reply_hints = Hints::new(replies::HINT_CHANNEL);
        loops.spawn(vital(
            "the hints of replies",
            reply_hints.clone().run(app_pool.clone(), draining.clone()),
        ));
        if let Some(master_key) = master_key.clone().filter(|_| roles.contains(&ServeRole::Dispatcher)) {
            let pool = checked(installation.worker_pool(connections).await?, DISPATCHER).await?;
            let executing = wire::executing(config, &pool, &master_key, &reply_hints)?;
            let sweep = wire::sweep(config, &pool, executing, &reply_hints);
            loops.spawn(vital("the sweep", sweep.run(draining.clone())));
            if config.channels.outbox.enabled {
                let (hints, listening) =
                    wakeups::listen(installation.listen_url(), replies::HINT_CHANNEL, draining.clone())?;
                loops.spawn(vital("the listener", listening));
                let settings = wire::dispatcher_settings(config);
                let adapters = wire::reply_adapters(config)?;
                let dispatcher = Dispatcher::new(pool, hints, adapters, master_key, settings);
                loops.spawn(vital("the dispatcher", dispatcher.run(draining.clone())));
            } else {
                tracing::warn!("channels.outbox.enabled is false, so replies wait");
            }
        }
        let serves_api = roles.contains(&ServeRole::Api);
        let [runs, cancels, ends] =
            [job_runs::HINT_CHANNEL, job_runs::CANCEL_CHANNEL, job_runs::ENDS_CHANNEL].map(Bell::new);
        for bell in [&runs, &cancels, &ends] {
            loops.spawn(vital(
                "the hints of runs",
                bell.hints.clone().run(app_pool.clone(), draining.clone()),
            ));
        }
        if serves_api || roles.contains(&ServeRole::Scheduler) {
            loops.spawn(vital("the listener", ends.listen(installation.listen_url(), &draining)?));
        }
        if roles.contains(&ServeRole::Scheduler) {
            let pool = checked(installation.worker_pool(connections).await?, SCHEDULER).await?;
            let sql_pool = installation.worker_pool(u32::try_from(config.jobs.sql_concurrency)?).await?;
            for bell in [&runs, &cancels] {
                loops.spawn(vital("the listener", bell.listen(installation.listen_url(), &draining)?));
            }
            let parts =
                wire::runner_parts(config, &pool, sql_pool, &adapters, master_key.clone(), &ends.hints)?;
            let settings = wire::runner_settings(config);
            let runner = Runner::new(parts, runs.wakeups(), cancels.wakeups(), settings);
            loops.spawn(vital("the runner", runner.run(draining.clone())));
            let settings = wire::scheduler_settings(config);
            let scheduler = Scheduler { pool, ends: ends.wakeups(), runs: runs.hints.clone(), settings };
            loops.spawn(vital("the scheduler", scheduler.run(draining.clone())));
        }
        let import_pool = if serves_api { installation.import_pool().await? } else { app_pool.clone() };
        let settings = wire::stream_settings(config);
        let stream = Hub::new(app_pool.clone(), installation.listen_url(), settings, draining.clone())?;
        let waiting = Ends::new(draining.clone());
        if serves_api {
            allow_many_connections();
            loops.spawn(vital("the stream", stream.clone().run()));
            loops.spawn(vital("what waits for runs", waiting.clone().run(app_pool.clone(), ends.wakeups())));
        }
        if roles.iter().any(|role| *role != ServeRole::Api) {
            let pool = installation.worker_pool(1).await?;
            loops.spawn(vital("retention", wire::retention(config).run(pool, draining.clone())));
        }
        loops.close();

        let ingress = match &master_key {
            Some(key) => {
                let executing = wire::executing(config, &app_pool, key, &reply_hints)?;
                Some(Ingress::new(adapters.clone(), key.clone(), executing, wire::receiving(config)))
            }
            None => None,
        };
        let jobs =
            Jobs { master_key: master_key.clone(), hints: runs.hints, cancels: cancels.hints, ends: waiting };
        let callbacks = master_key.map(|master_key| CallbackKeys { adapters: adapters.clone(), master_key });
        let app = App {
            pool: app_pool,
            import_pool,
            metrics,
            draining: draining.clone(),
            serves_api,
            adapters,
            callbacks,
            ingress,
            jobs,
            outbound: wire::outbound(config),
            throttle: wire::throttle(config),
            cors_origins: config.api.cors_origins(),
            stream,
            write_timeout: Duration::from_secs(config.api.write_timeout_seconds),
            header_timeout: Duration::from_secs(config.api.header_timeout_seconds),
            connections_max: wire::connections_max(config),
            stuck_after: wire::stuck_after(config),
        };
        // HTTP outlives the loops, so that health and metrics can be asked for while they drain.
        let drained = CancellationToken::new();
        let http = tokio::spawn(vital("HTTP", postrider_api::serve(listener, app, drained.clone())));
        // How to reach the API; a process that only works has nothing to say there.
        if serves_api {
            installation.write_run_file(http_url.clone()).await?;
        }
        tracing::info!(?roles, "postrider is serving at {http_url}");

        let broken = tokio::select! {
            () = async { draining.cancelled().await; loops.wait().await } => None,
            what = vital::broken() => {
                draining.cancel();
                // Somebody may wait for the one that is gone.
                let _ = tokio::time::timeout(FINISH_WITHIN, loops.wait()).await;
                Some(what)
            }
            // Nothing can be finished without it, so nothing is waited for.
            lost = installation.lost() => return Err(lost),
        };
        drained.cancel();
        http.await?;
        match broken {
            Some(what) => Err(anyhow::anyhow!("{what} panicked, and the process ended to be started again")),
            None => Ok(()),
        }
    }
    .await;
    installation.remove_run_file();
    installation.close().await?;
    served?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// The key that opens the accounts' secrets, if anything here needs it. Who asked for campaigns, the resolver or the dispatcher by
/// name must have one.
fn master_key(
    roles: &[ServeRole],
    explicit: bool,
    installation: &Installation,
    config: &Config,
) -> anyhow::Result<Option<MasterKey>> {
    let missing: Vec<&str> = roles.iter().filter_map(|role| role.without_key()).collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let calls = roles
        .iter()
        .any(|role| matches!(role, ServeRole::Campaigns | ServeRole::Resolver | ServeRole::Dispatcher));
    match installation.master_key(config) {
        Ok(key) => Ok(Some(key)),
        Err(error) if explicit && calls => Err(error),
        Err(error) => {
            for consequence in missing {
                tracing::warn!("{consequence}: {error:#}");
            }
            Ok(None)
        }
    }
}

/// Every reader of a stream holds a connection. Many systems allow a thousand files at first, and far more to who asks.
fn allow_many_connections() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the limit of open files stays at {:?}: {error}", limit.current);
    }
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        anyhow::anyhow!("cannot listen on {address}: {error}; choose another address with --listen, or port 0 for a free one")
    })
}

/// A role of the database, what it is needed for, and which setting names its login.
type Needs = (&'static str, &'static str, &'static str);
const APP: Needs = ("postrider_app", "HTTP", "database.app_url");
const CAMPAIGNS: Needs = ("postrider_worker", "the campaign worker", "database.url");
const RESOLVER: Needs = ("postrider_worker", "the resolver", "database.url");
const DISPATCHER: Needs = ("postrider_worker", "the dispatcher", "database.url");
const SCHEDULER: Needs = ("postrider_worker", "the scheduler", "database.url");
const RELAY: Needs = ("postrider_worker", "the relay", "database.url");

/// Refuses to serve where the promises would not hold.
async fn checked(pool: Pool, (role, needed_for, setting): Needs) -> anyhow::Result<Pool> {
    let mut transaction = pool::begin(&pool).await?;
    doctor::refuse_unsafe_server(&mut transaction).await?;
    migrate::verify(&mut transaction).await?;
    doctor::refuse_powerful_login(&mut transaction).await?;
    doctor::require_role(&mut transaction, role, needed_for, setting).await?;
    drop(transaction);
    Ok(pool)
}

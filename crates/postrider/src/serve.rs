//! The whole server: HTTP and the loops, until a token is cancelled.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use postrider_api::{
    App, CallbackKeys, Hub, Ingress, Jobs, Overviews, PrometheusHandle, RunWaiters, Unsubscribing,
};
use postrider_engine::{
    CampaignWorker, Dispatcher, Functions, Health, Hints, Relay, Resolver, Runner, Scheduler, Standing,
    WakeupChannel, Witness,
    common::supervised::{self, supervised},
};
use postrider_model::{error_chain, jobs::check_function_name, seal::MasterKey};
use postrider_providers::Adapters;
use postrider_store::{
    Pool, StoreError,
    campaigns::send_jobs,
    channels::replies,
    events,
    jobs::runs,
    postgres::{doctor, pool, wakeups},
    tenancy::{fence::Fence, master_key},
};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Error,
    config::Config,
    connections,
    installation::Installation,
    logins::{APP, CAMPAIGNS, DISPATCHER, Needs, RELAY, RESOLVER, SCHEDULER, checked},
    wire,
};

/// Serves everything that `postrider serve` does, with adapters and functions of the application beside those that come with
/// Postrider, until `shutdown` is cancelled. Then the loops finish what they hold, and HTTP answers until they are done.
///
/// An adapter or a function replaces the standard one of the same name. [`Server`] chooses the roles.
pub async fn serve(
    config: Config,
    adapters: Adapters,
    functions: Functions,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    Server { adapters, functions, ..Server::new(config) }.run(shutdown).await
}

/// A server that is about to run. One process runs one at a time: it has the metrics of the process, and raises the limit of open
/// files as far as the system allows.
pub struct Server {
    /// The settings.
    pub config: Config,
    /// The application's own adapters.
    pub adapters: Adapters,
    /// The application's own Rust functions.
    pub functions: Functions,
    /// The roles of this process.
    pub roles: Vec<Role>,
}

/// A part of the server's work. Any number of processes may have the same role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The HTTP API.
    Api,
    /// Campaigns: send jobs, reservations, provider calls.
    Campaigns,
    /// Items in doubt: settles what can be settled without a person.
    Resolver,
    /// Replies in chats: sends them, and recovers the work of dead processes.
    Dispatcher,
    /// Domain events to their sinks.
    Relay,
    /// Scheduled jobs: fires schedules, and runs functions.
    Scheduler,
}

impl Role {
    /// Every role.
    pub const ALL: &[Self] =
        &[Self::Api, Self::Campaigns, Self::Resolver, Self::Dispatcher, Self::Relay, Self::Scheduler];

    /// The needs of the role from the database; `None` for a role that sends nothing.
    pub(crate) const fn needs(self) -> Option<Needs> {
        match self {
            Self::Api => None,
            Self::Campaigns => Some(CAMPAIGNS),
            Self::Resolver => Some(RESOLVER),
            Self::Dispatcher => Some(DISPATCHER),
            Self::Relay => Some(RELAY),
            Self::Scheduler => Some(SCHEDULER),
        }
    }

    /// The purpose of the master key in the role; `None` if the role does not need the key.
    const fn needs_key_for(self) -> Option<&'static str> {
        match self {
            Self::Campaigns => Some("campaigns to call providers"),
            Self::Resolver => Some("resolver to ask providers"),
            Self::Dispatcher => Some("dispatcher to send replies"),
            Self::Api => Some("api to verify callbacks and webhooks of providers and to seal secrets"),
            Self::Scheduler => Some("scheduler to call functions behind URLs and to notify people"),
            Self::Relay => None,
        }
    }

    /// The purposes of the master key in these roles; empty if no role needs the key.
    #[doc(hidden)]
    pub fn need_key_for(roles: &[Self]) -> Vec<&'static str> {
        roles.iter().filter_map(|role| role.needs_key_for()).collect()
    }
}

impl Server {
    /// A server with every role, and with the standard adapters and functions alone.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            adapters: Adapters::none(),
            functions: Functions::default(),
            roles: Role::ALL.to_vec(),
        }
    }

    /// Serves until `shutdown` is cancelled.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        self.config.check()?;
        Ok(run(&self, shutdown).await?)
    }
}

/// How often a process looks whether the master key was changed without it.
const LOOK_AT_KEY_EVERY: Duration = Duration::from_secs(5);

/// How long everything else may take to finish what is under way when one of the loops has panicked: a call and its record.
const FINISH_WITHIN: Duration = Duration::from_secs(150);

/// How long after the end of the private Postgres this process may get the signal that ended both.
const SIGNALS_APART: Duration = Duration::from_secs(1);

async fn run(server: &Server, draining: CancellationToken) -> anyhow::Result<()> {
    let Server { config, adapters: own_adapters, functions: own_functions, roles } = server;
    let open_files = allow_many_files();
    let capacity = wire::http_capacity(config, open_files);
    // Refuse invalid settings before anything is started.
    for name in own_functions.names() {
        check_function_name(name).map_err(anyhow::Error::msg)?;
    }
    wire::routes(config)?;
    let adapters = wire::adapters(config)?.with_all(own_adapters);
    let listener = bind(config.http.listen, "--listen").await?;
    let metrics_listener = match config.metrics.listen {
        Some(address) => Some(bind(address, "metrics.listen").await?),
        None => None,
    };
    let http_url = format!("http://{}", listener.local_addr()?);
    let metrics = postrider_api::collect_metrics().context("cannot collect metrics")?;

    let installation = Installation::open(config).await?;
    let process = Process {
        server,
        installation: &installation,
        adapters,
        listener,
        metrics_listener,
        http_url,
        metrics,
        open_files,
        capacity,
    };
    let served = match roles.iter().find_map(|role| role.needs()) {
        None => process.serve(roles, &Fence::default(), None, None, draining.clone()).await,
        Some(needs) => {
            let open = async {
                let pool = checked(installation.worker_pool(connections::WITNESS).await?, needs).await?;
                let place = wire::witness_place(config, &installation).await?;
                anyhow::Ok(Witness::open(pool, place, wire::process_name()).await?)
            };
            match open.await {
                Ok(witness) => while_allowed(witness, &process, roles, &draining).await,
                Err(error) => Err(error),
            }
        }
    };
    installation.remove_run_file();
    installation.close().await?;
    served?;
    tracing::info!("stopped");
    Ok(())
}

/// One process, with the parts that it keeps while its allowed roles change.
struct Process<'a> {
    server: &'a Server,
    installation: &'a Installation,
    /// The standard adapters and those of the application.
    adapters: Adapters,
    listener: TcpListener,
    metrics_listener: Option<TcpListener>,
    http_url: String,
    metrics: PrometheusHandle,
    open_files: Option<u64>,
    capacity: wire::HttpCapacity,
}

impl Process<'_> {
    /// Serves these roles until `draining` is cancelled. `witness` is the health of the witness, and `waits` the reason why other roles wait.
    async fn serve(
        &self,
        roles: &[Role],
        fence: &Fence,
        witness: Option<&Health>,
        waits: Option<&str>,
        draining: CancellationToken,
    ) -> anyhow::Result<()> {
        let Self { installation, adapters, listener, metrics_listener, http_url, metrics, capacity, .. } =
            self;
        let Server { config, adapters: own_adapters, functions: own_functions, .. } = self.server;
        let (adapters, metrics, listener) = (adapters.clone(), metrics.clone(), same_listener(listener)?);
        let metrics_listener = metrics_listener.as_ref().map(same_listener).transpose()?;
        let routes = wire::routes(config)?;
        let has_sinks = !routes.is_empty();
        let connections = config.database.connections_max;
        connections::check(config, roles, installation).await?;
        let mut health = Vec::new();
        if roles.iter().any(|role| role.needs().is_some()) {
            health.extend(witness.cloned());
        }
        let app_pool = checked(installation.app_pool(connections).await?, APP).await?;
        // Before anything is claimed: a role that could not open a secret would hold work and not do it.
        let master_key = master_key(roles, installation, config).await?;
        let loops = TaskTracker::new();
        if roles.contains(&Role::Relay) {
            let worker_pool = checked(installation.worker_pool(connections).await?, RELAY).await?;
            if !has_sinks {
                // Without a sink every event would count as delivered. Nothing accepted is lost, so they wait.
                tracing::warn!("no sinks are configured, so events wait in the outbox; see relay.sinks");
            } else {
                let (hints, listening) =
                    wakeups::listen(installation.listen_url(), events::HINT_CHANNEL, draining.clone())?;
                loops.spawn(supervised("listener", listening));
                let settings = wire::relay_settings(config);
                let relay = Relay::new(worker_pool.clone(), hints, routes, settings).await?;
                health.push(relay.health());
                loops.spawn(supervised("relay", relay.run(draining.clone())));
            }
        }
        if let Some(master_key) = master_key.clone().filter(|_| roles.contains(&Role::Campaigns)) {
            let pool = checked(installation.worker_pool(connections).await?, CAMPAIGNS).await?;
            let writes = installation.commit_pool(config.campaigns.commit_connections).await?;
            let (hints, listening) =
                wakeups::listen(installation.listen_url(), send_jobs::HINT_CHANNEL, draining.clone())?;
            loops.spawn(supervised("listener", listening));
            let settings = wire::campaign_settings(config);
            let worker = CampaignWorker::new(pool, writes, hints, adapters.clone(), master_key, settings)
                .fenced(fence.clone());
            health.extend(worker.health());
            loops.spawn(supervised("campaign worker", worker.run(draining.clone())));
        }
        if let Some(master_key) = master_key.clone().filter(|_| roles.contains(&Role::Resolver)) {
            let pool = checked(installation.worker_pool(connections).await?, RESOLVER).await?;
            let settings = wire::resolver_settings(config);
            let resolver = Resolver::new(pool, adapters.clone(), master_key, settings);
            health.push(resolver.health());
            loops.spawn(supervised("resolver", resolver.run(draining.clone())));
        }
        let reply_hints = Hints::new(replies::HINT_CHANNEL);
        loops.spawn(supervised(
            "hints of replies",
            reply_hints.clone().run(app_pool.clone(), draining.clone()),
        ));
        if let Some(master_key) = master_key.clone().filter(|_| roles.contains(&Role::Dispatcher)) {
            let pool = checked(installation.worker_pool(connections).await?, DISPATCHER).await?;
            let executing = wire::executing(config, &pool, &master_key, &reply_hints)?;
            let sweep = wire::sweep(config, &pool, executing, &reply_hints);
            health.push(sweep.health.clone());
            loops.spawn(supervised("sweep", sweep.run(draining.clone())));
            if config.channels.outbox.enabled {
                let (hints, listening) =
                    wakeups::listen(installation.listen_url(), replies::HINT_CHANNEL, draining.clone())?;
                loops.spawn(supervised("listener", listening));
                let settings = wire::dispatcher_settings(config);
                let adapters = wire::reply_adapters(config)?.with_all(own_adapters);
                let dispatcher = Dispatcher::new(pool, hints, adapters, master_key, settings);
                health.push(dispatcher.health());
                loops.spawn(supervised("dispatcher", dispatcher.run(draining.clone())));
            } else {
                tracing::warn!("channels.outbox.enabled is false, so replies wait");
            }
        }
        let serves_api = roles.contains(&Role::Api);
        let [runs, cancels, ends] =
            [runs::HINT_CHANNEL, runs::CANCEL_CHANNEL, runs::ENDS_CHANNEL].map(WakeupChannel::new);
        for bell in [&runs, &cancels, &ends] {
            loops.spawn(supervised(
                "hints of runs",
                bell.hints.clone().run(app_pool.clone(), draining.clone()),
            ));
        }
        if serves_api || roles.contains(&Role::Scheduler) {
            loops.spawn(supervised("listener", ends.listen(installation.listen_url(), &draining)?));
        }
        if roles.contains(&Role::Scheduler) {
            let pool = checked(installation.worker_pool(connections).await?, SCHEDULER).await?;
            let sql_pool = installation.worker_pool(u32::try_from(config.jobs.sql_concurrency)?).await?;
            for bell in [&runs, &cancels] {
                loops.spawn(supervised("listener", bell.listen(installation.listen_url(), &draining)?));
            }
            let parts =
                wire::runner_parts(config, &pool, sql_pool, &adapters, master_key.clone(), &ends.hints)?
                    .with_functions(own_functions);
            let settings = wire::runner_settings(config);
            let runner = Runner::new(parts, runs.wakeups(), cancels.wakeups(), settings);
            health.push(runner.health());
            loops.spawn(supervised("runner", runner.run(draining.clone())));
            let settings = wire::scheduler_settings(config);
            let (ends, runs) = (ends.wakeups(), runs.hints.clone());
            let scheduler = Scheduler { pool, ends, runs, settings, health: Health::new("scheduler") };
            health.push(scheduler.health.clone());
            loops.spawn(supervised("scheduler", scheduler.run(draining.clone())));
        }
        let (app_pool, import_pool) = if serves_api {
            let import_pool = installation.import_pool().await?;
            (installation.sign(app_pool).await?, installation.sign(import_pool).await?)
        } else {
            (app_pool.clone(), app_pool)
        };
        let settings = wire::stream_settings(config, capacity);
        let overviews = Overviews::new(app_pool.clone(), &adapters, wire::stuck_after(config));
        let stream = Hub::new(
            app_pool.clone(),
            installation.listen_url(),
            settings,
            overviews.clone(),
            draining.clone(),
        )?;
        let waiting = RunWaiters::new(draining.clone());
        if serves_api {
            loops.spawn(supervised("stream", stream.clone().run()));
            loops
                .spawn(supervised("waiters for runs", waiting.clone().run(app_pool.clone(), ends.wakeups())));
        }
        if roles.iter().any(|role| *role != Role::Api) {
            let pool = installation.worker_pool(connections::RETENTION).await?;
            loops.spawn(supervised("retention", wire::retention(config).run(pool, draining.clone())));
        }
        loops.close();

        let ingress = match &master_key {
            Some(key) => {
                let executing = wire::executing(config, &app_pool, key, &reply_hints)?;
                Some(Ingress::new(adapters.clone(), key.clone(), executing, wire::receiving(config)))
            }
            None => None,
        };
        let jobs = Jobs {
            master_key: master_key.clone(),
            sql_schemas: config.jobs.sql_schemas.clone(),
            hints: runs.hints,
            cancels: cancels.hints,
            run_waiters: waiting,
        };
        let key_of_others = other_key(app_pool.clone(), master_key.clone());
        let connections_max = config.database.connections_max;
        let callbacks = master_key.map(|key| CallbackKeys::new(adapters.clone(), key, connections_max));
        let app = App {
            pool: app_pool,
            import_pool,
            metrics,
            draining: draining.clone(),
            health,
            serves_api,
            serves_metrics: metrics_listener.is_none(),
            sending_waits: waits.map(Into::into),
            adapters,
            call_max: wire::call_max(config),
            callbacks,
            unsubscribing: Unsubscribing {
                public_url: config.campaigns.public_url()?,
                one_click: config.campaigns.unsubscribe_scope,
            },
            ingress,
            jobs,
            outbound: wire::outbound(config),
            sessions: wire::sessions(config),
            throttle: wire::throttle(config),
            trusted_proxies: config.api.trusted_proxies()?,
            cors_origins: config.api.cors_origins(),
            stream,
            write_timeout: Duration::from_secs(config.api.write_timeout_seconds),
            header_timeout: Duration::from_secs(config.api.header_timeout_seconds),
            connections_max: capacity.connections_max,
            stuck_after: wire::stuck_after(config),
            overviews,
            build: postrider_api::dashboard::build(),
        };
        // HTTP outlives the loops, so that health and metrics can be asked for while they drain.
        let drained = CancellationToken::new();
        let metrics_http = metrics_listener.map(|listener| {
            if let Ok(address) = listener.local_addr() {
                tracing::info!("metrics are served at http://{address}/metrics");
            }
            let serving = postrider_api::serve_metrics(listener, app.clone(), drained.clone());
            tokio::spawn(supervised("metrics server", serving))
        });
        let http =
            tokio::spawn(supervised("HTTP server", postrider_api::serve(listener, app, drained.clone())));
        // How to reach the API; a process that only works has nothing to say there.
        if serves_api {
            installation.write_run_file(http_url.clone()).await?;
        }
        if serves_api {
            warn_of_few_files(config, capacity, self.open_files);
        }
        // Without a sink no relay runs.
        let is_started = |role: &&Role| **role != Role::Relay || has_sinks;
        let started: Vec<&Role> = roles.iter().filter(is_started).collect();
        tracing::info!(roles = ?started, "postrider is serving at {http_url}");

        let mut key_of_others = std::pin::pin!(key_of_others);
        let mut was_started_again = false;
        let broken = loop {
            tokio::select! {
                () = async { draining.cancelled().await; loops.wait().await } => break None,
                task = supervised::panicked() => {
                    draining.cancel();
                    // A loop may wait for the one that panicked.
                    let _ = tokio::time::timeout(FINISH_WITHIN, loops.wait()).await;
                    break Some(task);
                }
                refused = &mut key_of_others => {
                    draining.cancel();
                    let _ = tokio::time::timeout(FINISH_WITHIN, loops.wait()).await;
                    drained.cancel();
                    http.await?;
                    return Err(refused.context("the master key was changed while this process ran"));
                }
                lost = installation.lost() => {
                    let is_draining = tokio::time::timeout(SIGNALS_APART, draining.cancelled()).await.is_ok();
                    if was_started_again || !is_draining {
                        // Nothing can be finished without it, so nothing is waited for.
                        return Err(lost);
                    }
                    // One SIGTERM for all processes ended it in the middle of the drain: the loops record their results in it.
                    was_started_again = true;
                    installation.start_again().await.with_context(|| lost.to_string())?;
                }
            }
        };
        drained.cancel();
        http.await?;
        if let Some(metrics_http) = metrics_http {
            metrics_http.await?;
        }
        match broken {
            Some(what) => Err(anyhow::anyhow!("{what} panicked, and the process ended to be started again")),
            None => Ok(()),
        }
    }
}

/// Serves the allowed roles. While the database is taken for a restored copy, that is the API alone; once it was adopted, the roles that
/// send start by themselves.
async fn while_allowed(
    witness: Witness,
    process: &Process<'_>,
    roles: &[Role],
    draining: &CancellationToken,
) -> anyhow::Result<()> {
    let (fence, health, mut standing) = (witness.fence(), witness.health(), witness.standing());
    let ended = CancellationToken::new();
    let looking = tokio::spawn(supervised("witness", witness.run(ended.clone())));
    let pools_before = process.installation.pools_opened();
    let served = loop {
        let now = standing.borrow_and_update().clone();
        let (allowed, waits): (Vec<Role>, Option<&str>) = match &now {
            Standing::Clear => (roles.to_vec(), None),
            // Why is for operators: it names machines.
            Standing::Waits(_) => (
                roles.iter().copied().filter(|role| role.needs().is_none()).collect(),
                Some(doctor::RESTORED),
            ),
        };
        let stop = draining.child_token();
        let until_changed = async {
            let is_other = |new: &Standing| (*new == Standing::Clear) != (now == Standing::Clear);
            if standing.wait_for(is_other).await.is_ok() {
                stop.cancel();
            }
            std::future::pending::<()>().await;
        };
        let served = tokio::select! {
            served = process.serve(&allowed, &fence, Some(&health), waits, stop.clone()) => served,
            () = until_changed => Ok(()),
        };
        if served.is_err() || draining.is_cancelled() || !stop.is_cancelled() {
            break served;
        }
        process.installation.close_pools_since(pools_before).await;
    };
    // The last mark says that nothing is reserved any more.
    ended.cancel();
    looking.await?;
    served
}

/// Another handle of the socket that is bound already.
fn same_listener(listener: &TcpListener) -> anyhow::Result<TcpListener> {
    let socket = std::os::fd::AsFd::as_fd(listener).try_clone_to_owned()?;
    Ok(TcpListener::from_std(std::net::TcpListener::from(socket))?)
}

/// The key that opens the accounts' secrets, if a role here needs it. A role that needs it and does not have it is refused.
async fn master_key(
    roles: &[Role],
    installation: &Installation,
    config: &Config,
) -> anyhow::Result<Option<MasterKey>> {
    let needs = Role::need_key_for(roles);
    if needs.is_empty() {
        return Ok(None);
    }
    let pool = installation.worker_pool(1).await?;
    let mut transaction = pool::begin(&pool).await?;
    doctor::refuse_powerful_login(&mut transaction).await?;
    let key = installation.checked_master_key(config, &mut transaction).await.map_err(|error| {
        anyhow::anyhow!(
            "{}; without it, name roles that need none with --roles (here need it: {})",
            error_chain(error.as_ref()),
            needs.join(", ")
        )
    })?;
    pool::commit(transaction).await?;
    pool.close().await;
    Ok(Some(key))
}

/// Waits until the secrets are sealed under a key that this process does not have: it could open none of them.
async fn other_key(pool: Pool, key: Option<MasterKey>) -> anyhow::Error {
    let Some(key) = key else { return std::future::pending().await };
    loop {
        tokio::time::sleep(LOOK_AT_KEY_EVERY).await;
        let looked = async {
            let mut transaction = pool::begin(&pool).await?;
            master_key::verify(&mut transaction, &key).await
        };
        if let Err(error @ StoreError::Unfit(_)) = looked.await {
            return error.into();
        }
    }
}

/// Raises the limit of open files as far as it goes, and returns it; `None` is no limit. Every connection is an open file, and many systems
/// allow a thousand at first and far more to a process that asks.
fn allow_many_files() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the limit of open files stays at {:?}: {error}", limit.current);
    }
    getrlimit(Resource::Nofile).current
}

/// Says where the limit of open files allows fewer HTTP connections than the configuration asks for.
fn warn_of_few_files(config: &Config, capacity: &wire::HttpCapacity, open_files: Option<u64>) {
    if capacity.readers_max < config.api.readers_max {
        tracing::warn!(
            connections_max = capacity.connections_max,
            readers_max = capacity.readers_max,
            "the limit of open files ({}) allows fewer HTTP connections than api.readers_max asks for; raise it (LimitNOFILE, ulimit -n)",
            open_files.unwrap_or_default()
        );
    }
}

async fn bind(address: SocketAddr, setting: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        anyhow::anyhow!(
            "cannot listen on {address}: {error}; choose another address with {setting}, or port 0 for a free one"
        )
    })
}

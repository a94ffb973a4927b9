//! Builds everything once, from the configuration.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use postrider_api::{StreamSettings, Throttle, ThrottleSettings};
use postrider_engine::{
    CampaignSettings, DispatcherSettings, Executing, Health, Hints, Place, RelaySettings, ResolverSettings,
    Retention, Route, RunnerParts, RunnerSettings, SchedulerSettings, Sweep,
    campaigns::{RetryPolicy, resolver::Pause},
    jobs,
};
use postrider_model::{EventSink, channels::RetrySchedule, seal::MasterKey};
use postrider_providers::{Adapters, GuardedClient, HttpSink, HttpSinkConfig, Limits, Policy};

use postrider_store::{
    Pool,
    channels::messages::Receiving,
    tenancy::{sessions::Lifetimes, witness::WitnessDatabase},
};

use crate::{
    config::{Config, Sink},
    installation::Installation,
};

/// The relay's routes. A sink that cannot work as configured is refused here, before anything is claimed.
pub fn routes(config: &Config) -> anyhow::Result<Vec<Route>> {
    let timeout = Duration::from_secs(config.relay.delivery_timeout_seconds);
    let policy = outbound(config);
    // The client gives up first: it knows whether a status had arrived, and the lane does not.
    let client = GuardedClient::new(policy, Limits { total: timeout.mul_f64(0.9), ..Limits::default() })?;
    let mut routes = Vec::new();
    for (name, sink) in &config.relay.sinks {
        let built = build(sink, &client).with_context(|| format!("relay.sinks.{name}"))?;
        let (Sink::Http { events, concurrency, .. } | Sink::Nats { events, concurrency, .. }) = sink;
        routes.push(Route {
            name: name.clone(),
            events: events.clone(),
            concurrency: *concurrency,
            sink: built,
        });
    }
    Ok(routes)
}

fn build(sink: &Sink, client: &GuardedClient) -> anyhow::Result<Arc<dyn EventSink>> {
    Ok(match sink {
        Sink::Http { url, secrets, .. } => {
            let secrets = secrets.iter().map(|secret| secret.0.clone()).collect();
            Arc::new(HttpSink::new(client, HttpSinkConfig { url: url.0.clone(), secrets })?)
        }
        #[cfg(feature = "nats")]
        Sink::Nats { servers, subject, token, user, password, credentials_file, .. } => {
            let credentials = nats::credentials(
                token.as_ref(),
                user.as_deref(),
                password.as_ref(),
                credentials_file.as_deref(),
            )?;
            let servers = servers.iter().map(|server| server.0.clone()).collect();
            let config =
                postrider_providers::NatsSinkConfig { servers, subject: subject.clone(), credentials };
            Arc::new(postrider_providers::NatsSink::new(config)?)
        }
        #[cfg(not(feature = "nats"))]
        Sink::Nats { .. } => {
            anyhow::bail!("this program was built without NATS; build it with `--features nats`")
        }
    })
}

/// Which addresses may be called.
pub fn outbound(config: &Config) -> Policy {
    Policy { allow_private: config.outbound.allow_private }
}

/// Every vendor that comes with Postrider.
pub fn adapters(config: &Config) -> anyhow::Result<Adapters> {
    adapters_within(config, Duration::from_secs(config.campaigns.call_timeout_seconds))
}

/// The same, with the time that an attempt at a reply may take.
pub fn reply_adapters(config: &Config) -> anyhow::Result<Adapters> {
    adapters_within(config, Duration::from_secs(config.channels.outbox.call_timeout_seconds))
}

fn adapters_within(config: &Config, timeout: Duration) -> anyhow::Result<Adapters> {
    // The client gives up first: it knows how far the call had come, and who waits for it does not.
    let total = timeout.mul_f64(0.9);
    let connect = Limits::default().connect.min(total / 2);
    let client = GuardedClient::new(outbound(config), Limits { total, connect })?;
    Ok(Adapters::standard(&client))
}

/// The campaign worker's settings.
pub fn campaign_settings(config: &Config) -> CampaignSettings {
    let campaigns = &config.campaigns;
    CampaignSettings {
        jobs_max: campaigns.jobs_max,
        jobs_per_tenant_max: campaigns.jobs_per_tenant_max.min(campaigns.jobs_max),
        window: campaigns.window,
        account_concurrency: campaigns.account_concurrency,
        commit_connections: campaigns.commit_connections as usize,
        call_timeout: Duration::from_secs(campaigns.call_timeout_seconds),
        call_within: Duration::from_secs(campaigns.call_within_seconds),
        retry: RetryPolicy {
            tries_max: campaigns.tries_max,
            wait_max: Duration::from_secs(campaigns.wait_max_seconds),
            ..RetryPolicy::default()
        },
        circuit_after: campaigns.circuit_after,
        retry_pause: Duration::from_secs(campaigns.retry_pause_seconds),
        heartbeat_interval: Duration::from_secs(campaigns.heartbeat_interval_seconds),
        poll_interval: Duration::from_millis(campaigns.poll_interval_ms),
        // The configuration was checked when it was loaded.
        public_url: campaigns.public_url().ok().flatten(),
    }
}

/// The resolver's settings.
pub fn resolver_settings(config: &Config) -> ResolverSettings {
    let resolver = &config.resolver;
    ResolverSettings {
        concurrency: resolver.concurrency,
        account_concurrency: resolver.account_concurrency,
        call_timeout: Duration::from_secs(config.campaigns.call_timeout_seconds),
        pause: Pause {
            min: Duration::from_secs(resolver.retry_pause_seconds),
            max: Duration::from_secs(resolver.retry_pause_max_seconds),
        },
        poll_interval: Duration::from_millis(resolver.poll_interval_ms),
        public_url: config.campaigns.public_url().ok().flatten(),
    }
}

/// Builds the executor of messages, with these connections.
pub fn executing(config: &Config, pool: &Pool, key: &MasterKey, hints: &Hints) -> anyhow::Result<Executing> {
    // Each executor is given its own time, which is never longer.
    let client = GuardedClient::new(outbound(config), Limits { total: EXECUTION_MAX, ..Limits::default() })?;
    let max_attempts = receiving(config).max_attempts;
    Ok(Executing::new(pool.clone(), key.clone(), client, hints.clone(), max_attempts))
}

/// The longest that an executor may take.
const EXECUTION_MAX: Duration = Duration::from_secs(60);

/// The dispatcher's settings.
pub fn dispatcher_settings(config: &Config) -> DispatcherSettings {
    let outbox = &config.channels.outbox;
    DispatcherSettings {
        batch_size: outbox.claim_batch_size,
        concurrency: outbox.concurrency,
        account_concurrency: outbox.account_concurrency,
        call_timeout: Duration::from_secs(outbox.call_timeout_seconds),
        lock_timeout: Duration::from_secs(outbox.lock_timeout_seconds),
        retries: RetrySchedule {
            base: Duration::from_secs_f64(outbox.base_retry_seconds),
            jitter_min: outbox.jitter_min,
            jitter_max: outbox.jitter_max,
            pause_max: Duration::from_secs(outbox.retry_seconds_max),
        },
        poll_interval: Duration::from_secs_f64(outbox.poll_interval_seconds),
    }
}

/// How messages are received.
pub fn receiving(config: &Config) -> Receiving {
    Receiving {
        lease: Duration::from_secs(config.channels.execution_lease_seconds),
        max_attempts: i32::try_from(config.channels.outbox.max_attempts).unwrap_or(i32::MAX),
    }
}

/// Builds the sweeper, which recovers the work of dead processes. It runs several times within the lock timeout or the lease, whichever is shorter.
pub fn sweep(config: &Config, pool: &Pool, executing: Executing, hints: &Hints) -> Sweep {
    let Receiving { lease, max_attempts } = receiving(config);
    let lock_timeout = Duration::from_secs(config.channels.outbox.lock_timeout_seconds);
    let every = lock_timeout.min(lease).mul_f64(0.1);
    Sweep {
        pool: pool.clone(),
        executing,
        hints: hints.clone(),
        lock_timeout,
        lease,
        max_attempts,
        every: every.clamp(Duration::from_millis(200), Duration::from_secs(5)),
        health: Health::new("dispatcher"),
    }
}

/// Builds the parts of the runner, with these connections.
pub fn runner_parts(
    config: &Config,
    pool: &Pool,
    sql_pool: Pool,
    adapters: &Adapters,
    master_key: Option<MasterKey>,
    ends: &Hints,
) -> anyhow::Result<RunnerParts> {
    let providers = master_key.clone().map(|key| (adapters.clone(), key));
    Ok(RunnerParts {
        pool: pool.clone(),
        sql_pool,
        functions: jobs::builtin::standard(pool, providers),
        client: GuardedClient::new(outbound(config), postrider_providers::function::LIMITS)?,
        master_key,
        ends: ends.clone(),
    })
}

/// The runner's settings.
pub fn runner_settings(config: &Config) -> RunnerSettings {
    let jobs = &config.jobs;
    RunnerSettings {
        concurrency: jobs.concurrency,
        tenant_concurrency: jobs.tenant_concurrency,
        lease: Duration::from_secs(jobs.lease_seconds),
        poll_interval: Duration::from_millis(jobs.poll_interval_ms),
        sql_concurrency: jobs.sql_concurrency,
        // One place is left to the others, where there is more than one.
        sql_tenant_concurrency: jobs
            .sql_tenant_concurrency
            .min(jobs.sql_concurrency.saturating_sub(1))
            .max(1),
        sql_schemas: jobs.sql_schemas.clone(),
    }
}

/// The scheduler's settings.
pub fn scheduler_settings(config: &Config) -> SchedulerSettings {
    let jobs = &config.jobs;
    SchedulerSettings {
        poll_interval: Duration::from_millis(jobs.poll_interval_ms),
        misfire_grace: Duration::from_secs(jobs.misfire_grace_seconds),
        dependency_patience: Duration::from_secs(jobs.dependency_wait_hours * 60 * 60),
    }
}

/// The relay's settings.
pub fn relay_settings(config: &Config) -> RelaySettings {
    let relay = &config.relay;
    RelaySettings {
        batch_size: relay.batch_size,
        in_flight_max: relay.in_flight_max,
        poll_interval: Duration::from_millis(relay.poll_interval_ms),
        delivery_timeout: Duration::from_secs(relay.delivery_timeout_seconds),
        stuck_after: stuck_after(config),
    }
}

/// Longest time from a reservation to the end of its call.
pub fn call_max(config: &Config) -> Duration {
    Duration::from_secs(config.campaigns.call_within_seconds + config.campaigns.call_timeout_seconds)
}

/// From how many failures on an event is stuck.
pub fn stuck_after(config: &Config) -> i32 {
    i32::try_from(config.relay.stuck_after_retries).unwrap_or(i32::MAX)
}

/// How many requests one API key may make, and how many invalid keys one client may try.
pub fn throttle(config: &Config) -> Throttle {
    Throttle::new(ThrottleSettings {
        rate_per_second: config.api.rate_per_second,
        burst: config.api.burst,
        invalid_keys_per_second: config.api.invalid_keys_per_second,
        invalid_keys_burst: config.api.invalid_keys_burst,
    })
}

/// How long sessions of the dashboard last.
pub fn sessions(config: &Config) -> Lifetimes {
    let hours = |hours: u32| Duration::from_secs(u64::from(hours) * 60 * 60);
    Lifetimes { idle: hours(config.api.session_idle_hours), total: hours(config.api.session_days_max * 24) }
}

/// How many connections there may be beside those of streams.
const CONNECTIONS: usize = 1000;

/// The share of the open files that HTTP may use.
pub struct HttpCapacity {
    /// Most connections at a time. Further ones wait to be accepted.
    pub connections_max: usize,
    /// Most of them that read event streams.
    pub readers_max: usize,
}

/// HTTP gets half of the open files at most; the rest is for the database and for calls.
pub fn http_capacity(config: &Config, open_files: Option<u64>) -> HttpCapacity {
    let wanted = config.api.readers_max + CONNECTIONS;
    let half = open_files.and_then(|files| usize::try_from(files / 2).ok()).unwrap_or(usize::MAX);
    let connections_max = wanted.min(half).max(2);
    let requests = CONNECTIONS.min(connections_max / 2);
    HttpCapacity { connections_max, readers_max: config.api.readers_max.min(connections_max - requests) }
}

/// How often to look for what is too old.
const RETENTION_EVERY: Duration = Duration::from_secs(10 * 60);

/// How streams of events behave.
pub fn stream_settings(config: &Config, capacity: &HttpCapacity) -> StreamSettings {
    let api = &config.api;
    StreamSettings {
        readers_max: capacity.readers_max,
        readers_per_tenant_max: api.readers_per_tenant_max,
        keep_alive: Duration::from_secs(api.keep_alive_seconds),
    }
}

/// How long things are kept; 0 days are for ever.
pub fn retention(config: &Config) -> Retention {
    let days = |days: u32| (days > 0).then(|| Duration::from_secs(u64::from(days) * 24 * 60 * 60));
    Retention {
        events: days(config.relay.retention_days),
        history: days(config.campaigns.history_days),
        items: days(config.campaigns.retention_days),
        export_dir: config.campaigns.export_dir.clone(),
        messages: days(config.channels.retention_days),
        runs: days(config.jobs.retention_days),
        every: RETENTION_EVERY,
    }
}

#[cfg(feature = "nats")]
mod nats {
    use std::path::Path;

    use anyhow::Context;
    use postrider_providers::NatsCredentials;

    use crate::config::Hidden;

    /// At most one way to say who we are.
    pub(super) fn credentials(
        token: Option<&Hidden>,
        user: Option<&str>,
        password: Option<&Hidden>,
        file: Option<&Path>,
    ) -> anyhow::Result<Option<NatsCredentials>> {
        Ok(match (token, user, password, file) {
            (None, None, None, None) => None,
            (Some(token), None, None, None) => Some(NatsCredentials::Token(token.0.clone())),
            (None, Some(user), Some(password), None) => {
                Some(NatsCredentials::UserPassword { user: user.to_owned(), password: password.0.clone() })
            }
            (None, None, None, Some(file)) => {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("cannot read credentials_file {}", file.display()))?;
                Some(NatsCredentials::Creds(text.into()))
            }
            _ => anyhow::bail!("give either a token, or user and password, or a credentials_file"),
        })
    }
}

/// Where this process keeps what it knows to be committed.
pub async fn witness_place(config: &Config, installation: &Installation) -> anyhow::Result<Place> {
    let dir = match &config.witness.dir {
        Some(dir) => Some(dir.clone()),
        // Without a home there is no default.
        None => installation.state_dir(config).ok().map(|state| state.join("witness")),
    };
    let database = match &config.witness.url {
        Some(url) => Some(WitnessDatabase::open(url.expose()).await.context("witness.url")?),
        None => None,
    };
    Ok(Place {
        dir,
        is_required: config.witness.dir.is_some(),
        is_beside_the_database: installation.is_private() && config.witness.dir.is_none(),
        database,
    })
}

/// Names this process to people.
pub fn process_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().take(200).collect();
    format!("{host}:{}", std::process::id())
}

//! The settings. Every key of `postrider.toml` is a field here; `docs/operations.md` explains each of them.
//!
//! Secrets have types of their own that print as `(hidden)`.
//!
//! ```
//! use postrider::Config;
//!
//! # fn main() -> Result<(), postrider::Error> {
//! let mut config = Config::from_toml("[http]\nlisten = '127.0.0.1:0'")?;
//! config.database.url = Some("postgres://server@db.example.com/shop".into());
//! config.check()?;
//! # Ok(())
//! # }
//! ```

mod api;
mod campaigns;
mod channels;
mod jobs;
mod mistakes;
mod relay;
mod secrets;

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Context;
use postrider_model::seal::MasterKey;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use crate::Error;

pub use self::{
    api::Api,
    campaigns::{Campaigns, Resolver},
    channels::{ChannelOutbox, Channels},
    jobs::Jobs,
    relay::{Relay, Sink},
    secrets::{Address, DatabaseUrl, Hidden},
};

/// Everything that can be set.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the private cluster and its files live when no database URL is given.
    pub data_dir: Option<PathBuf>,
    /// 32 bytes in base64 under which provider secrets are sealed.
    pub master_key: Option<Hidden>,
    /// A file with the master key, for those who give secrets as files. Only its owner may read it.
    pub master_key_file: Option<PathBuf>,
    /// The master key before the current one, while a rotation is under way.
    pub master_key_previous: Option<Hidden>,
    /// The same in a file.
    pub master_key_previous_file: Option<PathBuf>,
    /// Logins and connections.
    pub database: Database,
    /// The HTTP listener.
    pub http: Http,
    /// The listener of the metrics.
    pub metrics: Metrics,
    /// Limits of the HTTP API.
    pub api: Api,
    /// Logs of the program `postrider`; the library sets up none.
    pub log: Log,
    /// Addresses that may be called.
    pub outbound: Outbound,
    /// The campaign worker.
    pub campaigns: Campaigns,
    /// The resolver of items in doubt.
    pub resolver: Resolver,
    /// Chat messages and replies.
    pub channels: Channels,
    /// The scheduler and the job runner.
    pub jobs: Jobs,
    /// The relay and its sinks.
    pub relay: Relay,
    /// Where processes keep what they know to be committed.
    pub witness: Witness,
    /// Whether the command only reads; then a private cluster must exist already.
    #[doc(hidden)]
    #[serde(skip)]
    pub only_reads: bool,
}

/// Where processes keep what they know to be committed, outside the database.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Witness {
    /// A directory on this machine. Default: `witness` in the data directory.
    pub dir: Option<PathBuf>,
    /// A second database, in another cluster.
    pub url: Option<DatabaseUrl>,
}

/// Logins and connections. Without a URL, a private PostgreSQL runs in the data directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// The login that serves. With it set, nothing is ever started.
    pub url: Option<DatabaseUrl>,
    /// The login that migrates and makes tenants. Default: `url`.
    pub admin_url: Option<DatabaseUrl>,
    /// The login of HTTP requests, a member of postrider_app. Default: `url`.
    pub app_url: Option<DatabaseUrl>,
    /// A direct way to the server, where `url` leads through a pooler. Default: `url`.
    pub listen_url: Option<DatabaseUrl>,
    /// Where the server's binaries are, for the private cluster. Default: the newest installed.
    pub bin_dir: Option<PathBuf>,
    /// Most connections of each pool.
    pub connections_max: u32,
    /// Whether the URLs came from --database-url; then errors name the flag.
    #[doc(hidden)]
    #[serde(skip)]
    pub is_flag: bool,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url: None,
            admin_url: None,
            app_url: None,
            listen_url: None,
            bin_dir: None,
            connections_max: 4,
            is_flag: false,
        }
    }
}

/// The HTTP listener.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Where to serve. Port 0 picks a free one.
    pub listen: SocketAddr,
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 8080)) }
    }
}

/// The listener of the metrics.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Where to serve metrics, instead of beside the API. Port 0 picks a free one.
    pub listen: Option<SocketAddr>,
}

/// Logs of the program `postrider`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// How log lines look.
    pub format: LogFormat,
    /// The log filter, such as `info` or `warn,postrider_engine=debug`.
    pub filter: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object per line.
    Json,
}

/// Addresses that may be called.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outbound {
    /// Lets development reach loopback, private addresses and plain http. Never in production.
    pub allow_private: bool,
}

/// A number, the bounds it must keep, and why.
type Bounded = (&'static str, u64, std::ops::RangeInclusive<u64>, &'static str);

fn within(section: &str, numbers: impl IntoIterator<Item = Bounded>) -> anyhow::Result<()> {
    for (key, value, bounds, why) in numbers {
        anyhow::ensure!(
            bounds.contains(&value),
            "{section}.{key} must lie between {} and {}{why}",
            bounds.start(),
            bounds.end()
        );
    }
    Ok(())
}

impl Config {
    /// Reads the text of a configuration file and checks it. Unknown keys are errors, and an error repeats no value, because it may be
    /// a secret.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        let config: Self =
            toml::from_str(text).map_err(|error| Error::from(mistakes::explain(text, &error)))?;
        config.check()?;
        Ok(config)
    }

    /// Checks what the types cannot say, such as the bounds of numbers. [`serve`](crate::serve()) checks it, too.
    pub fn check(&self) -> Result<(), Error> {
        self.within_bounds().map_err(Error::from)
    }

    fn within_bounds(&self) -> anyhow::Result<()> {
        for (name, key, file) in [
            ("master_key", &self.master_key, &self.master_key_file),
            ("master_key_previous", &self.master_key_previous, &self.master_key_previous_file),
        ] {
            if let Some(Hidden(key)) = key {
                key.expose_secret().parse::<MasterKey>().context(name)?;
                anyhow::ensure!(file.is_none(), "{name} and {name}_file are both set; keep one of them");
            }
        }
        anyhow::ensure!(
            (self.master_key_previous.is_none() && self.master_key_previous_file.is_none())
                || self.master_key.is_some()
                || self.master_key_file.is_some(),
            "master_key_previous is set, and master_key is not; master_key is the new key"
        );
        self.api.check()?;
        self.campaigns.check()?;
        self.resolver.check()?;
        self.channels.check()?;
        self.jobs.check()?;
        let relay = &self.relay;
        anyhow::ensure!(
            (1..=10_000).contains(&relay.batch_size),
            "relay.batch_size must lie between 1 and 10000"
        );
        anyhow::ensure!(
            (1..=100_000).contains(&relay.in_flight_max),
            "relay.in_flight_max must lie between 1 and 100000"
        );
        anyhow::ensure!(
            (10..=60_000).contains(&relay.poll_interval_ms),
            "relay.poll_interval_ms must lie between 10 and 60000"
        );
        anyhow::ensure!(
            (1..=100).contains(&relay.delivery_timeout_seconds),
            "relay.delivery_timeout_seconds must lie between 1 and 100: a claim lasts five minutes"
        );
        anyhow::ensure!(relay.stuck_after_retries <= 1_000_000, "relay.stuck_after_retries is too large");
        anyhow::ensure!(
            (2..=1000).contains(&self.database.connections_max),
            "database.connections_max must lie between 2 and 1000"
        );
        for (name, sink) in &relay.sinks {
            let (Sink::Http { events, concurrency, .. } | Sink::Nats { events, concurrency, .. }) = sink;
            anyhow::ensure!(
                !events.is_empty(),
                "relay.sinks.{name}.events is empty; leave it out to get every event"
            );
            anyhow::ensure!(*concurrency > 0, "relay.sinks.{name}.concurrency must be at least 1");
            if let Sink::Nats { servers, .. } = sink {
                anyhow::ensure!(
                    servers.iter().all(|Address(url)| url.username().is_empty() && url.password().is_none()),
                    "relay.sinks.{name}.servers holds a name or password; put them into user and password"
                );
            }
        }
        Ok(())
    }

    /// As TOML, without secrets.
    pub fn print(&self) -> anyhow::Result<String> {
        Ok(toml::to_string_pretty(self)?)
    }
}

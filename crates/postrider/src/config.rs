//! Configuration: `postrider.toml`, then `POSTRIDER_…` from the environment, then flags.
//!
//! Every key is a field here. A key that is not is refused, wherever it comes from. Secrets have a type of their
//! own that prints as `(hidden)`.

mod channels;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Context;
use figment::{
    Figment,
    error::{Actual, Kind},
    providers::{Env, Format, Serialized, Toml},
};
use postrider_api::HeaderValue;
use postrider_model::{Pattern, seal::MasterKey};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use url::Url;

pub use self::channels::Channels;

/// Where the configuration is looked for when no flag names a file.
pub const DEFAULT_FILE: &str = "postrider.toml";

/// Everything that can be set.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the private cluster and its files live when no database URL is given.
    pub data_dir: Option<PathBuf>,
    /// 32 bytes in base64 under which provider secrets are sealed.
    pub master_key: Option<Hidden>,
    pub database: Database,
    pub http: Http,
    pub api: Api,
    pub log: Log,
    pub outbound: Outbound,
    pub campaigns: Campaigns,
    pub resolver: Resolver,
    pub channels: Channels,
    pub relay: Relay,
}

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
        }
    }
}

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

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// How many requests a second one key may make, to one process. 0 is no limit.
    pub rate_per_second: u32,
    /// How many it may make at once.
    pub burst: u32,
    /// Where the pages come from that may read answers in a browser, such as `https://desk.example`.
    pub cors_origins: Vec<String>,
    /// Most readers of event streams that one process has.
    pub readers_max: usize,
    /// Most of them of one tenant.
    pub readers_per_tenant_max: usize,
    /// How long an event stream may be silent before a comment is sent.
    pub keep_alive_seconds: u64,
    /// A client that takes nothing of what it is sent for so long is cut off.
    pub write_timeout_seconds: u64,
    /// A client that has not sent the whole head of its next request after so long is cut off.
    pub header_timeout_seconds: u64,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            rate_per_second: 100,
            burst: 200,
            cors_origins: Vec::new(),
            readers_max: 10_000,
            readers_per_tenant_max: 5_000,
            keep_alive_seconds: 15,
            write_timeout_seconds: 30,
            header_timeout_seconds: 30,
        }
    }
}

impl Api {
    fn check(&self) -> anyhow::Result<()> {
        within(
            "api",
            [
                ("rate_per_second", u64::from(self.rate_per_second), 0..=1_000_000, ""),
                ("burst", u64::from(self.burst), 1..=1_000_000, ""),
                ("readers_max", self.readers_max as u64, 1..=1_000_000, ""),
                ("readers_per_tenant_max", self.readers_per_tenant_max as u64, 1..=1_000_000, ""),
                ("keep_alive_seconds", self.keep_alive_seconds, 1..=3600, ""),
                ("write_timeout_seconds", self.write_timeout_seconds, 1..=3600, ""),
                ("header_timeout_seconds", self.header_timeout_seconds, 1..=3600, ""),
            ],
        )?;
        for origin in &self.cors_origins {
            let whole = Url::parse(origin).ok().map(|url| url.origin().ascii_serialization());
            anyhow::ensure!(
                whole.as_ref() == Some(origin),
                "api.cors_origins: `{origin}` is not an origin; one is a scheme, a host and a port if it is not the usual one, \
                 such as https://desk.example"
            );
        }
        Ok(())
    }

    /// As a browser sends them.
    pub fn cors_origins(&self) -> Vec<HeaderValue> {
        self.cors_origins.iter().filter_map(|origin| origin.parse().ok()).collect()
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    pub format: LogFormat,
    /// What to log, such as `info` or `warn,postrider_engine=debug`.
    pub filter: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outbound {
    /// Lets development reach loopback, private addresses and plain http. Never in production.
    pub allow_private: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Campaigns {
    /// Most jobs that one process works on at a time.
    pub jobs_max: usize,
    /// Most of them for one tenant.
    pub jobs_per_tenant_max: usize,
    /// Most items of one job that are being called: what a crash can put in doubt.
    pub window: usize,
    /// Most calls at a time with one account, per process.
    pub account_concurrency: usize,
    /// How many connections write reservations and outcomes.
    pub commit_connections: u32,
    pub call_timeout_seconds: u64,
    /// A call begins within so long after its reservation, or not at all.
    pub call_within_seconds: u64,
    /// Most calls for one item, where provably nothing was sent.
    pub tries_max: u32,
    /// Longest time to wait for a provider that asks for it.
    pub wait_max_seconds: u64,
    /// An account that failed so many times in a row is left alone for a while.
    pub circuit_after: u32,
    /// How long a job stays away after its first attempt; then twice as long each time.
    pub retry_pause_seconds: u64,
    pub heartbeat_interval_seconds: u64,
    pub poll_interval_ms: u64,
    /// Days to keep what happened to campaigns. 0 keeps it for ever.
    pub history_days: u32,
}

impl Default for Campaigns {
    fn default() -> Self {
        Self {
            jobs_max: 16,
            jobs_per_tenant_max: 12,
            window: 64,
            account_concurrency: 64,
            commit_connections: 2,
            call_timeout_seconds: 60,
            call_within_seconds: 120,
            tries_max: 8,
            wait_max_seconds: 60,
            circuit_after: 10,
            retry_pause_seconds: 60,
            heartbeat_interval_seconds: 20,
            poll_interval_ms: 500,
            history_days: 90,
        }
    }
}

impl Campaigns {
    fn check(&self) -> anyhow::Result<()> {
        let bounds: [Bounded; 14] = [
            ("jobs_max", self.jobs_max as u64, 1..=1000, ""),
            ("jobs_per_tenant_max", self.jobs_per_tenant_max as u64, 1..=1000, ""),
            ("window", self.window as u64, 1..=1000, ""),
            ("account_concurrency", self.account_concurrency as u64, 1..=100_000, ""),
            ("commit_connections", u64::from(self.commit_connections), 1..=16, ""),
            ("call_timeout_seconds", self.call_timeout_seconds, 1..=120, ""),
            (
                "call_within_seconds",
                self.call_within_seconds,
                1..=300,
                ": negative evidence counts after the quiet time",
            ),
            ("tries_max", u64::from(self.tries_max), 1..=100, ""),
            ("wait_max_seconds", self.wait_max_seconds, 0..=300, ""),
            ("circuit_after", u64::from(self.circuit_after), 1..=1_000_000, ""),
            ("retry_pause_seconds", self.retry_pause_seconds, 1..=3600, ""),
            (
                "heartbeat_interval_seconds",
                self.heartbeat_interval_seconds,
                1..=60,
                ": a lock lasts five minutes",
            ),
            ("poll_interval_ms", self.poll_interval_ms, 10..=60_000, ""),
            ("history_days", u64::from(self.history_days), 0..=100_000, ""),
        ];
        within("campaigns", bounds)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resolver {
    /// Most items in doubt that one process looks into at a time.
    pub concurrency: usize,
    /// Most of them at one account.
    pub account_concurrency: usize,
    /// After a look that told nothing, half as long as the doubt is old is waited, and at least so long.
    pub retry_pause_seconds: u64,
    /// Longest such wait.
    pub retry_pause_max_seconds: u64,
    pub poll_interval_ms: u64,
}

impl Default for Resolver {
    fn default() -> Self {
        Self {
            concurrency: 32,
            account_concurrency: 8,
            retry_pause_seconds: 2,
            retry_pause_max_seconds: 300,
            poll_interval_ms: 1000,
        }
    }
}

impl Resolver {
    fn check(&self) -> anyhow::Result<()> {
        within(
            "resolver",
            [
                ("concurrency", self.concurrency as u64, 1..=1000, ""),
                ("account_concurrency", self.account_concurrency as u64, 1..=1000, ""),
                ("retry_pause_seconds", self.retry_pause_seconds, 1..=3600, ""),
                ("retry_pause_max_seconds", self.retry_pause_max_seconds, 1..=3600, ""),
                ("poll_interval_ms", self.poll_interval_ms, 10..=60_000, ""),
            ],
        )
    }
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

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Relay {
    pub batch_size: usize,
    /// Most events in memory at a time.
    pub in_flight_max: usize,
    pub poll_interval_ms: u64,
    pub delivery_timeout_seconds: u64,
    /// An event that failed more often is listed as stuck.
    pub stuck_after_retries: u32,
    /// Days to keep processed events. 0 keeps them for ever.
    pub retention_days: u32,
    /// Where events go, by name.
    pub sinks: BTreeMap<String, Sink>,
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            batch_size: 256,
            in_flight_max: 1024,
            poll_interval_ms: 500,
            delivery_timeout_seconds: 20,
            stuck_after_retries: 10,
            retention_days: 30,
            sinks: BTreeMap::new(),
        }
    }
}

/// A destination of events.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Sink {
    /// Signed HTTP requests (Standard Webhooks).
    Http {
        url: Address,
        /// `whsec_…`, the newest first; each signs, so that receivers can change over.
        secrets: Vec<Hidden>,
        #[serde(default = "everything")]
        events: Vec<Pattern>,
        #[serde(default = "concurrency")]
        concurrency: usize,
    },
    /// NATS JetStream.
    Nats {
        servers: Vec<Address>,
        /// Events go to this subject, followed by a dot and their type.
        subject: String,
        token: Option<Hidden>,
        user: Option<String>,
        password: Option<Hidden>,
        /// A credentials file of NATS (JWT and seed).
        credentials_file: Option<PathBuf>,
        #[serde(default = "everything")]
        events: Vec<Pattern>,
        #[serde(default = "concurrency")]
        concurrency: usize,
    },
}

fn everything() -> Vec<Pattern> {
    vec![Pattern::everything()]
}

fn concurrency() -> usize {
    64
}

/// What flags override.
#[derive(Debug, Default, Serialize)]
pub struct Overrides {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub database: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub http: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub log: BTreeMap<&'static str, String>,
}

impl Config {
    /// Reads everything there is to read. `file` must exist; the default file may.
    pub fn load(file: Option<&Path>, overrides: &Overrides) -> anyhow::Result<Self> {
        let mut figment = Figment::new();
        if let Some(file) = file {
            std::fs::metadata(file)
                .with_context(|| format!("cannot read the configuration {}", file.display()))?;
        }
        let file = file.unwrap_or(Path::new(DEFAULT_FILE));
        if file.exists() {
            figment = figment.merge(Toml::file_exact(file));
        }
        let config: Self = figment
            // POSTRIDER_CONFIG names the file, and POSTRIDER_API_KEY is for commands that ask a server; neither is a key of it.
            .merge(Env::prefixed("POSTRIDER_").ignore(&["config", "api_key"]).split("__"))
            .merge(Serialized::defaults(overrides))
            .extract()
            .map_err(explain)?;
        config.check()?;
        Ok(config)
    }

    /// What the types cannot say.
    fn check(&self) -> anyhow::Result<()> {
        if let Some(Hidden(key)) = &self.master_key {
            key.expose_secret().parse::<MasterKey>().context("master_key")?;
        }
        self.api.check()?;
        self.campaigns.check()?;
        self.resolver.check()?;
        self.channels.check()?;
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

/// One clause per mistake: where, what, and what would be right. Values are not repeated, because they may be secrets.
fn explain(error: figment::Error) -> anyhow::Error {
    let mistakes: Vec<String> = error
        .into_iter()
        .map(|error| {
            let from_environment =
                error.metadata.as_ref().is_some_and(|metadata| metadata.name.contains("environment"));
            let what = describe(&error.kind);
            if from_environment {
                let variable = format!("POSTRIDER_{}", error.path.join("__").to_uppercase());
                return format!("{variable}: {what}{}", advice_on_variables(&error.kind));
            }
            let place = match error.metadata.as_ref().and_then(|metadata| metadata.source.as_ref()) {
                Some(source) => source.to_string(),
                None => "the configuration".to_owned(),
            };
            let key = error.path.join(".");
            if key.is_empty() { format!("{place}: {what}") } else { format!("{place}, `{key}`: {what}") }
        })
        .collect();
    anyhow::anyhow!("{}; docs/operations.md lists every key", mistakes.join("; "))
}

fn describe(kind: &Kind) -> String {
    match kind {
        Kind::UnknownField(found, known) => {
            format!("there is no such key as `{found}`; here stand {}", known.join(", "))
        }
        Kind::UnknownVariant(found, known) => {
            format!("unknown value `{found}`; choose `{}`", known.join("` or `"))
        }
        Kind::MissingField(name) => format!("`{name}` is missing"),
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            let expected = match expected.as_str() {
                "a string" => "a text in quotes",
                "usize" | "u64" | "u32" => "a whole number",
                "f64" => "a number",
                "socket address" => "an address with a port, such as \"127.0.0.1:8080\"",
                "a sequence" => "a list, such as [\"…\"]",
                "struct Database"
                | "struct Http"
                | "struct Log"
                | "struct Outbound"
                | "struct Campaigns"
                | "struct Resolver"
                | "struct Channels"
                | "struct ChannelOutbox"
                | "struct Relay"
                | "internally tagged enum Sink" => "a section with keys of its own",
                other => other,
            };
            format!("this must be {expected}, not {}", kind_of(found))
        }
        // The parser shows the line that it could not read, and with it perhaps a secret.
        Kind::Message(text) if text.starts_with("TOML parse error") => {
            let is_quotation = |line: &&str| {
                line.trim_start_matches([' ', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'])
                    .starts_with('|')
            };
            let lines: Vec<&str> = text.lines().filter(|line| !is_quotation(line)).map(str::trim).collect();
            lines.join(": ").trim_end_matches([':', ' ']).to_owned()
        }
        other => other.to_string().trim().replace('\n', " "),
    }
}

fn kind_of(found: &Actual) -> &'static str {
    match found {
        Actual::Bool(_) => "true or false",
        Actual::Unsigned(_) | Actual::Signed(_) | Actual::Float(_) => "a number",
        Actual::Char(_) | Actual::Str(_) => "a text",
        Actual::Seq => "a list",
        Actual::Map => "a section",
        _ => "this",
    }
}

/// What people get wrong about environment variables.
fn advice_on_variables(kind: &Kind) -> String {
    match kind {
        Kind::UnknownField(found, _) => {
            let sections = [
                "database",
                "http",
                "log",
                "outbound",
                "campaigns",
                "resolver",
                "channels_outbox",
                "channels",
                "relay",
            ];
            let meant = sections
                .iter()
                .find_map(|section| Some((section, found.strip_prefix(section)?.strip_prefix('_')?)));
            meant.map_or_else(String::new, |(section, key)| {
                let right = format!("POSTRIDER_{}__{key}", section.replace('_', "__")).to_uppercase();
                format!("; two underscores lead into a section: {right}")
            })
        }
        Kind::InvalidType(_, expected) if expected == "a string" => {
            r#"; what looks like a number needs quotes of its own: '"…"'"#.to_owned()
        }
        _ => String::new(),
    }
}

/// A secret from the configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub struct Hidden(pub SecretString);

impl Serialize for Hidden {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("(hidden)")
    }
}

/// A URL of the outside world. What may be secret in it is not shown.
#[derive(Clone)]
pub struct Address(pub Url);

impl Address {
    fn shown(&self) -> Url {
        let mut url = self.0.clone();
        if url.password().is_some() {
            let _ = url.set_password(Some("(hidden)"));
        }
        // A path can be a token, too.
        if url.path() != "/" && !url.path().is_empty() {
            url.set_path("/(hidden)");
        }
        url.set_query(None);
        url
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let not_one = |error| {
            D::Error::custom(format!(
                "a URL of this sink cannot be read: {error}; it looks like https://example.com/hooks"
            ))
        };
        Url::parse(&text).map(Self).map_err(not_one)
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.shown().as_str())
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.shown().as_str())
    }
}

/// A database URL. Its password is a secret.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub struct DatabaseUrl(SecretString);

impl DatabaseUrl {
    /// The whole URL, password and all.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl From<String> for DatabaseUrl {
    fn from(url: String) -> Self {
        Self(url.into())
    }
}

impl Serialize for DatabaseUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match Url::parse(self.expose()) {
            // A second `@` means that the password was not escaped and stands where it does not belong.
            Ok(url) if url.as_str().matches('@').count() > 1 || url.path().contains('@') => {
                serializer.serialize_str("(hidden)")
            }
            Ok(mut url) => {
                if url.password().is_some() {
                    let _ = url.set_password(Some("(hidden)"));
                }
                // A password may also stand among the parameters.
                if url.query_pairs().any(|(name, _)| name.contains("password")) {
                    url.set_query(Some("(hidden)"));
                }
                serializer.serialize_str(url.as_str())
            }
            Err(_) => serializer.serialize_str("(not a URL)"),
        }
    }
}

#[cfg(test)]
mod tests;

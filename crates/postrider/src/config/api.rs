//! The HTTP API.

use postrider_api::{HeaderValue, TrustedProxies};
use serde::{Deserialize, Serialize};
use url::Url;

use super::within;

/// Limits of the HTTP API, per process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// How many requests a second one key may make, to one process. 0 is no limit.
    pub rate_per_second: u32,
    /// How many it may make at once.
    pub burst: u32,
    /// How many requests a second with invalid keys one client address may make, to one process. 0 is no limit.
    pub invalid_keys_per_second: u32,
    /// How many of them it may make at once.
    pub invalid_keys_burst: u32,
    /// Proxies whose `X-Forwarded-For` names the client: addresses and networks, such as `10.0.0.0/8`.
    pub trusted_proxies: Vec<String>,
    /// A session of the dashboard ends after so many hours without a request.
    pub session_idle_hours: u32,
    /// A session ends so many days after sign-in at the latest.
    pub session_days_max: u32,
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
            invalid_keys_per_second: 20,
            invalid_keys_burst: 100,
            trusted_proxies: Vec::new(),
            session_idle_hours: 12,
            session_days_max: 7,
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
    pub(super) fn check(&self) -> anyhow::Result<()> {
        within(
            "api",
            [
                ("rate_per_second", u64::from(self.rate_per_second), 0..=1_000_000, ""),
                ("burst", u64::from(self.burst), 1..=1_000_000, ""),
                ("invalid_keys_per_second", u64::from(self.invalid_keys_per_second), 0..=1_000_000, ""),
                ("invalid_keys_burst", u64::from(self.invalid_keys_burst), 1..=1_000_000, ""),
                ("session_idle_hours", u64::from(self.session_idle_hours), 1..=8_760, ""),
                ("session_days_max", u64::from(self.session_days_max), 1..=365, ""),
                ("readers_max", self.readers_max as u64, 1..=1_000_000, ""),
                ("readers_per_tenant_max", self.readers_per_tenant_max as u64, 1..=1_000_000, ""),
                ("keep_alive_seconds", self.keep_alive_seconds, 1..=3600, ""),
                ("write_timeout_seconds", self.write_timeout_seconds, 1..=3600, ""),
                ("header_timeout_seconds", self.header_timeout_seconds, 1..=3600, ""),
            ],
        )?;
        self.trusted_proxies()?;
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

    /// The proxies, read.
    pub fn trusted_proxies(&self) -> anyhow::Result<TrustedProxies> {
        TrustedProxies::parse(&self.trusted_proxies)
            .map_err(|error| anyhow::anyhow!("api.trusted_proxies: {error}"))
    }

    /// As a browser sends them.
    pub fn cors_origins(&self) -> Vec<HeaderValue> {
        self.cors_origins.iter().filter_map(|origin| origin.parse().ok()).collect()
    }
}

//! Domain events, and where they go.

use std::{collections::BTreeMap, path::PathBuf};

use postrider_model::Pattern;
use serde::{Deserialize, Serialize};

use super::{Address, Hidden};

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

//! Domain events, and where they go.

use std::{collections::BTreeMap, path::PathBuf};

use postrider_model::Pattern;
use serde::{Deserialize, Serialize};

use super::{Address, Hidden};

/// The relay and its sinks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Relay {
    /// Most events per claim.
    pub batch_size: usize,
    /// Most events in memory at a time.
    pub in_flight_max: usize,
    /// How often to look for events without a hint.
    pub poll_interval_ms: u64,
    /// How long one delivery may take.
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
        /// The receiver.
        url: Address,
        /// `whsec_…`, the newest first; each signs, so that receivers can change over.
        secrets: Vec<Hidden>,
        /// Patterns of the event types that it gets; every event by default.
        #[serde(default = "everything")]
        events: Vec<Pattern>,
        /// Most deliveries at a time.
        #[serde(default = "concurrency")]
        concurrency: usize,
    },
    /// NATS JetStream.
    Nats {
        /// Servers of one NATS cluster.
        servers: Vec<Address>,
        /// Events go to this subject, followed by a dot and their type.
        subject: String,
        /// A token, instead of user and password or a file.
        token: Option<Hidden>,
        /// A user, with its password.
        user: Option<String>,
        /// The password of the user.
        password: Option<Hidden>,
        /// A credentials file of NATS (JWT and seed).
        credentials_file: Option<PathBuf>,
        /// Patterns of the event types that it gets; every event by default.
        #[serde(default = "everything")]
        events: Vec<Pattern>,
        /// Most deliveries at a time.
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

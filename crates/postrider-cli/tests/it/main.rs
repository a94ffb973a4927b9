//! End-to-end tests: real Postgres, real processes, providers that keep their own receipts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops there")]

use postrider_testkit::{dying, http, postgres, sql, world};

mod adapters;
mod api;
mod campaigns;
mod cargo;
mod catalogue;
mod channels;
mod cli;
mod contract;
mod crash;
mod docs;
mod embedded_mode;
mod execution;
mod hints;
mod jetstream;
mod jobs;
mod library;
mod limits;
mod master_key;
mod migrations;
mod packaging;
mod phases;
mod pool;
mod pooler;
mod project;
mod relay;
mod resolver;
mod restored;
mod serving;
mod sinks;
mod stream;
mod terminal;
mod transitions;

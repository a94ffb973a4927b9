//! End-to-end tests: real Postgres, real processes, providers that keep their own receipts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops there")]

mod adapters;
mod api;
mod campaigns;
mod catalogue;
mod channels;
mod cli;
mod contract;
mod crash;
mod docs;
mod dying;
mod embedded_mode;
mod execution;
mod hints;
mod http;
mod jetstream;
mod jobs;
mod limits;
mod master_key;
mod migrations;
mod packaging;
mod phases;
mod pool;
mod pooler;
mod postgres;
mod relay;
mod resolver;
mod restored;
mod serving;
mod sinks;
mod sql;
mod stream;
mod terminal;
mod transitions;
mod world;

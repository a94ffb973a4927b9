//! End-to-end tests: real Postgres, real processes, providers that keep their own receipts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops there")]

use postrider_testkit::{exits, http, sql, world};

mod api;
mod campaigns;
mod channels;
mod cli;
mod dashboard;
mod docs;
mod events;
mod jobs;
mod library;
mod postgres;
mod project;
mod serving;
mod tenancy;

//! Postrider as a library: an execution kernel for outbound side effects on Postgres, inside an application.
//!
//! | an application wants to | module or function | program in `examples/` |
//! |---|---|---|
//! | publish an event in its own transaction | [`events::publish`] | `publish.rs` |
//! | run a relay with a handler written in Rust | [`relay::run`] | `relay_handler.rs` |
//! | write an adapter for a provider | [`adapters`] | `adapter.rs` |
//! | register Rust functions for scheduled jobs | [`functions`] | `function.rs` |
//! | run the whole server, as `postrider serve` does | [`serve()`], [`Server`] | `serve.rs` |
//!
//! [`Config`] is what `postrider.toml` holds: made in code, or read with [`Config::from_toml`]. The program `postrider`
//! (`crates/postrider-cli`) adds commands, flags, `POSTRIDER_…` variables and the set-up of logs; this library prints nothing.
//!
//! The layers below are [`model`] (rules), [`store`] (SQL), [`providers`] (calls), [`engine`] (loops) and [`api`] (HTTP).

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod adapters;
pub mod config;
#[doc(hidden)]
pub mod connections;
mod error;
pub mod events;
pub mod functions;
#[doc(hidden)]
pub mod installation;
#[doc(hidden)]
pub mod logins;
pub mod relay;
mod serve;
#[doc(hidden)]
pub mod wire;

pub use async_trait::async_trait;
pub use postrider_api as api;
pub use postrider_engine as engine;
pub use postrider_model as model;
pub use postrider_providers as providers;
pub use postrider_store as store;
pub use postrider_store::{PgConnection, StoreError};
pub use tokio_util::sync::CancellationToken;

pub use self::{
    config::Config,
    error::Error,
    serve::{Role, Server, serve},
};

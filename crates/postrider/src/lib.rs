//! x
#![warn(missing_docs)]
pub mod config;
#[doc(hidden)]
pub mod connections;
mod error;
#[doc(hidden)]
pub mod installation;
mod serve;
#[doc(hidden)]
pub mod wire;

pub use config::Config;
pub use error::Error;
pub use postrider_api as api;
pub use postrider_engine as engine;
pub use postrider_model as model;
pub use postrider_providers as providers;
pub use postrider_store as store;
pub use serve::{Role, Server, serve};

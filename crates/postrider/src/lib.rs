//! Postrider as a library.
//!
//! Publish an event inside your own transaction with [`store::events::publish`], and run a relay with a handler of
//! your own. All relays of a database must have the same sinks: the first one registers them, and one with others is refused.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use postrider::{
//!     engine::{Relay, RelaySettings, Route},
//!     model::{Pattern, sink},
//!     store::{events, pool, wakeups},
//! };
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "postgres://postrider_worker@localhost/shop";
//! let shutdown = CancellationToken::new();
//! let pool = pool::connect(url, pool::Settings::default()).await?;
//! let (wakeups, listening) = wakeups::listen(url, events::HINT_CHANNEL, shutdown.clone())?;
//! tokio::spawn(listening);
//! let print = sink::handler(|event| {
//!     let line = format!("{} {}", event.id, event.event_type);
//!     async move {
//!         println!("{line}");
//!         Ok(())
//!     }
//! });
//! let route = Route {
//!     name: "print".to_owned(),
//!     events: vec![Pattern::everything()],
//!     concurrency: 16,
//!     sink: Arc::new(print),
//! };
//! Relay::new(pool, wakeups, vec![route], RelaySettings::default()).await?.run(shutdown).await;
//! # Ok(())
//! # }
//! ```

pub use postrider_api as api;
pub use postrider_engine as engine;
pub use postrider_model as model;
pub use postrider_providers as providers;
pub use postrider_store as store;

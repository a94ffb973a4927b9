//! Runs a relay whose sinks are Rust code.
//!
//! A sink is an [`EventSink`], or an async function in a [`handler`]. The relay claims events, hands each to every [`Route`] that wants
//! it, and completes it when all of them took it. An error, a panic or a timeout is a failed delivery, which is repeated: a sink
//! recognises a repeat by the id of the event.
//!
//! All relays of a database have the same sinks. The first one registers them; a relay with others is refused. A route is known by its
//! name. `examples/relay_handler.rs` is a whole program.

pub use postrider_engine::{RelayError, RelaySettings, Route};
pub use postrider_model::{Destination, Event, EventSink, Pattern, SinkError, events::sink::handler};

use postrider_engine::{
    Relay,
    common::supervised::{panicked, supervised},
};
use postrider_store::{
    events,
    postgres::{pool, wakeups},
};
use tokio_util::sync::CancellationToken;

use crate::logins::{RELAY, checked};

/// Relays events to these routes until `shutdown` is cancelled; then it finishes the deliveries under way.
///
/// `database_url` is a login that is a member of `postrider_worker`. A database that may lose what it acknowledged, or whose schema this
/// version was not made for, is refused.
pub async fn run(
    database_url: &str,
    routes: Vec<Route>,
    settings: RelaySettings,
    shutdown: CancellationToken,
) -> Result<(), RelayError> {
    let pool = checked(pool::connect(database_url, pool::Settings::default()).await?, RELAY).await?;
    // The listener ends with this function, also when the relay does not start.
    let over = shutdown.child_token();
    let _over = over.clone().drop_guard();
    let (wakeups, listening) = wakeups::listen(database_url, events::HINT_CHANNEL, over.clone())?;
    let relay = Relay::new(pool.clone(), wakeups, routes, settings).await?;
    let listening = tokio::spawn(supervised("listener", listening));
    let relaying = tokio::spawn(supervised("relay", relay.run(over)));
    let ended = tokio::select! {
        _ = relaying => Ok(()),
        task = panicked() => Err(RelayError::Panicked(task)),
    };
    listening.abort();
    pool.close().await;
    ended
}

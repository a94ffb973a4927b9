//! Registers the Rust functions of this process in the database, so that the API and the CLI of any process can set them.

use std::{sync::Arc, time::Duration};

use postrider_store::jobs::functions;
use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::common::round::within;

/// How often the registration is renewed.
const EVERY: Duration = Duration::from_secs(10);

/// A registration that was not renewed for so long is that of a dead process.
const LEASE: Duration = Duration::from_secs(60);

/// Registers the functions until shutdown, and removes them then. Functions that come with Postrider need no registration.
pub(super) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let names = shared.functions.own_names();
    if names.is_empty() {
        return;
    }
    let mut is_registered = false;
    loop {
        match within(functions::provide(&shared.pool, &shared.name, &names, LEASE)).await {
            Ok(()) if is_registered => {}
            Ok(()) => {
                tracing::info!(runner = shared.name, functions = ?names, "the runner provides Rust functions");
                is_registered = true;
            }
            Err(error) => {
                tracing::warn!(
                    ?error,
                    "failed to register the Rust functions; retrying in {EVERY:?}: {error}"
                );
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
    if let Err(error) = within(functions::withdraw(&shared.pool, &shared.name)).await {
        tracing::warn!(?error, "failed to remove the Rust functions, which expire by themselves: {error}");
    }
}

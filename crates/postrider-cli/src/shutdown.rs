//! The first SIGTERM or SIGINT drains, the second one stops.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that the first signal cancels.
pub fn on_signal() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        tracing::info!("shutting down: finishing what is under way; a second signal stops at once");
        cancelled.cancel();
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        message!("stopped by a second signal; what was under way is left as after a crash");
        std::process::exit(130);
    });
    Ok(token)
}

//! The first SIGTERM or SIGINT drains the process, the second one stops it at once.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Returns a token that the first signal cancels.
pub fn on_signal() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        tracing::info!("draining work in progress; a second signal stops the process at once");
        cancelled.cancel();
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        message!("a second signal stopped the process; its unfinished work is recovered as after a crash");
        std::process::exit(130);
    });
    Ok(token)
}

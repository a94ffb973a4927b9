//! Postrider's HTTP side.
//!
//! Every route is in [`router`]. A handler authenticates, loads, decides, writes and answers, in that order; one
//! `match` in `error.rs` turns errors into statuses.

mod auth;
mod callbacks;
mod error;
mod health;
mod router;

use std::{future::IntoFuture, time::Duration};

use postrider_store::Pool;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use callbacks::CallbackKeys;
pub use metrics_exporter_prometheus::PrometheusHandle;
pub use router::router;

/// What the handlers share.
#[derive(Clone)]
pub struct App {
    /// Connections as `postrider_app`.
    pub pool: Pool,
    /// The metrics of this process.
    pub metrics: PrometheusHandle,
    /// Cancelled when the process begins to drain: then it is alive and not ready.
    pub draining: CancellationToken,
    /// Whether this process serves `/api/v2`, or only says how it is.
    pub serves_api: bool,
    /// What it takes to verify callbacks of providers; without it they are put off.
    pub callbacks: Option<CallbackKeys>,
}

/// Starts to collect the metrics of this process. Once per process.
pub fn collect_metrics() -> Result<PrometheusHandle, metrics_exporter_prometheus::BuildError> {
    metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()
}

/// How long requests may take to finish once the process shuts down. A client that never finishes its request must
/// not keep it from ending.
const GRACE: Duration = Duration::from_secs(5);

/// Serves until shutdown, then lets the requests that are under way finish.
pub async fn serve(listener: TcpListener, app: App, shutdown: CancellationToken) -> std::io::Result<()> {
    let ended = shutdown.clone().cancelled_owned();
    let out_of_time = async {
        shutdown.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = axum::serve(listener, router(app)).with_graceful_shutdown(ended).into_future() => served,
        () = out_of_time => {
            tracing::warn!("closed connections whose requests were not over {GRACE:?} after the shutdown");
            Ok(())
        }
    }
}

//! Postrider's HTTP side.
//!
//! Every route is in [`router`]. A handler authenticates, loads, decides, writes and answers, in that order; one
//! `match` in `error.rs` turns errors into statuses.

mod auth;
mod body;
mod callbacks;
mod docs;
mod error;
mod health;
mod listener;
mod paging;
mod requests;
mod resources;
mod router;
mod stream;
mod throttle;

use std::{future::IntoFuture, time::Duration};

use postrider_providers::Adapters;
use postrider_store::Pool;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use axum::http::HeaderValue;
pub use callbacks::CallbackKeys;
pub use metrics_exporter_prometheus::PrometheusHandle;
pub use router::{document, router};
pub use stream::{Hub, StreamSettings};
pub use throttle::Throttle;

use self::listener::Door;

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
    /// The vendors that this version can call.
    pub adapters: Adapters,
    /// What it takes to verify callbacks of providers; without it they are put off.
    pub callbacks: Option<CallbackKeys>,
    /// How fast each key may ask.
    pub throttle: Throttle,
    /// Where the pages come from that may read answers in a browser.
    pub cors_origins: Vec<HeaderValue>,
    /// Who reads what happens to campaigns.
    pub stream: Hub,
    /// How long a peer may take nothing of what it is sent.
    pub write_timeout: Duration,
    /// From how many failures on an event is stuck.
    pub stuck_after: i32,
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
    let listener = Door { listener, write_timeout: app.write_timeout };
    // Made once and shared: a bare router would be built anew for each connection, and kept as long as it lasts.
    let routes = router(app).into_make_service();
    let ended = shutdown.clone().cancelled_owned();
    let out_of_time = async {
        shutdown.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = axum::serve(listener, routes).with_graceful_shutdown(ended).into_future() => served,
        () = out_of_time => {
            tracing::warn!("closed connections whose requests were not over {GRACE:?} after the shutdown");
            Ok(())
        }
    }
}

//! Postrider's HTTP side.
//!
//! Every route is in [`router`]. A handler authenticates, loads, decides, writes and answers, in that order; one
//! `match` in `error.rs` turns errors into statuses.

mod campaigns;
mod channels;
mod common;
pub mod dashboard;
mod events;
mod jobs;
mod router;
mod tenancy;

use std::{sync::Arc, time::Duration};

use axum::{Extension, Router, middleware::AddExtension};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use postrider_engine::{
    Health, Hints,
    common::metrics::{self as meters, Kind, METRICS},
};
use postrider_model::seal::MasterKey;
use postrider_providers::{Adapters, Policy};
use postrider_store::{Pool, tenancy::sessions::Lifetimes};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Layer;

pub use axum::http::HeaderValue;
pub use campaigns::callbacks::CallbackKeys;
pub use campaigns::stream::{Hub, StreamSettings};
pub use campaigns::unsubscribe::Unsubscribing;
pub use channels::ingress::Ingress;
pub use common::peers::{NotANetwork, TrustedProxies};
pub use common::throttle::{Throttle, ThrottleSettings};
pub use jobs::run_waiters::{RunWaiters, Waiter};
pub use metrics_exporter_prometheus::{BuildError, PrometheusHandle};
pub use router::{document, router};
pub use tenancy::{
    catalogue::{Catalogue, catalogue},
    overview::{Overview, Overviews},
};

use self::common::{
    listener::{BoundedListener, Connection},
    peers::Peer,
};

/// The state that handlers share.
#[derive(Clone)]
pub struct App {
    /// Connections as `postrider_app`.
    pub pool: Pool,
    /// Connections of the same kind for imports, which take long, so that other requests do not wait for them.
    pub import_pool: Pool,
    /// The metrics of this process.
    pub metrics: PrometheusHandle,
    /// Cancelled when the process begins to drain: then it is alive and not ready.
    pub draining: CancellationToken,
    /// Whether the loops of this process can work.
    pub health: Vec<Health>,
    /// Whether `/api/v2` is served, or only health and metrics.
    pub serves_api: bool,
    /// Whether `/metrics` is served, or has a listener of its own.
    pub serves_metrics: bool,
    /// Why the sending roles of this process wait.
    pub sending_waits: Option<Arc<str>>,
    /// The vendors that this version can call.
    pub adapters: Adapters,
    /// Longest time from a reservation to the end of its call.
    pub call_max: Duration,
    /// Verifies callbacks of providers. Without it the server answers them with 503.
    pub callbacks: Option<CallbackKeys>,
    /// Links to unsubscribe.
    pub unsubscribing: Unsubscribing,
    /// Receives messages. Without it the server answers webhooks with 503.
    pub ingress: Option<Ingress>,
    /// The policy for URLs that tenants set.
    pub outbound: Policy,
    /// How long sessions of the dashboard last.
    pub sessions: Lifetimes,
    /// Limits of requests per key, and of failed look-ups of keys per client address.
    pub throttle: Throttle,
    /// Proxies whose `X-Forwarded-For` names the client.
    pub trusted_proxies: TrustedProxies,
    /// Origins whose pages may read responses in a browser.
    pub cors_origins: Vec<HeaderValue>,
    /// The parts that set and invoke functions.
    pub jobs: Jobs,
    /// Streams of campaign events.
    pub stream: Hub,
    /// Maximum time in which a peer accepts no data.
    pub write_timeout: Duration,
    /// Maximum time for the head of a peer's next request.
    pub header_timeout: Duration,
    /// Maximum number of connections of this process. Further ones wait to be accepted.
    pub connections_max: usize,
    /// Number of failures from which on an event is stuck.
    pub stuck_after: i32,
    /// Reads the overviews of tenants.
    pub overviews: Overviews,
    /// Build of the dashboard in this program.
    pub build: Option<&'static str>,
}

/// The parts that set and invoke functions.
#[derive(Clone)]
pub struct Jobs {
    /// Seals the secrets of HTTP functions. Without it no HTTP function can be set.
    pub master_key: Option<MasterKey>,
    /// The schemas whose SQL functions may be set: `jobs.sql_schemas`.
    pub sql_schemas: Vec<String>,
    /// Wakes the runners, on [`postrider_store::jobs::runs::HINT_CHANNEL`].
    pub hints: Hints,
    /// Makes the runners release cancelled runs, on [`postrider_store::jobs::runs::CANCEL_CHANNEL`].
    pub cancels: Hints,
    /// The callers that wait for runs.
    pub run_waiters: RunWaiters,
}

/// Starts to collect the metrics of this process. Once per process, inside the runtime.
pub fn collect_metrics() -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for metric in METRICS {
        if let Kind::Histogram(buckets) = metric.kind {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)?;
        }
    }
    let metrics = builder.install_recorder()?;
    meters::describe();
    let upkeep = metrics.clone();
    tokio::spawn(async move {
        // The recorder keeps each duration until upkeep sorts it into a bucket, also where no scraper reads the metrics.
        loop {
            tokio::time::sleep(UPKEEP_EVERY).await;
            upkeep.run_upkeep();
        }
    });
    Ok(metrics)
}

/// How often recorded durations are sorted into their buckets.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// A connection that the routes serve.
type Serving = http1::Connection<TokioIo<Connection>, TowerToHyperService<AddExtension<Router, Peer>>>;

/// How long requests may take to finish once the process shuts down. A client that never finishes its request must
/// not keep it from ending.
const GRACE: Duration = Duration::from_secs(5);

/// Most connections to the listener of the metrics.
const METRICS_CONNECTIONS_MAX: usize = 100;

/// Serves `/metrics`, `/healthz` and `/readyz` on a listener of their own, until shutdown.
pub async fn serve_metrics(listener: TcpListener, app: App, shutdown: CancellationToken) {
    let connections_max = METRICS_CONNECTIONS_MAX;
    let app = App { serves_api: false, serves_metrics: true, ingress: None, connections_max, ..app };
    serve(listener, app, shutdown).await;
}

/// Serves until shutdown, then lets the requests that are under way finish.
pub async fn serve(listener: TcpListener, app: App, shutdown: CancellationToken) {
    let mut listener = BoundedListener::new(listener, app.write_timeout, app.connections_max);
    let mut http = http1::Builder::new();
    // Also the time between two requests: the server closes an idle connection.
    http.timer(TokioTimer::new()).header_read_timeout(app.header_timeout);
    let shutdown = once_executed(app.ingress.clone(), shutdown);
    // Made once and shared: a bare router would be built anew for each connection, and kept as long as it lasts.
    let routes = router(app).with_state::<()>(());
    let (connections, out_of_time) = (TaskTracker::new(), CancellationToken::new());
    while let Some((connection, permit)) = shutdown.run_until_cancelled(listener.accept()).await {
        let routes = Extension(connection.peer()).layer(routes.clone());
        let serving = http.serve_connection(TokioIo::new(connection), TowerToHyperService::new(routes));
        let (shutdown, out_of_time) = (shutdown.clone(), out_of_time.clone());
        connections.spawn(async move {
            // Errors of the connection are ignored; errors of requests were answered.
            let _ = out_of_time.run_until_cancelled(until_shutdown(serving, shutdown)).await;
            drop(permit);
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(GRACE, connections.wait()).await.is_err() {
        tracing::warn!("closed connections whose requests were not over {GRACE:?} after the shutdown");
        out_of_time.cancel();
        connections.wait().await;
    }
}

/// Delays the shutdown until all received messages were executed. Until then health and metrics are served.
fn once_executed(ingress: Option<Ingress>, shutdown: CancellationToken) -> CancellationToken {
    let Some(ingress) = ingress else { return shutdown };
    let executed = CancellationToken::new();
    let drained = executed.clone();
    tokio::spawn(async move {
        shutdown.cancelled().await;
        ingress.drain().await;
        drained.cancel();
    });
    executed
}

/// Serves one connection. Once the process shuts down, the request that is under way is the last one.
async fn until_shutdown(serving: Serving, shutdown: CancellationToken) -> hyper::Result<()> {
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        ended = serving.as_mut() => return ended,
        () = shutdown.cancelled() => serving.as_mut().graceful_shutdown(),
    }
    serving.await
}

//! How the process is: alive, ready, and in numbers.

use std::time::Duration;

use axum::{Json, extract::State, http::header, response::IntoResponse};
use postrider_store::pool;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{App, error::ApiError};

const PATIENCE: Duration = Duration::from_secs(2);

/// How a process is.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`.
    status: &'static str,
    /// Of Postrider.
    version: &'static str,
}

/// Whether a process can work.
#[derive(Serialize, ToSchema)]
pub(crate) struct Readiness {
    /// `ready`.
    status: &'static str,
}

/// The process runs. Restart it when this does not answer.
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "healthz",
    tag = "process",
    security(()),
    responses((status = 200, description = "It runs", body = Health)),
)]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

/// The process can work: it is not draining, and its database answers.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "process",
    security(()),
    responses(
        (status = 200, description = "It can work", body = Readiness),
        (status = 503, description = "It is draining, or its database does not answer"),
    ),
)]
pub(crate) async fn readyz(State(app): State<App>) -> Result<Json<Readiness>, ApiError> {
    if app.draining.is_cancelled() {
        return Err(ApiError::NotReady("the process is shutting down".to_owned()));
    }
    match tokio::time::timeout(PATIENCE, pool::ping(&app.pool)).await {
        Ok(Ok(())) => Ok(Json(Readiness { status: "ready" })),
        Ok(Err(error)) => {
            tracing::warn!(?error, "not ready");
            Err(ApiError::NotReady("the database does not answer".to_owned()))
        }
        Err(_) => Err(ApiError::NotReady(format!("the database did not answer within {PATIENCE:?}"))),
    }
}

/// The numbers, for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "process",
    security(()),
    responses((status = 200, description = "In the text format of Prometheus", body = String, content_type = "text/plain")),
)]
pub(crate) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render())
}

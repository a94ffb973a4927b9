//! Liveness, readiness and metrics of the process.

use std::time::Duration;

use axum::{Json, extract::State, http::header, response::IntoResponse};
use postrider_engine::Health as RoleHealth;
use postrider_store::postgres::pool;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{App, common::error::ApiError};

const PATIENCE: Duration = Duration::from_secs(2);

/// Health of a process.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// Always `ok`.
    status: &'static str,
    /// Version of Postrider.
    version: &'static str,
}

/// Readiness of a process.
#[derive(Serialize, ToSchema)]
pub(crate) struct Readiness {
    /// Always `ready`.
    status: &'static str,
    /// Why nothing is sent, while the database is taken for a restored copy; the API is served all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    sending_waits: Option<String>,
}

/// Reports that the process runs. Restart the process when this does not answer.
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "healthz",
    tag = "process",
    security(()),
    responses((status = 200, description = "The process runs", body = Health)),
)]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

/// Reports whether the process can work: it is not draining, its database answers, and none of its roles is kept from working.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "process",
    security(()),
    responses(
        (status = 200, description = "The process can work", body = Readiness),
        (status = 503, description = "The process is draining, its database does not answer, one of its roles cannot work, or it may not send and has no other role; the detail names the reason"),
    ),
)]
pub(crate) async fn readyz(State(app): State<App>) -> Result<Json<Readiness>, ApiError> {
    if app.draining.is_cancelled() {
        return Err(ApiError::NotReady("the process is shutting down".to_owned()));
    }
    if let Some(why) = app.sending_waits.as_deref().filter(|_| !app.serves_api) {
        return Err(ApiError::NotReady(why.to_owned()));
    }
    let sending_waits = app.sending_waits.as_deref().map(str::to_owned);
    match tokio::time::timeout(PATIENCE, pool::ping(&app.pool)).await {
        Ok(Ok(())) => {
            let problems: Vec<String> = app.health.iter().filter_map(RoleHealth::problem).collect();
            if problems.is_empty() {
                return Ok(Json(Readiness { status: "ready", sending_waits }));
            }
            Err(ApiError::NotReady(problems.join("; ")))
        }
        Ok(Err(error)) => {
            tracing::warn!(?error, "not ready");
            Err(ApiError::NotReady("the database does not answer".to_owned()))
        }
        Err(_) => Err(ApiError::NotReady(format!("the database did not answer within {PATIENCE:?}"))),
    }
}

/// Metrics for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "process",
    security(()),
    responses((status = 200, description = "Metrics in the text format of Prometheus", body = String, content_type = "text/plain")),
)]
pub(crate) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render())
}

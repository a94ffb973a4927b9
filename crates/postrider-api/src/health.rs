//! How the process is: alive, ready, and in numbers.

use std::time::Duration;

use axum::{Json, extract::State, http::header, response::IntoResponse};
use postrider_store::pool;
use serde_json::{Value, json};

use crate::{App, error::ApiError};

const PATIENCE: Duration = Duration::from_secs(2);

/// The process runs. Restart it when this does not answer.
pub(crate) async fn healthz() -> Json<Value> {
    Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// The process can work: it is not draining, and its database answers.
pub(crate) async fn readyz(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    if app.draining.is_cancelled() {
        return Err(ApiError::NotReady("the process is shutting down".to_owned()));
    }
    match tokio::time::timeout(PATIENCE, pool::ping(&app.pool)).await {
        Ok(Ok(())) => Ok(Json(json!({ "status": "ready" }))),
        Ok(Err(error)) => {
            tracing::warn!(?error, "not ready");
            Err(ApiError::NotReady("the database does not answer".to_owned()))
        }
        Err(_) => Err(ApiError::NotReady(format!("the database did not answer within {PATIENCE:?}"))),
    }
}

/// The numbers, for Prometheus.
pub(crate) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render())
}

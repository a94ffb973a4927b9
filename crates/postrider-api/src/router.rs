//! Every route, in one list.

use std::time::Duration;

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    routing::{get, post},
};
use tower_http::{
    limit::RequestBodyLimitLayer,
    request_id::{MakeRequestId, PropagateRequestIdLayer, RequestId, SetRequestIdLayer},
    timeout::TimeoutLayer,
    trace::TraceLayer,
};

use crate::{App, auth, callbacks, error::ApiError, health};

const BODY_BYTES_MAX: usize = 1024 * 1024;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The whole HTTP surface of one process.
pub fn router(app: App) -> Router {
    let api = Router::new()
        .route("/whoami", get(auth::whoami))
        .route("/providers/{provider}/{account}/callback/{key}", post(callbacks::receive));

    let mut routes = Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics));
    if app.serves_api {
        routes = routes.nest("/api/v2", api);
    }
    routes
        .fallback(async || ApiError::NotFound("route"))
        .method_not_allowed_fallback(async || ApiError::MethodNotAllowed)
        .with_state(app)
        .layer(RequestBodyLimitLayer::new(BODY_BYTES_MAX))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, REQUEST_TIMEOUT))
        .layer(TraceLayer::new_for_http().make_span_with(span).on_failure(()))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(SetRequestIdLayer::x_request_id(NewRequestId))
}

/// The id under which a request is found in the logs. A caller may bring its own as `x-request-id`.
#[derive(Clone, Copy)]
struct NewRequestId;

impl MakeRequestId for NewRequestId {
    fn make_request_id<B>(&mut self, _: &axum::http::Request<B>) -> Option<RequestId> {
        uuid::Uuid::now_v7().to_string().parse().ok().map(RequestId::new)
    }
}

fn span(request: &Request) -> tracing::Span {
    let id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
    let id: String = id.chars().take(128).collect();
    tracing::info_span!("request", correlation_id = %id, method = %request.method(), path = %request.uri().path())
}

//! Pages may invoke functions from anywhere: keys are sent in a header that no browser adds by itself. A session's cookie, which a
//! browser may add, counts only from a page of this server (`common/auth.rs`).
//! Where the operator names origins, those hold here, too, and this does nothing.

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, Method, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

const ALLOWED: [(HeaderName, HeaderValue); 4] = [
    (header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*")),
    (
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("authorization, x-client-info, apikey, content-type, idempotency-key"),
    ),
    (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST")),
    (
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("retry-after, idempotent-replayed, x-request-id"),
    ),
];

/// Allows pages of every origin to read the response to an invocation, and nothing else.
pub(crate) async fn open_to_pages(request: Request, next: Next) -> Response {
    if !is_invocation(request.uri()) {
        return next.run(request).await;
    }
    let mut response = match *request.method() {
        Method::OPTIONS => ().into_response(),
        _ => next.run(request).await,
    };
    response.headers_mut().extend(ALLOWED);
    response
}

/// Whether a path is that of an invocation.
pub(crate) fn is_invocation(uri: &Uri) -> bool {
    let parts: Vec<&str> = uri.path().split('/').collect();
    matches!(parts[..], ["", "api", "v2", "functions", _, "invoke"])
}

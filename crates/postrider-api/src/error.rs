//! What a caller is told when a request fails: one `match`, problem bodies as in RFC 9457.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use postrider_store::{StoreError, keys::Denied};

/// Why a request was not answered as hoped.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No key, or not one.
    #[error("send an API key: `Authorization: Bearer pr_…`")]
    Unauthenticated,
    /// A key that does not let in.
    #[error("{0}")]
    Denied(#[from] Denied),
    /// Who asks is known, and may not; or is not who it says.
    #[error("{0}")]
    Forbidden(String),
    /// It makes no sense.
    #[error("{0}")]
    BadRequest(String),
    /// Nothing here, or nothing of this tenant.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// Another method would do.
    #[error("this method is not allowed here; see the `Allow` header")]
    MethodNotAllowed,
    /// Alive, but not able to work.
    #[error("not ready: {0}")]
    NotReady(String),
    /// The store failed. Callers learn what they can act on; the log has the rest.
    #[error("{0}")]
    Store(#[from] StoreError),
}

impl ApiError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Unauthenticated | Self::Denied(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotReady(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Store(error) if error.is_outage() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Store(StoreError::Refused { .. }) => StatusCode::BAD_REQUEST,
            Self::Store(StoreError::ClaimNotHeld { .. }) => StatusCode::CONFLICT,
            Self::Store(StoreError::Unreachable { .. } | StoreError::Unfit(_)) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Store(StoreError::Failed { .. }) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        let detail = if status.is_server_error() && !matches!(self, Self::NotReady(_)) {
            tracing::error!(error = ?self, "a request failed: {self}");
            "the server could not do this; its log has the reason under the request's id".to_owned()
        } else {
            self.to_string()
        };
        let body = serde_json::json!({
            "type": "about:blank",
            "title": status.canonical_reason().unwrap_or("Error"),
            "status": status.as_u16(),
            "detail": detail,
        });
        let mut response = (status, Json(body)).into_response();
        let problem = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, problem);
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

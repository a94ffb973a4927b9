//! Responses to failed requests: one `match`, problem bodies as in RFC 9457.
//!
//! | status | when |
//! |---|---|
//! | 400 | the request cannot be read: no JSON, an unknown field, a wrong type, a number that its type cannot hold |
//! | 401, 403 | no valid key; a key without the right |
//! | 404 | the resource of the path does not exist, or belongs to another tenant |
//! | 409 | the request conflicts with stored data: a name that is taken, a state that does not allow it |
//! | 413, 415 | too large; not JSON |
//! | 422 | the request can be read, but a value is not allowed, names something unknown, or is refused by the database |
//! | 429 | too many requests with a key, or too many invalid keys from an address |
//! | 5xx | a failure of the server; the log has the reason under the request's id, the response does not |

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use postrider_model::tenancy::Role;
use postrider_store::{
    StoreError,
    tenancy::{keys::Denied, requests::Answer},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::common::requests::replay;

/// The result of a handler.
pub(crate) type ApiResult<T> = Result<T, ApiError>;

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The request has no `Authorization` header.
    #[error("the request has no API key; send `Authorization: Bearer pr_…`")]
    NoKey,
    /// The request has an `Authorization` header, and no API key can be read from it.
    #[error("{0}")]
    NotAKey(&'static str),
    /// The key is not valid.
    #[error("{0}")]
    Denied(#[from] Denied),
    /// The caller is authenticated and lacks the right, or its signature is not valid.
    #[error("{0}")]
    Forbidden(String),
    /// The key's role is not enough.
    #[error("this needs a key with the role `{needed}`; this one is `{actual}`")]
    RoleNeeded {
        /// The minimum role.
        needed: Role,
        /// The key's role.
        actual: Role,
    },
    /// The request cannot be read.
    #[error("{0}")]
    BadRequest(String),
    /// These fields cannot be read.
    #[error("{}", in_words(.0))]
    Invalid(Vec<FieldError>),
    /// These fields have values that are not allowed.
    #[error("{}", in_words(.0))]
    Unprocessable(Vec<FieldError>),
    /// The resource does not exist, or belongs to another tenant.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The route does not have this method.
    #[error("this method is not allowed here; see the `Allow` header")]
    MethodNotAllowed,
    /// Stored data does not allow the request. The members go into the body, such as `currentState` and `allowed`.
    #[error("{detail}")]
    Conflict {
        /// The reason.
        detail: String,
        /// Fields for programs.
        members: Vec<(&'static str, Value)>,
    },
    /// The body has more bytes than this.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The media type is not supported.
    #[error("{0}")]
    UnsupportedMediaType(String),
    /// Too many requests with this key.
    #[error("this key makes too many requests; try again in {0} s")]
    TooFast(u64),
    /// Too many requests of one client with keys that are not valid.
    #[error("too many requests came from this address with API keys that are not valid; try again in {0} s")]
    TooManyFailures(u64),
    /// The capacity of the tenant or of the process is used up.
    #[error("{detail}; try again in {retry_after} s")]
    NoRoom {
        /// The limit that was reached.
        detail: &'static str,
        /// Whether it is the limit of the process, which refuses every tenant.
        is_full: bool,
        /// When to try again, in seconds.
        retry_after: u64,
    },
    /// The process is alive and not able to work.
    #[error("not ready: {0}")]
    NotReady(String),
    /// A failure inside the server. The text is for the log only.
    #[error("{0}")]
    Internal(String),
    /// The request was carried out before: this answer is its response again.
    #[error("the request was carried out before")]
    Answered(Answer),
    /// The store failed. The response has what callers can act on; the log has the rest.
    #[error("{0}")]
    Store(#[from] StoreError),
}

/// The problem of one field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// Path of the field, such as `phases[0].channel`.
    #[schema(example = "phases[0].channel")]
    pub field: String,
    /// The problem, and a value that is allowed.
    pub detail: String,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }
}

fn in_words(errors: &[FieldError]) -> String {
    let words: Vec<String> =
        errors.iter().map(|error| format!("`{}`: {}", error.field, error.detail)).collect();
    words.join("; ")
}

/// A problem as in RFC 9457.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: the status says what kind of problem it is.
    #[schema(example = "about:blank")]
    pub r#type: String,
    /// The status in words.
    pub title: String,
    /// The status.
    pub status: u16,
    /// The cause, and what to try next.
    pub detail: String,
    /// Id of the request in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Problems of single fields, if there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Further data for programs, such as `currentState`.
    #[serde(flatten)]
    #[schema(ignore)]
    pub members: Map<String, Value>,
}

impl ApiError {
    /// One field of the request cannot be read.
    pub(crate) fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldError::new(field, detail)])
    }

    /// One field of the request has a value that is not allowed.
    pub(crate) fn unprocessable(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Unprocessable(vec![FieldError::new(field, detail)])
    }

    /// Stored data does not allow the request.
    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::Conflict { detail: detail.into(), members: Vec::new() }
    }

    /// Adds a field for programs to a conflict.
    pub(crate) fn with(mut self, name: &'static str, value: impl Serialize) -> Self {
        if let Self::Conflict { members, .. } = &mut self {
            members.push((name, serde_json::to_value(value).unwrap_or_default()));
        }
        self
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Answered(answer) => StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK),
            Self::NoKey | Self::NotAKey(_) | Self::Denied(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) | Self::RoleNeeded { .. } => StatusCode::FORBIDDEN,
            Self::BadRequest(_) | Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Unprocessable(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Conflict { .. } => StatusCode::CONFLICT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooFast(_) | Self::TooManyFailures(_) | Self::NoRoom { is_full: false, .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::NotReady(_) | Self::NoRoom { is_full: true, .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Store(StoreError::Refused { .. }) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Store(StoreError::Conflict { .. } | StoreError::ClaimNotHeld { .. }) => {
                StatusCode::CONFLICT
            }
            Self::Store(
                StoreError::Unreachable { .. } | StoreError::Unfit(_) | StoreError::SendingRefused { .. },
            ) => StatusCode::SERVICE_UNAVAILABLE,
            // A retry may succeed.
            Self::Store(error) if error.is_passing() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Store(StoreError::Failed { .. }) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn problem(&self) -> Problem {
        let status = self.status();
        let detail = match self {
            Self::NotReady(_) | Self::NoRoom { .. } => self.to_string(),
            _ if status.is_server_error() => {
                tracing::error!(error = ?self, "a request failed: {self}");
                "the server could not do this; its log has the reason under the request's id".to_owned()
            }
            Self::Store(StoreError::Refused { message, hint: Some(hint) }) => format!("{message}. {hint}"),
            _ => self.to_string(),
        };
        let errors = match self {
            Self::Invalid(errors) | Self::Unprocessable(errors) => errors.clone(),
            _ => Vec::new(),
        };
        let members = match self {
            Self::Conflict { members, .. } => {
                members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
            }
            Self::RoleNeeded { needed, .. } => Map::from_iter([("needed_role".to_owned(), json!(needed))]),
            _ => Map::new(),
        };
        Problem { errors, members, ..Problem::new(status, detail) }
    }
}

impl Problem {
    /// A problem of this status.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            r#type: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            request_id: None,
            errors: Vec::new(),
            members: Map::new(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(&self)).into_response();
        let problem = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, problem);
        // The outermost layer knows the request's id, and writes the body again with it.
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if let Self::Answered(answer) = self {
            return replay(answer).unwrap_or_else(Self::into_response);
        }
        let mut response = self.problem().into_response();
        match self {
            Self::NoKey | Self::NotAKey(_) | Self::Denied(_) => {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::TooFast(seconds)
            | Self::TooManyFailures(seconds)
            | Self::NoRoom { retry_after: seconds, .. } => {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            _ => {}
        }
        response
    }
}

//! Requests that may be repeated: `Idempotency-Key`.
//!
//! ```text
//! begin ──the key is free──▶ Writing ──the work──▶ answer ──one commit: key, work, answer──▶ response
//!   ├─ it was used for this request: the same answer again
//!   ├─ it is in use at this moment: 409
//!   └─ it was used for another request: 422
//! ```
//!
//! There is one transaction, so a crash leaves either all of it or nothing. A request that fails leaves its key free.

use axum::{
    Json,
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use postrider_model::ids::TenantId;
use postrider_store::{
    PgConnection, Pool, Transaction,
    postgres::pool,
    tenancy::{
        keys::Caller,
        requests::{self, Answer, Found},
    },
};
use serde::Serialize;
use utoipa::IntoParams;

use crate::{
    App,
    common::{
        body::Fingerprint,
        error::{ApiError, ApiResult},
        paging::Page,
    },
};

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// For the OpenAPI document: the header of a request that may be repeated.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only its parameters are used")]
pub(crate) struct Repeatable {
    /// Makes it safe to repeat the request: for a day, the server carries out requests with the same key once and repeats the response.
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]([ -~]*[!-~])?$",
        required = false
    )]
    idempotency_key: String,
}

/// How a request begins whose response is more than the stored answer.
pub(crate) enum Taken {
    /// The request was carried out before; this is its stored answer.
    Before(Answer),
    /// The request is to be carried out now.
    Fresh(Writing),
}

/// A request in progress, in one transaction that acts for the caller's tenant. Dropping it writes nothing.
#[must_use = "without an answer nothing is written"]
pub(crate) struct Writing {
    transaction: Transaction,
    tenant: TenantId,
    key: Option<String>,
}

impl Writing {
    /// Begins the request's transaction and takes its key, if it brings one. If the request was carried out before, the stored answer
    /// is returned as an error, which ends the handler and becomes the response.
    pub(crate) async fn begin(app: &App, caller: Caller, request: &Fingerprint) -> Result<Self, ApiError> {
        Self::begin_on(&app.pool, caller, request).await
    }

    /// Begins on other connections than those of most requests.
    pub(crate) async fn begin_on(
        pool: &Pool,
        caller: Caller,
        request: &Fingerprint,
    ) -> Result<Self, ApiError> {
        match Self::take(pool, caller, request).await? {
            Taken::Before(answer) => Err(ApiError::Answered(answer)),
            Taken::Fresh(writing) => Ok(writing),
        }
    }

    /// Begins a request whose handler does more with a stored answer than repeat it.
    pub(crate) async fn take(pool: &Pool, caller: Caller, request: &Fingerprint) -> Result<Taken, ApiError> {
        let mut transaction = pool::begin_as(pool, caller.tenant_id).await?;
        let Some(key) = request.idempotency_key.clone() else {
            return Ok(Taken::Fresh(Self { transaction, tenant: caller.tenant_id, key: None }));
        };
        match requests::begin(&mut transaction, caller.tenant_id, &key, &request.hash).await? {
            Found::Nothing => {
                Ok(Taken::Fresh(Self { transaction, tenant: caller.tenant_id, key: Some(key) }))
            }
            Found::Answered(answer) => Ok(Taken::Before(answer)),
            Found::InProgress => Err(ApiError::conflict(
                "a request with this `Idempotency-Key` is in progress; try again in a moment",
            )),
            Found::AnotherRequest => Err(ApiError::unprocessable(
                "Idempotency-Key",
                "was used for another method, path or body; a new request needs a new key",
            )),
        }
    }

    /// The connection of the request's transaction.
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }

    /// Records the answer with the work, commits both, and answers.
    pub(crate) async fn answer<T: Serialize>(
        self,
        status: StatusCode,
        body: &T,
    ) -> Result<Response, ApiError> {
        let text = to_text(body)?;
        let kept = Answer { status: status.as_u16(), location: None, body: Some(text.clone()) };
        self.finish(kept).await?;
        Ok(response(status, text))
    }

    /// The same with the location of the new resource in the response's head.
    pub(crate) async fn answer_made<T: Serialize>(
        self,
        location: String,
        body: &T,
    ) -> Result<Response, ApiError> {
        let text = to_text(body)?;
        let status = StatusCode::CREATED;
        let kept =
            Answer { status: status.as_u16(), location: Some(location.clone()), body: Some(text.clone()) };
        self.finish(kept).await?;
        Ok(located(response(status, text), Some(&location)))
    }

    /// The same for a response with a secret, which is not stored: a repeated request gets the location of the new resource and the
    /// information that the secret was shown.
    pub(crate) async fn answer_once<T: Serialize>(
        self,
        status: StatusCode,
        location: String,
        body: &T,
    ) -> Result<Response, ApiError> {
        let text = to_text(body)?;
        self.finish(Answer { status: status.as_u16(), location: Some(location), body: None }).await?;
        Ok(response(status, text))
    }

    async fn finish(mut self, answer: Answer) -> Result<(), ApiError> {
        if let Some(key) = &self.key {
            requests::finish(&mut self.transaction, self.tenant, key, &answer).await?;
        }
        pool::commit(self.transaction).await?;
        Ok(())
    }
}

/// A request that changes nothing, in one transaction that acts for a tenant.
pub(crate) struct Reading {
    transaction: Transaction,
}

impl Reading {
    pub(crate) async fn begin(app: &App, tenant: TenantId) -> Result<Self, ApiError> {
        Ok(Self { transaction: pool::begin_as(&app.pool, tenant).await? })
    }

    /// The connection of the request's transaction.
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }

    /// Ends the transaction, and answers with a page of these rows: see [`Page::of`].
    pub(crate) async fn page<T, R, K: Serialize>(
        self,
        rows: Vec<R>,
        size: i64,
        key: impl FnOnce(&R) -> K,
        show: impl FnMut(R) -> T,
    ) -> ApiResult<Json<Page<T>>> {
        self.end().await?;
        Ok(Json(Page::of(rows, size, key, show)))
    }

    /// Ends the transaction, and answers with the resource, or with the error if there is none.
    pub(crate) async fn found<T>(self, resource: Option<T>, missing: ApiError) -> ApiResult<Json<T>> {
        self.end().await?;
        resource.map(Json).ok_or(missing)
    }

    /// Ends the transaction.
    pub(crate) async fn end(self) -> Result<(), ApiError> {
        Ok(pool::commit(self.transaction).await?)
    }
}

/// The stored answer again.
pub(crate) fn replay(answer: Answer) -> Result<Response, ApiError> {
    let Some(body) = answer.body else {
        let done = "this request was carried out before, and its answer was not kept because it held a secret or was very \
                    large; see what it made";
        return Err(ApiError::conflict(done).with("location", answer.location));
    };
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    Ok(replayed(located(response(status, body), answer.location.as_deref())))
}

/// Marks a response as repeated.
pub(crate) fn replayed(mut response: Response) -> Response {
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

fn located(mut response: Response, location: Option<&str>) -> Response {
    if let Some(location) = location.and_then(|location| HeaderValue::from_str(location).ok()) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn to_text<T: Serialize>(body: &T) -> Result<String, ApiError> {
    serde_json::to_string(body)
        .map_err(|error| ApiError::Internal(format!("an answer cannot be written: {error}")))
}

fn response(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], Body::from(text)).into_response()
}

//! Who makes a request. The tenant comes from the key and from nothing else.

use axum::{
    Json,
    extract::FromRequestParts,
    http::{header, request::Parts},
};
use postrider_model::tenancy::ApiKeySecret;
use postrider_store::{
    keys::{self, Caller},
    pool,
};

use crate::{App, error::ApiError};

/// A request with a valid key.
pub(crate) struct Authenticated(pub(crate) Caller);

impl FromRequestParts<App> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let header = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let (scheme, token) =
            header.and_then(|value| value.split_once(' ')).ok_or(ApiError::Unauthenticated)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(ApiError::Unauthenticated);
        }
        let secret: ApiKeySecret = token.trim().parse().map_err(|_| ApiError::Unauthenticated)?;
        let mut transaction = pool::begin(&app.pool).await?;
        let caller = keys::authenticate(&mut transaction, &secret).await?;
        // The time of last use is recorded whether or not the request succeeds.
        pool::commit(transaction).await?;
        Ok(Self(caller?))
    }
}

/// Whose key this is.
pub(crate) async fn whoami(Authenticated(caller): Authenticated) -> Json<Caller> {
    Json(caller)
}

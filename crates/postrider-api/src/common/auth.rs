//! Authentication: the caller of a request and its role. The tenant comes from the key and from nothing else.
//!
//! The extractors read no body, so a handler that names one of them before its body refuses a request without a valid key
//! before it reads the body.

use axum::{
    Json,
    extract::FromRequestParts,
    http::{header, request::Parts},
};
use postrider_model::{
    ids::{ApiKeyId, TenantId},
    tenancy::{ApiKeySecret, Role},
};
use postrider_store::{
    postgres::pool,
    tenancy::keys::{self, Caller},
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{App, common::error::ApiError};

macro_rules! callers {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        pub(crate) struct $name(pub(crate) Caller);

        impl FromRequestParts<App> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
                let caller = authenticate(parts, app).await?;
                if caller.role < Role::$name {
                    return Err(ApiError::RoleNeeded { needed: Role::$name, actual: caller.role });
                }
                Ok(Self(caller))
            }
        }
    )*};
}

callers!(
    /// A request with a valid key.
    Viewer,
    /// A request with a key that may change things.
    Operator,
    /// A request with a key that may manage keys and accounts.
    Admin,
);

async fn authenticate(parts: &mut Parts, app: &App) -> Result<Caller, ApiError> {
    let secret = key_of(parts)?;
    let hash = secret.hash();
    let client = app.trusted_proxies.client(&parts.extensions, &parts.headers);
    let was_valid = app.throttle.spend(&hash)?;
    if !was_valid {
        app.throttle.check(client)?;
    }
    let mut transaction = pool::begin(&app.pool).await?;
    // Requests with one new key wait for connections together, and the first look-up decides whether the key is valid. The others
    // check the limit again: so no more look-ups fail beyond the limit than there are connections.
    if !was_valid && !app.throttle.spend(&hash)? {
        app.throttle.check(client)?;
    }
    let caller = keys::authenticate(&mut transaction, &secret).await?;
    // The time of last use is recorded whether or not the request succeeds.
    pool::commit(transaction).await?;
    match caller {
        Ok(_) => app.throttle.know(hash),
        Err(_) => app.throttle.fail(&hash, client),
    }
    Ok(caller?)
}

/// Reads the API key of a request.
fn key_of(parts: &Parts) -> Result<ApiKeySecret, ApiError> {
    let mut values = parts.headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(ApiError::NoKey)?;
    // Two keys could belong to two tenants.
    if values.next().is_some() {
        return Err(ApiError::NotAKey("the request has more than one `Authorization` header; send one"));
    }
    let value = String::from_utf8_lossy(value.as_bytes());
    let (scheme, token) = value.split_once(' ').unwrap_or((&value, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(ApiError::NotAKey(
            "the `Authorization` header does not begin with `Bearer`; send `Authorization: Bearer pr_…`",
        ));
    }
    token.trim().parse().map_err(|_| {
        ApiError::NotAKey(
            "the text after `Bearer` is not an API key: a key is `pr_` and 76 characters; check that the whole key was copied",
        )
    })
}

/// The API key of a request, its tenant and its role.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WhoAmI {
    /// The key's id.
    #[schema(value_type = uuid::Uuid)]
    key_id: ApiKeyId,
    /// The tenant for which it acts.
    #[schema(value_type = uuid::Uuid)]
    tenant_id: TenantId,
    /// The key's role.
    #[schema(value_type = crate::common::docs::Role)]
    role: Role,
}

/// Shows the API key of the request, its tenant and its role.
#[utoipa::path(
    get,
    path = "/whoami",
    operation_id = "whoami",
    tag = "keys",
    responses((status = 200, description = "The key, its tenant and its role", body = WhoAmI)),
)]
pub(crate) async fn whoami(Viewer(caller): Viewer) -> Json<WhoAmI> {
    Json(WhoAmI { key_id: caller.key_id, tenant_id: caller.tenant_id, role: caller.role })
}

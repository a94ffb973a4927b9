//! Authentication: the caller of a request and its role. The tenant comes from the key or the session and from nothing else.
//!
//! The extractors read no body, so a handler that names one of them before its body refuses a request without a valid key
//! or session before it reads the body.

use std::net::IpAddr;

use axum::{
    extract::{FromRequestParts, OriginalUri},
    http::{header, request::Parts},
};
use postrider_model::tenancy::{ApiKeySecret, Role, SessionToken};
use postrider_store::{
    PgConnection, StoreError,
    postgres::pool,
    tenancy::{
        keys::{self, Caller, Denied},
        sessions,
    },
};

use crate::{
    App,
    common::{cookie, error::ApiError},
    jobs::invoke,
};

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
    /// A request with a valid key or session.
    Viewer,
    /// A request with a key that may change things.
    Operator,
    /// A request with a key that may manage keys and accounts.
    Admin,
);

/// The secret of a request.
enum Presented {
    Key(ApiKeySecret),
    Session(SessionToken),
}

async fn authenticate(parts: &mut Parts, app: &App) -> Result<Caller, ApiError> {
    let client = app.trusted_proxies.client(&parts.extensions, &parts.headers);
    match presented(parts)? {
        Presented::Key(secret) => authenticate_key(app, client, &secret).await,
        Presented::Session(token) => {
            let look_up =
                async |connection: &mut PgConnection| sessions::authenticate(connection, &token).await;
            look_up_within_limits(app, client, token.hash(), look_up).await
        }
    }
}

/// The caller of a key, within the limits of requests.
pub(crate) async fn authenticate_key(
    app: &App,
    client: IpAddr,
    secret: &ApiKeySecret,
) -> Result<Caller, ApiError> {
    let look_up = async |connection: &mut PgConnection| keys::authenticate(connection, secret).await;
    look_up_within_limits(app, client, secret.hash(), look_up).await
}

async fn look_up_within_limits(
    app: &App,
    client: IpAddr,
    hash: [u8; 32],
    look_up: impl AsyncFnOnce(&mut PgConnection) -> Result<Result<Caller, Denied>, StoreError>,
) -> Result<Caller, ApiError> {
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
    let caller = look_up(&mut transaction).await?;
    // The time of last use is recorded whether or not the request succeeds.
    pool::commit(transaction).await?;
    match caller {
        Ok(_) => app.throttle.know(hash),
        Err(_) => app.throttle.fail(&hash, client),
    }
    Ok(caller?)
}

/// Reads the key or the session of a request, and refuses a session's request that another site has made a browser send.
fn presented(parts: &Parts) -> Result<Presented, ApiError> {
    let Some(token) = cookie::session(&parts.headers)? else { return key_of(parts).map(Presented::Key) };
    let is_ours = cookie::is_same_origin(&parts.method, &parts.headers);
    // Pages of every origin may invoke functions, by a key. A cookie that the browser adds to such a request does not count.
    if !is_ours && invoke::is_invocation(&original_uri(parts)) {
        return key_of(parts).map(Presented::Key);
    }
    if parts.headers.contains_key(header::AUTHORIZATION) {
        return Err(ApiError::NotAKey(
            "the request has a session cookie and an `Authorization` header, which may disagree; send one of them",
        ));
    }
    if !is_ours {
        return Err(cookie::foreign());
    }
    token.parse().map(Presented::Session).map_err(|_| Denied::SessionEnded.into())
}

fn original_uri(parts: &Parts) -> axum::http::Uri {
    parts.extensions.get::<OriginalUri>().map_or_else(|| parts.uri.clone(), |original| original.0.clone())
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

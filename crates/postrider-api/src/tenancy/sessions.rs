//! Sessions of the dashboard: signing in with a key or a one-time code, signing out, and the list for admins.
//!
//! The secret of a session is in its cookie and in no body, so no script can read it. `common/cookie.rs` says which requests may carry
//! the cookie.

use std::{convert::Infallible, net::IpAddr};

use axum::{
    Json,
    extract::{FromRequestParts, State},
    http::{StatusCode, header, request::Parts},
    response::{AppendHeaders, IntoResponse, Response},
};
use jiff::Timestamp;
use postrider_model::{
    ids::SessionId,
    tenancy::{ApiKeySecret, LoginCode, PersonName},
};
use postrider_store::{
    PgConnection, Transaction,
    postgres::pool,
    tenancy::{
        keys::{Caller, Denied},
        sessions,
    },
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    App,
    common::{
        auth::{self, Admin, Viewer},
        body::{Body, Path, Query},
        cookie, docs,
        error::{ApiError, ApiResult},
        paging::{self, Page, PageQuery, by_age},
        requests::Reading,
    },
};

/// The caller: its key, its tenant, and its session if it has one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WhoAmI {
    /// The key's id.
    key_id: Uuid,
    /// Name of the key.
    key_name: String,
    /// Time of the key's expiry; null if it has none.
    key_expires_at: Option<Timestamp>,
    /// The tenant for which it acts.
    tenant_id: Uuid,
    /// Name of the tenant.
    tenant: String,
    /// The tenant's workspaces, oldest first; the first one is the default.
    workspaces: Vec<WorkspaceName>,
    /// The key's role.
    #[schema(value_type = docs::Role)]
    role: postrider_model::tenancy::Role,
    /// The session; absent for a caller that sends the key itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    session: Option<OwnSession>,
    /// Time of the server.
    time: Timestamp,
}

/// A workspace of the tenant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkspaceName {
    id: Uuid,
    name: String,
}

/// The caller's session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OwnSession {
    id: Uuid,
    /// The name that the person gave at sign-in. It is not verified.
    name: Option<String>,
    /// Time at which it ends at the latest.
    expires_at: Timestamp,
}

impl WhoAmI {
    /// Introduces a caller, in a transaction of its tenant.
    async fn of(connection: &mut PgConnection, caller: Caller) -> ApiResult<Self> {
        // The key was active a moment ago, and keys are never deleted.
        let found = sessions::introduce(connection, &caller).await?.ok_or(Denied::Unknown)?;
        let name = caller.name.map(|name| name.to_string());
        let session = caller.session.zip(found.session_expires_at).map(|(id, expires_at)| OwnSession {
            id: id.0,
            name,
            expires_at,
        });
        let workspaces =
            found.workspaces.into_iter().map(|(id, name)| WorkspaceName { id: id.0, name }).collect();
        Ok(Self {
            key_id: caller.key_id.0,
            key_name: found.key_name,
            key_expires_at: found.key_expires_at,
            tenant_id: caller.tenant_id.0,
            tenant: found.tenant,
            workspaces,
            role: caller.role,
            session,
            time: Timestamp::now(),
        })
    }
}

/// Shows the caller: its API key, its tenant, its role, and its session.
#[utoipa::path(
    get,
    path = "/whoami",
    operation_id = "whoami",
    tag = "keys",
    responses((status = 200, description = "The caller", body = WhoAmI)),
)]
pub(crate) async fn whoami(State(app): State<App>, Viewer(caller): Viewer) -> ApiResult<Json<WhoAmI>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let shown = WhoAmI::of(reading.connection(), caller).await?;
    reading.end().await?;
    Ok(Json(shown))
}

/// A sign-in, with either a key or a code.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignIn {
    /// An API key.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = Password, nullable = false)]
    key: Option<SecretString>,
    /// A one-time code, as `postrider dashboard` prints it.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = Password, nullable = false)]
    code: Option<SecretString>,
    /// Name of the person, for the audit log. It is not verified.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 64, pattern = r"\S")]
    name: Option<String>,
}

/// The client that signs in. Pages of other origins are refused.
pub(crate) struct Newcomer {
    client: IpAddr,
    is_secure: bool,
    is_foreign: bool,
}

impl FromRequestParts<App> for Newcomer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        Ok(Self {
            client: app.trusted_proxies.client(&parts.extensions, &parts.headers),
            is_secure: cookie::is_secure(&parts.headers),
            is_foreign: !cookie::may_sign_in(&parts.headers),
        })
    }
}

/// Signs in with an API key or a one-time code. The response sets the session's cookie, which scripts cannot read.
///
/// The session has the role of its key. It ends on sign-out, when an admin revokes it or its key, after `api.session_idle_hours` without
/// a request, and after `api.session_days_max` at the latest.
#[utoipa::path(
    post,
    path = "/session",
    operation_id = "create_session",
    tag = "sessions",
    security(()),
    request_body = SignIn,
    responses(
        (status = 200, description = "The caller, and its cookie", body = WhoAmI, headers(("Set-Cookie" = String, description = "The session, for the browser alone"))),
        (status = 400, description = "The request cannot be read; `errors` names the field"),
        (status = 401, description = "The key or the code is not valid"),
        (status = 403, description = "A page of another origin made the request"),
        (status = 413, description = "The body is too large"),
        (status = 415, description = "The body is not JSON"),
        (status = 422, description = "The request has neither a key nor a code, or both, or a name that is not allowed"),
        (status = 429, description = "Too many requests with this key, or with invalid keys from this address; `Retry-After` says how long to wait"),
        (status = 503, description = "The database does not answer; try again later"),
        (status = 504, description = "The request timed out"),
    ),
)]
pub(crate) async fn create(
    State(app): State<App>,
    newcomer: Newcomer,
    Body { value: sign_in, .. }: Body<SignIn>,
) -> ApiResult<Response> {
    if newcomer.is_foreign {
        return Err(cookie::foreign());
    }
    let name: Option<PersonName> = match sign_in.name.as_deref().map(str::parse) {
        Some(Err(error)) => return Err(ApiError::unprocessable("name", format!("{error}"))),
        Some(Ok(name)) => Some(name),
        None => None,
    };
    let (mut transaction, caller) = match (&sign_in.key, &sign_in.code) {
        (Some(key), None) => with_key(&app, newcomer.client, key).await?,
        (None, Some(code)) => with_code(&app, newcomer.client, code).await?,
        _ => return Err(ApiError::unprocessable("key", "send either `key` or `code`")),
    };
    let caller = Caller { name: name.or(caller.name), ..caller };
    let opened = sessions::open(&mut transaction, caller, app.sessions).await?.ok_or(Denied::Revoked)?;
    let caller = Caller { session: Some(opened.id), ..caller };
    let shown = WhoAmI::of(&mut transaction, caller).await?;
    pool::commit(transaction).await?;
    let cookie = cookie::set(&opened.token, opened.expires_at, newcomer.is_secure)?;
    Ok(([(header::SET_COOKIE, cookie)], Json(shown)).into_response())
}

/// The caller of a key, and the transaction in which its session is to be opened.
async fn with_key(app: &App, client: IpAddr, key: &SecretString) -> ApiResult<(Transaction, Caller)> {
    let secret: ApiKeySecret = key.expose_secret().trim().parse().map_err(|_| {
        ApiError::NotAKey(
            "`key` is not an API key: a key is `pr_` and 76 characters; check that the whole key was copied",
        )
    })?;
    let caller = auth::authenticate_key(app, client, &secret).await?;
    Ok((pool::begin_as(&app.pool, caller.tenant_id).await?, caller))
}

/// The caller of a code, and the transaction in which the code is used: if the session is not opened, the code stays valid.
async fn with_code(app: &App, client: IpAddr, code: &SecretString) -> ApiResult<(Transaction, Caller)> {
    let code: LoginCode = code.expose_secret().trim().parse().map_err(|_| Denied::CodeUnknown)?;
    app.throttle.check(client)?;
    let mut transaction = pool::begin_as(&app.pool, code.tenant()).await?;
    // As for keys: codes that waited for a connection together do not fail beyond the limit.
    app.throttle.check(client)?;
    match sessions::use_code(&mut transaction, &code).await? {
        Ok(caller) => Ok((transaction, caller)),
        Err(denied) => {
            app.throttle.fail(&code.hash(), client);
            Err(denied.into())
        }
    }
}

/// Signs out: ends the session of the request and removes its cookie. A request with an API key has no session, and changes nothing.
#[utoipa::path(
    delete,
    path = "/session",
    operation_id = "end_session",
    tag = "sessions",
    responses((status = 204, description = "The session has ended")),
)]
pub(crate) async fn end(State(app): State<App>, Viewer(caller): Viewer) -> ApiResult<Response> {
    let Some(session) = caller.session else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    // Another request of the same browser may have ended it in between.
    let _ = sessions::end(&mut transaction, caller.tenant_id, session, &caller.actor()).await?;
    pool::commit(transaction).await?;
    let removed: Vec<_> = cookie::unset()?.into_iter().map(|cookie| (header::SET_COOKIE, cookie)).collect();
    Ok((StatusCode::NO_CONTENT, AppendHeaders(removed)).into_response())
}

/// A session, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub(crate) struct SessionBody {
    id: Uuid,
    /// The key for which it acts.
    key_id: Uuid,
    key_name: String,
    #[schema(value_type = docs::Role)]
    role: String,
    /// The name that the person gave at sign-in. It is not verified.
    name: Option<String>,
    created_at: Timestamp,
    /// Time of its last request, to the minute.
    last_seen_at: Timestamp,
    /// Time at which it ends at the latest.
    expires_at: Timestamp,
    /// Whether it is the session of this request.
    is_current: bool,
}

/// The tenant's active sessions, oldest first.
#[utoipa::path(
    get,
    path = "/sessions",
    operation_id = "list_sessions",
    tag = "sessions",
    params(PageQuery),
    responses((status = 200, description = "A page of sessions, without their secrets", body = Page<SessionBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Admin(caller): Admin,
    Query(query): Query<PageQuery>,
) -> ApiResult<Json<Page<SessionBody>>> {
    let size = paging::size(query.limit)?;
    let after: Option<(Timestamp, Uuid)> = by_age(query.cursor.as_deref())?;
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let after = after.map(|(at, id)| (at, SessionId(id)));
    let rows = sessions::page(reading.connection(), caller.tenant_id, after, size + 1).await?;
    let shown = |session: sessions::Session| SessionBody {
        id: session.id.0,
        key_id: session.key_id.0,
        key_name: session.key_name,
        role: session.role,
        name: session.name,
        created_at: session.created_at,
        last_seen_at: session.last_seen_at,
        expires_at: session.expires_at,
        is_current: caller.session == Some(session.id),
    };
    reading.page(rows, size, |session| (session.created_at, session.id.0), shown).await
}

/// Revokes a session. Its next request is refused, and its streams end within five seconds.
#[utoipa::path(
    delete,
    path = "/sessions/{id}",
    operation_id = "revoke_session",
    tag = "sessions",
    params(("id" = Uuid, Path, description = "The session's id")),
    responses((status = 204, description = "The session was revoked")),
)]
pub(crate) async fn revoke(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(id): Path<SessionId>,
) -> ApiResult<StatusCode> {
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    if !sessions::revoke(&mut transaction, caller.tenant_id, id, &caller.actor()).await? {
        return Err(ApiError::NotFound("session"));
    }
    pool::commit(transaction).await?;
    Ok(StatusCode::NO_CONTENT)
}

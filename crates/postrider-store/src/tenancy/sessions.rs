//! Sessions of the dashboard. The cookie has the token; the database has its hash.

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    ids::{ApiKeyId, SessionId, TenantId, WorkspaceId},
    tenancy::{LoginCode, PersonName, SessionToken},
};
use serde::Serialize;
use sqlx::PgConnection;

use super::keys::{Caller, Denied};
use crate::{
    StoreError,
    postgres::{unprepared::unprepared, values::interval},
};

/// A session without its token, fit to be shown.
#[derive(Debug, Clone, Serialize)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// The key for which it acts.
    pub key_id: ApiKeyId,
    /// Name of the key.
    pub key_name: String,
    /// Role of the key.
    pub role: String,
    /// The name that the person gave.
    pub name: Option<String>,
    /// Time of sign-in.
    pub created_at: Timestamp,
    /// Time of its last request, to the minute.
    pub last_seen_at: Timestamp,
    /// Time at which it ends at the latest.
    pub expires_at: Timestamp,
}

/// How long sessions last.
#[derive(Debug, Clone, Copy)]
pub struct Lifetimes {
    /// Longest time between two requests.
    pub idle: Duration,
    /// Longest time from sign-in to the end.
    pub total: Duration,
}

/// A session that was just opened.
pub struct Opened {
    /// Its id.
    pub id: SessionId,
    /// Its token, for the cookie alone.
    pub token: SessionToken,
    /// Time at which it ends at the latest.
    pub expires_at: Timestamp,
}

/// Opens a session of a key that has been found active. `None` if the key no longer is.
pub async fn open(
    connection: &mut PgConnection,
    caller: Caller,
    lifetimes: Lifetimes,
) -> Result<Option<Opened>, StoreError> {
    let id = SessionId::new();
    let token = SessionToken::generate(caller.tenant_id).map_err(no_randomness)?;
    let hash = token.hash();
    let expires_at = sqlx::query_scalar!(
        r#"select tenancy.open_session($1, $2, $3, $4, $5, $6, $7, $8) as "expires_at: jiff_sqlx::Timestamp""#,
        caller.tenant_id.0,
        id.0,
        caller.key_id.0,
        hash.as_slice(),
        caller.name.as_ref().map(PersonName::as_str),
        interval(lifetimes.idle),
        interval(lifetimes.total),
        caller.actor(),
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("opening the session"))?;
    Ok(expires_at.map(|expires_at| Opened { id, token, expires_at: expires_at.to_jiff() }))
}

/// The caller of this session. The token names its tenant, as a key does.
pub async fn authenticate(
    connection: &mut PgConnection,
    token: &SessionToken,
) -> Result<Result<Caller, Denied>, StoreError> {
    let hash = token.hash();
    let row = sqlx::query!(
        r#"
        select session_id as "session_id!", key_id as "key_id!", role as "role!", name, state as "state!"
          from tenancy.authenticate_session($1, $2)
        "#,
        token.tenant().0,
        hash.as_slice(),
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("checking the session"))?;
    let Some(row) = row else { return Ok(Err(Denied::SessionEnded)) };
    Ok(match (row.state.as_str(), row.role.parse()) {
        ("active", Ok(role)) => Ok(Caller {
            key_id: ApiKeyId(row.key_id),
            tenant_id: token.tenant(),
            role,
            session: Some(SessionId(row.session_id)),
            name: row.name.and_then(|name| name.parse().ok()),
        }),
        ("key_expired", _) => Err(Denied::Expired),
        ("key_revoked", _) => Err(Denied::Revoked),
        _ => Err(Denied::SessionEnded),
    })
}

/// Ends a session because its person signs out. False when there is no such session.
pub async fn end(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: SessionId,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(r#"select tenancy.end_session($1, $2, $3) as "known!""#, tenant.0, id.0, actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("ending the session"))
}

/// Revokes a session. False when there is no such session.
pub async fn revoke(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: SessionId,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(r#"select tenancy.revoke_session($1, $2, $3) as "known!""#, tenant.0, id.0, actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("revoking the session"))
}

/// Up to so many active sessions of one tenant, oldest first, after the one that was opened then.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    after: Option<(Timestamp, SessionId)>,
    limit: i64,
) -> Result<Vec<Session>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select session.id,
               session.key_id,
               key.name as key_name,
               key.role,
               session.name,
               session.created_at as "created_at: jiff_sqlx::Timestamp",
               session.last_seen_at as "last_seen_at: jiff_sqlx::Timestamp",
               session.expires_at as "expires_at: jiff_sqlx::Timestamp"
          from tenancy.sessions as session
          join tenancy.api_keys as key on key.tenant_id = session.tenant_id
                                      and key.id = session.key_id
         where session.tenant_id = $1
           and session.expires_at > now()
           and session.last_seen_at + session.idle_for > now()
           and key.revoked_at is null
           and (key.expires_at is null or key.expires_at > now())
           and ($2::timestamptz is null or (session.created_at, session.id) > ($2, $3))
         order by session.created_at, session.id
         limit $4
        "#,
        tenant.0,
        after.map(|(at, _)| at.to_sqlx()) as _,
        after.map(|(_, id)| id.0),
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the sessions"))?;
    Ok(rows
        .into_iter()
        .map(|row| Session {
            id: SessionId(row.id),
            key_id: ApiKeyId(row.key_id),
            key_name: row.key_name,
            role: row.role,
            name: row.name,
            created_at: row.created_at.to_jiff(),
            last_seen_at: row.last_seen_at.to_jiff(),
            expires_at: row.expires_at.to_jiff(),
        })
        .collect())
}

/// A caller as people know it: its tenant, its key and its session.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// Name of the tenant.
    pub tenant: String,
    /// The tenant's workspaces with their names, oldest first.
    pub workspaces: Vec<(WorkspaceId, String)>,
    /// Name of the key.
    pub key_name: String,
    /// Time of the key's expiry.
    pub key_expires_at: Option<Timestamp>,
    /// Time at which the session ends at the latest.
    pub session_expires_at: Option<Timestamp>,
}

/// Introduces a caller, in a transaction of its tenant.
pub async fn introduce(
    connection: &mut PgConnection,
    caller: &Caller,
) -> Result<Option<Introduction>, StoreError> {
    let row = sqlx::query!(
        r#"
        select tenant.name as tenant,
               key.name as key_name,
               key.expires_at as "key_expires_at: jiff_sqlx::Timestamp",
               session.expires_at as "session_expires_at?: jiff_sqlx::Timestamp"
          from tenancy.api_keys as key
          join tenancy.tenants as tenant on tenant.id = key.tenant_id
          left join tenancy.sessions as session on session.tenant_id = $1
                                               and session.id = $3
         where key.tenant_id = $1
           and key.id = $2
        "#,
        caller.tenant_id.0,
        caller.key_id.0,
        caller.session.map(|session| session.0),
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the caller's names"))?;
    let Some(row) = row else { return Ok(None) };
    let workspaces = sqlx::query!(
        "select id, name from tenancy.workspaces where tenant_id = $1 order by created_at, id",
        caller.tenant_id.0,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the workspaces"))?;
    Ok(Some(Introduction {
        tenant: row.tenant,
        workspaces: workspaces.into_iter().map(|row| (WorkspaceId(row.id), row.name)).collect(),
        key_name: row.key_name,
        key_expires_at: row.key_expires_at.map(jiff_sqlx::Timestamp::to_jiff),
        session_expires_at: row.session_expires_at.map(jiff_sqlx::Timestamp::to_jiff),
    }))
}

/// Makes a code that opens one session of the key within a minute.
pub async fn make_code(
    connection: &mut PgConnection,
    tenant: TenantId,
    key: ApiKeyId,
    name: Option<PersonName>,
    actor: &str,
) -> Result<(LoginCode, Timestamp), StoreError> {
    let code = LoginCode::generate(tenant).map_err(no_randomness)?;
    let hash = code.hash();
    let expires_at = sqlx::query_scalar!(
        r#"select tenancy.make_login_code($1, $2, $3, $4, $5) as "expires_at!: jiff_sqlx::Timestamp""#,
        tenant.0,
        key.0,
        hash.as_slice(),
        name.as_ref().map(PersonName::as_str),
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("making a login code"))?;
    Ok((code, expires_at.to_jiff()))
}

/// Uses a login code, which is gone afterwards. The caller has no session yet.
pub async fn use_code(
    connection: &mut PgConnection,
    code: &LoginCode,
) -> Result<Result<Caller, Denied>, StoreError> {
    let hash = code.hash();
    let row = sqlx::query!(
        r#"select key_id as "key_id!", role as "role!", name from tenancy.use_login_code($1, $2)"#,
        code.tenant().0,
        hash.as_slice(),
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("using the login code"))?;
    let Some(row) = row else { return Ok(Err(Denied::CodeUnknown)) };
    let Ok(role) = row.role.parse() else { return Ok(Err(Denied::CodeUnknown)) };
    Ok(Ok(Caller {
        key_id: ApiKeyId(row.key_id),
        tenant_id: code.tenant(),
        role,
        session: None,
        name: row.name.and_then(|name| name.parse().ok()),
    }))
}

/// Tenants that have expired sessions or login codes.
pub async fn tenants(connection: &mut PgConnection) -> Result<Vec<TenantId>, StoreError> {
    let ids =
        sqlx::query_scalar!(r#"select id as "id!" from tenancy.tenants_with_old_sessions() as tenant (id)"#)
            .fetch_all(unprepared(connection))
            .await
            .map_err(StoreError::on("reading the tenants with expired sessions"))?;
    Ok(ids.into_iter().map(TenantId).collect())
}

/// Removes up to so many expired sessions of a tenant, and as many expired login codes. Returns their number.
pub async fn prune(connection: &mut PgConnection, tenant: TenantId, limit: i32) -> Result<i64, StoreError> {
    sqlx::query_scalar!(r#"select tenancy.prune_sessions($1, $2) as "removed!""#, tenant.0, limit)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("removing expired sessions"))
}

fn no_randomness(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unfit(format!("the system's random source failed: {error}"))
}

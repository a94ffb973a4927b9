//! API keys. The secret is shown once; the database has its hash.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    ids::{ApiKeyId, SessionId, TenantId},
    tenancy::{ApiKeySecret, PersonName, Role},
};
use serde::Serialize;
use sqlx::PgConnection;

use crate::{StoreError, postgres::unprepared::unprepared};

/// A key without its secret, fit to be shown.
#[derive(Debug, Clone, Serialize)]
pub struct ApiKey {
    /// Its id.
    pub id: ApiKeyId,
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: String,
    /// First characters of its random part.
    pub hint: String,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of its expiry.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// Time of its last use, to the minute.
    pub last_used_at: Option<Timestamp>,
}

/// The caller of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Caller {
    /// Id of its key.
    pub key_id: ApiKeyId,
    /// For which tenant.
    pub tenant_id: TenantId,
    /// Role of its key.
    pub role: Role,
    /// Its session, if it signed in; `None` for a caller that sends the key itself.
    pub session: Option<SessionId>,
    /// The name that the person gave at sign-in. It is not verified.
    #[serde(skip)]
    pub name: Option<PersonName>,
}

impl Caller {
    /// Its name in the audit log.
    #[must_use]
    pub fn actor(&self) -> String {
        let key = self.key_id.0;
        match self.name {
            Some(name) => format!("key:{key}/{name}"),
            None => format!("key:{key}"),
        }
    }

    /// The right to act that long requests check again.
    #[must_use]
    pub fn credential(&self) -> Credential {
        self.session.map_or(Credential::Key(self.key_id), Credential::Session)
    }
}

/// The right of a caller to act: its session, or else its key. A session is active only as long as its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Credential {
    /// An API key.
    Key(ApiKeyId),
    /// A session.
    Session(SessionId),
}

/// The reason why a key or a session is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// There is no such key.
    #[error("the API key is not known")]
    Unknown,
    /// It was revoked.
    #[error("the API key was revoked")]
    Revoked,
    /// It has expired.
    #[error("the API key has expired")]
    Expired,
    /// The session was ended, revoked or has expired, or there never was one.
    #[error("the session has ended; sign in again")]
    SessionEnded,
    /// The login code is not known.
    #[error(
        "the login code is not valid: a code works once and within a minute; `postrider dashboard` prints a new one"
    )]
    CodeUnknown,
}

/// Creates a key of the tenant and returns its secret, which is not stored.
pub async fn create(
    connection: &mut PgConnection,
    tenant: TenantId,
    name: &str,
    role: Role,
    expires_at: Option<Timestamp>,
    actor: &str,
) -> Result<(ApiKeyId, ApiKeySecret), StoreError> {
    let id = ApiKeyId::new();
    let secret = ApiKeySecret::generate(tenant)
        .map_err(|error| StoreError::Unfit(format!("the system's random source failed: {error}")))?;
    let hash = secret.hash();
    sqlx::query!(
        "select tenancy.create_api_key($1, $2, $3, $4, $5, $6, $7, $8)",
        tenant.0,
        id.0,
        name,
        role.as_str(),
        secret.hint(),
        hash.as_slice(),
        expires_at.map(ToSqlx::to_sqlx) as _,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(|error| match StoreError::constraint(&error) {
        Some("api_keys_name_is_given") => {
            StoreError::Refused { message: "a key needs a name of 1 to 255 bytes".to_owned(), hint: None }
        }
        _ => StoreError::on("creating the API key")(error),
    })?;
    Ok((id, secret))
}

/// The keys of one tenant, oldest first.
pub async fn list(connection: &mut PgConnection, tenant: TenantId) -> Result<Vec<ApiKey>, StoreError> {
    page(connection, tenant, None, i64::MAX).await
}

/// Up to so many keys of one tenant, oldest first, after the one that was made then.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    after: Option<(Timestamp, ApiKeyId)>,
    limit: i64,
) -> Result<Vec<ApiKey>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id,
               name,
               role,
               hint,
               created_at as "created_at: jiff_sqlx::Timestamp",
               expires_at as "expires_at: jiff_sqlx::Timestamp",
               revoked_at as "revoked_at: jiff_sqlx::Timestamp",
               last_used_at as "last_used_at: jiff_sqlx::Timestamp"
          from tenancy.api_keys
         where tenant_id = $1
           and ($2::timestamptz is null or (created_at, id) > ($2, $3))
         order by created_at, id
         limit $4
        "#,
        tenant.0,
        after.map(|(at, _)| at.to_sqlx()) as _,
        after.map(|(_, id)| id.0),
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the API keys"))?;
    Ok(rows
        .into_iter()
        .map(|row| ApiKey {
            id: ApiKeyId(row.id),
            name: row.name,
            role: row.role,
            hint: row.hint,
            created_at: row.created_at.to_jiff(),
            expires_at: row.expires_at.map(jiff_sqlx::Timestamp::to_jiff),
            revoked_at: row.revoked_at.map(jiff_sqlx::Timestamp::to_jiff),
            last_used_at: row.last_used_at.map(jiff_sqlx::Timestamp::to_jiff),
        })
        .collect())
}

/// The active ones among these keys and sessions of a tenant.
pub async fn active(
    connection: &mut PgConnection,
    tenant: TenantId,
    credentials: &[Credential],
) -> Result<Vec<Credential>, StoreError> {
    let (mut keys, mut sessions) = (Vec::new(), Vec::new());
    for credential in credentials {
        match credential {
            Credential::Key(key) => keys.push(key.0),
            Credential::Session(session) => sessions.push(session.0),
        }
    }
    let rows = sqlx::query!(
        r#"
        select key.id as "id!", false as "is_session!"
          from tenancy.api_keys as key
         where key.tenant_id = $1
           and key.id = any ($2)
           and key.revoked_at is null
           and (key.expires_at is null or key.expires_at > now())
         union all
        select session.id, true
          from tenancy.sessions as session
          join tenancy.api_keys as key on key.tenant_id = session.tenant_id
                                      and key.id = session.key_id
         where session.tenant_id = $1
           and session.id = any ($3)
           and session.expires_at > now()
           and session.last_seen_at + session.idle_for > now()
           and key.revoked_at is null
           and (key.expires_at is null or key.expires_at > now())
        "#,
        tenant.0,
        &keys,
        &sessions,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("checking whether API keys and sessions are active"))?;
    let credential = |id: uuid::Uuid, is_session: bool| {
        if is_session { Credential::Session(SessionId(id)) } else { Credential::Key(ApiKeyId(id)) }
    };
    Ok(rows.into_iter().map(|row| credential(row.id, row.is_session)).collect())
}

/// Revokes a key of the tenant, for ever. False when there is no such key.
pub async fn revoke(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ApiKeyId,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(r#"select tenancy.revoke_api_key($1, $2, $3) as "known!""#, tenant.0, id.0, actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("revoking the API key"))
}

/// The caller of this key. The key names its tenant. The look-up is by the hash of 256 random bits, so its time reveals nothing about
/// a key.
pub async fn authenticate(
    connection: &mut PgConnection,
    secret: &ApiKeySecret,
) -> Result<Result<Caller, Denied>, StoreError> {
    let hash = secret.hash();
    let row = sqlx::query!(
        r#"
        select key_id as "key_id!", role as "role!", state as "state!"
          from tenancy.authenticate_api_key($1, $2)
        "#,
        secret.tenant().0,
        hash.as_slice(),
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("checking the API key"))?;
    let Some(row) = row else { return Ok(Err(Denied::Unknown)) };
    Ok(match (row.state.as_str(), row.role.parse()) {
        ("active", Ok(role)) => Ok(Caller {
            key_id: ApiKeyId(row.key_id),
            tenant_id: secret.tenant(),
            role,
            session: None,
            name: None,
        }),
        ("expired", _) => Err(Denied::Expired),
        ("revoked", _) => Err(Denied::Revoked),
        _ => Err(Denied::Unknown),
    })
}

//! Requests that came with a key under which they may be repeated, for a day.

use postrider_model::ids::TenantId;
use sqlx::PgConnection;

use crate::{StoreError, postgres::unprepared::unprepared};

/// Maximum size of a stored answer.
const BODY_BYTES_MAX: usize = 65_536;

/// The stored answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status of the answer.
    pub status: u16,
    /// The location of the new resource.
    pub location: Option<String>,
    /// The body, unless it held a secret or was very large.
    pub body: Option<String>,
}

/// The state of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The key is free, and taken by this transaction now. End with [`finish`].
    Nothing,
    /// The same request was carried out.
    Answered(Answer),
    /// Another transaction has the key at this moment.
    InProgress,
    /// The key belongs to another request.
    AnotherRequest,
}

/// Takes a key of the tenant for this transaction.
pub async fn begin(
    connection: &mut PgConnection,
    tenant: TenantId,
    key: &str,
    fingerprint: &[u8; 32],
) -> Result<Found, StoreError> {
    let row = sqlx::query!(
        r#"
        select state as "state!", status, location, body
          from tenancy.begin_request($1, $2, $3)
        "#,
        tenant.0,
        key,
        fingerprint.as_slice(),
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("taking the request's key"))?;
    Ok(match (row.state.as_str(), row.status.map(u16::try_from)) {
        ("fresh", _) => Found::Nothing,
        ("answered", Some(Ok(status))) => {
            Found::Answered(Answer { status, location: row.location, body: row.body })
        }
        ("in_progress", _) => Found::InProgress,
        ("another", _) => Found::AnotherRequest,
        (other, _) => {
            return Err(StoreError::Unfit(format!(
                "the database answered `{other}`, which this version does not know"
            )));
        }
    })
}

/// Records the answer to the request that this transaction began.
pub async fn finish(
    connection: &mut PgConnection,
    tenant: TenantId,
    key: &str,
    answer: &Answer,
) -> Result<(), StoreError> {
    let body = answer.body.as_deref().filter(|body| body.len() <= BODY_BYTES_MAX);
    sqlx::query!(
        "select tenancy.finish_request($1, $2, $3, $4, $5)",
        tenant.0,
        key,
        i16::try_from(answer.status).unwrap_or_default(),
        answer.location,
        body,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("recording the request's answer"))?;
    Ok(())
}

/// Tenants that have requests older than a day.
pub async fn tenants(connection: &mut PgConnection) -> Result<Vec<TenantId>, StoreError> {
    let ids =
        sqlx::query_scalar!(r#"select id as "id!" from tenancy.tenants_with_old_requests() as tenant (id)"#)
            .fetch_all(unprepared(connection))
            .await
            .map_err(StoreError::on("reading the tenants with old requests"))?;
    Ok(ids.into_iter().map(TenantId).collect())
}

/// Removes up to so many requests of a tenant that are older than a day, and returns their number.
pub async fn prune(connection: &mut PgConnection, tenant: TenantId, limit: i32) -> Result<i64, StoreError> {
    sqlx::query_scalar!(r#"select tenancy.prune_requests($1, $2) as "removed!""#, tenant.0, limit)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("removing old requests"))
}

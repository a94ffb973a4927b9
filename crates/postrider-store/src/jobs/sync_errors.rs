//! Dead letters: failures that need a person.

use jiff::Timestamp;
use postrider_model::ids::{JobRunId, SyncErrorId, TenantId};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{StoreError, postgres::unprepared::unprepared};

/// A dead letter.
#[derive(Debug, Clone, Serialize)]
pub struct SyncError {
    /// Its id.
    pub id: SyncErrorId,
    /// Type of the failure.
    pub error_type: String,
    /// `MAX_RETRIES_EXCEEDED` or `EXECUTION_ERROR`.
    pub error_code: String,
    /// The error, in the words of the function.
    pub error_message: String,
    /// Function, lock key, input, retries and the time of the last attempt.
    pub error_details: Value,
    /// Type of the entity that it is about.
    pub source_entity_type: String,
    /// Id of the entity.
    pub source_entity_id: Uuid,
    /// Whether it was resolved.
    pub is_resolved: bool,
    /// Time of the resolution.
    pub resolved_at: Option<Timestamp>,
    /// The actor that resolved it.
    pub resolved_by: Option<String>,
    /// Note about the resolution.
    pub resolution_note: Option<String>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// Up to so many dead letters of a tenant, newest first, below this one; only open ones, or only the others, if `is_resolved` is set.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    is_resolved: Option<bool>,
    below: Option<SyncErrorId>,
    limit: i64,
) -> Result<Vec<SyncError>, StoreError> {
    let which = Which { is_resolved, below, ..Which::default() };
    select(connection, tenant, which, limit).await
}

/// One dead letter of a tenant.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: SyncErrorId,
) -> Result<Option<SyncError>, StoreError> {
    Ok(select(connection, tenant, Which { id: Some(id), ..Which::default() }, 1).await?.pop())
}

/// The dead letters about a run of a tenant, newest first. At most one of them is open.
pub async fn of_run(
    connection: &mut PgConnection,
    tenant: TenantId,
    run: JobRunId,
) -> Result<Vec<SyncError>, StoreError> {
    select(connection, tenant, Which { run: Some(run), ..Which::default() }, i64::MAX).await
}

/// Filters for dead letters.
#[derive(Default)]
struct Which {
    id: Option<SyncErrorId>,
    run: Option<JobRunId>,
    is_resolved: Option<bool>,
    below: Option<SyncErrorId>,
}

async fn select(
    connection: &mut PgConnection,
    tenant: TenantId,
    which: Which,
    limit: i64,
) -> Result<Vec<SyncError>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id, error_type, error_code, error_message, error_details, source_entity_type, source_entity_id, is_resolved,
               resolved_at as "resolved_at: jiff_sqlx::Timestamp", resolved_by, resolution_note,
               created_at as "created_at: jiff_sqlx::Timestamp",
               updated_at as "updated_at: jiff_sqlx::Timestamp"
          from jobs.sync_errors
         where tenant_id = $1
           and ($2::uuid is null or id = $2)
           and ($3::boolean is null or is_resolved = $3)
           and ($4::uuid is null or id < $4)
           and ($5::uuid is null or (source_entity_type = 'job_run' and source_entity_id = $5))
         order by id desc
         limit $6
        "#,
        tenant.0,
        which.id.map(|id| id.0),
        which.is_resolved,
        which.below.map(|id| id.0),
        which.run.map(|run| run.0),
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the errors"))?;
    let time = jiff_sqlx::Timestamp::to_jiff;
    Ok(rows
        .into_iter()
        .map(|row| SyncError {
            id: SyncErrorId(row.id),
            error_type: row.error_type,
            error_code: row.error_code,
            error_message: row.error_message,
            error_details: row.error_details,
            source_entity_type: row.source_entity_type,
            source_entity_id: row.source_entity_id,
            is_resolved: row.is_resolved,
            resolved_at: row.resolved_at.map(time),
            resolved_by: row.resolved_by,
            resolution_note: row.resolution_note,
            created_at: time(row.created_at),
            updated_at: time(row.updated_at),
        })
        .collect())
}

/// Resolves a dead letter of a tenant with a note; a repetition changes nothing. False when there is no such dead letter.
pub async fn resolve(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: SyncErrorId,
    note: &str,
    actor: &str,
) -> Result<bool, StoreError> {
    let resolving = sqlx::query_scalar!(
        r#"select jobs.resolve_sync_error($1, $2, $3, $4) as "known!""#,
        tenant.0,
        id.0,
        note,
        actor
    );
    resolving.fetch_one(unprepared(connection)).await.map_err(StoreError::on("resolving the error"))
}

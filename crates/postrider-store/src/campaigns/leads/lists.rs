//! Lists of leads.

use jiff::Timestamp;
use postrider_model::ids::{ListId, TenantId, WorkspaceId};
use sqlx::PgConnection;

use crate::{StoreError, postgres::unprepared::unprepared};

/// A list of leads.
#[derive(Debug, Clone)]
pub struct List {
    /// Its id.
    pub id: ListId,
    /// Its workspace.
    pub workspace_id: WorkspaceId,
    /// Its name.
    pub name: String,
    /// Number of its leads, up to [`MEMBERS_MAX`].
    pub members: i64,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// Number at which the members of a list are no longer counted.
pub const MEMBERS_MAX: i64 = 10_000;

/// Lists of a tenant, newest first, below this one; only those whose name contains a text, whatever its case.
pub async fn lists(
    connection: &mut PgConnection,
    tenant: TenantId,
    contains: Option<&str>,
    below: Option<ListId>,
    limit: i64,
) -> Result<Vec<List>, StoreError> {
    let rows = sqlx::query_file!(
        "sql/campaigns/list_lead_lists.sql",
        tenant.0,
        contains,
        below.map(|list| list.0),
        limit
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the lists of leads"))?;
    Ok(rows
        .into_iter()
        .map(|row| List {
            id: ListId(row.id),
            workspace_id: WorkspaceId(row.workspace_id),
            name: row.name,
            members: row.members,
            created_at: row.created_at.to_jiff(),
        })
        .collect())
}

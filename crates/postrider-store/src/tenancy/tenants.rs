//! Tenants and their workspaces. Only a member of the owner role makes them.

use jiff::Timestamp;
use postrider_model::ids::{TenantId, WorkspaceId};
use serde::Serialize;
use sqlx::PgConnection;

use crate::{StoreError, postgres::unprepared::unprepared};

/// A tenant, with the workspace it began with.
#[derive(Debug, Clone, Serialize)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// Its first workspace.
    pub workspace_id: WorkspaceId,
    /// Its name, unique in the installation.
    pub name: String,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// Makes a tenant with a workspace called `default`.
pub async fn create(
    connection: &mut PgConnection,
    name: &str,
    actor: &str,
) -> Result<(TenantId, WorkspaceId), StoreError> {
    let (tenant, workspace) = (TenantId::new(), WorkspaceId::new());
    sqlx::query!("select tenancy.create_tenant($1, $2, $3, $4)", tenant.0, workspace.0, name, actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(|error| match StoreError::constraint(&error) {
            Some("tenants_one_per_name") => refused(format!("a tenant called `{name}` exists already")),
            Some("tenants_name_is_given") => refused("a tenant needs a name of 1 to 255 bytes".to_owned()),
            _ => StoreError::on("creating the tenant")(error),
        })?;
    Ok((tenant, workspace))
}

/// All tenants but the system tenant, oldest first.
pub async fn list(connection: &mut PgConnection) -> Result<Vec<Tenant>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select tenant.id,
               tenant.name,
               tenant.created_at as "created_at: jiff_sqlx::Timestamp",
               workspace.id as workspace_id
          from tenancy.tenants as tenant
          join lateral (
                   select id
                     from tenancy.workspaces
                    where tenant_id = tenant.id
                    order by created_at, id
                    limit 1) as workspace on true
         where tenant.id <> tenancy.system_tenant_id()
         order by tenant.created_at, tenant.id
        "#
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the tenants"))?;
    Ok(rows
        .into_iter()
        .map(|row| Tenant {
            id: TenantId(row.id),
            workspace_id: WorkspaceId(row.workspace_id),
            name: row.name,
            created_at: row.created_at.to_jiff(),
        })
        .collect())
}

/// The tenant with this name or this id.
pub async fn find(connection: &mut PgConnection, name_or_id: &str) -> Result<Tenant, StoreError> {
    let id = name_or_id.parse::<TenantId>().ok();
    list(connection)
        .await?
        .into_iter()
        .find(|tenant| Some(tenant.id) == id || tenant.name == name_or_id)
        .ok_or_else(|| {
            refused(format!("there is no tenant `{name_or_id}`; `postrider tenants list` shows them"))
        })
}

/// The workspaces of a tenant, oldest first; the first is the default.
pub async fn workspaces(
    connection: &mut PgConnection,
    tenant: TenantId,
) -> Result<Vec<WorkspaceId>, StoreError> {
    let ids = sqlx::query_scalar!(
        "select id from tenancy.workspaces where tenant_id = $1 order by created_at, id",
        tenant.0
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the workspaces"))?;
    Ok(ids.into_iter().map(WorkspaceId).collect())
}

/// The workspace that is named, or the tenant's first. `None` when the tenant has no such workspace.
pub async fn workspace(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: Option<WorkspaceId>,
) -> Result<Option<WorkspaceId>, StoreError> {
    let all = workspaces(connection, tenant).await?;
    Ok(all.into_iter().find(|id| wanted.is_none_or(|wanted| wanted == *id)))
}

fn refused(message: String) -> StoreError {
    StoreError::Refused { message, hint: None }
}

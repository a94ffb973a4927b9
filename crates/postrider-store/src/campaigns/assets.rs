//! Content in versions that never change.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    Channel,
    ids::{AssetId, TenantId, WorkspaceId},
};
use serde::Serialize;
use sqlx::PgConnection;

use crate::{
    StoreError,
    postgres::{unprepared::unprepared, values::word},
};

/// One version of content.
#[derive(Debug, Clone, Serialize)]
pub struct Asset {
    /// Its id.
    pub id: AssetId,
    /// Its name in the tenant.
    pub name: String,
    /// Counts from one for each name.
    pub version: i32,
    /// Its channel.
    pub channel: Channel,
    /// Its content.
    pub content: serde_json::Value,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// A version in a list, without its content.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its id.
    pub id: AssetId,
    /// Its workspace.
    pub workspace_id: WorkspaceId,
    /// Its name in the tenant.
    pub name: String,
    /// Counts from one for each name.
    pub version: i32,
    /// Its channel.
    pub channel: Channel,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// Filters for the list of assets.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only of this name.
    pub name: Option<String>,
    /// Only for this channel.
    pub channel: Option<Channel>,
}

/// Makes the next version of an asset of the tenant, or answers with the newest one when it says the same already.
pub async fn create(
    connection: &mut PgConnection,
    tenant: TenantId,
    workspace: WorkspaceId,
    name: &str,
    channel: Channel,
    content: &serde_json::Value,
    actor: &str,
) -> Result<(AssetId, i32), StoreError> {
    let row = sqlx::query!(
        r#"
        select id as "id!",
               version as "version!"
          from execution.create_asset($1, $2, $3, $4, $5, $6, $7)
        "#,
        tenant.0,
        AssetId::new().0,
        workspace.0,
        name,
        channel.as_str(),
        content,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(|error| match StoreError::constraint(&error) {
        Some("assets_name_is_given") => refused("an asset needs a name of 1 to 255 bytes"),
        Some("assets_content_is_a_small_object") => {
            refused("the content of an asset is a JSON object of at most 1 MiB")
        }
        _ => StoreError::on("creating the asset")(error),
    })?;
    Ok((AssetId(row.id), row.version))
}

/// An asset by its id, as `NAME@VERSION`, or the newest version of `NAME`.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    workspace: WorkspaceId,
    wanted: &str,
) -> Result<Option<Asset>, StoreError> {
    let id = wanted.parse::<AssetId>().ok().map(|id| id.0);
    let versioned = wanted.rsplit_once('@').and_then(|(name, version)| Some((name, version.parse().ok()?)));
    let (name, version): (Option<&str>, Option<i32>) = versioned.unzip();
    let row = sqlx::query!(
        r#"
        select id,
               name,
               version,
               channel,
               content,
               created_at as "created_at: jiff_sqlx::Timestamp"
          from execution.assets
         where tenant_id = $1
           and workspace_id = $2
           and (id = $3 or (name, version) = ($4, $5) or name = $6)
         order by id = $3 desc nulls last, (name, version) = ($4, $5) desc nulls last, version desc
         limit 1
        "#,
        tenant.0,
        workspace.0,
        id,
        name,
        version,
        wanted,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("looking for the asset"))?;
    row.map(|row| {
        Ok(Asset {
            id: AssetId(row.id),
            name: row.name,
            version: row.version,
            channel: word(&row.channel)?,
            content: row.content,
            created_at: row.created_at.to_jiff(),
        })
    })
    .transpose()
}

/// Assets of a tenant, newest first: those after a given one, or from the beginning.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    filter: &Filter,
    after: Option<(Timestamp, AssetId)>,
    limit: i64,
) -> Result<Vec<Listed>, StoreError> {
    let (at, id) = after.unzip();
    let rows = sqlx::query!(
        r#"
        select id,
               workspace_id,
               name,
               version,
               channel,
               created_at as "created_at: jiff_sqlx::Timestamp"
          from execution.assets
         where tenant_id = $1
           and ($2::timestamptz is null or (created_at, id) < ($2, $3::uuid))
           and ($4::text is null or name = $4)
           and ($5::text is null or channel = $5)
         order by created_at desc, id desc
         limit $6
        "#,
        tenant.0,
        at.map(ToSqlx::to_sqlx) as _,
        id.map(|id| id.0),
        filter.name,
        filter.channel.map(Channel::as_str),
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the assets"))?;
    rows.into_iter()
        .map(|row| {
            Ok(Listed {
                id: AssetId(row.id),
                workspace_id: WorkspaceId(row.workspace_id),
                name: row.name,
                version: row.version,
                channel: word(&row.channel)?,
                created_at: row.created_at.to_jiff(),
            })
        })
        .collect()
}

/// One version. `None` when the tenant has no such asset.
pub async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: AssetId,
) -> Result<Option<(Listed, serde_json::Value)>, StoreError> {
    let row = sqlx::query!(
        r#"
        select id,
               workspace_id,
               name,
               version,
               channel,
               content,
               created_at as "created_at: jiff_sqlx::Timestamp"
          from execution.assets
         where tenant_id = $1
           and id = $2
        "#,
        tenant.0,
        id.0,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the asset"))?;
    row.map(|row| {
        let listed = Listed {
            id: AssetId(row.id),
            workspace_id: WorkspaceId(row.workspace_id),
            name: row.name,
            version: row.version,
            channel: word(&row.channel)?,
            created_at: row.created_at.to_jiff(),
        };
        Ok((listed, row.content))
    })
    .transpose()
}

fn refused(message: &str) -> StoreError {
    StoreError::Refused { message: message.to_owned(), hint: None }
}

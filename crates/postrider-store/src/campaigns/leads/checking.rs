//! The audience of a phase that is not deployed yet: its counts, and a sample of its leads.

use std::{sync::Arc, time::Duration};

use postrider_model::{
    Channel,
    ids::{LeadId, ListId, TenantId, WorkspaceId},
};
use serde_json::value::RawValue;
use sqlx::{Connection, PgConnection};

use crate::{
    StoreError,
    campaigns::send_jobs::Lead,
    postgres::{pool, unprepared::unprepared},
};

/// Number of members of a list up to which each is classified.
pub const COUNTED_MAX: i32 = 100_000;
/// Most leads of a sample.
pub const SAMPLE_MAX: i32 = 1_000;

/// Counts of a list, as a phase on a channel would address it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Audience {
    /// Members of the list.
    pub members: i64,
    /// Members that were classified: the first [`COUNTED_MAX`] of them, by id. The other counts are about these.
    pub counted: i64,
    /// Leads that would get a message.
    pub reachable: i64,
    /// Leads that are suppressed, or share their address with one that is.
    pub suppressed: i64,
    /// Leads without an address on the channel.
    pub without_address: i64,
    /// Leads that are left out because an earlier member has their address.
    pub same_address: i64,
}

/// The counts of a list, and leads from its whole length, up to [`SAMPLE_MAX`]. `None` when that takes longer than `within`, or there is no
/// such list.
pub async fn audience(
    connection: &mut PgConnection,
    tenant: TenantId,
    workspace: WorkspaceId,
    list: &str,
    channel: Channel,
    within: Duration,
) -> Result<Option<(Audience, Vec<Arc<Lead>>)>, StoreError> {
    // A savepoint, because a statement that takes too long ends with an error. Its end also ends the limit of time.
    let failed = StoreError::on("counting the audience");
    let mut savepoint = connection.begin().await.map_err(&failed)?;
    pool::limit_statements(&mut savepoint, within).await?;
    let read = read(&mut savepoint, tenant, workspace, list, channel).await;
    savepoint.rollback().await.map_err(&failed)?;
    match read {
        Err(error) if error.is_timeout() => Ok(None),
        read => read,
    }
}

async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    workspace: WorkspaceId,
    list: &str,
    channel: Channel,
) -> Result<Option<(Audience, Vec<Arc<Lead>>)>, StoreError> {
    let list = sqlx::query_scalar!(
        "select id from execution.lead_lists where tenant_id = $1 and workspace_id = $2 and name = $3",
        tenant.0,
        workspace.0,
        list,
    )
    .fetch_optional(unprepared(&mut *connection))
    .await
    .map_err(StoreError::on("finding the list"))?;
    let Some(list) = list.map(ListId) else { return Ok(None) };
    let audience = sqlx::query_as!(
        Audience,
        r#"
        select members as "members!",
               counted as "counted!",
               reachable as "reachable!",
               suppressed as "suppressed!",
               without_address as "without_address!",
               same_address as "same_address!"
          from execution.count_audience($1, $2, $3, $4)
        "#,
        tenant.0,
        list.0,
        channel.as_str(),
        COUNTED_MAX,
    )
    .fetch_one(unprepared(&mut *connection))
    .await
    .map_err(StoreError::on("counting the audience"))?;
    let step = audience.counted.unsigned_abs().div_ceil(SAMPLE_MAX.unsigned_abs().into()).max(1);
    let rows = sqlx::query!(
        r#"
        select lead_id as "lead_id!",
               external_id,
               email,
               phone,
               timezone,
               attributes::text as "attributes!"
          from execution.sample_audience($1, $2, $3, $4, $5)
        "#,
        tenant.0,
        list.0,
        channel.as_str(),
        COUNTED_MAX,
        i32::try_from(step).unwrap_or(i32::MAX),
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("sampling the audience"))?;
    let leads = rows.into_iter().map(|row| {
        Ok(Arc::new(Lead {
            id: LeadId(row.lead_id),
            external_id: row.external_id,
            email: row.email,
            phone: row.phone,
            timezone: row.timezone,
            attributes: RawValue::from_string(row.attributes)
                .map_err(|error| StoreError::Unfit(format!("the attributes of a lead: {error}")))?,
            suppression_reason: None,
        }))
    });
    Ok(Some((audience, leads.collect::<Result<_, StoreError>>()?)))
}

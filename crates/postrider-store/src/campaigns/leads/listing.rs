//! Leads, page by page and one by one.

use jiff::Timestamp;
use postrider_model::ids::{LeadId, TenantId, WorkspaceId};
use serde_json::value::RawValue;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::people;
use crate::{
    StoreError,
    postgres::{pool, unprepared::unprepared},
    tenancy::tenants,
};

/// A person whom campaigns address.
#[derive(Debug)]
pub struct Lead {
    /// Its id.
    pub id: LeadId,
    /// Its workspace.
    pub workspace_id: WorkspaceId,
    /// Its id in the system that it came from.
    pub external_id: Option<String>,
    /// Its e-mail address.
    pub email: Option<String>,
    /// Its phone number, as E.164.
    pub phone: Option<String>,
    /// An IANA name.
    pub timezone: Option<String>,
    /// Further attributes, as a JSON object; numbers keep all their digits.
    pub attributes: Box<RawValue>,
    /// Time of its suppression, if it is suppressed.
    pub suppressed_at: Option<Timestamp>,
    /// The reason of its suppression.
    pub suppression_reason: Option<String>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// Time of its erasure, if the person was erased.
    pub erased_at: Option<Timestamp>,
}

/// Filters for the list of leads. Texts are compared letter for letter.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only of this workspace.
    pub workspace: Option<WorkspaceId>,
    /// Only those on the list of this name.
    pub list: Option<String>,
    /// Only suppressed leads, or only the others.
    pub suppressed: Option<bool>,
    /// Only with this address.
    pub email: Option<String>,
    /// Only with this number, as E.164.
    pub phone: Option<String>,
    /// Only with this id in the system that they came from.
    pub external_id: Option<String>,
    /// Only with this e-mail address (in upper or lower case), phone number or external id.
    pub recipient: Option<String>,
    /// Erased leads too.
    pub with_erased: bool,
}

/// Leads of a tenant, newest first: those after a given one, or from the beginning.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    filter: &Filter,
    after: Option<LeadId>,
    limit: i64,
) -> Result<Vec<Lead>, StoreError> {
    // An identity is unique in a workspace, and found by both.
    let workspaces: Vec<Uuid> = tenants::workspaces(&mut *connection, tenant)
        .await?
        .into_iter()
        .map(|workspace| workspace.0)
        .collect();
    let workspaces: Vec<Uuid> =
        workspaces.into_iter().filter(|id| filter.workspace.is_none_or(|wanted| wanted.0 == *id)).collect();
    let people = match &filter.recipient {
        Some(wanted) => Some(people::uuids(&people::find_all(&mut *connection, tenant, wanted).await?)),
        None => None,
    };
    let filter = &Narrowed { filter, people };
    match &filter.filter.list {
        None => page_of_all(connection, tenant, &workspaces, filter, after, limit).await,
        Some(list) => {
            let lists = lists(&mut *connection, tenant, &workspaces, list).await?;
            page_of_lists(connection, tenant, &lists, filter, after, limit).await
        }
    }
}

/// A filter whose recipient was looked up.
struct Narrowed<'a> {
    filter: &'a Filter,
    people: Option<Vec<Uuid>>,
}

/// One lead. `None` when the tenant has no such lead.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: LeadId,
) -> Result<Option<Lead>, StoreError> {
    let row = sqlx::query_as!(
        Row,
        r#"
        select id,
               workspace_id,
               external_id,
               email,
               phone,
               timezone,
               attributes as "attributes: Json<Box<RawValue>>",
               suppressed_at as "suppressed_at: jiff_sqlx::Timestamp",
               suppression_reason,
               created_at as "created_at: jiff_sqlx::Timestamp",
               updated_at as "updated_at: jiff_sqlx::Timestamp",
               erased_at as "erased_at: jiff_sqlx::Timestamp"
          from execution.leads
         where tenant_id = $1
           and id = $2
        "#,
        tenant.0,
        id.0,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("looking for the lead"))?;
    Ok(row.map(Lead::from))
}

async fn page_of_all(
    connection: &mut PgConnection,
    tenant: TenantId,
    workspaces: &[Uuid],
    Narrowed { filter, people }: &Narrowed<'_>,
    after: Option<LeadId>,
    limit: i64,
) -> Result<Vec<Lead>, StoreError> {
    // The planner takes every tenant for a small one (sql/campaigns/tables/audience.sql). A bitmap of all suppressed leads would then
    // look as cheap as the index that has them in the order of the page.
    pool::read_in_order_of_an_index(connection).await?;
    let rows = sqlx::query_file_as!(
        Row,
        "sql/campaigns/list_leads.sql",
        tenant.0,
        after.map(|lead| lead.0),
        filter.suppressed,
        filter.email,
        filter.phone,
        identity(filter),
        workspaces,
        limit,
        people.as_deref(),
        filter.with_erased,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing leads"))?;
    Ok(rows.into_iter().map(Lead::from).collect())
}

async fn page_of_lists(
    connection: &mut PgConnection,
    tenant: TenantId,
    lists: &[Uuid],
    Narrowed { filter, people }: &Narrowed<'_>,
    after: Option<LeadId>,
    limit: i64,
) -> Result<Vec<Lead>, StoreError> {
    let rows = sqlx::query_file_as!(
        Row,
        "sql/campaigns/list_leads_of_lists.sql",
        tenant.0,
        after.map(|lead| lead.0),
        filter.suppressed,
        filter.email,
        filter.phone,
        identity(filter),
        lists,
        limit,
        people.as_deref(),
        filter.with_erased,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the leads of a list"))?;
    Ok(rows.into_iter().map(Lead::from).collect())
}

/// Whether a workspace has a list of this name.
pub async fn has_list(
    connection: &mut PgConnection,
    tenant: TenantId,
    workspace: WorkspaceId,
    name: &str,
) -> Result<bool, StoreError> {
    Ok(!lists(connection, tenant, &[workspace.0], name).await?.is_empty())
}

/// The lists of this name, one per workspace at most.
async fn lists(
    connection: &mut PgConnection,
    tenant: TenantId,
    workspaces: &[Uuid],
    name: &str,
) -> Result<Vec<Uuid>, StoreError> {
    sqlx::query_scalar!(
        "select id from execution.lead_lists where tenant_id = $1 and workspace_id = any ($2) and name = $3",
        tenant.0,
        workspaces,
        name,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("looking for the list"))
}

/// The identity of a lead with this external id.
fn identity(filter: &Filter) -> Option<String> {
    filter.external_id.as_ref().map(|id| format!("id:{id}"))
}

struct Row {
    id: Uuid,
    workspace_id: Uuid,
    external_id: Option<String>,
    email: Option<String>,
    phone: Option<String>,
    timezone: Option<String>,
    attributes: Json<Box<RawValue>>,
    suppressed_at: Option<jiff_sqlx::Timestamp>,
    suppression_reason: Option<String>,
    created_at: jiff_sqlx::Timestamp,
    updated_at: jiff_sqlx::Timestamp,
    erased_at: Option<jiff_sqlx::Timestamp>,
}

impl From<Row> for Lead {
    fn from(row: Row) -> Self {
        Self {
            id: LeadId(row.id),
            workspace_id: WorkspaceId(row.workspace_id),
            external_id: row.external_id,
            email: row.email,
            phone: row.phone,
            timezone: row.timezone,
            attributes: row.attributes.0,
            suppressed_at: row.suppressed_at.map(jiff_sqlx::Timestamp::to_jiff),
            suppression_reason: row.suppression_reason,
            created_at: row.created_at.to_jiff(),
            updated_at: row.updated_at.to_jiff(),
            erased_at: row.erased_at.map(jiff_sqlx::Timestamp::to_jiff),
        }
    }
}

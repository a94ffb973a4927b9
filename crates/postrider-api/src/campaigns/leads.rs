//! Leads: import, list, show, suppress.

mod import;
mod lists;
pub(crate) mod people;
mod spool;

use axum::{Json, extract::State};
use jiff::Timestamp;
use postrider_model::{
    campaigns::audience::REASON_BYTES_MAX,
    ids::{LeadId, TenantId, WorkspaceId},
};
use postrider_store::{
    PgConnection,
    campaigns::{
        leads::{self, Filter, Lead},
        unsubscribing::{self, ListSuppression, OfList},
    },
    postgres::pool,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

pub(crate) use self::{
    import::{__path_import, import},
    lists::{__path_list_lists, list_lists},
    spool::BYTES_MAX as IMPORT_BYTES_MAX,
};
use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Body, Path, Query},
        error::{ApiError, ApiResult},
        paging::{self, Page},
        requests::Reading,
    },
};

/// A person whom campaigns address.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lead)]
pub(crate) struct LeadBody {
    id: Uuid,
    workspace_id: Uuid,
    /// Its id in the system that it came from.
    external_id: Option<String>,
    email: Option<String>,
    /// As E.164.
    phone: Option<String>,
    /// An IANA name.
    timezone: Option<String>,
    /// Further attributes; templates use them by their names.
    #[schema(value_type = Object)]
    attributes: Box<RawValue>,
    /// Time of its suppression, if it is suppressed.
    suppressed_at: Option<Timestamp>,
    suppression_reason: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// Time of its erasure. Such a lead has no data, and is never sent anything.
    erased_at: Option<Timestamp>,
}

impl From<Lead> for LeadBody {
    fn from(lead: Lead) -> Self {
        Self {
            id: lead.id.0,
            workspace_id: lead.workspace_id.0,
            external_id: lead.external_id,
            email: lead.email,
            phone: lead.phone,
            timezone: lead.timezone,
            attributes: lead.attributes,
            suppressed_at: lead.suppressed_at,
            suppression_reason: lead.suppression_reason,
            created_at: lead.created_at,
            updated_at: lead.updated_at,
            erased_at: lead.erased_at,
        }
    }
}

/// A lead with its suppressions for single lists.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LeadDetails)]
pub(crate) struct LeadDetails {
    #[serde(flatten)]
    lead: LeadBody,
    /// The lists for which the lead is suppressed. `suppressed_at` is the suppression for all lists.
    list_suppressions: Vec<ListSuppressionBody>,
}

/// The suppression of a lead for one list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ListSuppression)]
pub(crate) struct ListSuppressionBody {
    /// Name of the list.
    list: String,
    reason: String,
    suppressed_at: Timestamp,
}

impl LeadDetails {
    /// Reads a lead of the tenant.
    async fn read(connection: &mut PgConnection, tenant: TenantId, id: LeadId) -> ApiResult<Self> {
        let lead = leads::find(&mut *connection, tenant, id).await?.ok_or(ApiError::NotFound("lead"))?;
        let lists = unsubscribing::lists(connection, tenant, id).await?;
        let list_suppressions = lists
            .into_iter()
            .map(|ListSuppression { list, reason, suppressed_at }| ListSuppressionBody {
                list,
                reason,
                suppressed_at,
            })
            .collect();
        Ok(Self { lead: lead.into(), list_suppressions })
    }
}

/// The error of a list that the workspace of the lead does not have.
fn no_list(list: &str) -> ApiError {
    ApiError::unprocessable("list", format!("the workspace of the lead has no list `{list}`"))
}

/// Filters for the list of leads. Texts are compared letter for letter.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LeadQuery {
    /// Only those on the list of this name.
    list: Option<String>,
    /// Only suppressed leads, or only the others.
    suppressed: Option<bool>,
    /// Only with this address.
    email: Option<String>,
    /// Only with this number, as E.164.
    #[param(example = "+4930901820")]
    phone: Option<String>,
    /// Only with this id in the system that they came from.
    external_id: Option<String>,
    /// Only with this e-mail address (in upper or lower case), phone number (as E.164) or external id.
    #[param(example = "ann@example.org")]
    recipient: Option<String>,
    /// Erased leads too.
    #[serde(default)]
    #[param(default = false)]
    with_erased: bool,
    /// Only of this workspace.
    workspace_id: Option<Uuid>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The tenant's leads, newest first.
#[utoipa::path(
    get,
    path = "/leads",
    operation_id = "list_leads",
    tag = "audience and content",
    params(LeadQuery),
    responses((status = 200, description = "A page of leads", body = Page<LeadBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<LeadQuery>,
) -> ApiResult<Json<Page<LeadBody>>> {
    let size = paging::size(query.limit)?;
    let after: Option<LeadId> = paging::decode(query.cursor.as_deref())?;
    let filter = Filter {
        workspace: query.workspace_id.map(WorkspaceId),
        list: query.list,
        suppressed: query.suppressed,
        email: query.email,
        phone: query.phone.map(with_plus),
        external_id: query.external_id,
        recipient: query.recipient.map(with_plus),
        with_erased: query.with_erased,
    };
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = leads::page(reading.connection(), caller.tenant_id, &filter, after, size + 1).await?;
    reading.page(rows, size, |lead| lead.id, LeadBody::from).await
}

/// In a query a plus that is not escaped means a space, and every number begins with one.
fn with_plus(phone: String) -> String {
    match phone.strip_prefix(' ') {
        Some(digits) => format!("+{digits}"),
        None => phone,
    }
}

/// One lead.
#[utoipa::path(
    get,
    path = "/leads/{id}",
    operation_id = "get_lead",
    tag = "audience and content",
    params(("id" = Uuid, Path, description = "The lead's id")),
    responses((status = 200, description = "The lead", body = LeadDetails)),
)]
pub(crate) async fn get(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<LeadId>,
) -> ApiResult<Json<LeadDetails>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let lead = LeadDetails::read(reading.connection(), caller.tenant_id, id).await?;
    reading.end().await?;
    Ok(Json(lead))
}

/// The suppression of a lead.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suppression {
    /// Reason, kept with the lead and with every item that is left out because of it.
    #[schema(min_length = 1, max_length = 255, pattern = r"\S", example = "unsubscribed")]
    reason: String,
    /// Name of a list: only campaigns over it leave the lead out.
    #[schema(min_length = 1, max_length = 255)]
    list: Option<String>,
}

/// Suppresses a lead: nothing more is sent to it, nor to another lead with the same address; with `list`, nothing by campaigns over this
/// list. The reason of the first request stays.
#[utoipa::path(
    post,
    path = "/leads/{id}/suppress",
    operation_id = "suppress_lead",
    tag = "audience and content",
    params(("id" = Uuid, Path, description = "The lead's id")),
    request_body = Suppression,
    responses((status = 200, description = "The lead, suppressed", body = LeadDetails)),
)]
pub(crate) async fn suppress(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<LeadId>,
    Body { value: Suppression { reason, list }, .. }: Body<Suppression>,
) -> ApiResult<Json<LeadDetails>> {
    if reason.trim().is_empty() || reason.len() > REASON_BYTES_MAX {
        let problem = format!("say in 1 to {REASON_BYTES_MAX} bytes why nothing may be sent any more");
        return Err(ApiError::unprocessable("reason", problem));
    }
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    let tenant = caller.tenant_id;
    if let Some(list) = &list {
        let actor = caller.actor();
        let done = unsubscribing::suppress(&mut transaction, tenant, id, list, &reason, &actor).await?;
        if done == OfList::NoList {
            return Err(no_list(list));
        }
    } else {
        leads::suppress(&mut transaction, tenant, id, &reason, &caller.actor()).await?;
    }
    let lead = LeadDetails::read(&mut transaction, tenant, id).await?;
    pool::commit(transaction).await?;
    Ok(Json(lead))
}

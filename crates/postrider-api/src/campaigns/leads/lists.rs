//! Lists of leads.

use axum::{Json, extract::State};
use jiff::Timestamp;
use postrider_model::ids::ListId;
use postrider_store::campaigns::leads::{self, List, MEMBERS_MAX};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    App,
    common::{
        auth::Viewer,
        body::Query,
        error::{ApiError, ApiResult},
        paging::{self, Page},
        requests::Reading,
    },
};

/// Longest text that is searched, in bytes: as long as the name of a list.
const TEXT_BYTES_MAX: usize = 255;

/// A list of leads.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LeadList)]
pub(crate) struct ListBody {
    id: Uuid,
    workspace_id: Uuid,
    name: String,
    /// Number of its leads, counted up to 10,000.
    members: i64,
    /// Whether counting stopped there.
    members_capped: bool,
    created_at: Timestamp,
}

impl From<List> for ListBody {
    fn from(list: List) -> Self {
        Self {
            id: list.id.0,
            workspace_id: list.workspace_id.0,
            name: list.name,
            members: list.members,
            members_capped: list.members >= MEMBERS_MAX,
            created_at: list.created_at,
        }
    }
}

/// Filter of the list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListsQuery {
    /// Only lists whose name contains this text, whatever its case.
    #[param(min_length = 1, max_length = 255)]
    q: Option<String>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The tenant's lists of leads, newest first.
#[utoipa::path(
    get,
    path = "/lists",
    operation_id = "list_lead_lists",
    tag = "audience and content",
    params(ListsQuery),
    responses((status = 200, description = "A page of lists", body = Page<ListBody>)),
)]
pub(crate) async fn list_lists(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<ListsQuery>,
) -> ApiResult<Json<Page<ListBody>>> {
    let size = paging::size(query.limit)?;
    let below: Option<ListId> = paging::decode(query.cursor.as_deref())?;
    let text = query.q.as_deref();
    if text.is_some_and(|text| text.is_empty() || text.len() > TEXT_BYTES_MAX) {
        return Err(ApiError::invalid("q", format!("must have 1 to {TEXT_BYTES_MAX} bytes")));
    }
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = leads::lists(reading.connection(), caller.tenant_id, text, below, size + 1).await?;
    reading.page(rows, size, |list| list.id, ListBody::from).await
}

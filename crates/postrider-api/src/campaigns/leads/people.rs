//! One person: their items, the end of a suppression, erasure.

use axum::{Json, extract::State};
use jiff::Timestamp;
use postrider_model::ids::{LeadId, RunId};
use postrider_store::{
    campaigns::{
        leads::{self, Erasure, LeadItem, RUNS_MAX},
        unsubscribing::{self, OfList},
    },
    postgres::pool,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::{LeadDetails, no_list};
use crate::{
    App,
    campaigns::runs::bodies::ItemBody,
    common::{
        auth::{Admin, Operator, Viewer},
        body::{Body, Path, Query},
        error::{ApiError, ApiResult},
        paging::{self, Page, by_age},
        requests::Reading,
    },
};

/// Maximum size of a note.
const NOTE_BYTES_MAX: usize = 2000;

/// An item of a lead, with the run that it belongs to.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LeadItem)]
pub(crate) struct LeadItemBody {
    campaign_id: Uuid,
    /// Name of the campaign.
    campaign: String,
    /// The name of the phase.
    phase: String,
    run_id: Uuid,
    #[serde(flatten)]
    item: ItemBody,
}

impl From<LeadItem> for LeadItemBody {
    fn from(found: LeadItem) -> Self {
        Self {
            campaign_id: found.campaign_id.0,
            campaign: found.campaign,
            phase: found.phase,
            run_id: found.run_id.0,
            item: found.item.into(),
        }
    }
}

/// A page of items.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LeadItemQuery {
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// Everything that campaigns sent to this lead, skipped or failed to send, newest run first, with the reason. A page looks at the newest
/// 1,000 runs of the workspace, or at the next 1,000 after its cursor. Items that retention has deleted are not in the list.
#[utoipa::path(
    get,
    path = "/leads/{id}/items",
    operation_id = "list_lead_items",
    tag = "audience and content",
    params(("id" = Uuid, Path, description = "The lead's id"), LeadItemQuery),
    responses((status = 200, description = "A page of items", body = Page<LeadItemBody>)),
)]
pub(crate) async fn list_items(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<LeadId>,
    Query(query): Query<LeadItemQuery>,
) -> ApiResult<Json<Page<LeadItemBody>>> {
    let size = paging::size(query.limit)?;
    let after = by_age::<RunId>(query.cursor.as_deref())?;
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    leads::find(reading.connection(), caller.tenant_id, id).await?.ok_or(ApiError::NotFound("lead"))?;
    let rows = leads::items(reading.connection(), caller.tenant_id, id, after, RUNS_MAX, size + 1).await?;
    reading.page(rows, size, |found| (found.run_created_at, found.run_id), LeadItemBody::from).await
}

/// The end of a suppression.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unsuppression {
    /// Reason why messages may be sent again; it is kept in the audit log.
    #[schema(
        min_length = 1,
        max_length = 2000,
        pattern = r"\S",
        example = "subscribed again on the website"
    )]
    note: String,
    /// Name of a list: ends the suppression for this list. Without it, the suppression for all lists ends, and those for single lists
    /// stay.
    #[schema(min_length = 1, max_length = 255)]
    list: Option<String>,
}

/// A lead that may be sent messages again.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UnsuppressedLead)]
pub(crate) struct UnsuppressedBody {
    #[serde(flatten)]
    lead: LeadDetails,
    /// Other suppressed leads with its e-mail address or phone number. As long as there are any, messages to that address are
    /// skipped.
    also_suppressed: Vec<Uuid>,
}

/// Ends the suppression of a lead. Repeating the request changes nothing.
#[utoipa::path(
    post,
    path = "/leads/{id}/unsuppress",
    operation_id = "unsuppress_lead",
    tag = "audience and content",
    params(("id" = Uuid, Path, description = "The lead's id")),
    request_body = Unsuppression,
    responses((status = 200, description = "The lead, no longer suppressed", body = UnsuppressedBody)),
)]
pub(crate) async fn unsuppress(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<LeadId>,
    Body { value: Unsuppression { note, list }, .. }: Body<Unsuppression>,
) -> ApiResult<Json<UnsuppressedBody>> {
    if note.trim().is_empty() || note.len() > NOTE_BYTES_MAX {
        let problem = format!("say in 1 to {NOTE_BYTES_MAX} bytes why messages may be sent again");
        return Err(ApiError::unprocessable("note", problem));
    }
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    let (tenant, actor) = (caller.tenant_id, caller.actor());
    let others = if let Some(list) = &list {
        match unsubscribing::unsuppress(&mut transaction, tenant, id, list, &note, &actor).await? {
            (OfList::NoList, _) => return Err(no_list(list)),
            (OfList::NoLead, _) => None,
            (OfList::Done, others) => Some(others),
        }
    } else {
        leads::unsuppress(&mut transaction, tenant, id, &note, &actor).await?
    };
    let others = others.ok_or(ApiError::NotFound("lead"))?;
    let lead = LeadDetails::read(&mut transaction, tenant, id).await?;
    pool::commit(transaction).await?;
    let also_suppressed = others.into_iter().map(|lead| lead.0).collect();
    Ok(Json(UnsuppressedBody { lead, also_suppressed }))
}

/// The record of an erasure.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Erasure)]
pub(crate) struct ErasureBody {
    /// The lead, which keeps its id and nothing else.
    lead_id: Uuid,
    erased_at: Timestamp,
    /// Items from which the person's data was removed.
    items: i64,
    /// Chat messages from which the person's data was removed, with their replies.
    messages: i64,
}

/// Erases a person: removes the data of the lead from leads, lists, items, callbacks, chat messages and audit notes. Keys and counts stay.
/// The lead is suppressed at once. If an item of it is in flight or in doubt, or a chat message is being answered, nothing else changes
/// and the answer is 409. Repeating the request changes nothing.
#[utoipa::path(
    post,
    path = "/leads/{id}/erase",
    operation_id = "erase_lead",
    tag = "audience and content",
    params(("id" = Uuid, Path, description = "The lead's id")),
    responses(
        (status = 200, description = "The person was erased", body = ErasureBody),
        (status = 409, description = "An item or a chat message of the person has not ended"),
    ),
)]
pub(crate) async fn erase(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(id): Path<LeadId>,
) -> ApiResult<Json<ErasureBody>> {
    let erased = leads::erase(&app.pool, caller.tenant_id, id, &caller.actor()).await?;
    match erased.ok_or(ApiError::NotFound("lead"))? {
        Erasure::Done { erased_at, items, messages } => {
            Ok(Json(ErasureBody { lead_id: id.0, erased_at, items, messages }))
        }
        Erasure::Open { open_items, open_messages } => Err(ApiError::conflict(format!(
            "the lead is suppressed and not erased yet: {open_items} of its items are in flight or in doubt, and {open_messages} chat \
             messages are being answered; resolve the items in doubt, then repeat the request"
        ))),
    }
}

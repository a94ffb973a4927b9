//! Links of senders to users. Messages of other senders are denied.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_model::{ids::LinkId, tenancy::Role};
use postrider_store::{
    channels::links::{self, Link, NewLink},
    postgres::pool,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::{account, listed_account};
use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Body, Path, Query},
        docs,
        error::{ApiError, ApiResult},
        paging::{self, Page},
        requests::{Reading, Repeatable, Writing},
    },
};

/// Longest name of a sender or a user, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A sender at one account, and the user it is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChannelLink)]
pub(crate) struct LinkBody {
    id: Uuid,
    account_id: Uuid,
    /// The provider's name for the sender.
    sender_id: String,
    /// The product's name for the user.
    user_id: String,
    #[schema(value_type = docs::Role)]
    role: Role,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<Link> for LinkBody {
    fn from(link: Link) -> Self {
        Self {
            id: link.id.0,
            account_id: link.account_id.0,
            sender_id: link.sender_id,
            user_id: link.user_id,
            role: link.role,
            created_at: link.created_at,
            updated_at: link.updated_at,
        }
    }
}

/// A new link.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewChannelLink)]
pub(crate) struct NewLinkBody {
    /// The account, by name or id. The same sender at another account may be another user.
    #[schema(min_length = 1)]
    account: String,
    /// The provider's name for the sender, such as `U012AB3CD` at Slack or a number at WhatsApp.
    #[schema(min_length = 1, max_length = 255, pattern = r"\S")]
    sender_id: String,
    /// The product's name for the user, which the executor gets with each message.
    #[schema(min_length = 1, max_length = 255, pattern = r"\S")]
    user_id: String,
    /// Role of the user; an executor has a minimum role.
    #[schema(value_type = docs::Role)]
    role: Role,
}

/// Filters for the list of links.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LinkQuery {
    /// Only at this account, by name or id.
    account: Option<String>,
    /// Only of this sender.
    sender_id: Option<String>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The tenant's links, newest first.
#[utoipa::path(
    get,
    path = "/channels/links",
    operation_id = "list_channel_links",
    tag = "channels",
    params(LinkQuery),
    responses((status = 200, description = "A page of links", body = Page<LinkBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<LinkQuery>,
) -> ApiResult<Json<Page<LinkBody>>> {
    let size = paging::size(query.limit)?;
    let below: Option<LinkId> = paging::decode(query.cursor.as_deref())?;
    let tenant = caller.tenant_id;
    let mut reading = Reading::begin(&app, tenant).await?;
    let account = listed_account(reading.connection(), tenant, query.account.as_deref()).await?;
    let sender = query.sender_id.as_deref();
    let rows = links::page(reading.connection(), tenant, account, sender, below, size + 1).await?;
    reading.page(rows, size, |link| link.id, LinkBody::from).await
}

/// Links a sender to a user, and replaces the link before.
#[utoipa::path(
    post,
    path = "/channels/links",
    operation_id = "link_channel_sender",
    tag = "channels",
    params(Repeatable),
    request_body = NewLinkBody,
    responses((status = 201, description = "The link; messages of this sender are the user's from now on", body = LinkBody)),
)]
pub(crate) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    Body { value: new, fingerprint }: Body<NewLinkBody>,
) -> ApiResult<Response> {
    for (field, name) in [("sender_id", &new.sender_id), ("user_id", &new.user_id)] {
        if name.trim().is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(ApiError::unprocessable(field, format!("needs 1 to {NAME_BYTES_MAX} bytes")));
        }
    }
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let connection = writing.connection();
    let tenant = caller.tenant_id;
    let account = account(connection, tenant, &new.account).await?;
    let link = NewLink { account, sender_id: &new.sender_id, user_id: &new.user_id, role: new.role };
    links::put(connection, tenant, &link, &caller.actor()).await?;
    let made = links::page(connection, tenant, Some(account), Some(&new.sender_id), None, 1).await?.pop();
    let made = made.map(LinkBody::from).ok_or(UNKNOWN)?;
    writing.answer(StatusCode::CREATED, &made).await
}

/// Removes the link of a sender. Further messages of the sender are denied.
#[utoipa::path(
    delete,
    path = "/channels/links/{id}",
    operation_id = "unlink_channel_sender",
    tag = "channels",
    params(("id" = Uuid, Path, description = "The link's id")),
    responses((status = 204, description = "The link was removed")),
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<LinkId>,
) -> ApiResult<StatusCode> {
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    if !links::remove(&mut transaction, caller.tenant_id, id, &caller.actor()).await? {
        return Err(UNKNOWN);
    }
    pool::commit(transaction).await?;
    Ok(StatusCode::NO_CONTENT)
}

const UNKNOWN: ApiError = ApiError::NotFound("link");

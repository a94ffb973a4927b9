//! Content in versions that never change.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_engine::campaigns::render;
use postrider_model::{
    Channel,
    ids::{AssetId, WorkspaceId},
};
use postrider_store::campaigns::assets::{self, Filter, Listed};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Body, Path, Query},
        error::{ApiError, ApiResult},
        paging::{self, Page},
        requests::{Reading, Repeatable, Writing},
    },
};
use crate::{
    common::{paging::by_age, words},
    tenancy::workspace,
};

/// One version of an asset, without its content.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Asset)]
pub(crate) struct AssetBody {
    id: Uuid,
    workspace_id: Uuid,
    name: String,
    /// Counts from 1 for each name.
    version: i32,
    #[schema(value_type = words::Channel)]
    channel: Channel,
    created_at: Timestamp,
}

impl From<Listed> for AssetBody {
    fn from(asset: Listed) -> Self {
        Self {
            id: asset.id.0,
            workspace_id: asset.workspace_id.0,
            name: asset.name,
            version: asset.version,
            channel: asset.channel,
            created_at: asset.created_at,
        }
    }
}

/// One version of an asset.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AssetWithContent)]
pub(crate) struct WholeAsset {
    #[serde(flatten)]
    asset: AssetBody,
    /// The content: `subject`, `text` and `html` for e-mail, `script` for voice, `text` for social.
    #[schema(value_type = Object)]
    content: Value,
}

/// A new version.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewAsset {
    /// Name of the asset. A new version of an existing name gets the next number.
    #[schema(min_length = 1, max_length = 255, pattern = r"\S")]
    name: String,
    #[schema(value_type = words::Channel)]
    channel: Channel,
    /// `subject` with `text`, `html` or both for e-mail, `script` for voice, `text` for social. Each is a template, such as
    /// `Hello {{ first_name }}`, and must compile.
    #[schema(value_type = Object, example = json!({"subject": "Hello {{ first_name }}", "text": "Hello."}))]
    content: Value,
    /// The workspace; the tenant's first one when left out.
    #[serde(default)]
    workspace_id: Option<Uuid>,
}

/// Filters for the list of assets.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AssetQuery {
    /// Only versions of this name.
    name: Option<String>,
    /// Only for this channel.
    #[param(value_type = Option<words::Channel>)]
    channel: Option<Channel>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// Creates the next version of an asset. If the newest version has the same content, the response is that version.
#[utoipa::path(
    post,
    path = "/assets",
    operation_id = "create_asset",
    tag = "audience and content",
    params(Repeatable),
    request_body = NewAsset,
    responses((status = 201, description = "The version", body = WholeAsset)),
)]
pub(crate) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    Body { value: new, fingerprint }: Body<NewAsset>,
) -> ApiResult<Response> {
    if new.name.trim().is_empty() || new.name.len() > 255 {
        return Err(ApiError::unprocessable("name", "an asset needs a name of 1 to 255 bytes"));
    }
    if !new.content.is_object() {
        return Err(ApiError::invalid("content", "must be a JSON object"));
    }
    // A template may work for as long as its limits allow; other requests do not wait for it.
    let (channel, content) = (new.channel, new.content.clone());
    tokio::task::spawn_blocking(move || render::check(channel, &content))
        .await
        .map_err(|error| ApiError::Internal(error.to_string()))?
        .map_err(|error| ApiError::unprocessable("content", error.to_string()))?;
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let connection = writing.connection();
    let workspace = workspace(connection, caller.tenant_id, new.workspace_id.map(WorkspaceId)).await?;
    let (id, _) = assets::create(
        connection,
        caller.tenant_id,
        workspace,
        &new.name,
        new.channel,
        &new.content,
        &caller.actor(),
    )
    .await?;
    let made = assets::read(connection, caller.tenant_id, id).await?;
    let (asset, content) =
        made.ok_or_else(|| ApiError::Internal(format!("asset {id} was made and is gone")))?;
    writing.answer(StatusCode::CREATED, &WholeAsset { asset: asset.into(), content }).await
}

/// Lists the tenant's assets, newest first.
#[utoipa::path(
    get,
    path = "/assets",
    operation_id = "list_assets",
    tag = "audience and content",
    params(AssetQuery),
    responses((status = 200, description = "A page of versions, without their content", body = Page<AssetBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<AssetQuery>,
) -> ApiResult<Json<Page<AssetBody>>> {
    let size = paging::size(query.limit)?;
    let after = by_age::<AssetId>(query.cursor.as_deref())?;
    let filter = Filter { name: query.name, channel: query.channel };
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = assets::page(reading.connection(), caller.tenant_id, &filter, after, size + 1).await?;
    reading.page(rows, size, |asset| (asset.created_at, asset.id), AssetBody::from).await
}

/// Shows one version with its content.
#[utoipa::path(
    get,
    path = "/assets/{id}",
    operation_id = "get_asset",
    tag = "audience and content",
    params(("id" = Uuid, Path, description = "The asset's id")),
    responses((status = 200, description = "The version", body = WholeAsset)),
)]
pub(crate) async fn get(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<AssetId>,
) -> ApiResult<Json<WholeAsset>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let found = assets::read(reading.connection(), caller.tenant_id, id).await?;
    reading.end().await?;
    let (asset, content) = found.ok_or(ApiError::NotFound("asset"))?;
    Ok(Json(WholeAsset { asset: asset.into(), content }))
}

//! API keys of a tenant, for its admins. The secret of a key is in the response that creates it and nowhere else.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_model::{ids::ApiKeyId, tenancy::Role};
use postrider_store::{postgres::pool, tenancy::keys};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::common::paging::by_age;
use crate::{
    App,
    common::{
        auth::Admin,
        body::{Body, Path, Query},
        docs,
        error::{ApiError, ApiResult},
        paging::{self, Page, PageQuery},
        requests::{Reading, Repeatable, Writing},
    },
};

/// A key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Key)]
pub(crate) struct KeyBody {
    id: Uuid,
    name: String,
    #[schema(value_type = docs::Role)]
    role: String,
    /// First characters of its secret.
    hint: String,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    revoked_at: Option<Timestamp>,
    /// Time of its last use, to the minute.
    last_used_at: Option<Timestamp>,
}

impl From<keys::ApiKey> for KeyBody {
    fn from(key: keys::ApiKey) -> Self {
        Self {
            id: key.id.0,
            name: key.name,
            role: key.role,
            hint: key.hint,
            created_at: key.created_at,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            last_used_at: key.last_used_at,
        }
    }
}

/// A new key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewKey {
    /// Name of the key, for people.
    #[schema(min_length = 1, max_length = 255, pattern = r"\S")]
    name: String,
    #[schema(value_type = docs::Role)]
    role: Role,
    /// Time of its expiry; never when left out.
    #[serde(default)]
    expires_at: Option<Timestamp>,
}

/// A new key with its secret.
#[derive(Serialize, ToSchema)]
pub(crate) struct MadeKey {
    id: Uuid,
    name: String,
    #[schema(value_type = docs::Role)]
    role: Role,
    expires_at: Option<Timestamp>,
    /// The secret, shown only in this response.
    #[schema(example = "pr_…")]
    secret: String,
}

/// The tenant's keys, oldest first.
#[utoipa::path(
    get,
    path = "/keys",
    operation_id = "list_keys",
    tag = "keys",
    params(PageQuery),
    responses((status = 200, description = "A page of keys, without their secrets", body = Page<KeyBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Admin(caller): Admin,
    Query(query): Query<PageQuery>,
) -> ApiResult<Json<Page<KeyBody>>> {
    let size = paging::size(query.limit)?;
    let after: Option<(Timestamp, Uuid)> = by_age(query.cursor.as_deref())?;
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let after = after.map(|(at, id)| (at, ApiKeyId(id)));
    let rows = keys::page(reading.connection(), caller.tenant_id, after, size + 1).await?;
    reading.page(rows, size, |key| (key.created_at, key.id.0), KeyBody::from).await
}

/// Creates a key. Its secret is in this response and is not stored.
#[utoipa::path(
    post,
    path = "/keys",
    operation_id = "create_key",
    tag = "keys",
    params(Repeatable),
    request_body = NewKey,
    responses((status = 201, description = "The key, with its secret", body = MadeKey)),
)]
pub(crate) async fn create(
    State(app): State<App>,
    Admin(caller): Admin,
    Body { value: new, fingerprint }: Body<NewKey>,
) -> ApiResult<Response> {
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let (id, secret) = keys::create(
        writing.connection(),
        caller.tenant_id,
        &new.name,
        new.role,
        new.expires_at,
        &caller.actor(),
    )
    .await?;
    let made = MadeKey {
        id: id.0,
        name: new.name,
        role: new.role,
        expires_at: new.expires_at,
        secret: secret.expose().to_owned(),
    };
    writing.answer_once(StatusCode::CREATED, format!("/api/v2/keys/{}", id.0), &made).await
}

/// Revokes a key for ever. Revoking it again changes nothing.
#[utoipa::path(
    delete,
    path = "/keys/{id}",
    operation_id = "revoke_key",
    tag = "keys",
    params(("id" = Uuid, Path, description = "The key's id")),
    responses((status = 204, description = "The key was revoked")),
)]
pub(crate) async fn revoke(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(id): Path<ApiKeyId>,
) -> ApiResult<StatusCode> {
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    if !keys::revoke(&mut transaction, caller.tenant_id, id, &caller.actor()).await? {
        return Err(ApiError::NotFound("key"));
    }
    pool::commit(transaction).await?;
    Ok(StatusCode::NO_CONTENT)
}

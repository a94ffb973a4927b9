//! Accounts of a tenant at providers. Secrets are sealed and never shown.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_model::{Limits, ids::ProviderAccountId, seal::Place};
use postrider_providers::{Account, AccountRefused};
use postrider_store::{
    StoreError,
    campaigns::{callbacks, send_jobs},
    postgres::pool,
    tenancy::{
        accounts::{self, AccountState, Circuit, NewAccount, ProviderAccount},
        tenants,
    },
};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::campaigns::limits;
use crate::{
    App, CallbackKeys,
    common::{
        auth::{Admin, Viewer},
        body::{Body, Path, Query},
        error::{ApiError, ApiResult},
        paging::{self, Page, PageQuery},
        requests::{Reading, Repeatable, Writing},
    },
};

/// An account, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProviderAccount)]
pub(crate) struct AccountBody {
    id: Uuid,
    workspace_id: Uuid,
    name: String,
    /// The provider, such as `twilio`.
    provider: String,
    /// Settings that are not secret, such as addresses.
    #[schema(value_type = Object)]
    settings: Value,
    /// Limits of the account; see docs/limits.md.
    #[schema(value_type = limits::Limits)]
    limits: Value,
    state: StateBody,
    /// Number of its settings. New calls use them; items that were called before keep their version.
    version: i32,
    /// Time since which no new campaign and no new run uses it.
    retired_at: Option<Timestamp>,
    created_at: Timestamp,
    /// Time of the last change of its settings or its secret.
    updated_at: Timestamp,
}

/// The state of an account at this moment.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProviderAccountState)]
pub(crate) struct StateBody {
    /// Calls of today, by the account's clock, where they are counted.
    used_today: i64,
    /// Time until which its provider asked to wait.
    waits_until: Option<Timestamp>,
    /// The provider's reason, in its words.
    waits_because: Option<String>,
    #[schema(value_type = ShownCircuit)]
    circuit: Circuit,
    circuit_open_until: Option<Timestamp>,
    /// The reason why the circuit opened last.
    circuit_reason: Option<String>,
}

/// Whether calls are made.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Circuit)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum ShownCircuit {
    /// Calls are made.
    Closed,
    /// No calls are made.
    Open,
    /// One call at a time is made.
    HalfOpen,
}

impl From<ProviderAccount> for AccountBody {
    fn from(account: ProviderAccount) -> Self {
        let AccountState {
            used_today,
            waits_until,
            waits_because,
            circuit,
            circuit_open_until,
            circuit_reason,
        } = account.state;
        Self {
            id: account.id.0,
            workspace_id: account.workspace_id.0,
            name: account.name,
            provider: account.provider,
            settings: account.settings,
            limits: account.limits,
            state: StateBody {
                used_today,
                waits_until,
                waits_because,
                circuit,
                circuit_open_until,
                circuit_reason,
            },
            version: account.version,
            retired_at: account.retired_at,
            created_at: account.created_at,
            updated_at: account.updated_at,
        }
    }
}

/// A new account.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewProviderAccount)]
pub(crate) struct NewAccountBody {
    /// Name of the account, unique in the workspace.
    #[schema(min_length = 1, max_length = 255, pattern = r"\S")]
    name: String,
    /// The provider, such as `twilio`; docs/providers.md lists them.
    #[schema(pattern = "^[a-z][a-z0-9_]{0,62}$")]
    provider: String,
    /// Settings that are not secret.
    #[serde(default = "nothing")]
    #[schema(value_type = Object)]
    settings: Value,
    /// The secret. It is sealed and never shown. Leave it out where a provider asks for none.
    #[serde(default)]
    #[schema(value_type = String, write_only, required = false)]
    secret: SecretString,
    /// Limits of the account; see docs/limits.md.
    #[serde(default = "nothing")]
    #[schema(value_type = limits::Limits)]
    limits: Value,
}

/// A change of an account. It has at least one member.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ProviderAccountChange)]
pub(crate) struct ChangeBody {
    /// New limits of the account; `{}` removes all limits.
    #[serde(default)]
    #[schema(value_type = Option<limits::Limits>)]
    limits: Option<Value>,
    /// New settings of the account, all of them. They make a new version, which reservations use from now on.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    settings: Option<Value>,
    /// The secret of the new version, if it is another one. Without `settings`, replace the secret with `PUT …/secret`.
    #[serde(default)]
    #[schema(value_type = Option<String>, write_only)]
    secret: Option<SecretString>,
    /// `true` retires the account: no new campaign and no new run uses it, and runs under way finish. `false` takes that back.
    #[serde(default)]
    retired: Option<bool>,
}

/// A new secret.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSecret)]
pub(crate) struct SecretBody {
    /// It is sealed and never shown.
    #[schema(value_type = String, write_only)]
    secret: SecretString,
}

fn nothing() -> Value {
    Value::Object(serde_json::Map::new())
}

/// The tenant's accounts, by name.
#[utoipa::path(
    get,
    path = "/provider-accounts",
    operation_id = "list_provider_accounts",
    tag = "provider accounts",
    params(PageQuery),
    responses((status = 200, description = "A page of accounts, without their secrets", body = Page<AccountBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<PageQuery>,
) -> ApiResult<Json<Page<AccountBody>>> {
    let size = paging::size(query.limit)?;
    let after: Option<(String, Uuid)> = paging::decode(query.cursor.as_deref())?;
    let after = after.as_ref().map(|(name, id)| (name.as_str(), ProviderAccountId(*id)));
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = accounts::page(reading.connection(), caller.tenant_id, after, size + 1).await?;
    reading.page(rows, size, |account| (account.name.clone(), account.id.0), AccountBody::from).await
}

/// One account.
#[utoipa::path(
    get,
    path = "/provider-accounts/{id}",
    operation_id = "get_provider_account",
    tag = "provider accounts",
    params(("id" = Uuid, Path, description = "The account's id")),
    responses((status = 200, description = "The account, without its secret", body = AccountBody)),
)]
pub(crate) async fn show(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<ProviderAccountId>,
) -> ApiResult<Json<AccountBody>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let account = accounts::find(reading.connection(), caller.tenant_id, id).await?;
    reading.found(account.map(AccountBody::from), UNKNOWN).await
}

/// Adds an account.
#[utoipa::path(
    post,
    path = "/provider-accounts",
    operation_id = "create_provider_account",
    tag = "provider accounts",
    params(Repeatable),
    request_body = NewAccountBody,
    responses((status = 201, description = "The account, without its secret", body = AccountBody)),
)]
pub(crate) async fn create(
    State(app): State<App>,
    Admin(caller): Admin,
    Body { value: new, fingerprint }: Body<NewAccountBody>,
) -> ApiResult<Response> {
    let keys = keys(&app)?;
    let limits = read_limits(&new.limits)?;
    if !new.settings.is_object() {
        return Err(ApiError::invalid("settings", "must be a JSON object"));
    }
    check(keys, &new.provider, ProviderAccountId::new(), &new.settings, &new.secret)?;
    let fingerprint = fingerprint.keyed(&keys.master_key);
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let (tenant, actor) = (caller.tenant_id, caller.actor());
    let workspace = tenants::workspace(writing.connection(), tenant, None)
        .await?
        .ok_or_else(|| ApiError::conflict("the tenant has no workspace"))?;
    let account = NewAccount {
        tenant,
        workspace,
        name: &new.name,
        provider: &new.provider,
        settings: &new.settings,
        secret: &new.secret,
    };
    let id = accounts::create(writing.connection(), &keys.master_key, &account, &actor).await?;
    if limits != Limits::default() {
        accounts::limit(writing.connection(), tenant, id, &limits, &actor).await?;
    }
    let made =
        accounts::find(writing.connection(), tenant, id).await?.map(AccountBody::from).ok_or(UNKNOWN)?;
    writing.answer(StatusCode::CREATED, &made).await
}

/// Changes an account: its limits, its settings, or whether it is retired. Send jobs that waited for old limits become due.
#[utoipa::path(
    patch,
    path = "/provider-accounts/{id}",
    operation_id = "update_provider_account",
    tag = "provider accounts",
    params(("id" = Uuid, Path, description = "The account's id")),
    request_body = ChangeBody,
    responses((status = 200, description = "The account after the change", body = AccountBody)),
)]
pub(crate) async fn update(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(id): Path<ProviderAccountId>,
    Body { value: change, .. }: Body<ChangeBody>,
) -> ApiResult<Json<AccountBody>> {
    if change.limits.is_none() && change.settings.is_none() && change.retired.is_none() {
        let field = if change.secret.is_some() { "secret" } else { "limits" };
        let problem = "name `limits`, `settings` or `retired`; a secret alone is replaced with PUT …/secret";
        return Err(ApiError::unprocessable(field, problem));
    }
    if change.secret.is_some() && change.settings.is_none() {
        return Err(ApiError::unprocessable(
            "secret",
            "belongs to new `settings`; a secret alone is replaced with PUT …/secret",
        ));
    }
    let limits = change.limits.as_ref().map(read_limits).transpose()?;
    if change.settings.as_ref().is_some_and(|settings| !settings.is_object()) {
        return Err(ApiError::invalid("settings", "must be a JSON object"));
    }
    let (tenant, actor) = (caller.tenant_id, caller.actor());
    let mut transaction = pool::begin_as(&app.pool, tenant).await?;
    let known = accounts::find(&mut transaction, tenant, id).await?.ok_or(UNKNOWN)?;
    if let Some(settings) = &change.settings {
        let keys = keys(&app)?;
        let place = Place { tenant, account: id };
        let kept = match &change.secret {
            Some(_) => None,
            None => callbacks::account(&mut transaction, &keys.master_key, place).await?.into_iter().next(),
        };
        let secret = change.secret.as_ref().or(kept.as_ref().map(|kept| &kept.secret)).ok_or(UNKNOWN)?;
        check(keys, &known.provider, id, settings, secret)?;
        let secret = change.secret.as_ref();
        accounts::update(&mut transaction, &keys.master_key, place, settings, secret, &actor)
            .await?
            .ok_or(UNKNOWN)?;
    }
    if let Some(limits) = &limits
        && !accounts::limit(&mut transaction, tenant, id, limits, &actor).await?
    {
        return Err(UNKNOWN);
    }
    if let Some(is_retired) = change.retired
        && !accounts::retire(&mut transaction, tenant, id, is_retired, &actor).await?
    {
        return Err(UNKNOWN);
    }
    let account = accounts::find(&mut transaction, tenant, id).await?;
    pool::commit(transaction).await?;
    hint(&app).await;
    account.map(AccountBody::from).map(Json).ok_or(UNKNOWN)
}

/// Replaces the secret of an account.
#[utoipa::path(
    put,
    path = "/provider-accounts/{id}/secret",
    operation_id = "rotate_provider_account",
    tag = "provider accounts",
    params(("id" = Uuid, Path, description = "The account's id")),
    request_body = SecretBody,
    responses((status = 204, description = "The secret was replaced; new calls use it")),
)]
pub(crate) async fn rotate(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(id): Path<ProviderAccountId>,
    Body { value: new, .. }: Body<SecretBody>,
) -> ApiResult<StatusCode> {
    let keys = keys(&app)?;
    let tenant = caller.tenant_id;
    let mut transaction = pool::begin_as(&app.pool, tenant).await?;
    let account = accounts::find(&mut transaction, tenant, id).await?.ok_or(UNKNOWN)?;
    check(keys, &account.provider, id, &account.settings, &new.secret)?;
    let place = Place { tenant, account: id };
    if !accounts::rotate(&mut transaction, &keys.master_key, place, &new.secret, &caller.actor()).await? {
        return Err(UNKNOWN);
    }
    pool::commit(transaction).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes an account and its secret.
#[utoipa::path(
    delete,
    path = "/provider-accounts/{id}",
    operation_id = "remove_provider_account",
    tag = "provider accounts",
    params(("id" = Uuid, Path, description = "The account's id")),
    responses(
        (status = 204, description = "The account was removed"),
        (status = 409, description = "A campaign uses the account"),
    ),
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(id): Path<ProviderAccountId>,
) -> ApiResult<StatusCode> {
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    if !accounts::remove(&mut transaction, caller.tenant_id, id, &caller.actor()).await? {
        return Err(UNKNOWN);
    }
    pool::commit(transaction).await?;
    Ok(StatusCode::NO_CONTENT)
}

const UNKNOWN: ApiError = ApiError::NotFound("provider account");

/// The key that seals secrets, and the adapters that check accounts.
fn keys(app: &App) -> Result<&CallbackKeys, ApiError> {
    app.callbacks.as_ref().ok_or_else(|| {
        ApiError::NotReady("this process has no master key, so it cannot keep secrets".to_owned())
    })
}

fn read_limits(value: &Value) -> Result<Limits, ApiError> {
    Limits::read(value).map_err(|invalid| ApiError::invalid("limits", invalid.to_string()))
}

/// As `postrider accounts add` does.
fn check(
    keys: &CallbackKeys,
    provider: &str,
    id: ProviderAccountId,
    settings: &Value,
    secret: &SecretString,
) -> Result<(), ApiError> {
    let account = Account { id, settings, secret };
    keys.adapters.check(provider, &account).map_err(|refused| {
        let field = match refused {
            AccountRefused::UnknownProvider { .. } => "provider",
            AccountRefused::Invalid(_) => "settings",
        };
        ApiError::unprocessable(field, refused.to_string())
    })
}

/// Wakes the workers. The change is committed, so a hint that fails is not an error.
async fn hint(app: &App) {
    let hinted = async {
        let mut transaction = pool::begin(&app.pool).await?;
        send_jobs::hint(&mut transaction).await?;
        pool::commit(transaction).await?;
        Ok::<(), StoreError>(())
    };
    if let Err(error) = hinted.await {
        tracing::warn!(?error, "no hint was sent; the next poll finds the jobs: {error}");
    }
}

//! Executors, which execute the messages of accounts. Secrets are sealed and never shown.

use axum::{Json, extract::State, http::StatusCode};
use jiff::Timestamp;
use postrider_model::{
    channels::Sentinel,
    ids::{ExecutorId, ProviderAccountId},
    tenancy::Role,
};
use postrider_providers::{Policy, check_secret, read_url};
use postrider_store::{
    channels::executors::{self, ExecutorSettings, Kind, NewExecutor},
    postgres::pool,
};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::account;
use crate::{
    App,
    common::{
        auth::{Admin, Viewer},
        body::{Body, Object, Path, Query},
        docs,
        error::{ApiError, ApiResult},
        paging::{self, Page, PageQuery},
        requests::Reading,
    },
};

/// Default timeout of an executor, in seconds.
const TIMEOUT_SECONDS: u32 = 30;
/// Maximum timeout of an executor, in seconds.
const TIMEOUT_SECONDS_MAX: u32 = 60;

/// The kind of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ChannelExecutorKind)]
pub(crate) enum ExecutorKind {
    /// Replies with the message itself, for trials.
    Echo,
    /// An agent behind a URL.
    Http,
}

/// An executor, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChannelExecutor)]
pub(crate) struct ExecutorBody {
    id: Uuid,
    /// The account whose messages it executes; null for all accounts that have no executor of their own.
    account_id: Option<Uuid>,
    kind: ExecutorKind,
    /// URL of the agent.
    url: Option<String>,
    timeout_seconds: u32,
    #[schema(value_type = docs::Role)]
    required_role: Role,
    #[schema(value_type = SentinelBody)]
    sentinel: Sentinel,
    created_at: Timestamp,
}

impl From<ExecutorSettings> for ExecutorBody {
    fn from(executor: ExecutorSettings) -> Self {
        let (kind, url) = match executor.kind {
            Kind::Echo => (ExecutorKind::Echo, None),
            Kind::Http { url } => (ExecutorKind::Http, Some(url)),
        };
        Self {
            id: executor.id.0,
            account_id: executor.account_id.map(|account| account.0),
            kind,
            url,
            timeout_seconds: executor.timeout_seconds,
            required_role: executor.required_role,
            sentinel: executor.sentinel,
            created_at: executor.created_at,
        }
    }
}

/// Messages that must not be executed, although their senders may write.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Sentinel)]
pub(crate) struct SentinelBody {
    /// Words and phrases, in any case; a word is not found inside another one.
    #[schema(max_items = 1000, required = false)]
    blocked_words: Vec<String>,
    /// Most messages of one sender in a minute.
    #[schema(minimum = 1)]
    messages_per_minute: Option<u32>,
    /// URL of the service that is asked last.
    #[schema(max_length = 2048)]
    url: Option<String>,
}

/// A new executor.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewChannelExecutor)]
pub(crate) struct NewExecutorBody {
    /// The account whose messages it executes, by name or id. Left out, all accounts that have no executor of their own.
    #[serde(default)]
    #[schema(min_length = 1)]
    account: Option<String>,
    kind: ExecutorKind,
    /// URL of the agent; for `http`.
    #[serde(default)]
    #[schema(max_length = 2048, example = "https://agent.example.com/messages")]
    url: Option<String>,
    /// `whsec_…`: the secret that signs requests to the agent and to the sentinel. It is sealed and never shown.
    #[serde(default)]
    #[schema(value_type = Option<String>, write_only)]
    secret: Option<SecretString>,
    /// Timeout of an execution; 30 when left out.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 60)]
    timeout_seconds: Option<u32>,
    /// Minimum role of a sender; `operator` when left out.
    #[serde(default)]
    #[schema(value_type = Option<docs::Role>)]
    required_role: Option<Role>,
    #[serde(default)]
    #[schema(value_type = Option<SentinelBody>)]
    sentinel: Option<Object<Sentinel>>,
}

/// The tenant's executors, in the order of their accounts' ids; the one for all accounts comes last.
#[utoipa::path(
    get,
    path = "/channels/executors",
    operation_id = "list_channel_executors",
    tag = "channels",
    params(PageQuery),
    responses((status = 200, description = "A page of executors, without their secrets", body = Page<ExecutorBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<PageQuery>,
) -> ApiResult<Json<Page<ExecutorBody>>> {
    let size = paging::size(query.limit)?;
    let after: Option<ProviderAccountId> = paging::decode(query.cursor.as_deref())?;
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = executors::page(reading.connection(), caller.tenant_id, after, size + 1).await?;
    // The one without an account is the last of all, so nothing ever follows it.
    reading.page(rows, size, |executor| executor.account_id, ExecutorBody::from).await
}

/// Sets the executor of an account, or that of all other accounts, and replaces the one before.
#[utoipa::path(
    put,
    path = "/channels/executors",
    operation_id = "put_channel_executor",
    tag = "channels",
    request_body = NewExecutorBody,
    responses((status = 200, description = "The executor, which executes messages from now on", body = ExecutorBody)),
)]
pub(crate) async fn put(
    State(app): State<App>,
    Admin(caller): Admin,
    Body { value: new, .. }: Body<NewExecutorBody>,
) -> ApiResult<Json<ExecutorBody>> {
    let keys = app.callbacks.as_ref().ok_or_else(|| {
        ApiError::NotReady("this process has no master key, so it cannot keep secrets".to_owned())
    })?;
    let kind = new.check(&app.outbound)?;
    let sentinel = new.sentinel.map(|Object(sentinel)| sentinel).unwrap_or_default();
    let tenant = caller.tenant_id;
    let mut transaction = pool::begin_as(&app.pool, tenant).await?;
    let account = match &new.account {
        Some(wanted) => Some(account(&mut transaction, tenant, wanted).await?),
        None => None,
    };
    let executor = NewExecutor {
        account,
        kind,
        timeout_seconds: new.timeout_seconds.unwrap_or(TIMEOUT_SECONDS),
        secret: new.secret.as_ref(),
        required_role: new.required_role.unwrap_or(Role::Operator),
        sentinel: &sentinel,
    };
    let id = executors::put(&mut transaction, &keys.master_key, tenant, &executor, &caller.actor()).await?;
    let made = executors::find(&mut transaction, tenant, id).await?.map(ExecutorBody::from).ok_or(UNKNOWN)?;
    pool::commit(transaction).await?;
    Ok(Json(made))
}

/// Removes an executor. Messages that no other executor takes are refused from then on, and providers deliver them again.
#[utoipa::path(
    delete,
    path = "/channels/executors/{id}",
    operation_id = "remove_channel_executor",
    tag = "channels",
    params(("id" = Uuid, Path, description = "The executor's id")),
    responses((status = 204, description = "The executor was removed")),
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(id): Path<ExecutorId>,
) -> ApiResult<StatusCode> {
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    if !executors::remove(&mut transaction, caller.tenant_id, id, &caller.actor()).await? {
        return Err(UNKNOWN);
    }
    pool::commit(transaction).await?;
    Ok(StatusCode::NO_CONTENT)
}

const UNKNOWN: ApiError = ApiError::NotFound("executor");

impl NewExecutorBody {
    /// Checks the values, without a query.
    fn check(&self, policy: &Policy) -> ApiResult<Kind> {
        let kind = match (self.kind, &self.url) {
            (ExecutorKind::Echo, None) => Kind::Echo,
            (ExecutorKind::Echo, Some(_)) => {
                return Err(ApiError::unprocessable(
                    "url",
                    "belongs to an executor of kind `http`; leave it out",
                ));
            }
            (ExecutorKind::Http, Some(url)) => {
                check_address("url", url, policy)?;
                Kind::Http { url: url.clone() }
            }
            (ExecutorKind::Http, None) => {
                return Err(ApiError::unprocessable("url", "say where the agent is"));
            }
        };
        if self.timeout_seconds.is_some_and(|seconds| !(1..=TIMEOUT_SECONDS_MAX).contains(&seconds)) {
            let problem = format!("must lie between 1 and {TIMEOUT_SECONDS_MAX}");
            return Err(ApiError::unprocessable("timeout_seconds", problem));
        }
        let sentinel = self.sentinel.as_ref().map(|Object(sentinel)| sentinel);
        if let Some(problem) = sentinel.and_then(Sentinel::problem) {
            return Err(ApiError::unprocessable("sentinel", problem));
        }
        let sentinel_url = sentinel.and_then(|sentinel| sentinel.url.as_deref());
        if let Some(url) = sentinel_url {
            check_address("sentinel.url", url, policy)?;
        }
        let signs = self.kind == ExecutorKind::Http || sentinel_url.is_some();
        match &self.secret {
            Some(secret) if signs => check_secret(secret)
                .map_err(|problem| ApiError::unprocessable("secret", format!("{problem}; {MAKE_ONE}")))?,
            Some(_) => {
                return Err(ApiError::unprocessable(
                    "secret",
                    "nothing would be signed with it; leave it out",
                ));
            }
            None if signs => {
                let problem = format!("requests are signed, so a secret is needed; {MAKE_ONE}");
                return Err(ApiError::unprocessable("secret", problem));
            }
            None => {}
        }
        Ok(kind)
    }
}

pub(crate) const MAKE_ONE: &str =
    "make one with `echo \"whsec_$(openssl rand -base64 32)\"` and give it to the receiver";

pub(crate) fn check_address(field: &str, url: &str, policy: &Policy) -> ApiResult<()> {
    read_url(url, policy).map_err(|refused| ApiError::unprocessable(field, refused.to_string()))?;
    Ok(())
}

//! Functions of a tenant. The secret of a function behind a URL is in the response that creates it and nowhere else.

use axum::{Json, extract::State, http::StatusCode};
use jiff::Timestamp;
use postrider_engine::jobs::unknown;
use postrider_model::jobs::{
    NotASqlName, RetryPolicy, TIMEOUT_SECONDS, TIMEOUT_SECONDS_DEFAULT, Target, check_function_name,
    lock_key::Grain,
};
use postrider_providers::{Policy, check_secret};
use postrider_store::{
    jobs::{
        functions::{self, FunctionState, NewFunction},
        runs,
    },
    postgres::pool,
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    App,
    common::{
        auth::{Admin, Viewer},
        body::{Body, Named, Object, Path, Query},
        error::{ApiError, ApiResult},
        paging::{self, Page, PageQuery},
        requests::Reading,
    },
};
use {
    super::{
        super::channels::executors::{MAKE_ONE, check_address},
        FunctionName,
    },
    crate::common::words,
};

pub(super) const UNKNOWN: ApiError = ApiError::NotFound(FunctionName::NAME);

/// A function, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Function)]
pub(crate) struct FunctionBody {
    name: String,
    target: TargetBody,
    #[schema(value_type = words::Grain)]
    grain: Grain,
    timeout_seconds: u32,
    #[schema(value_type = ShownRetry)]
    retry: RetryPolicy,
    created_at: Timestamp,
    /// Time of its last definition.
    updated_at: Timestamp,
    /// The new secret that signs requests to it, shown only in this response.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "whsec_…")]
    secret: Option<String>,
}

impl From<FunctionState> for FunctionBody {
    fn from(function: FunctionState) -> Self {
        Self {
            name: function.name,
            target: function.target.into(),
            grain: function.grain,
            timeout_seconds: function.timeout_seconds,
            retry: function.retry,
            created_at: function.created_at,
            updated_at: function.updated_at,
            secret: None,
        }
    }
}

/// The target of a function: one of these.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = FunctionTarget)]
pub(crate) enum TargetBody {
    /// An endpoint, which gets signed requests.
    Http(String),
    /// A function in the database, with its schema, such as `public.rebuild`.
    Sql(String),
    /// Rust code: a function that comes with Postrider, or that a running process of an application provides.
    Builtin(String),
}

impl From<Target> for TargetBody {
    fn from(target: Target) -> Self {
        match target {
            Target::Http(url) => Self::Http(url),
            Target::Sql(name) => Self::Sql(name.into()),
            Target::Builtin(name) => Self::Builtin(name),
        }
    }
}

/// Retries of a failed run: 1 s, 5 s and 25 s later by default.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FunctionRetry)]
pub(crate) struct ShownRetry {
    /// Maximum number of retries.
    #[schema(minimum = 0, maximum = 100, default = 3, required = false)]
    max_retries: u32,
    /// The pause before the first retry.
    #[schema(minimum = 0, maximum = 86_400_000, default = 1000, required = false)]
    initial_delay_ms: u32,
    /// Factor between a pause and the one before it.
    #[schema(minimum = 1, maximum = 100, default = 5, required = false)]
    backoff_multiplier: f64,
    /// The longest pause.
    #[schema(minimum = 0, maximum = 86_400_000, default = 30000, required = false)]
    max_delay_ms: u32,
}

/// The definition of a function.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewFunction)]
pub(crate) struct NewFunctionBody {
    target: TargetBody,
    /// Grain within which the function runs once for the same entities; `day` when left out.
    #[serde(default)]
    #[schema(value_type = Option<words::Grain>)]
    grain: Option<Grain>,
    /// Timeout of an attempt; 60 when left out.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 900)]
    timeout_seconds: Option<u32>,
    #[serde(default)]
    #[schema(value_type = Option<ShownRetry>)]
    retry: Option<Object<RetryPolicy>>,
    /// `whsec_…`: the secret that signs requests to an `http` function. Left out, the function keeps its secret; a new function gets
    /// one, which is in the response.
    #[serde(default)]
    #[schema(value_type = Option<String>, write_only)]
    secret: Option<SecretString>,
}

/// The tenant's functions, by name.
#[utoipa::path(
    get,
    path = "/functions",
    operation_id = "list_functions",
    tag = "jobs",
    params(PageQuery),
    responses((status = 200, description = "A page of functions, without their secrets", body = Page<FunctionBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<PageQuery>,
) -> ApiResult<Json<Page<FunctionBody>>> {
    let size = paging::size(query.limit)?;
    let after: Option<String> = paging::decode(query.cursor.as_deref())?;
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = functions::page(reading.connection(), caller.tenant_id, after.as_deref(), size + 1).await?;
    reading.page(rows, size, |function| function.name.clone(), FunctionBody::from).await
}

/// One function.
#[utoipa::path(
    get,
    path = "/functions/{name}",
    operation_id = "get_function",
    tag = "jobs",
    params(("name" = String, Path, description = "The function's name")),
    responses((status = 200, description = "The function, without its secret", body = FunctionBody)),
)]
pub(crate) async fn show(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(FunctionName(name)): Path<FunctionName>,
) -> ApiResult<Json<FunctionBody>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let function = functions::find(reading.connection(), caller.tenant_id, &name).await?;
    reading.found(function.map(FunctionBody::from), UNKNOWN).await
}

/// Creates or replaces a function.
#[utoipa::path(
    put,
    path = "/functions/{name}",
    operation_id = "put_function",
    tag = "jobs",
    params(("name" = String, Path, description = "The function's name: letters, digits, `-`, `_` and `.`, up to 100 of them")),
    request_body = NewFunctionBody,
    responses(
        (status = 200, description = "The function was replaced", body = FunctionBody),
        (status = 201, description = "The function was created", body = FunctionBody),
        (status = 409, description = "Another request is setting the function"),
    ),
)]
pub(crate) async fn put(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(FunctionName(name)): Path<FunctionName>,
    Body { value: new, .. }: Body<NewFunctionBody>,
) -> ApiResult<(StatusCode, Json<FunctionBody>)> {
    check_function_name(&name).map_err(|problem| ApiError::unprocessable("name", problem))?;
    let target = new.check(&app.outbound)?;
    let key = app.jobs.master_key.as_ref();
    if matches!(target, Target::Http(_)) && key.is_none() {
        return Err(ApiError::NotReady(
            "this process has no master key, so it cannot keep secrets".to_owned(),
        ));
    }
    let tenant = caller.tenant_id;
    let mut transaction = pool::begin_as(&app.pool, tenant).await?;
    if let Target::Sql(function) = &target {
        runs::check_sql_function(&mut transaction, function, &app.jobs.sql_schemas)
            .await?
            .map_err(|problem| ApiError::unprocessable("target", problem))?;
    }
    if let Target::Builtin(function) = &target
        && let Some(problem) = unknown(function, &functions::provided(&mut transaction).await?)
    {
        return Err(ApiError::unprocessable("target", problem));
    }
    let function = NewFunction {
        name: &name,
        target: &target,
        grain: new.grain.unwrap_or(Grain::Day),
        timeout_seconds: new.timeout_seconds.unwrap_or(TIMEOUT_SECONDS_DEFAULT),
        retry: new.retry.map(|Object(retry)| retry).unwrap_or_default(),
        secret: new.secret.as_ref(),
    };
    let put = functions::put(&mut transaction, key, tenant, &function, &caller.actor()).await?;
    let state = functions::find(&mut transaction, tenant, &name).await?.ok_or(UNKNOWN)?;
    pool::commit(transaction).await?;
    let status = if put.is_new { StatusCode::CREATED } else { StatusCode::OK };
    let secret = put.new_secret.map(|secret| secret.expose_secret().to_owned());
    Ok((status, Json(FunctionBody { secret, ..FunctionBody::from(state) })))
}

/// Removes a function. Its runs in progress finish; its waiting runs fail.
#[utoipa::path(
    delete,
    path = "/functions/{name}",
    operation_id = "remove_function",
    tag = "jobs",
    params(("name" = String, Path, description = "The function's name")),
    responses(
        (status = 204, description = "The function was removed"),
        (status = 409, description = "A schedule needs the function"),
    ),
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(FunctionName(name)): Path<FunctionName>,
) -> ApiResult<StatusCode> {
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    if !functions::remove(&mut transaction, caller.tenant_id, &name, &caller.actor()).await? {
        return Err(UNKNOWN);
    }
    pool::commit(transaction).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl NewFunctionBody {
    /// Checks the values, without a query.
    fn check(&self, policy: &Policy) -> ApiResult<Target> {
        let target = match &self.target {
            TargetBody::Http(url) => {
                check_address("target", url, policy)?;
                Target::Http(url.clone())
            }
            TargetBody::Sql(name) => Target::Sql(
                name.parse()
                    .map_err(|problem: NotASqlName| ApiError::unprocessable("target", problem.to_string()))?,
            ),
            TargetBody::Builtin(name) => Target::Builtin(name.clone()),
        };
        if self.timeout_seconds.is_some_and(|seconds| !TIMEOUT_SECONDS.contains(&seconds)) {
            let problem =
                format!("must lie between {} and {}", TIMEOUT_SECONDS.start(), TIMEOUT_SECONDS.end());
            return Err(ApiError::unprocessable("timeout_seconds", problem));
        }
        if let Some((field, problem)) = self.retry.as_ref().and_then(|Object(retry)| retry.problem()) {
            return Err(ApiError::unprocessable(format!("retry.{field}"), problem));
        }
        match &self.secret {
            Some(_) if !matches!(target, Target::Http(_)) => {
                return Err(ApiError::unprocessable(
                    "secret",
                    "nothing would be signed with it; leave it out",
                ));
            }
            Some(secret) => check_secret(secret)
                .map_err(|problem| ApiError::unprocessable("secret", format!("{problem}; {MAKE_ONE}")))?,
            None => {}
        }
        Ok(target)
    }
}

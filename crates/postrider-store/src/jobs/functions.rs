//! Functions of a tenant: behind a URL, in the database, or in the program itself.

use std::time::Duration;

use jiff::Timestamp;
use postrider_model::{
    ids::{FunctionId, ProviderAccountId, TenantId},
    jobs::{RetryPolicy, Target, lock_key::Grain, new_signing_secret},
    seal::{MasterKey, Place},
};
use secrecy::SecretString;
use serde::Serialize;
use sqlx::PgConnection;

use crate::{
    Pool, StoreError,
    postgres::{pool, unprepared::unprepared, values::word},
    tenancy::accounts,
};

/// A function without its secret, fit to be shown.
#[derive(Debug, Clone, Serialize)]
pub struct FunctionState {
    /// Its id.
    #[serde(skip)]
    pub id: FunctionId,
    /// Its name.
    pub name: String,
    /// Its target.
    pub target: Target,
    /// Its grain: it runs once per grain and entities.
    pub grain: Grain,
    /// Its timeout.
    pub timeout_seconds: u32,
    /// Its retries.
    pub retry: RetryPolicy,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of its last definition.
    pub updated_at: Timestamp,
}

/// The definition of a function.
#[derive(Debug)]
pub struct NewFunction<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its target.
    pub target: &'a Target,
    /// Its grain: it runs once per grain and entities.
    pub grain: Grain,
    /// Its timeout.
    pub timeout_seconds: u32,
    /// Its retries.
    pub retry: RetryPolicy,
    /// The secret that signs requests to it. `None` keeps the present secret, or makes a new one.
    pub secret: Option<&'a SecretString>,
}

/// Result of setting a function.
#[derive(Debug)]
pub struct Put {
    /// Whether the function is new.
    pub is_new: bool,
    /// A new secret, to be shown once.
    pub new_secret: Option<SecretString>,
}

/// Number of tries when another request sets the same function at the same moment.
const TRIES: usize = 3;

/// Sets a function of a tenant, in place of the one of this name. `key` seals the secret of an HTTP function.
pub async fn put(
    connection: &mut PgConnection,
    key: Option<&MasterKey>,
    tenant: TenantId,
    function: &NewFunction<'_>,
    actor: &str,
) -> Result<Put, StoreError> {
    for _ in 0..TRIES {
        let known = find(connection, tenant, function.name).await?;
        let is_http = |target: &Target| matches!(target, Target::Http(_));
        let has_secret = known.as_ref().is_some_and(|known| is_http(&known.target));
        let id = known.as_ref().map_or_else(FunctionId::new, |known| known.id);
        let new_secret = (is_http(function.target) && function.secret.is_none() && !has_secret)
            .then(new_signing_secret)
            .transpose()
            .map_err(|error| StoreError::Unfit(format!("no secret could be made: {error}")))?;
        let secret = function.secret.or(new_secret.as_ref()).filter(|_| is_http(function.target));
        let sealed = match (secret, key) {
            (None, _) => None,
            (Some(secret), Some(key)) => {
                Some(accounts::seal(connection, key, place(tenant, id), secret).await?)
            }
            (Some(_), None) => return Err(StoreError::Unfit(NO_KEY.to_owned())),
        };
        let (kind, target) = function.target.parts();
        let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let was_put = sqlx::query_scalar!(
            r#"select jobs.put_function($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) as "was_put!""#,
            tenant.0,
            id.0,
            function.name,
            kind,
            target,
            function.grain.as_str(),
            number(function.timeout_seconds),
            number(function.retry.max_retries),
            number(function.retry.initial_delay_ms),
            function.retry.backoff_multiplier,
            number(function.retry.max_delay_ms),
            sealed,
            actor,
        )
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("setting the function"))?;
        if was_put {
            return Ok(Put { is_new: known.is_none(), new_secret });
        }
    }
    Err(StoreError::Conflict { message: "another request is setting the function; try again".to_owned() })
}

/// The error when an HTTP function cannot be set.
const NO_KEY: &str = "requests to an HTTP function are signed with a secret, which needs the master key; set master_key or master_key_file";

/// Makes a function that comes with the program, unless the tenant has one of this name.
pub async fn put_builtin(
    connection: &mut PgConnection,
    tenant: TenantId,
    name: &str,
    grain: Grain,
) -> Result<(), StoreError> {
    let id = FunctionId::new().0;
    sqlx::query!("select jobs.put_builtin($1, $2, $3, $4)", tenant.0, id, name, grain.as_str())
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("setting the function"))?;
    Ok(())
}

/// Registers the Rust functions that a runner provides, or renews them. Without another call they expire after the lease.
pub async fn provide(pool: &Pool, runner: &str, names: &[String], lease: Duration) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    sqlx::query!(
        "select jobs.provide_functions($1, $2, make_interval(secs => $3))",
        runner,
        names,
        lease.as_secs_f64()
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("registering the Rust functions"))?;
    pool::commit(transaction).await
}

/// Removes the Rust functions of a runner that stops.
pub async fn withdraw(pool: &Pool, runner: &str) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    sqlx::query!("select jobs.withdraw_functions($1)", runner)
        .fetch_one(unprepared(&mut transaction))
        .await
        .map_err(StoreError::on("removing the Rust functions"))?;
    pool::commit(transaction).await
}

/// Names of the Rust functions that running processes provide beside those that come with Postrider, sorted.
pub async fn provided(connection: &mut PgConnection) -> Result<Vec<String>, StoreError> {
    sqlx::query_scalar!(
        "select distinct name from jobs.provided_functions where expires_at > now() order by name"
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the Rust functions"))
}

/// Removes a function. False when the tenant has no such function.
pub async fn remove(
    connection: &mut PgConnection,
    tenant: TenantId,
    name: &str,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(r#"select jobs.remove_function($1, $2, $3) as "known!""#, tenant.0, name, actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(|error| match StoreError::constraint(&error) {
            Some("schedules_run_a_function") => StoreError::Conflict {
                message: format!(
                    "{}; remove or change that schedule first",
                    error.as_database_error().map(|error| error.message().to_owned()).unwrap_or_default()
                ),
            },
            _ => StoreError::on("removing the function")(error),
        })
}

/// One function of a tenant.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    name: &str,
) -> Result<Option<FunctionState>, StoreError> {
    Ok(select(connection, tenant, Some(name), None, 1).await?.pop())
}

/// Up to so many functions of a tenant, in the order of their names, after this one.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<FunctionState>, StoreError> {
    select(connection, tenant, None, after, limit).await
}

async fn select(
    connection: &mut PgConnection,
    tenant: TenantId,
    only: Option<&str>,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<FunctionState>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id, name, kind, target, grain, timeout_seconds, max_retries, initial_delay_ms, backoff_multiplier, max_delay_ms,
               created_at as "created_at: jiff_sqlx::Timestamp",
               updated_at as "updated_at: jiff_sqlx::Timestamp"
          from jobs.functions
         where tenant_id = $1
           and ($2::text is null or name = $2)
           and ($3::text is null or name > $3)
         order by name
         limit $4
        "#,
        tenant.0,
        only,
        after,
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the functions"))?;
    let number = |number: i32| u32::try_from(number).unwrap_or_default();
    rows.into_iter()
        .map(|row| {
            Ok(FunctionState {
                id: FunctionId(row.id),
                target: Target::from_parts(&row.kind, row.target).ok_or_else(|| {
                    StoreError::Unfit(format!(
                        "the function `{}` is of a kind that this version does not know",
                        row.name
                    ))
                })?,
                name: row.name,
                grain: word(&row.grain)?,
                timeout_seconds: number(row.timeout_seconds),
                retry: RetryPolicy {
                    max_retries: number(row.max_retries),
                    initial_delay_ms: number(row.initial_delay_ms),
                    backoff_multiplier: row.backoff_multiplier,
                    max_delay_ms: number(row.max_delay_ms),
                },
                created_at: row.created_at.to_jiff(),
                updated_at: row.updated_at.to_jiff(),
            })
        })
        .collect()
}

/// A secret is bound to its row, as that of an account is.
pub(crate) fn place(tenant: TenantId, function: FunctionId) -> Place {
    Place { tenant, account: ProviderAccountId(function.0) }
}

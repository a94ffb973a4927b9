//! Executors of chat accounts' messages, and the rules for messages that must not be executed.

use std::time::Duration;

use jiff::Timestamp;
use postrider_model::{
    channels::Sentinel,
    ids::{ExecutorId, ProviderAccountId, TenantId},
    seal::{MasterKey, Place},
    tenancy::Role,
};
use secrecy::SecretString;
use serde::Serialize;
use sqlx::{PgConnection, types::Json};

use crate::{StoreError, postgres::unprepared::unprepared, tenancy::accounts};

/// The kind of an executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kind {
    /// Replies with the message itself, for trials.
    Echo,
    /// An agent behind a URL.
    Http {
        /// URL of the agent.
        url: String,
    },
}

impl Kind {
    fn parts(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Echo => ("echo", None),
            Self::Http { url } => ("http", Some(url)),
        }
    }
}

/// An executor without its secret, fit to be shown.
#[derive(Debug, Clone, Serialize)]
pub struct ExecutorSettings {
    /// Its id.
    pub id: ExecutorId,
    /// The account whose messages it executes; absent for all accounts that have no executor of their own.
    pub account_id: Option<ProviderAccountId>,
    /// Its kind.
    #[serde(flatten)]
    pub kind: Kind,
    /// Its timeout.
    pub timeout_seconds: u32,
    /// Minimum role of a sender.
    pub required_role: Role,
    /// Rules for messages that must not be executed.
    pub sentinel: Sentinel,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// An executor with its secret opened.
#[derive(Debug, Clone)]
pub struct Executor {
    /// Its kind.
    pub kind: Kind,
    /// Its timeout.
    pub timeout: Duration,
    /// The secret that signs requests to it and to the sentinel.
    pub secret: Option<SecretString>,
    /// Rules for messages that must not be executed.
    pub sentinel: Sentinel,
}

/// A new executor.
#[derive(Debug)]
pub struct NewExecutor<'a> {
    /// The account whose messages it executes.
    pub account: Option<ProviderAccountId>,
    /// Its kind.
    pub kind: Kind,
    /// Its timeout.
    pub timeout_seconds: u32,
    /// The secret that signs its requests.
    pub secret: Option<&'a SecretString>,
    /// Minimum role of a sender.
    pub required_role: Role,
    /// Rules for messages that must not be executed.
    pub sentinel: &'a Sentinel,
}

/// Sets the executor of an account, or of all other accounts, and replaces the one before.
pub async fn put(
    connection: &mut PgConnection,
    key: &MasterKey,
    tenant: TenantId,
    executor: &NewExecutor<'_>,
    actor: &str,
) -> Result<ExecutorId, StoreError> {
    let id = ExecutorId::new();
    let sealed = match executor.secret {
        Some(secret) => Some(accounts::seal(connection, key, place(tenant, id), secret).await?),
        None => None,
    };
    let (kind, url) = executor.kind.parts();
    sqlx::query!(
        "select channels.put_executor($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        tenant.0,
        id.0,
        executor.account.map(|account| account.0),
        kind,
        url,
        i32::try_from(executor.timeout_seconds).unwrap_or(i32::MAX),
        sealed,
        executor.required_role.as_str(),
        Json(executor.sentinel) as _,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(|error| match StoreError::constraint(&error) {
        Some("channel_executors_timeout_is_bounded") => {
            refused("the timeout must lie between 1 and 60 seconds")
        }
        Some("channel_executors_requests_are_signed") => {
            refused("requests are signed, so a secret is needed; make one with `echo \"whsec_$(openssl rand -base64 32)\"`")
        }
        Some("channel_executors_are_of_an_account") => refused("there is no such account"),
        _ => StoreError::on("setting the executor")(error),
    })?;
    Ok(id)
}

/// Every executor of a tenant; the one for all accounts comes last.
pub async fn list(
    connection: &mut PgConnection,
    tenant: TenantId,
) -> Result<Vec<ExecutorSettings>, StoreError> {
    page(connection, tenant, None, i64::MAX).await
}

/// Up to so many executors of a tenant, in the order of their accounts, after that of this account; the one for all accounts
/// comes last.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    after: Option<ProviderAccountId>,
    limit: i64,
) -> Result<Vec<ExecutorSettings>, StoreError> {
    select(connection, tenant, None, after, limit).await
}

/// One executor of a tenant.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ExecutorId,
) -> Result<Option<ExecutorSettings>, StoreError> {
    Ok(select(connection, tenant, Some(id), None, 1).await?.pop())
}

async fn select(
    connection: &mut PgConnection,
    tenant: TenantId,
    only: Option<ExecutorId>,
    after: Option<ProviderAccountId>,
    limit: i64,
) -> Result<Vec<ExecutorSettings>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id,
               account_id,
               kind,
               url,
               timeout_seconds,
               required_role,
               sentinel as "sentinel: Json<Sentinel>",
               created_at as "created_at: jiff_sqlx::Timestamp"
          from channels.channel_executors
         where tenant_id = $1
           and ($2::uuid is null or id = $2)
           and ($3::uuid is null or account_id is null or account_id > $3)
         order by account_id nulls last
         limit $4
        "#,
        tenant.0,
        only.map(|id| id.0),
        after.map(|account| account.0),
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the executors"))?;
    rows.into_iter()
        .map(|row| {
            Ok(ExecutorSettings {
                id: ExecutorId(row.id),
                account_id: row.account_id.map(ProviderAccountId),
                kind: kind(&row.kind, row.url),
                timeout_seconds: u32::try_from(row.timeout_seconds).unwrap_or_default(),
                required_role: row.required_role.parse().map_err(unfit)?,
                sentinel: row.sentinel.0,
                created_at: row.created_at.to_jiff(),
            })
        })
        .collect()
}

/// Removes an executor. False when the tenant has no such executor.
pub async fn remove(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ExecutorId,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(r#"select channels.remove_executor($1, $2, $3) as "known!""#, tenant.0, id.0, actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("removing the executor"))
}

/// Returns the executor of an account's messages.
pub async fn of_account(
    connection: &mut PgConnection,
    key: &MasterKey,
    tenant: TenantId,
    account: ProviderAccountId,
) -> Result<Option<Executor>, StoreError> {
    let row = sqlx::query!(
        r#"
        select id as "id!",
               kind as "kind!",
               url,
               timeout_seconds as "timeout_seconds!",
               sealed_secret,
               sentinel as "sentinel!: Json<Sentinel>"
          from channels.executor_of($1, $2)
        "#,
        tenant.0,
        account.0,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the executor"))?;
    let Some(row) = row else { return Ok(None) };
    let place = place(tenant, ExecutorId(row.id));
    let secret = row.sealed_secret.map(|sealed| accounts::open(key, place, &sealed)).transpose()?;
    Ok(Some(Executor {
        kind: kind(&row.kind, row.url),
        timeout: Duration::from_secs(u64::try_from(row.timeout_seconds).unwrap_or_default()),
        secret,
        sentinel: row.sentinel.0,
    }))
}

/// A secret is bound to its row, as that of an account is.
fn place(tenant: TenantId, executor: ExecutorId) -> Place {
    Place { tenant, account: ProviderAccountId(executor.0) }
}

fn kind(kind: &str, url: Option<String>) -> Kind {
    match (kind, url) {
        ("http", Some(url)) => Kind::Http { url },
        _ => Kind::Echo,
    }
}

fn refused(message: &str) -> StoreError {
    StoreError::Refused { message: message.to_owned(), hint: None }
}

fn unfit(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unfit(error.to_string())
}

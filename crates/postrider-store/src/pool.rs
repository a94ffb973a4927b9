//! Connections that are never handed out inside somebody else's transaction.
//!
//! When a future that awaits `pool.begin()` is dropped between sending BEGIN and reading its answer, the connection
//! goes back into the pool inside an open transaction that nobody knows of. The next user's autocommit statement is
//! then acknowledged and never committed. So every connection is asked, when it is checked out, whether the server
//! thinks it is in a transaction; one that is gets closed.

use std::{str::FromStr, time::Duration};

use postrider_model::ids::TenantId;
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::{StoreError, unnamed::unnamed};

/// A pool of connections.
pub type Pool = sqlx::PgPool;
/// An open transaction. It rolls back when dropped.
pub type Transaction = sqlx::Transaction<'static, Postgres>;
/// The same on a connection that somebody keeps.
pub(crate) type TransactionOn<'c> = sqlx::Transaction<'c, Postgres>;

/// The oldest server that has everything the schema uses.
pub const SERVER_MAJOR_MIN: i32 = 15;

/// How a pool behaves.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Most connections at a time.
    pub connections_max: u32,
    /// How long to wait for one.
    pub acquire_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { connections_max: 4, acquire_timeout: Duration::from_secs(10) }
    }
}

/// Opens a pool and checks that the server answers and is new enough.
pub async fn connect(url: &str, settings: Settings) -> Result<Pool, StoreError> {
    let options = options(url)?;
    // One plain attempt first: the pool would retry a wrong password until its timeout and hide the reason.
    let mut first =
        PgConnection::connect_with(&options).await.map_err(|error| unreachable(&options, &error))?;
    check_version(&mut first).await?;
    let _ = first.close().await;

    PgPoolOptions::new()
        .max_connections(settings.connections_max)
        .acquire_timeout(settings.acquire_timeout)
        .test_before_acquire(false)
        .before_acquire(|connection, _| Box::pin(is_idle(connection)))
        .connect_with(options.clone())
        .await
        .map_err(|error| unreachable(&options, &error))
}

/// Whatever the login's default is: the functions look again at what others have committed in the meantime.
const BEGIN: &str = "begin isolation level read committed";

/// Begins a transaction that acts for nobody in particular.
pub async fn begin(pool: &Pool) -> Result<Transaction, StoreError> {
    pool.begin_with(BEGIN).await.map_err(StoreError::on("beginning a transaction"))
}

/// The same on a connection that was idle before.
pub(crate) async fn begin_on(connection: &mut PgConnection) -> Result<TransactionOn<'_>, StoreError> {
    connection.begin_with(BEGIN).await.map_err(StoreError::on("beginning a transaction"))
}

/// Takes a connection out of the pool. It is idle.
pub(crate) async fn acquire(pool: &Pool) -> Result<PoolConnection<Postgres>, StoreError> {
    pool.acquire().await.map_err(StoreError::on("connecting"))
}

/// Begins a transaction that sees and changes the rows of one tenant.
pub async fn begin_as(pool: &Pool, tenant: TenantId) -> Result<Transaction, StoreError> {
    begin_for(pool, BEGIN, tenant).await
}

/// Begins a transaction that reads the rows of one tenant, all as they are at one moment.
pub async fn begin_snapshot(pool: &Pool, tenant: TenantId) -> Result<Transaction, StoreError> {
    begin_for(pool, "begin isolation level repeatable read read only", tenant).await
}

/// Begins and sets the tenant, in one round trip.
async fn begin_for(pool: &Pool, begin: &str, tenant: TenantId) -> Result<Transaction, StoreError> {
    // A tenant is a UUID, so it can be spelled out.
    let statement = format!("{begin}; set local app.current_tenant_id = '{}'", tenant.0);
    pool.begin_with(AssertSqlSafe(statement)).await.map_err(StoreError::on("beginning a transaction"))
}

/// Sets the tenant for the rest of the transaction.
pub async fn act_as(connection: &mut PgConnection, tenant: TenantId) -> Result<(), StoreError> {
    sqlx::query!("select set_config('app.current_tenant_id', $1, true)", tenant.0.to_string())
        .fetch_one(unnamed(connection))
        .await
        .map_err(StoreError::on("setting the tenant"))?;
    Ok(())
}

/// Commits. After `Ok` the server has said that it is durable.
pub async fn commit(transaction: TransactionOn<'_>) -> Result<(), StoreError> {
    transaction.commit().await.map_err(StoreError::on("committing"))
}

/// Whether the database answers.
pub async fn ping(pool: &Pool) -> Result<(), StoreError> {
    // Checking a connection out asks the server for its state.
    pool.acquire().await.map(drop).map_err(StoreError::on("asking the database"))
}

pub(crate) fn options(url: &str) -> Result<PgConnectOptions, StoreError> {
    let scheme_ok = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let parsed = if scheme_ok { PgConnectOptions::from_str(url).ok() } else { None };
    let options = parsed.ok_or_else(|| StoreError::Unreachable {
        reason:
            "the given URL is not a Postgres URL; one looks like postgres://user:password@host:5432/database"
                .to_owned(),
    })?;
    // Poolers refuse start-up parameters that they do not know, such as extra_float_digits; we read binary anyway.
    Ok(options.application_name("postrider").statement_cache_capacity(0).extra_float_digits(None))
}

/// Whether the server itself says that no transaction is open.
///
/// sqlx keeps the server's transaction status to itself, but `begin_with` compares it: after a statement that begins
/// nothing, `BeginFailed` means idle, and success means that a transaction was open already.
async fn is_idle(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    match connection.begin_with("").await {
        Err(sqlx::Error::BeginFailed) => Ok(true),
        Err(error) => Err(error),
        Ok(stray) => {
            drop(stray);
            tracing::warn!("closed a pooled connection that was left inside a transaction");
            Ok(false)
        }
    }
}

async fn check_version(connection: &mut PgConnection) -> Result<(), StoreError> {
    let failed = StoreError::on("reading the server's version");
    let mut transaction = connection.begin().await.map_err(&failed)?;
    let version = sqlx::query_scalar!(r#"select current_setting('server_version_num')::int as "number!""#)
        .fetch_one(unnamed(&mut transaction))
        .await
        .map_err(&failed)?;
    transaction.commit().await.map_err(&failed)?;
    if version / 10_000 < SERVER_MAJOR_MIN {
        return Err(StoreError::Unfit(format!(
            "the database is PostgreSQL {}; Postrider needs {SERVER_MAJOR_MIN} or newer: upgrade it, or point \
             database.url at another server",
            version / 10_000
        )));
    }
    Ok(())
}

fn unreachable(options: &PgConnectOptions, error: &sqlx::Error) -> StoreError {
    let place = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    let database = options.get_database().unwrap_or(options.get_username());
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    let try_next = match code.as_deref() {
        Some("28P01" | "28000") => "check user and password in database.url",
        Some("3D000") => "create it with `createdb`, or correct the name in database.url",
        Some("53300") => {
            "the server has no connection left; raise max_connections or lower database.connections_max"
        }
        Some("57P03") => "it is starting up or shutting down; try again in a moment",
        Some(_) => "see the server's log",
        None => "check that it runs and that host and port in database.url are right",
    };
    let why = match error.as_database_error() {
        Some(error) => error.message().to_owned(),
        None => error.to_string(),
    };
    StoreError::Unreachable { reason: format!("{why} (database `{database}` at {place}); {try_next}") }
}

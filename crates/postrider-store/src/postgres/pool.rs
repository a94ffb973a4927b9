//! Connections that are never handed out inside another caller's transaction.
//!
//! When a future that awaits `pool.begin()` is dropped between sending BEGIN and reading its answer, the connection goes back into the
//! pool inside an open transaction that no code tracks. The next user's autocommit statement is then acknowledged and never committed.
//! So the pool asks the server, before it hands out a connection, whether it is in a transaction; a connection that is gets closed.

use std::{ops::Deref, str::FromStr, sync::Arc, time::Duration};

use futures::{future::BoxFuture, stream::BoxStream};

use postrider_model::ids::TenantId;
use sqlx::{
    AssertSqlSafe, Connection, Either, Execute, Executor, PgConnection, Postgres, SqlStr,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo},
};

use crate::{
    StoreError,
    error::{Advice, DATABASE_URL},
    postgres::{context::ContextKey, unprepared::unprepared},
};

/// A pool of connections. One for a login that may not name a tenant itself signs the tenants of its transactions.
#[derive(Debug, Clone)]
pub struct Pool {
    connections: sqlx::PgPool,
    signing: Option<Arc<Signing>>,
}

/// How a pool signs tenants.
#[derive(Debug)]
struct Signing {
    key: ContextKey,
    /// Spaces that keep the signature out of `pg_stat_activity`. `None` where that shows too much of each statement; the
    /// signature is then sent as a parameter, which takes a round trip of its own.
    padding: Option<String>,
}

/// `pg_stat_activity` shows so many bytes of a statement at most for padding to be worth it.
const PADDING_MAX: usize = 16 * 1024;

/// An open transaction. It rolls back when dropped.
pub type Transaction = sqlx::Transaction<'static, Postgres>;
/// The same on a connection that the caller keeps.
pub(crate) type TransactionOn<'c> = sqlx::Transaction<'c, Postgres>;

/// The oldest server that has everything the schema uses.
pub const SERVER_MAJOR_MIN: i32 = 15;

/// Settings of a pool.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Most connections at a time.
    pub connections_max: u32,
    /// How long to wait for one.
    pub acquire_timeout: Duration,
    /// Open all of them at once and keep them, so that work never waits for a connection that other programs took meanwhile.
    pub keeps_open: bool,
    /// The sessions' application name.
    pub application_name: &'static str,
}

/// The default application name of a pool's sessions.
pub const APPLICATION_NAME: &str = "postrider";

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: 4,
            acquire_timeout: Duration::from_secs(10),
            keeps_open: false,
            application_name: APPLICATION_NAME,
        }
    }
}

impl Deref for Pool {
    type Target = sqlx::PgPool;

    fn deref(&self) -> &sqlx::PgPool {
        &self.connections
    }
}

impl Pool {
    /// Signs the tenants of all transactions that are begun from now on.
    pub async fn signing_with(self, key: ContextKey) -> Result<Self, StoreError> {
        let mut transaction = begin(&self).await?;
        let shown = sqlx::query_scalar!(
            r#"select pg_size_bytes(current_setting('track_activity_query_size')) as "bytes!""#
        )
        .fetch_one(unprepared(&mut transaction))
        .await
        .map_err(StoreError::on("reading a setting"))?;
        commit(transaction).await?;
        let shown = usize::try_from(shown).unwrap_or(usize::MAX);
        let padding = (shown <= PADDING_MAX).then(|| " ".repeat(shown));
        Ok(Self { signing: Some(Arc::new(Signing { key, padding })), ..self })
    }
}

/// Statements without a transaction, for tests and benchmarks.
impl<'p> Executor<'p> for &'p Pool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        self.connections.fetch_many(query)
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        self.connections.fetch_optional(query)
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'p: 'e,
    {
        self.connections.prepare_with(sql, parameters)
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<sqlx::Describe<Postgres>, sqlx::Error>>
    where
        'p: 'e,
    {
        self.connections.describe(sql)
    }
}

/// Opens a pool and checks that the server answers and is new enough.
pub async fn connect(url: &str, settings: Settings) -> Result<Pool, StoreError> {
    let options = options(url)?.application_name(settings.application_name);
    // One plain attempt first: the pool would retry a wrong password until its timeout and hide the reason.
    let mut first =
        PgConnection::connect_with(&options).await.map_err(|error| unreachable(&options, &error))?;
    check_version(&mut first).await?;
    let _ = first.close().await;

    let mut kept = PgPoolOptions::new()
        .max_connections(settings.connections_max)
        .acquire_timeout(settings.acquire_timeout)
        .test_before_acquire(false)
        .before_acquire(|connection, _| Box::pin(is_idle(connection)));
    if settings.keeps_open {
        kept = kept.min_connections(settings.connections_max).idle_timeout(None).max_lifetime(None);
    }
    let pool = kept.connect_with(options.clone()).await.map_err(|error| unreachable(&options, &error))?;
    if settings.keeps_open {
        let mut opened = Vec::new();
        for _ in 0..settings.connections_max {
            opened.push(pool.acquire().await.map_err(|error| unreachable(&options, &error))?);
        }
    }
    Ok(Pool { connections: pool, signing: None })
}

/// One connection that belongs to no pool.
pub(crate) async fn connect_once(url: &str) -> Result<PgConnection, StoreError> {
    let options = options(url)?;
    PgConnection::connect_with(&options).await.map_err(|error| unreachable(&options, &error))
}

/// Read committed, whatever the login's default is: the functions read again what others have committed in the meantime.
const BEGIN: &str = "begin isolation level read committed";

/// Begins a transaction that acts for no particular tenant.
pub async fn begin(pool: &Pool) -> Result<Transaction, StoreError> {
    pool.begin_with(BEGIN).await.map_err(StoreError::on("beginning a transaction"))
}

/// The same on a connection that was idle before.
pub(crate) async fn begin_on(connection: &mut PgConnection) -> Result<TransactionOn<'_>, StoreError> {
    connection.begin_with(BEGIN).await.map_err(StoreError::on("beginning a transaction"))
}

/// The same, naming the fence of its reservations, in one round trip.
pub(crate) async fn begin_fenced<'c>(
    connection: &'c mut PgConnection,
    fence: &str,
) -> Result<TransactionOn<'c>, StoreError> {
    // A UUID and a number, so they can be spelled out.
    let statement = format!("{BEGIN}; set local app.fence = '{fence}'");
    connection.begin_with(AssertSqlSafe(statement)).await.map_err(StoreError::on("beginning a transaction"))
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

/// Stands for the server itself, where the tenant is not known yet. No tenant has this id.
const SERVER: TenantId = TenantId(uuid::Uuid::nil());

/// Begins a transaction that acts for the server itself. It sees no tenant's rows; the functions that find the tenant of an
/// account or of a run answer it.
pub async fn begin_as_server(pool: &Pool) -> Result<Transaction, StoreError> {
    begin_for(pool, BEGIN, SERVER).await
}

/// Lets the rest of the transaction read no table by a bitmap: a list whose index has the order of the page then stops at the end of
/// the page.
pub(crate) async fn read_in_order_of_an_index(connection: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::raw_sql("set local enable_bitmapscan = off")
        .execute(connection)
        .await
        .map_err(StoreError::on("preparing to list"))?;
    Ok(())
}

/// Ends each further statement of the transaction that takes longer: see [`StoreError::is_timeout`].
pub async fn limit_statements(connection: &mut PgConnection, longest: Duration) -> Result<(), StoreError> {
    sqlx::raw_sql(AssertSqlSafe(format!("set local statement_timeout = {}", longest.as_millis())))
        .execute(connection)
        .await
        .map_err(StoreError::on("limiting the time of statements"))?;
    Ok(())
}

/// Begins and sets the tenant, in one round trip.
async fn begin_for(pool: &Pool, begin: &'static str, tenant: TenantId) -> Result<Transaction, StoreError> {
    let failed = StoreError::on("beginning a transaction");
    // A tenant is a UUID and a signature is hex, so both can be spelled out.
    let begin = format!("{begin}; set local app.current_tenant_id = '{}'", tenant.0);
    // `select` for the signature: pg_stat_statements keeps the text of `set`, and replaces the constants of a query.
    let statement = match pool.signing.as_deref() {
        None => begin,
        Some(Signing { key, padding: Some(padding) }) => {
            format!(
                "{begin};{padding}select set_config('app.tenant_signature', '{}', true)",
                key.sign(tenant)
            )
        }
        Some(Signing { key, padding: None }) => {
            let mut transaction = pool.begin_with(AssertSqlSafe(begin)).await.map_err(&failed)?;
            sqlx::query!(
                "select set_config('app.tenant_signature', $1, true) as signature",
                key.sign(tenant)
            )
            .fetch_one(unprepared(&mut transaction))
            .await
            .map_err(StoreError::on("setting the tenant"))?;
            return Ok(transaction);
        }
    };
    pool.begin_with(AssertSqlSafe(statement)).await.map_err(failed)
}

/// Sets the tenant for the rest of the transaction. For logins that need no signature.
pub async fn act_as(connection: &mut PgConnection, tenant: TenantId) -> Result<(), StoreError> {
    sqlx::raw_sql(AssertSqlSafe(format!("set local app.current_tenant_id = '{}'", tenant.0)))
        .execute(connection)
        .await
        .map_err(StoreError::on("setting the tenant"))?;
    Ok(())
}

/// Rolls back, and waits for it: dropping a transaction leaves its locks for a moment.
pub async fn rollback(transaction: TransactionOn<'_>) -> Result<(), StoreError> {
    transaction.rollback().await.map_err(StoreError::on("rolling back the transaction"))
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
        reason: "the given URL is not a Postgres URL".to_owned(),
        advice: Advice::Url,
        setting: DATABASE_URL,
    })?;
    // Poolers refuse start-up parameters that they do not know, such as extra_float_digits; we read binary anyway.
    Ok(options.application_name(APPLICATION_NAME).statement_cache_capacity(0).extra_float_digits(None))
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
        .fetch_one(unprepared(&mut transaction))
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

pub(crate) fn unreachable(options: &PgConnectOptions, error: &sqlx::Error) -> StoreError {
    let place = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    let database = options.get_database().unwrap_or(options.get_username());
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    let advice = match code.as_deref() {
        Some("28P01" | "28000") => Advice::Login,
        Some("3D000") => Advice::Database,
        Some("53300") => Advice::Connections,
        Some("57P03") => Advice::Wait,
        Some(_) => Advice::Log,
        None if matches!(error, sqlx::Error::PoolTimedOut) => Advice::Connections,
        None => Advice::Address,
    };
    let why = match error.as_database_error() {
        Some(error) => error.message().to_owned(),
        None => error.to_string(),
    };
    let reason = format!("{why} (database `{database}` at {place})");
    StoreError::Unreachable { reason, advice, setting: DATABASE_URL }
}

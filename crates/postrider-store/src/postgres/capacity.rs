//! How many connections a server, a database and a login allow.

use std::time::Duration;

use sqlx::Connection;

use crate::{
    StoreError,
    error::{Advice, DATABASE_URL},
    postgres::{pool, unprepared::unprepared},
};

/// How long the server may take to accept one connection and answer.
const WITHIN: Duration = Duration::from_secs(10);

/// The limits that apply to the connections of one URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// The login.
    pub login: String,
    /// The database.
    pub database: String,
    /// `max_connections` of the server.
    pub max_connections: i32,
    /// How many of them are reserved for superusers and for members of `pg_use_reserved_connections`.
    pub reserved: i32,
    /// How many connections the login may have, where that is limited.
    pub login_limit: Option<i32>,
    /// How many connections the database may have, where that is limited.
    pub database_limit: Option<i32>,
    /// How many sessions of clients the server has now, beside the one that asked.
    pub used: i64,
    /// Whether the server listens on another port than the URL names: then a pooler or proxy is in between, and its limits apply to us.
    pub is_indirect: bool,
}

impl Capacity {
    /// Connections that are open to ordinary logins.
    #[must_use]
    pub const fn available(&self) -> i32 {
        self.max_connections - self.reserved
    }
}

/// Host (or socket directory) and port of a URL, as they are used.
pub fn address(url: &str) -> Result<(String, u16), StoreError> {
    let options = pool::options(url)?;
    let host = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => options.get_host().to_owned(),
    };
    Ok((host, options.get_port()))
}

/// Asks the server over one connection of its own.
pub async fn ask(url: &str) -> Result<Capacity, StoreError> {
    let (_, port) = address(url)?;
    let asking = async {
        let mut connection = pool::connect_once(url).await?;
        // A pooler in transaction mode keeps one server for a transaction.
        let mut transaction = pool::begin_on(&mut connection).await?;
        let row = sqlx::query!(
            r#"
            select current_user::text as "login!",
                   current_database()::text as "database!",
                   current_setting('max_connections')::int as "max_connections!",
                   current_setting('superuser_reserved_connections')::int
                       + coalesce(current_setting('reserved_connections', true)::int, 0) as "reserved!",
                   (select nullif(rolconnlimit, -1) from pg_roles where rolname = current_user) as login_limit,
                   (select nullif(datconnlimit, -1) from pg_database where datname = current_database()) as database_limit,
                   (select count(*) from pg_stat_activity
                     where backend_type = 'client backend' and pid <> pg_backend_pid()) as "used!",
                   current_setting('port')::int as "port!"
            "#
        )
        .fetch_one(unprepared(&mut transaction))
        .await
        .map_err(StoreError::on("reading the connection limits"))?;
        drop(transaction);
        let _ = connection.close().await;
        Ok(Capacity {
            login: row.login,
            database: row.database,
            max_connections: row.max_connections,
            reserved: row.reserved,
            login_limit: row.login_limit,
            database_limit: row.database_limit,
            used: row.used,
            is_indirect: row.port != i32::from(port),
        })
    };
    tokio::time::timeout(WITHIN, asking).await.unwrap_or_else(|_| {
        Err(StoreError::Unreachable {
            reason: format!("the server has not answered within {} s", WITHIN.as_secs()),
            advice: Advice::Address,
            setting: DATABASE_URL,
        })
    })
}

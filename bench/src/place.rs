//! A private cluster in a temporary directory, with a fresh database for every measurement.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use anyhow::Context;
use postrider_store::{
    Pool,
    postgres::{
        context,
        embedded::{Cluster, Options, SUPERUSER},
        migrate, pool,
    },
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, postgres::PgConnectOptions};

const TEMPLATE: &str = "bench_template";

/// Settings that differ from a fresh installation. Besides memory, no checkpoint happens during a measurement, so that the
/// cost of full page images does not depend on its time; and the files of the log are kept. Durability is unchanged.
const SETTINGS: [(&str, &str); 5] = [
    ("shared_buffers", "2GB"),
    ("max_wal_size", "8GB"),
    ("min_wal_size", "4GB"),
    ("checkpoint_timeout", "1h"),
    ("max_connections", "60"),
];

/// Number of log files that `min_wal_size` keeps, of 16 MB each.
const LOG_FILES: usize = 256;

pub(crate) struct Place {
    cluster: Cluster,
    dir: PathBuf,
}

impl Place {
    /// Starts the cluster and creates the template database. Removes both on failure.
    pub(crate) async fn make() -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("postrider-bench-{}", std::process::id()));
        anyhow::ensure!(!dir.exists(), "{} exists already; remove it", dir.display());
        let options = Options {
            data_dir: dir.clone(),
            bin_dir: None,
            settings: SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        };
        let started = tokio::task::spawn_blocking(move || Cluster::start_or_adopt(&options)).await?;
        let cluster = match started {
            Ok(cluster) => cluster,
            Err(error) => {
                let _ = std::fs::remove_dir_all(&dir);
                return Err(error.into());
            }
        };
        let place = Self { cluster, dir };
        match place.prepare().await {
            Ok(()) => Ok(place),
            Err(error) => {
                place.remove().await?;
                Err(error)
            }
        }
    }

    async fn prepare(&self) -> anyhow::Result<()> {
        self.make_log().await?;
        self.make_template().await
    }

    async fn make_template(&self) -> anyhow::Result<()> {
        self.maintain(&format!("create database {TEMPLATE}")).await?;
        let url = self.cluster.url(SUPERUSER, TEMPLATE);
        migrate::run(&url).await?;
        let mut connection = connect(&url).await?;
        sqlx::raw_sql(include_str!("../sql/raw_schema.sql")).execute(&mut connection).await?;
        sqlx::raw_sql(include_str!("../sql/campaigns/raw_schema.sql")).execute(&mut connection).await?;
        sqlx::raw_sql(include_str!("../sql/replies/raw_schema.sql")).execute(&mut connection).await?;
        sqlx::raw_sql(include_str!("../sql/jobs/raw_schema.sql")).execute(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }

    /// Creates all log files that are kept. A server that has run for a while reuses its files; a new one fills each with zeros
    /// first, which would slow down the measurements.
    async fn make_log(&self) -> anyhow::Result<()> {
        let mut connection = connect(&self.cluster.url(SUPERUSER, "postgres")).await?;
        for _ in 0..LOG_FILES {
            sqlx::raw_sql("select pg_logical_emit_message(false, '', ''), pg_switch_wal()")
                .execute(&mut connection)
                .await?;
        }
        sqlx::raw_sql("checkpoint").execute(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }

    /// Directory for small files of a measurement.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Process id of the postmaster.
    pub(crate) fn postmaster_pid(&self) -> u32 {
        self.cluster.postmaster_pid()
    }

    /// A migrated, empty database with empty raw tables.
    pub(crate) async fn fresh(&self, name: &str) -> anyhow::Result<Database<'_>> {
        self.make_like(TEMPLATE, name).await
    }

    async fn make_like(&self, template: &str, name: &str) -> anyhow::Result<Database<'_>> {
        self.maintain(&format!("create database {name} template {template} strategy file_copy")).await?;
        // The checkpoint writes dirty pages now and not during the measurement.
        self.maintain("checkpoint").await?;
        Ok(Database { place: self, name: name.to_owned() })
    }

    async fn maintain(&self, statement: &str) -> anyhow::Result<()> {
        let mut connection = connect(&self.cluster.url(SUPERUSER, "postgres")).await?;
        sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&mut connection)
            .await
            .with_context(|| statement.to_owned())?;
        connection.close().await?;
        Ok(())
    }

    /// Stops the server and removes everything.
    pub(crate) async fn remove(self) -> anyhow::Result<()> {
        let Self { cluster, dir } = self;
        let stopped = tokio::task::spawn_blocking(move || cluster.stop()).await?;
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        stopped?;
        Ok(())
    }
}

/// A plain connection that keeps its statements prepared.
pub(crate) async fn connect(url: &str) -> anyhow::Result<PgConnection> {
    Ok(PgConnectOptions::from_str(url)?.disable_statement_logging().connect().await?)
}

/// One database of the cluster.
pub(crate) struct Database<'a> {
    place: &'a Place,
    name: String,
}

impl<'a> Database<'a> {
    /// A copy of this database, which must have no connections.
    pub(crate) async fn copy(&self, name: &str) -> anyhow::Result<Database<'a>> {
        self.place.make_like(&self.name, name).await
    }

    pub(crate) fn place(&self) -> &'a Place {
        self.place
    }

    pub(crate) fn url(&self, role: &str) -> String {
        self.place.cluster.url(role, &self.name)
    }

    /// A connection as superuser.
    pub(crate) async fn admin(&self) -> anyhow::Result<PgConnection> {
        connect(&self.url(SUPERUSER)).await
    }

    /// A pool like that of the API: with the role of HTTP requests and the key that signs tenants.
    pub(crate) async fn app_pool(&self, settings: pool::Settings) -> anyhow::Result<Pool> {
        let mut admin = self.admin().await?;
        let key = context::key(&mut admin).await?;
        admin.close().await?;
        Ok(pool::connect(&self.url("postrider_app"), settings).await?.signing_with(key).await?)
    }

    /// Inserts events into a table, and runs vacuum and analyze, as autovacuum would later.
    pub(crate) async fn fill(&self, table: &str, events: i64) -> anyhow::Result<()> {
        self.load(&include_str!("../sql/fill.sql").replace("{table}", table), events).await
    }

    /// Inserts processed events into the outbox.
    pub(crate) async fn fill_processed(&self, events: i64) -> anyhow::Result<()> {
        self.load(include_str!("../sql/fill_processed.sql"), events).await
    }

    async fn load(&self, statement: &str, events: i64) -> anyhow::Result<()> {
        let mut admin = self.admin().await?;
        sqlx::query(AssertSqlSafe(statement))
            .bind(events)
            .execute(&mut admin)
            .await
            .context("filling the table")?;
        sqlx::raw_sql("vacuum analyze").execute(&mut admin).await?;
        admin.close().await?;
        Ok(())
    }

    pub(crate) async fn remove(self) -> anyhow::Result<()> {
        // Connections that are being closed get a second to end.
        for _ in 0..50 {
            let mut admin = self.admin().await?;
            let others = "select exists (select from pg_stat_activity
                           where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid())";
            let others: bool = sqlx::query_scalar(others).fetch_one(&mut admin).await?;
            admin.close().await?;
            if !others {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await; // poll interval
        }
        self.place.maintain(&format!("drop database {} with (force)", self.name)).await
    }
}

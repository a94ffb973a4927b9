//! The cost of a measurement: WAL, commits, and processor time of server and client.

use std::time::Duration;

use sqlx::Connection;

use crate::{
    machine,
    place::Database,
    report::{count, median},
};

/// The counters at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meter {
    wal: i64,
    /// Transactions with writes, because only they get a transaction id.
    commits: i64,
    server: Duration,
    client: Duration,
}

impl Meter {
    /// A reading with this process as the client.
    pub(crate) async fn of_this_process(database: &Database<'_>) -> anyhow::Result<Self> {
        Self::read(database, machine::processor_time(std::process::id())?).await
    }

    /// A reading. `client` is the processor time of the clients so far.
    pub(crate) async fn read(database: &Database<'_>, client: Duration) -> anyhow::Result<Self> {
        let mut admin = database.admin().await?;
        let (wal, commits) = sqlx::query_as(
            "select (pg_current_wal_insert_lsn() - '0/0')::bigint,
                    pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
        )
        .fetch_one(&mut admin)
        .await?;
        admin.close().await?;
        let server = machine::server_processor_time(database.place().postmaster_pid())?;
        Ok(Self { wal, commits, server, client })
    }

    /// The cost since another reading.
    pub(crate) fn since(self, before: Self, items: i64, took: Duration) -> Cost {
        let items = items as f64;
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let (server, client) =
            (self.server.saturating_sub(before.server), self.client.saturating_sub(before.client));
        Cost {
            wal: (self.wal - before.wal) as f64 / items * 1000.0,
            commits: (self.commits - before.commits) as f64 / items * 1000.0,
            server: server.as_secs_f64() / items * 1e6,
            client: client.as_secs_f64() / items * 1e6,
            busy: (server + client).as_secs_f64() / took.as_secs_f64() / cores,
        }
    }
}

/// Bytes of WAL and commits per 1,000 items, microseconds of processor time per item, and the utilisation of all cores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) wal: f64,
    pub(crate) commits: f64,
    pub(crate) server: f64,
    pub(crate) client: f64,
    pub(crate) busy: f64,
}

impl Cost {
    /// The median of each figure.
    pub(crate) fn median(costs: &[Self]) -> Self {
        let middle = |figure: fn(&Self) -> f64| median(costs.iter().map(figure));
        Self {
            wal: middle(|cost| cost.wal),
            commits: middle(|cost| cost.commits),
            server: middle(|cost| cost.server),
            client: middle(|cost| cost.client),
            busy: middle(|cost| cost.busy),
        }
    }

    /// Items per second of processor time, of server and client together.
    pub(crate) fn items_per_second(self) -> f64 {
        1e6 / (self.server + self.client)
    }

    pub(crate) fn words(self, what: &str) -> String {
        format!(
            "per 1,000 {what}s {} kB of WAL and {:.1} commits; per {what} {:.1} µs of the processor in the server and {:.1} µs in \
             the client, {:.0} % of all cores",
            count(self.wal / 1000.0),
            self.commits,
            self.server,
            self.client,
            self.busy * 100.0,
        )
    }
}

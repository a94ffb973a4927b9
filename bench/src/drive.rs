//! The compared sides, and the driver that both use.

use std::time::{Duration, Instant};

use anyhow::Context;
use postrider_store::postgres::embedded::SUPERUSER;
use sqlx::{Connection, PgConnection, Row};

use crate::place::{Database, connect};

/// Settings that give the raw side the same plan that our functions enforce.
pub(crate) const RAW_PLAN: &str = "
    set enable_seqscan = off;
    set enable_bitmapscan = off;
    set enable_hashjoin = off;
    set enable_mergejoin = off;
    set plan_cache_mode = force_generic_plan;
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Plain SQL.
    Raw,
    /// The functions of the contract, with one statement to complete a batch, like the relay.
    Ours,
    /// The same, with one call of `complete_outbox_event` per event.
    OursOneByOne,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Raw, Self::Ours];
    pub(crate) const ALL: [Self; 3] = [Self::Raw, Self::Ours, Self::OursOneByOne];

    pub(crate) fn table(self) -> &'static str {
        match self {
            Self::Raw => "raw.outbox",
            Self::Ours | Self::OursOneByOne => "m10_recovery.outbox",
        }
    }

    fn publish(self) -> &'static str {
        match self {
            Self::Raw => include_str!("../sql/raw_publish.sql"),
            Self::Ours | Self::OursOneByOne => include_str!("../sql/our_publish.sql"),
        }
    }

    fn claim(self) -> &'static str {
        match self {
            Self::Raw => include_str!("../sql/raw_claim.sql"),
            Self::Ours | Self::OursOneByOne => include_str!("../sql/our_claim.sql"),
        }
    }

    fn complete(self) -> &'static str {
        match self {
            Self::Raw => include_str!("../sql/raw_complete.sql"),
            Self::Ours => include_str!("../sql/our_complete.sql"),
            Self::OursOneByOne => include_str!("../sql/our_complete_each.sql"),
        }
    }
}

/// A connection for one side. Each statement is its own transaction and is prepared once.
pub(crate) struct Client {
    connection: PgConnection,
    pub(crate) side: Side,
    name: String,
    spent: Spent,
}

/// The time of a client by statement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    pub(crate) claiming: Duration,
    pub(crate) completing: Duration,
}

impl Client {
    pub(crate) async fn publisher(database: &Database<'_>, side: Side) -> anyhow::Result<Self> {
        Self::connect(database, side, "postrider_app", "publisher").await
    }

    pub(crate) async fn worker(database: &Database<'_>, side: Side, name: &str) -> anyhow::Result<Self> {
        Self::connect(database, side, "postrider_worker", name).await
    }

    async fn connect(database: &Database<'_>, side: Side, role: &str, name: &str) -> anyhow::Result<Self> {
        let role = if side == Side::Raw { SUPERUSER } else { role };
        let mut connection = connect(&database.url(role)).await?;
        if side == Side::Raw {
            sqlx::raw_sql(RAW_PLAN).execute(&mut connection).await?;
        }
        Ok(Self { connection, side, name: name.to_owned(), spent: Spent::default() })
    }

    /// Publishes a batch and commits.
    pub(crate) async fn publish(&mut self, batch: &Batch) -> anyhow::Result<()> {
        let ids = sqlx::query(self.side.publish())
            .bind(&batch.aggregate_types)
            .bind(&batch.aggregate_ids)
            .bind(&batch.event_types)
            .bind(&batch.payloads)
            .fetch_all(&mut self.connection)
            .await
            .context("publishing")?;
        anyhow::ensure!(
            ids.len() == batch.payloads.len(),
            "{} of {} were published",
            ids.len(),
            batch.payloads.len()
        );
        Ok(())
    }

    /// Claims and completes one batch. Returns the number of its events.
    pub(crate) async fn step(&mut self, batch_size: i32) -> anyhow::Result<usize> {
        let begun = Instant::now();
        let claimed = sqlx::query(self.side.claim())
            .bind(&self.name)
            .bind(batch_size)
            .fetch_all(&mut self.connection)
            .await
            .context("claiming")?;
        if claimed.is_empty() {
            return Ok(0);
        }
        let ids = claimed.iter().map(|row| row.try_get::<i64, _>(0)).collect::<Result<Vec<_>, _>>()?;
        self.spent.claiming += begun.elapsed();
        let begun = Instant::now();
        sqlx::query(self.side.complete())
            .bind(&self.name)
            .bind(&ids)
            .execute(&mut self.connection)
            .await
            .context("completing")?;
        self.spent.completing += begun.elapsed();
        Ok(ids.len())
    }

    /// Claims and completes until nothing is left.
    pub(crate) async fn drain(&mut self, batch_size: i32) -> anyhow::Result<Drained> {
        let begun = Instant::now();
        let mut events = 0;
        loop {
            match self.step(batch_size).await? {
                0 => return Ok(Drained { events, took: begun.elapsed(), spent: self.spent }),
                done => events += done,
            }
        }
    }

    pub(crate) async fn close(self) -> anyhow::Result<()> {
        Ok(self.connection.close().await?)
    }
}

/// The number of drained events and the time for them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Drained {
    pub(crate) events: usize,
    pub(crate) took: Duration,
    pub(crate) spent: Spent,
}

impl Drained {
    pub(crate) fn rate(self) -> f64 {
        self.events as f64 / self.took.as_secs_f64()
    }
}

/// Events to publish, column by column.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    aggregate_types: Vec<String>,
    aggregate_ids: Vec<String>,
    event_types: Vec<String>,
    payloads: Vec<String>,
}

impl Batch {
    pub(crate) fn of(size: usize) -> Self {
        let payload = |n: usize| {
            format!(
                r#"{{"order": {n}, "customer": "customer-{}", "total": {}.5, "currency": "EUR"}}"#,
                n % 1000,
                n % 500
            )
        };
        Self {
            aggregate_types: vec!["order".to_owned(); size],
            aggregate_ids: (0..size).map(|n| format!("order-{n}")).collect(),
            event_types: vec!["order.placed".to_owned(); size],
            payloads: (0..size).map(payload).collect(),
        }
    }
}

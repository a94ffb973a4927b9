//! The writes of an item alone: reserve in one commit, settle in the next, over plain connections. The same driver uses
//! plain SQL or the functions of the contract (docs/contract.md).

use std::time::Instant;

use anyhow::Context;
use postrider_store::{campaigns::JOB_SIZE, postgres::embedded::SUPERUSER};
use sqlx::{Connection, PgConnection, Row, postgres::PgRow};
use uuid::Uuid;

use crate::{
    drive::RAW_PLAN,
    place::{Database, connect},
};

/// Default window of a worker.
pub(super) const WINDOW: usize = 64;

/// Items per second in plain SQL, over this many connections, with batches of this size.
pub(super) async fn raw(
    database: &Database<'_>,
    items: i64,
    batch_size: usize,
    connections: usize,
) -> anyhow::Result<f64> {
    let batches = usize::try_from(items)? / batch_size / connections;
    let run = Uuid::now_v7();
    let mut clients = Vec::new();
    for number in 0..connections {
        let mut client = Client::connect(database, SUPERUSER).await?;
        sqlx::raw_sql(RAW_PLAN).execute(&mut client.connection).await?;
        clients.push((client, Batches { seed: number as u64, ..Batches::new() }));
    }
    let mut tasks = tokio::task::JoinSet::new();
    let begun = Instant::now();
    for (mut client, mut source) in clients {
        tasks.spawn(async move {
            for _ in 0..batches {
                let batch = source.next(batch_size);
                client.raw_reserve(run, &batch).await?;
                client.raw_settle(&batch).await?;
            }
            client.connection.close().await?;
            anyhow::Ok(batches * batch_size)
        });
    }
    rate(tasks, begun).await
}

/// Connections that go through the contract's functions, and the jobs that each of them holds.
pub(super) struct Ours(Vec<(Client, Vec<Jobs>)>);

/// Send jobs that are processed together.
type Jobs = Vec<Job>;

/// A claimed send job, with the number of its items.
#[derive(Clone, Copy)]
struct Job {
    tenant: Uuid,
    id: Uuid,
    items: usize,
}

/// Opens the connections and claims every send job, `jobs` at a time.
pub(super) async fn ours(database: &Database<'_>, jobs: usize, connections: usize) -> anyhow::Result<Ours> {
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push((Client::connect(database, "postrider_worker").await?, Vec::new()));
    }
    loop {
        let mut found = false;
        for (client, groups) in &mut clients {
            let claimed = client.claim(jobs).await?;
            found |= !claimed.is_empty();
            groups.push(claimed);
        }
        if !found {
            return Ok(Ours(clients));
        }
    }
}

impl Ours {
    /// Items per second, a window of each of the jobs of a group in a transaction.
    pub(super) async fn live(self) -> anyhow::Result<f64> {
        let mut tasks = tokio::task::JoinSet::new();
        let begun = Instant::now();
        for (mut client, groups) in self.0 {
            tasks.spawn(async move {
                let mut items = 0;
                for jobs in groups {
                    items += client.live(&jobs).await?;
                }
                client.connection.close().await?;
                anyhow::Ok(items)
            });
        }
        rate(tasks, begun).await
    }
}

async fn rate(mut tasks: tokio::task::JoinSet<anyhow::Result<usize>>, begun: Instant) -> anyhow::Result<f64> {
    let mut items = 0;
    while let Some(ended) = tasks.join_next().await {
        items += ended??;
    }
    Ok(items as f64 / begun.elapsed().as_secs_f64())
}

struct Client {
    connection: PgConnection,
    name: String,
}

impl Client {
    async fn connect(database: &Database<'_>, role: &str) -> anyhow::Result<Self> {
        let connection = connect(&database.url(role)).await?;
        Ok(Self { connection, name: format!("worker-{}", Uuid::now_v7()) })
    }

    async fn raw_reserve(&mut self, run: Uuid, batch: &Batch) -> anyhow::Result<()> {
        sqlx::query(include_str!("../../sql/campaigns/raw_reserve.sql"))
            .bind(run)
            .bind(&self.name)
            .bind(&batch.ids)
            .bind(&batch.jobs)
            .bind(&batch.recipients)
            .bind(&batch.keys)
            .bind(&batch.hashes)
            .execute(&mut self.connection)
            .await
            .context("reserving")?;
        Ok(())
    }

    async fn raw_settle(&mut self, batch: &Batch) -> anyhow::Result<()> {
        let settled = sqlx::query(include_str!("../../sql/campaigns/raw_settle.sql"))
            .bind(&batch.ids)
            .execute(&mut self.connection)
            .await
            .context("settling")?;
        anyhow::ensure!(settled.rows_affected() == batch.ids.len() as u64, "not every item was settled");
        Ok(())
    }

    /// Claims send jobs.
    async fn claim(&mut self, jobs: usize) -> anyhow::Result<Jobs> {
        let rows = sqlx::query(include_str!("../../sql/campaigns/our_claim.sql"))
            .bind(&self.name)
            .bind(i32::try_from(jobs)?)
            .fetch_all(&mut self.connection)
            .await
            .context("claiming")?;
        let job = |row: &PgRow| {
            let items = row.try_get::<Vec<Uuid>, _>(2)?.len();
            Ok(Job { tenant: row.try_get(0)?, id: row.try_get(1)?, items })
        };
        rows.iter().map(job).collect()
    }

    /// Reserves and settles all items of some jobs, a window of each at a time.
    async fn live(&mut self, jobs: &[Job]) -> anyhow::Result<usize> {
        let mut source = Batches::new();
        let mut done = 0;
        for first in (0..).step_by(WINDOW) {
            let open: Jobs = jobs
                .iter()
                .filter(|job| job.items > first)
                .map(|job| Job { items: WINDOW.min(job.items - first), ..*job })
                .collect();
            if open.is_empty() {
                break;
            }
            let batch = source.next(open.iter().map(|window| window.items).sum());
            self.reserve(&open, i32::try_from(first + 1)?, &batch).await?;
            let tenants: Vec<Uuid> =
                open.iter().flat_map(|window| std::iter::repeat_n(window.tenant, window.items)).collect();
            self.settle(&tenants, &batch).await?;
            done += batch.ids.len();
        }
        Ok(done)
    }

    /// Reserves the items of some windows, which begin at the same place of their jobs.
    async fn reserve(&mut self, windows: &[Job], first: i32, batch: &Batch) -> anyhow::Result<()> {
        let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) =
            windows.iter().map(|window| (window.tenant, window.id)).unzip();
        let counts =
            windows.iter().map(|window| i32::try_from(window.items)).collect::<Result<Vec<_>, _>>()?;
        let row = sqlx::query(include_str!("../../sql/campaigns/our_reserve.sql"))
            .bind(tenants)
            .bind(&self.name)
            .bind(ids)
            .bind(vec![first; windows.len()])
            .bind(counts)
            .bind(&batch.ids)
            .bind(&batch.recipients)
            .bind(&batch.hashes)
            .fetch_one(&mut self.connection)
            .await
            .context("reserving")?;
        let (windows, reserved): (Vec<String>, i32) = (row.try_get(0)?, row.try_get(1)?);
        let is_whole = windows.iter().all(|window| window == "open") && reserved as usize == batch.ids.len();
        anyhow::ensure!(is_whole, "not every item was reserved");
        Ok(())
    }

    async fn settle(&mut self, tenants: &[Uuid], batch: &Batch) -> anyhow::Result<()> {
        let message_ids: Vec<String> = batch.ids.iter().map(ToString::to_string).collect();
        let settled: i64 = sqlx::query_scalar(include_str!("../../sql/campaigns/our_settle.sql"))
            .bind(tenants)
            .bind(&self.name)
            .bind(&batch.ids)
            .bind(&message_ids)
            .fetch_one(&mut self.connection)
            .await
            .context("settling")?;
        anyhow::ensure!(usize::try_from(settled)? == batch.ids.len(), "not every item was settled");
        Ok(())
    }
}

/// Items, column by column.
struct Batch {
    ids: Vec<Uuid>,
    jobs: Vec<Uuid>,
    recipients: Vec<String>,
    keys: Vec<String>,
    hashes: Vec<[u8; 32]>,
}

/// Generates items.
struct Batches {
    job: Uuid,
    made: i32,
    seed: u64,
}

impl Batches {
    fn new() -> Self {
        Self { job: Uuid::nil(), made: 0, seed: 0 }
    }

    fn next(&mut self, size: usize) -> Batch {
        let ids: Vec<Uuid> = (0..size).map(|_| Uuid::now_v7()).collect();
        // Random like digests, because an index on random values costs more.
        let hashes: Vec<[u8; 32]> = (0..size).map(|_| self.scattered()).collect();
        Batch {
            jobs: (0..size).map(|_| self.next_job()).collect(),
            recipients: (0..size).map(|n| format!("person{n:06}@example.com")).collect(),
            keys: hashes.iter().map(hex).collect(),
            ids,
            hashes,
        }
    }

    /// The job of the next item.
    fn next_job(&mut self) -> Uuid {
        if self.made % JOB_SIZE == 0 {
            self.job = Uuid::now_v7();
        }
        self.made += 1;
        self.job
    }

    /// 32 bytes by splitmix64.
    fn scattered(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for part in bytes.chunks_exact_mut(8) {
            self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut mixed = self.seed;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            part.copy_from_slice(&(mixed ^ (mixed >> 31)).to_be_bytes());
        }
        bytes
    }
}

fn hex(bytes: &[u8; 32]) -> String {
    let (high, low) = bytes.split_at(16);
    let half = |bytes: &[u8]| u128::from_be_bytes(bytes.try_into().unwrap_or_default());
    format!("{:032x}{:032x}", half(high), half(low))
}

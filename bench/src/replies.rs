//! Replies: the rate of the dispatcher with a provider that does nothing, and the time from the commit of a reply to its call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use async_trait::async_trait;
use postrider_engine::{Dispatcher, DispatcherSettings, Hints};
use postrider_model::{
    Channel, Manifest, Message, Outcome,
    channels::RetrySchedule,
    ids::{ProviderAccountId, TenantId},
    seal::MasterKey,
};
use postrider_providers::{Account, Adapter, Adapters, InvalidAccount, Provider};
use postrider_store::{
    Reservation,
    channels::replies,
    postgres::{embedded::SUPERUSER, pool, wakeups},
    tenancy::{
        accounts::{self, NewAccount},
        tenants,
    },
};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    Scale,
    drive::RAW_PLAN,
    place::{Database, Place, connect},
    report::Report,
};

const BAR: f64 = 0.60;
const PICKUP_BAR: Duration = Duration::from_millis(10);
/// Default batch size of the dispatcher.
const BATCH: usize = 100;
/// Enough accounts that the limit of one account never bounds a batch.
const ACCOUNTS: usize = 20;
/// Replies whose time from commit to call is measured.
const PICKUPS: i64 = 300;
const PATIENCE: Duration = Duration::from_secs(600);
const ACTOR: &str = "bench";
const MANIFEST: Manifest = Manifest::new("null", &[Channel::Chat]);

/// The defaults of `channels.outbox`.
fn settings() -> DispatcherSettings {
    DispatcherSettings {
        batch_size: BATCH,
        concurrency: 256,
        account_concurrency: 32,
        call_timeout: Duration::from_secs(20),
        lock_timeout: Duration::from_secs(120),
        retries: RetrySchedule {
            base: Duration::from_secs(10),
            jitter_min: 0.5,
            jitter_max: 1.5,
            pause_max: Duration::from_secs(900),
        },
        poll_interval: Duration::from_secs(1),
    }
}

/// Compares the dispatcher with the same row changes in plain SQL.
pub(crate) async fn measure(place: &Place, scale: Scale, report: &mut Report) -> anyhow::Result<()> {
    let mut rounds = Vec::new();
    for round in 0..scale.rounds {
        let database = place.fresh(&format!("bench_replies_{round}")).await?;
        let stage = Stage::make(&database).await?;
        for table in ["raw.replies", "channels.channel_outbox"] {
            stage.fill(&database, table, scale.replies).await?;
        }
        let raw = raw(&database, &stage).await?;
        rounds.push((raw, send_all(&database, &stage, scale.replies).await?));
        database.remove().await?;
    }
    report.compare(&format!("replies to a null provider, batch {BATCH}"), &rounds, Some(BAR));
    pickup(place, report).await
}

/// A tenant with accounts at the provider that does nothing.
struct Stage {
    key: MasterKey,
    tenant: TenantId,
    accounts: Vec<Uuid>,
}

impl Stage {
    async fn make(database: &Database<'_>) -> anyhow::Result<Self> {
        let key = MasterKey::generate()?;
        let mut admin = database.admin().await?;
        let mut transaction = admin.begin().await?;
        let (tenant, workspace) = tenants::create(&mut transaction, ACTOR, ACTOR).await?;
        pool::act_as(&mut transaction, tenant).await?;
        let mut ids = Vec::new();
        for number in 0..ACCOUNTS {
            let account = NewAccount {
                tenant,
                workspace,
                name: &format!("chat {number}"),
                provider: MANIFEST.name,
                settings: &serde_json::json!({}),
                secret: &String::new().into(),
            };
            let ProviderAccountId(id) = accounts::create(&mut transaction, &key, &account, ACTOR).await?;
            ids.push(id);
        }
        transaction.commit().await?;
        admin.close().await?;
        Ok(Self { key, tenant, accounts: ids })
    }

    async fn fill(&self, database: &Database<'_>, table: &str, replies: i64) -> anyhow::Result<()> {
        let mut admin = database.admin().await?;
        sqlx::query("set session_replication_role = replica").execute(&mut admin).await?;
        sqlx::query(AssertSqlSafe(include_str!("../sql/replies/fill.sql").replace("{table}", table)))
            .bind(self.tenant.0)
            .bind(&self.accounts)
            .bind(replies)
            .execute(&mut admin)
            .await
            .context("making replies")?;
        sqlx::raw_sql("vacuum analyze").execute(&mut admin).await?;
        Ok(admin.close().await?)
    }

    /// A dispatcher in this process, until the token is cancelled.
    async fn dispatch(
        &self,
        database: &Database<'_>,
        provider: Arc<dyn Adapter>,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<tokio::task::JoinHandle<()>> {
        let url = database.url("postrider_worker");
        let pool = pool::connect(&url, pool::Settings::default()).await?;
        let (hints, listening) = wakeups::listen(&url, replies::HINT_CHANNEL, shutdown.clone())?;
        let listening = tokio::spawn(listening);
        let adapters = Adapters::none().with(provider);
        let dispatcher = Dispatcher::new(pool.clone(), hints, adapters, self.key.clone(), settings());
        let running = dispatcher.run(shutdown.clone());
        Ok(tokio::spawn(async move {
            running.await;
            let _ = listening.await;
            pool.close().await;
        }))
    }
}

/// Claims and settles all replies in plain SQL, account by account. Returns the rate.
async fn raw(database: &Database<'_>, stage: &Stage) -> anyhow::Result<f64> {
    let mut connection = connect(&database.url(SUPERUSER)).await?;
    sqlx::raw_sql(RAW_PLAN).execute(&mut connection).await?;
    let (begun, mut sent) = (Instant::now(), 0);
    for account in &stage.accounts {
        loop {
            let ids = raw_batch(&mut connection, stage.tenant, *account).await?;
            if ids == 0 {
                break;
            }
            sent += ids;
        }
    }
    let rate = sent as f64 / begun.elapsed().as_secs_f64();
    connection.close().await?;
    Ok(rate)
}

async fn raw_batch(connection: &mut PgConnection, tenant: TenantId, account: Uuid) -> anyhow::Result<usize> {
    let claimed = sqlx::query(include_str!("../sql/replies/raw_claim.sql"))
        .bind(ACTOR)
        .bind(i32::try_from(BATCH)?)
        .bind(tenant.0)
        .bind(account)
        .fetch_all(&mut *connection)
        .await
        .context("claiming")?;
    let ids = claimed.iter().map(|row| row.try_get::<Uuid, _>(0)).collect::<Result<Vec<_>, _>>()?;
    if !ids.is_empty() {
        sqlx::query(include_str!("../sql/replies/raw_settle.sql"))
            .bind(ACTOR)
            .bind(&ids)
            .execute(connection)
            .await
            .context("settling")?;
    }
    Ok(ids.len())
}

/// Replies per second from the start of a dispatcher in this process until all are sent.
async fn send_all(database: &Database<'_>, stage: &Stage, replies: i64) -> anyhow::Result<f64> {
    let (shutdown, wanted) = (CancellationToken::new(), usize::try_from(replies)?);
    let null = Arc::new(Null::default());
    let begun = Instant::now();
    let dispatcher = stage.dispatch(database, Arc::clone(&null) as Arc<dyn Adapter>, &shutdown).await?;
    let mut admin = database.admin().await?;
    while null.calls.load(Ordering::Relaxed) < wanted || waiting(&mut admin).await? {
        anyhow::ensure!(begun.elapsed() < PATIENCE, "the dispatcher did not finish in time");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll interval
    }
    let took = begun.elapsed();
    anyhow::ensure!(null.calls.load(Ordering::Relaxed) == wanted, "some were called twice");
    shutdown.cancel();
    dispatcher.await?;
    admin.close().await?;
    Ok(replies as f64 / took.as_secs_f64())
}

async fn waiting(admin: &mut PgConnection) -> anyhow::Result<bool> {
    let waiting =
        "select exists (select from channels.channel_outbox where status in ('pending', 'sending'))";
    Ok(sqlx::query_scalar(waiting).fetch_one(admin).await?)
}

/// Measures the time from the commit of a reply to its call, one reply at a time on an idle system.
async fn pickup(place: &Place, report: &mut Report) -> anyhow::Result<()> {
    let database = place.fresh("bench_pickup").await?;
    let stage = Stage::make(&database).await?;
    let (shutdown, (called, mut calls)) = (CancellationToken::new(), mpsc::unbounded_channel());
    let null = Arc::new(Null { called: Some(called), ..Null::default() });
    let dispatcher = stage.dispatch(&database, null, &shutdown).await?;
    let app = pool::connect(&database.url("postrider_app"), pool::Settings::default()).await?;
    let hints = Hints::new(replies::HINT_CHANNEL);
    let hinting = tokio::spawn(hints.clone().run(app.clone(), shutdown.clone()));
    let mut admin = database.admin().await?;
    sqlx::query("set session_replication_role = replica").execute(&mut admin).await?;
    let mut took = Vec::new();
    for number in 1..=PICKUPS {
        sqlx::query(
            "insert into channels.channel_outbox
                    (tenant_id, channel_message_id, account_id, provider, recipient_id, payload, correlation_id)
             values ($1, gen_random_uuid(), $2, 'null', 'C1', '{\"text\": \"hello\"}', gen_random_uuid())",
        )
        .bind(stage.tenant.0)
        .bind(stage.accounts[0])
        .execute(&mut admin)
        .await?;
        let committed = Instant::now();
        hints.send();
        let called = tokio::time::timeout(PATIENCE, calls.recv()).await?.context("no call")?;
        took.push(called.saturating_duration_since(committed));
        if number % 50 == 0 {
            eprintln!("{number} of {PICKUPS} replies were picked up");
        }
    }
    shutdown.cancel();
    dispatcher.await?;
    hinting.await?;
    app.close().await;
    admin.close().await?;
    database.remove().await?;
    took.sort();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    let (p50, p99) = (at(0.5), at(0.99));
    let found = format!("{:.1} / {:.1} ms", p50.as_secs_f64() * 1e3, p99.as_secs_f64() * 1e3);
    let bar = format!("p50 < {} ms", PICKUP_BAR.as_millis());
    report.single("from a reply's commit to its call, p50 / p99", &found, Some((&bar, p50 < PICKUP_BAR)));
    Ok(())
}

/// A provider that accepts every call at once and reports its time.
#[derive(Default)]
struct Null {
    calls: Arc<AtomicUsize>,
    called: Option<mpsc::UnboundedSender<Instant>>,
}

#[async_trait]
impl Provider for Null {
    async fn call(&self, reservation: &Reservation, _message: &Message) -> Outcome {
        if let Some(called) = &self.called {
            let _ = called.send(Instant::now());
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        Outcome::Delivered { message_id: reservation.outbox_id().0.to_string() }
    }
}

impl Adapter for Null {
    fn manifest(&self) -> &'static Manifest {
        &MANIFEST
    }

    fn open(&self, _account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount> {
        Ok(Arc::new(Self { calls: Arc::clone(&self.calls), called: self.called.clone() }))
    }
}

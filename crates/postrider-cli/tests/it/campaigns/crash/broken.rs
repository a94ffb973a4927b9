//! Workers that are broken on purpose. They run in processes of their own: this program again, with its part in the
//! environment.

use std::{future::Future, pin::Pin, process::Command, sync::Arc, time::Duration};

use anyhow::Context;
use postrider_engine::{CampaignSettings, CampaignWorker};
use postrider_model::{Manifest, Message, Outcome};
use postrider_providers::{
    Account, Adapter, Adapters, GuardedClient, InvalidAccount, Limits, Policy, Provider,
};
use postrider_store::{
    Reservation,
    campaigns::send_jobs,
    postgres::{pool, wakeups},
};
use serde_json::json;
use sqlx::{PgPool, Row, postgres::PgRow};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{http::send, world::MASTER_KEY};

/// A process that works in this way on this database, with this provider.
pub fn command(how: &str, database: &str, provider: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "campaigns::crash::broken::play", "--ignored", "--nocapture"]);
    command.env("BROKEN_HOW", how).env("BROKEN_DATABASE", database).env("BROKEN_PROVIDER", provider);
    command
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a part of the other tests"]
async fn play() -> anyhow::Result<()> {
    let how = std::env::var("BROKEN_HOW").context("not started by a test")?;
    let (database, provider) = (std::env::var("BROKEN_DATABASE")?, std::env::var("BROKEN_PROVIDER")?);
    tracing_subscriber::fmt().json().flatten_event(true).with_writer(std::io::stderr).init();
    let shutdown = CancellationToken::new();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let stop = shutdown.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        stop.cancel();
    });
    // The log line of a server whose loops have started.
    tracing::info!("postrider is serving at nowhere");
    match how.as_str() {
        "takes silence for a refusal" => retry_unknown(&database, shutdown).await,
        "calls before it reserves" => call_first(&database, &provider, shutdown).await,
        how => anyhow::bail!("no worker that {how}"),
    }
}

/// The worker itself, with adapters that say "not sent" where nobody can know.
async fn retry_unknown(database: &str, shutdown: CancellationToken) -> anyhow::Result<()> {
    let client = GuardedClient::new(Policy { allow_private: true }, Limits::default())?;
    let standard = Adapters::standard(&client);
    let mut adapters = Adapters::none();
    for name in ["sim", "smtp"] {
        adapters = adapters.with(Arc::new(Hasty(Arc::clone(standard.get(name).context("no such adapter")?))));
    }
    let settings = || pool::Settings { connections_max: 4, ..Default::default() };
    let (pool, writes) =
        (pool::connect(database, settings()).await?, pool::connect(database, settings()).await?);
    let (hints, listening) = wakeups::listen(database, send_jobs::HINT_CHANNEL, shutdown.clone())?;
    tokio::spawn(listening);
    let settings = CampaignSettings {
        jobs_max: 6,
        jobs_per_tenant_max: 4,
        window: 8,
        heartbeat_interval: Duration::from_secs(1),
        poll_interval: Duration::from_millis(50),
        ..CampaignSettings::default()
    };
    let worker = CampaignWorker::new(pool, writes, hints, adapters, MASTER_KEY.parse()?, settings);
    worker.run(shutdown).await;
    Ok(())
}

struct Hasty(Arc<dyn Adapter>);
struct HastyProvider(Arc<dyn Provider>);

impl Adapter for Hasty {
    fn manifest(&self) -> &'static Manifest {
        self.0.manifest()
    }

    fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount> {
        Ok(Arc::new(HastyProvider(self.0.open(account)?)))
    }
}

impl Provider for HastyProvider {
    // The signature that `async_trait` would generate.
    fn call<'life0, 'life1, 'life2, 'async_trait>(
        &'life0 self,
        reservation: &'life1 Reservation,
        message: &'life2 Message,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
        'life2: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            match self.0.call(reservation, message).await {
                Outcome::Unknown { reason } => Outcome::NotSent { reason, retry_after: Some(Duration::ZERO) },
                outcome => outcome,
            }
        })
    }
}

/// A plain worker: it calls, and writes down afterwards that it did.
async fn call_first(database: &str, provider: &str, shutdown: CancellationToken) -> anyhow::Result<()> {
    let name = format!("worker-{}", Uuid::now_v7());
    let database = PgPool::connect(database).await?;
    tracing::info!(worker = %name, "the campaign worker is running");
    while !shutdown.is_cancelled() {
        if let Err(error) = work(&database, provider, &name, &shutdown).await {
            tracing::warn!("{error:#}");
            tokio::time::sleep(Duration::from_millis(100)).await; // the database is away; nobody waits for this
        }
    }
    Ok(())
}

/// So many items are called before the first of them is written down.
const CARELESS: usize = 10;

/// A job that the plain worker holds.
#[derive(Clone, Copy)]
struct Held {
    tenant: Uuid,
    id: Uuid,
    attempt: i32,
}

async fn work(
    database: &PgPool,
    provider: &str,
    name: &str,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    sqlx::query(
        "select execution.requeue_overdue_jobs(due.tenant_id, $1)
           from execution.tenants_with_due_jobs(1) as due
          where due.is_overdue",
    )
    .bind(name)
    .execute(database)
    .await?;
    let claimed = sqlx::query(
        "select job_id, claimed.tenant_id, item_ids, attempts, run_id, key_part, channel
           from execution.tenants_with_due_jobs(1) as due
                cross join lateral execution.claim_queued_jobs(due.tenant_id, $1, 1) as claimed",
    )
    .bind(name)
    .fetch_optional(database)
    .await?;
    let Some(job) = claimed else {
        tokio::time::sleep(Duration::from_millis(50)).await; // between two looks
        return Ok(());
    };
    let held = Held {
        tenant: job.try_get("tenant_id")?,
        id: job.try_get("job_id")?,
        attempt: job.try_get("attempts")?,
    };
    let items: Vec<Uuid> = job.try_get("item_ids")?;
    let channel: String = job.try_get("channel")?;
    for (stretch, items) in items.chunks(CARELESS).enumerate() {
        if shutdown.is_cancelled() {
            let release = sqlx::query("select execution.release_job($1, $2, $3, $4)").bind(held.tenant);
            release.bind(held.id).bind(name).bind(held.attempt).execute(database).await?;
            return Ok(());
        }
        let mut answers = Vec::new();
        for (place, item) in items.iter().enumerate() {
            // It looks first, and that does not help.
            let Some(key) = key_of_a_new_item(database, &job, *item).await? else { continue };
            let body = match channel.as_str() {
                "voice" => json!({ "channel": "voice", "to": item, "script": "Hello" }),
                _ => json!({ "channel": "email", "to": item, "subject": "Hello", "text": "Hello" }),
            };
            let answer =
                send(provider, "POST", "/messages", &[("idempotency-key", &key)], &body.to_string())?;
            answers.push((stretch * CARELESS + place, answer));
        }
        for (place, answer) in answers {
            record(database, name, held, place, &answer, &channel).await?;
        }
    }
    sqlx::query("select execution.complete_job($1, $2, $3, $4)")
        .bind(held.tenant)
        .bind(held.id)
        .bind(name)
        .bind(held.attempt)
        .execute(database)
        .await?;
    Ok(())
}

async fn key_of_a_new_item(database: &PgPool, job: &PgRow, item: Uuid) -> anyhow::Result<Option<String>> {
    let (tenant, run, part): (Uuid, Uuid, String) =
        (job.try_get("tenant_id")?, job.try_get("run_id")?, job.try_get("key_part")?);
    let mut transaction = database.begin().await?;
    sqlx::query("select set_config('app.current_tenant_id', $1, true)")
        .bind(tenant.to_string())
        .execute(&mut *transaction)
        .await?;
    let new = sqlx::query_scalar(
        "select key from execution.outbox_key($1, $2, $3, null) as key
          where not exists (select from execution.channel_outbox where idempotency_key = key)",
    );
    let new = new.bind(run).bind(item).bind(part).fetch_optional(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(new)
}

async fn record(
    database: &PgPool,
    name: &str,
    job: Held,
    place: usize,
    answer: &str,
    channel: &str,
) -> anyhow::Result<()> {
    let outbox = Uuid::now_v7();
    sqlx::query(
        "select execution.begin_outbox_items(array[$1], $2, array[$3], array[$4], array[$5], array[1], array[$6],
                                             array[null::text], array[null::bytea], array[null::text], array[null::text])",
    )
    .bind(job.tenant)
    .bind(name)
    .bind(job.id)
    .bind(job.attempt)
    .bind(i32::try_from(place + 1)?)
    .bind(outbox)
    .execute(database)
    .await?;
    let status = match answer.split(' ').nth(1) {
        Some("200") if answer.ends_with('}') => {
            if channel == "voice" {
                "called"
            } else {
                "sent"
            }
        }
        Some("400" | "429") => "failed",
        _ => "in_doubt",
    };
    sqlx::query(
        "select execution.finalize_outbox_items(array[$1], $2, array[$3], array[$4], array[null::text], array['said so'])",
    )
    .bind(job.tenant)
    .bind(name)
    .bind(outbox)
    .bind(status)
    .execute(database)
    .await?;
    Ok(())
}

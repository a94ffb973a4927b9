//! The relay under SIGKILL: what was committed arrives, what was rolled back does not, and no attempt comes early.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;
use sqlx::{PgPool, Row};

use crate::world::{Server, Sim, World, eventually};

const SECRET: &str = "whsec_dGhlIGNyYXNoIHByb29mIHNpZ25zIHdpdGggdGhpcyBrZXk=";
const KILLS: usize = 200;
const EVENTS: usize = 20_000;
const RELAYS: usize = 3;
/// Published before each kill, in transactions of ten.
const PER_KILL: usize = EVENTS / KILLS;
/// The receiver answers, is slow, stalls, resets before and after it acted, fails before and after it acted.
const FAULTS: &[&str] = &[
    "latency=0.02",
    "stall=0.005",
    "reset=0.03",
    "reset_before=0.02",
    "fail=0.05",
    "fail_after=0.02",
    "half=0.02",
];

#[tokio::test(flavor = "multi_thread")]
async fn events_survive_two_hundred_kills_of_the_relay() -> anyhow::Result<()> {
    let seed = 20_261_115;
    let mut args = vec!["--secret".to_owned(), SECRET.to_owned(), "--seed".to_owned(), seed.to_string()];
    args.extend(FAULTS.iter().flat_map(|fault| ["--fault".to_owned(), (*fault).to_owned()]));
    let sim = Sim::start(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
    let world = World::new().await?;
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    record_claims(&admin).await?;
    let more = format!(
        "{}[relay]\ndelivery_timeout_seconds = 1\npoll_interval_ms = 50\n",
        sim.sink("crash", SECRET)
    );

    let mut relays: Vec<Server> =
        (0..RELAYS).map(|_| Server::start(&world, "relay", &more)).collect::<Result<_, _>>()?;
    let mut dead = Vec::new();
    let mut published = Published::default();
    for kill in 0..KILLS {
        published.publish(&app, kill).await?;
        let before = std::fs::metadata(&sim.receipts)?.len();
        eventually("deliveries go on", async || Ok(std::fs::metadata(&sim.receipts)?.len() > before)).await?;

        let victim = kill % RELAYS;
        dead.push(processor(&relays[victim])?);
        relays[victim].process.child.kill()?;
        relays[victim] = Server::start(&world, "relay", &more)?;
        make_stale(&admin, &dead).await?;
    }
    published.end_the_slow_ones().await?;
    eventually("every committed event is processed", async || {
        make_stale(&admin, &dead).await?;
        let waiting = sqlx::query_scalar::<_, i64>(
            "select count(*) from m10_recovery.outbox where processed_at is null",
        );
        Ok(waiting.fetch_one(&admin).await? == 0)
    })
    .await?;
    drop(relays);

    let receipts = sim.receipts()?;
    let arrived: BTreeSet<i64> = receipts.iter().filter(|receipt| receipt["acted"] == true).map(id).collect();
    let lost: Vec<&i64> = published.committed.difference(&arrived).collect();
    let phantoms: Vec<&i64> = arrived.intersection(&published.rolled_back).collect();
    assert!(lost.is_empty(), "{} committed events never arrived: {lost:?}", lost.len());
    assert!(phantoms.is_empty(), "events of rolled-back transactions arrived: {phantoms:?}");
    assert_eq!(arrived, published.committed, "nothing else arrived");
    assert!(receipts.iter().all(|receipt| receipt["verified"] == true), "every request was signed");

    // The run must have been as hard as it claims.
    assert_eq!((dead.len(), published.committed.len() + published.rolled_back.len()), (KILLS, EVENTS));
    assert!(published.rolled_back.len() >= EVENTS / 20);
    let mut faults: HashMap<&str, usize> = HashMap::new();
    for receipt in &receipts {
        *faults.entry(receipt["fault"].as_str().unwrap_or("none")).or_default() += 1;
    }
    for fault in FAULTS {
        let name = fault.split('=').next().unwrap_or_default();
        assert!(faults.get(name).is_some_and(|count| *count >= 20), "{name} hardly ever struck: {faults:?}");
    }
    eprintln!(
        "{KILLS} kills, seed {seed}: {} events committed, {} rolled back, {} requests, faults {faults:?}",
        published.committed.len(),
        published.rolled_back.len(),
        receipts.len()
    );
    attempts_respect_process_after(&admin, &receipts).await
}

/// Publishes in transactions of ten: most commit, some roll back, some stay open for a while and commit late.
#[derive(Default)]
struct Published {
    committed: BTreeSet<i64>,
    rolled_back: BTreeSet<i64>,
    slow: Vec<(sqlx::Transaction<'static, sqlx::Postgres>, Vec<i64>)>,
}

impl Published {
    async fn publish(&mut self, app: &PgPool, round: usize) -> anyhow::Result<()> {
        for number in 0..PER_KILL / 10 {
            let mut transaction = app.begin().await?;
            let rows = sqlx::query(
                "select m10_recovery.publish_outbox('order', n::text, 'order.placed', jsonb_build_object('n', n)) as id
                   from generate_series(1, 10) as n",
            )
            .fetch_all(&mut *transaction)
            .await?;
            let ids: Vec<i64> = rows.iter().map(|row| row.get("id")).collect();
            match number {
                0 if round.is_multiple_of(10) => self.slow.push((transaction, ids)),
                1 => {
                    transaction.rollback().await?;
                    self.rolled_back.extend(ids);
                }
                _ => {
                    transaction.commit().await?;
                    self.committed.extend(ids);
                }
            }
        }
        if self.slow.len() > 5 {
            self.end_the_slow_ones().await?;
        }
        Ok(())
    }

    async fn end_the_slow_ones(&mut self) -> anyhow::Result<()> {
        for (transaction, ids) in self.slow.drain(..) {
            transaction.commit().await?;
            self.committed.extend(ids);
        }
        Ok(())
    }
}

fn id(receipt: &Value) -> i64 {
    receipt["webhook_id"].as_str().and_then(|id| id.parse().ok()).unwrap_or(-1)
}

/// Under which name this relay claims.
fn processor(relay: &Server) -> anyhow::Result<String> {
    let line: Value = serde_json::from_str(&relay.process.wait_for_line("the relay is running")?)?;
    Ok(line["processor"].as_str().unwrap_or_default().to_owned())
}

/// What five minutes would do to the claims of the dead.
async fn make_stale(admin: &PgPool, dead: &[String]) -> anyhow::Result<()> {
    sqlx::query(
        "update m10_recovery.outbox
            set claimed_at = claimed_at - interval '5 minutes'
          where processed_at is null
            and claimed_by = any ($1)
            and claimed_at > now() - interval '5 minutes'",
    )
    .bind(dead)
    .execute(admin)
    .await?;
    Ok(())
}

/// Keeps every claim as the database made it, beside the system under test.
async fn record_claims(admin: &PgPool) -> anyhow::Result<()> {
    sqlx::raw_sql(
        "create table public.claims (id bigint, claimed_at timestamptz, process_after timestamptz, claimed_by text);
         create function public.record_claim() returns trigger language plpgsql security definer as $$
         begin
             insert into public.claims values (new.id, new.claimed_at, new.process_after, new.claimed_by);
             return null;
         end $$;
         create trigger record_claims after update on m10_recovery.outbox for each row
             when (new.claimed_at > old.claimed_at or (old.claimed_at is null and new.claimed_at is not null))
             execute function public.record_claim();",
    )
    .execute(admin)
    .await?;
    Ok(())
}

/// No claim came before its time, and no request without a claim of its own.
async fn attempts_respect_process_after(admin: &PgPool, receipts: &[Value]) -> anyhow::Result<()> {
    let early: i64 =
        sqlx::query_scalar("select count(*) from public.claims where process_after > claimed_at")
            .fetch_one(admin)
            .await?;
    assert_eq!(early, 0, "claims before process_after");

    let rows =
        sqlx::query("select id, count(*) as claims from public.claims group by id").fetch_all(admin).await?;
    let claims: HashMap<i64, i64> = rows.iter().map(|row| (row.get("id"), row.get("claims"))).collect();
    let mut requests: HashMap<i64, i64> = HashMap::new();
    for receipt in receipts {
        *requests.entry(id(receipt)).or_default() += 1;
    }
    for (id, count) in requests {
        let allowed = claims.get(&id).copied().unwrap_or_default();
        assert!(count <= allowed, "event {id}: {count} requests under {allowed} claims");
    }
    Ok(())
}

//! The relay under SIGKILL: what was committed arrives, what was rolled back does not, and no attempt comes early.

use std::collections::{BTreeMap, BTreeSet};

use postrider_testkit::crash::{
    Audit, Count, Fault, Findings, Launch, Plan, Processes, Progress, SeededRandom, Workload, pause, prove,
    provider_faults,
};
use serde_json::Value;
use sqlx::{PgPool, Row};

use crate::{
    sql::{number, texts},
    world::{Sim, World},
};

const SECRET: &str = "whsec_dGhlIGNyYXNoIHByb29mIHNpZ25zIHdpdGggdGhpcyBrZXk=";
const KILL: Fault = Fault::Kill("relays");
const KILLS: usize = 200;
const EVENTS: usize = 20_000;
const RELAYS: usize = 3;
/// Published before each kill, in transactions of ten.
const PER_KILL: usize = EVENTS / KILLS;
/// The receiver answers, is slow, stalls, resets before and after it acted, fails before and after it acted.
const RATES: &str =
    "latency=0.02,stall=0.005,reset=0.03,reset_before=0.02,fail=0.05,fail_after=0.02,half=0.02";

#[tokio::test(flavor = "multi_thread")]
async fn events_survive_two_hundred_kills_of_the_relay() -> anyhow::Result<()> {
    let plan = Plan::new(20_261_115, &[(KILL, KILLS)], RATES, 20);
    let mut events = Events::start(&plan).await?;
    let guarantee = "every committed event arrived, and none of a transaction that was rolled back";
    prove(&plan, &mut events, guarantee).await.map(drop)
}

struct Events {
    sim: Sim,
    admin: PgPool,
    app: PgPool,
    relays: Processes,
    published: Published,
    /// Number of kills.
    round: usize,
    _world: World,
    _config: tempfile::NamedTempFile,
}

impl Events {
    async fn start(plan: &Plan) -> anyhow::Result<Self> {
        let mut arguments = vec!["--secret".to_owned(), SECRET.to_owned()];
        arguments.extend(plan.sim_arguments());
        let sim = Sim::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
        let world = World::new().await?;
        let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
        record_claims(&admin).await?;
        let config = world.config(&format!(
            "{}[relay]\ndelivery_timeout_seconds = 1\npoll_interval_ms = 50\n",
            sim.sink("crash", SECRET)
        ))?;
        let launch = Launch::role(config.path().to_owned(), "relay");
        let relays = Processes::start(launch, RELAYS).await?;
        let published = Published::default();
        Ok(Self { sim, admin, app, relays, published, round: 0, _world: world, _config: config })
    }

    fn received(&self) -> anyhow::Result<u64> {
        Ok(std::fs::metadata(&self.sim.receipts)?.len())
    }

    /// Adds the relays that have started, and ages the claims of the dead ones.
    async fn recover(&mut self) -> anyhow::Result<()> {
        self.relays.complete_starts(1).await?;
        make_stale(&self.admin, &self.relays.silent()).await
    }
}

impl Workload for Events {
    type Report = Report;

    async fn advance(&mut self, _: &mut SeededRandom) -> anyhow::Result<()> {
        self.published.publish(&self.app, self.round).await?;
        self.round += 1;
        let before = self.received()?;
        let mut progress = Progress::default();
        loop {
            let now = self.received()?;
            if now > before {
                return Ok(());
            }
            anyhow::ensure!(progress.goes_on(now), "nothing is delivered");
            self.recover().await?;
            pause().await;
        }
    }

    async fn inject(&mut self, fault: Fault, random: &mut SeededRandom) -> anyhow::Result<bool> {
        anyhow::ensure!(fault == KILL, "events have no {fault}");
        let holders = "select distinct claimed_by from m10_recovery.outbox where processed_at is null and claimed_by is not null";
        let holders = texts(&self.admin, holders).await?;
        let victim = self.relays.kill_one(random, |one| holders.contains(&one.name))?;
        let held = format!(
            "select count(*) from m10_recovery.outbox where processed_at is null and claimed_by = '{victim}'"
        );
        Ok(number(&self.admin, held).await? > 0)
    }

    async fn finish(&mut self) -> anyhow::Result<Audit<Report>> {
        self.published.end_the_slow_ones().await?;
        let mut progress = Progress::default();
        loop {
            let waiting = "select count(*) from m10_recovery.outbox where processed_at is null";
            let now = (number(&self.admin, waiting).await?, self.received()?);
            if now.0 == 0 {
                break;
            }
            anyhow::ensure!(progress.goes_on(now), "{} committed events are never processed", now.0);
            self.recover().await?;
            pause().await;
        }
        self.relays.drain().await?;

        let receipts = self.sim.receipts()?;
        let faults = provider_faults(receipts.iter().map(|receipt| receipt["fault"].as_str()));
        let (early, claims) = claims(&self.admin).await?;
        let Published { committed, rolled_back, .. } = &self.published;
        let facts = Facts {
            committed: committed.clone(),
            rolled_back: rolled_back.clone(),
            receipts: receipts.iter().map(Receipt::of).collect(),
            claims,
            early,
        };
        let counts = vec![
            Count::new("events committed", committed.len(), EVENTS * 8 / 10),
            Count::new("events rolled back", rolled_back.len(), EVENTS / 20),
            Count::new("events", committed.len() + rolled_back.len(), EVENTS),
            Count::new("requests", receipts.len(), committed.len()),
        ];
        Ok(Audit { report: audit(&facts), counts, provider_faults: faults })
    }
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

/// Ages the claims of dead relays as five minutes would.
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

/// Early claims, and how often each event was claimed.
async fn claims(admin: &PgPool) -> anyhow::Result<(i64, BTreeMap<i64, usize>)> {
    let early = number(admin, "select count(*) from public.claims where process_after > claimed_at").await?;
    let rows =
        sqlx::query("select id, count(*) as claims from public.claims group by id").fetch_all(admin).await?;
    let claims = |row: &sqlx::postgres::PgRow| {
        Ok((row.try_get("id")?, usize::try_from(row.try_get::<i64, _>("claims")?)?))
    };
    Ok((early, rows.iter().map(claims).collect::<anyhow::Result<_>>()?))
}

/// A request, as the receiver recorded it.
#[derive(Debug, Clone)]
struct Receipt {
    event: i64,
    acted: bool,
    verified: bool,
}

impl Receipt {
    fn of(line: &Value) -> Self {
        let event = line["webhook_id"].as_str().and_then(|id| id.parse().ok()).unwrap_or(-1);
        Self { event, acted: line["acted"] == true, verified: line["verified"] == true }
    }
}

#[derive(Debug, Clone, Default)]
struct Facts {
    committed: BTreeSet<i64>,
    rolled_back: BTreeSet<i64>,
    receipts: Vec<Receipt>,
    /// How often each event was claimed, by a record beside the system.
    claims: BTreeMap<i64, usize>,
    /// Number of claims before the time of their event.
    early: i64,
}

/// The violations that the auditor found. Each list is empty if the guarantee held.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    /// Committed, and never arrived.
    lost: Vec<i64>,
    /// Of a transaction that was rolled back, and arrived.
    phantoms: Vec<i64>,
    /// Arrived, and was never published.
    unknown: Vec<i64>,
    /// Requests without a valid signature.
    unsigned: Vec<i64>,
    /// Events with more requests than claims.
    unclaimed: Vec<i64>,
    early: i64,
}

impl Findings for Report {
    fn findings(&self) -> Vec<(&'static str, Vec<String>)> {
        let texts = |events: &[i64]| events.iter().map(ToString::to_string).collect();
        vec![
            ("committed and lost", texts(&self.lost)),
            ("rolled back and delivered", texts(&self.phantoms)),
            ("delivered and unknown", texts(&self.unknown)),
            ("requests without a signature", texts(&self.unsigned)),
            ("requests without a claim", texts(&self.unclaimed)),
            (
                "claims before their time",
                (self.early > 0).then(|| self.early.to_string()).into_iter().collect(),
            ),
        ]
    }

    fn summary(&self) -> String {
        "events".to_owned()
    }
}

fn audit(facts: &Facts) -> Report {
    let arrived: BTreeSet<i64> =
        facts.receipts.iter().filter(|receipt| receipt.acted).map(|receipt| receipt.event).collect();
    let mut requests: BTreeMap<i64, usize> = BTreeMap::new();
    for receipt in &facts.receipts {
        *requests.entry(receipt.event).or_default() += 1;
    }
    let claims = |event: &i64| facts.claims.get(event).copied().unwrap_or_default();
    let unknown = |event: &&i64| !facts.committed.contains(event) && !facts.rolled_back.contains(event);
    let unsigned = facts.receipts.iter().filter(|receipt| !receipt.verified).map(|receipt| receipt.event);
    Report {
        lost: facts.committed.difference(&arrived).copied().collect(),
        phantoms: arrived.intersection(&facts.rolled_back).copied().collect(),
        unknown: arrived.iter().filter(unknown).copied().collect(),
        unsigned: unsigned.collect(),
        unclaimed: requests.iter().filter(|(id, count)| **count > claims(id)).map(|(id, _)| *id).collect(),
        early: facts.early,
    }
}

/// Two events, the second of which was requested twice, and one that was rolled back.
fn good() -> Facts {
    let receipt = |event, acted| Receipt { event, acted, verified: true };
    Facts {
        committed: [1, 2].into(),
        rolled_back: [3].into(),
        receipts: vec![receipt(1, true), receipt(2, false), receipt(2, true)],
        claims: [(1, 1), (2, 2)].into(),
        early: 0,
    }
}

#[test]
fn the_auditor_finds_each_fact_that_is_broken() {
    type Break = fn(&mut Facts);
    assert_eq!(audit(&good()), Report::default());
    let broken: [(&str, Break, Report); 7] = [
        (
            "lost",
            |facts| facts.receipts.retain(|receipt| receipt.event != 1),
            Report { lost: vec![1], ..Report::default() },
        ),
        (
            "not acted on",
            |facts| facts.receipts[0].acted = false,
            Report { lost: vec![1], ..Report::default() },
        ),
        (
            "rolled back",
            |facts| facts.rolled_back.extend(facts.committed.take(&1)),
            Report { phantoms: vec![1], ..Report::default() },
        ),
        (
            "unknown",
            |facts| facts.committed.retain(|event| *event != 2),
            Report { unknown: vec![2], ..Report::default() },
        ),
        (
            "unsigned",
            |facts| facts.receipts[1].verified = false,
            Report { unsigned: vec![2], ..Report::default() },
        ),
        (
            "unclaimed",
            |facts| facts.claims.extend([(2, 1)]),
            Report { unclaimed: vec![2], ..Report::default() },
        ),
        ("early", |facts| facts.early = 1, Report { early: 1, ..Report::default() }),
    ];
    for (name, change, expected) in broken {
        let mut facts = good();
        change(&mut facts);
        let report = audit(&facts);
        assert_eq!(report, expected, "{name}");
        assert!(!report.is_clean(), "{name}");
    }
}

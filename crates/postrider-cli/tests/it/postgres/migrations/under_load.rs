//! Upgrades beside workers at work: a campaign, replies, events and jobs go on while the functions are applied again and while
//! one is changed incompatibly by the procedure of `sql/README.md`. The simulator's own receipts show that nothing
//! was lost or sent twice.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use postrider_store::postgres::migrate::{self, Kind, Release, Tree};
use sqlx::PgPool;
use tokio::{sync::Semaphore, task::JoinHandle};
use uuid::Uuid;

use crate::{
    campaigns::stage::Stage,
    channels::bots::{Bots, VENDORS, acted},
    events::relay::{accepted, publish, settled},
    sql::{acting_as, execute, number, texts},
    world::{Server, Sim, eventually},
};

const SECRET: &str = "whsec_dXBncmFkZXMgdW5kZXIgbG9hZCBhcmUgc2lnbmVkIHRvbw==";
const PEOPLE: usize = 2000;
/// Work that begins with each upgrade: replies, batches of events, events of a batch, runs of a function.
const REPLIES: u32 = 8;
const BATCHES: usize = 5;
const EVENTS: i64 = 20;
const RUNS: usize = 40;

/// The file with the function that is changed incompatibly, and the function. Its new signature has one more argument.
const FILE: &str = "jobs/functions/invoke.sql";
const FUNCTION: &str = "jobs.acquire_run";
const OLD_ARGUMENTS: &str = "uuid, uuid, text, text, jsonb, boolean, text";
const NEW_ARGUMENTS: &str = "uuid, uuid, text, text, jsonb, boolean, text, integer";

/// A function that leaves one row per run.
const WORK: &str = "
    create schema shop;
    grant usage on schema shop to postrider_worker, postrider_app;
    create table shop.done (run_id uuid);
    grant insert on shop.done to postrider_worker, postrider_app;
    create function shop.work(p_input jsonb) returns jsonb language plpgsql as
    $$ begin insert into shop.done values ((p_input ->> 'run')::uuid); return '{}'; end $$;
    grant execute on function shop.work(jsonb) to postrider_worker, postrider_app";

/// The release after this one has both signatures. The one after that drops the old one.
fn releases() -> (Tree, Tree) {
    let current = Tree::current();
    let file = current.file(FILE).unwrap().to_owned();
    let (before, definition) =
        file.split_at(file.find(&format!("create or replace function {FUNCTION}(")).unwrap());
    let changed = definition
        .replacen("p_actor text)", "p_actor text, p_priority integer)", 1)
        .replace(OLD_ARGUMENTS, NEW_ARGUMENTS);
    let drop = format!(
        "-- Safe while workers run: no code calls it any more.\n\
         drop function if exists {FUNCTION}({OLD_ARGUMENTS});\n"
    );
    let beside = current.clone().with_file(FILE, &format!("{file}\n{changed}")).of_release(Release(90, 0, 0));
    let after = current
        .with_file(FILE, &format!("{before}{changed}"))
        .with_step("upgrades/0001_drop.sql", &drop)
        .of_release(Release(91, 0, 0));
    (beside, after)
}

/// Clients that begin work while they get permits, and end when there will be no more.
struct Clients {
    app: PgPool,
    runs: Arc<Semaphore>,
    batches: Arc<Semaphore>,
    /// Whether the code was moved to the new function.
    is_moved: Arc<AtomicBool>,
    failures: Arc<AtomicUsize>,
}

impl Clients {
    fn new(app: PgPool) -> Self {
        Self {
            app,
            runs: Arc::new(Semaphore::new(0)),
            batches: Arc::new(Semaphore::new(0)),
            is_moved: Arc::default(),
            failures: Arc::default(),
        }
    }

    /// Work for the time of one upgrade.
    fn begin_work(&self) {
        self.runs.add_permits(RUNS);
        self.batches.add_permits(BATCHES);
    }

    /// Ends them once all work has begun.
    async fn end(&self) -> anyhow::Result<()> {
        eventually("all work has begun", async || {
            Ok(self.runs.available_permits() + self.batches.available_permits() == 0)
        })
        .await?;
        self.runs.close();
        self.batches.close();
        Ok(())
    }

    /// Invokes a function once per permit, with the arguments that the release has, and tries again after a failure.
    fn invoke(&self, tenant: Uuid) -> JoinHandle<anyhow::Result<Vec<Uuid>>> {
        let Self { app, runs, is_moved, failures, .. } = self;
        let (app, permits, is_moved, failures) =
            (app.clone(), runs.clone(), is_moved.clone(), failures.clone());
        tokio::spawn(async move {
            let mut runs = Vec::new();
            while let Ok(permit) = permits.acquire().await {
                permit.forget();
                let run = Uuid::now_v7();
                while let Err(error) =
                    invoke_once(&app, tenant, run, runs.len(), is_moved.load(Ordering::SeqCst)).await
                {
                    let before = failures.fetch_add(1, Ordering::SeqCst);
                    anyhow::ensure!(before < 200, "the invocation fails again and again: {error}");
                }
                runs.push(run);
            }
            Ok(runs)
        })
    }

    /// Publishes a batch of events per permit.
    fn publish(&self) -> JoinHandle<anyhow::Result<Vec<String>>> {
        let (app, permits) = (self.app.clone(), self.batches.clone());
        tokio::spawn(async move {
            let mut published = Vec::new();
            while let Ok(permit) = permits.acquire().await {
                permit.forget();
                published.extend(publish(&app, "order.placed", EVENTS).await?);
            }
            Ok(published)
        })
    }
}

async fn invoke_once(
    app: &PgPool,
    tenant: Uuid,
    run: Uuid,
    n: usize,
    is_moved: bool,
) -> Result<(), sqlx::Error> {
    let priority = if is_moved { ", 1" } else { "" };
    let mut transaction = app.begin().await?;
    execute(&mut *transaction, acting_as(tenant)).await?;
    let call = format!(
        "select * from {FUNCTION}('{tenant}', '{run}', 'work', '{n:012x}', '{{\"run\": \"{run}\"}}', false, 'a test'{priority})"
    );
    execute(&mut *transaction, call).await?;
    transaction.commit().await
}

/// Applies every replaceable file again, and then these files.
async fn apply_again(admin: &PgPool, url: &str, tree: &Tree) -> anyhow::Result<usize> {
    execute(admin, "update postrider.sources set checksum = 'x' where kind = 'replaceable'").await?;
    Ok(migrate::apply(url, tree).await?.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_sent_twice_while_functions_are_applied_again_and_replaced() -> anyhow::Result<()>
{
    let sim = Sim::start(&["--secret", SECRET, "--fault", "latency=1", "--latency-ms", "60"])?;
    let bots = Bots::new(&sim.http_url).await?;
    let (world, admin, vendor) = (&bots.world, &bots.admin, VENDORS[0]);
    let stage = Stage::with_sim(world, &sim, PEOPLE).await?;
    execute(admin, WORK).await?;
    let function = "insert into jobs.functions (id, tenant_id, name, kind, target, max_retries, initial_delay_ms, timeout_seconds)
                    values (gen_random_uuid(), $1, 'work', 'sql', 'shop.work', 5, 10, 60)";
    sqlx::query(function).bind(stage.tenant).execute(admin).await?;
    let (beside, after) = releases();
    let more = format!(
        "{}[jobs]\npoll_interval_ms = 25\nsql_schemas = ['shop']\n[channels.outbox]\npoll_interval_seconds = 0.05\n\
         [campaigns]\nwindow = 4\naccount_concurrency = 4\npoll_interval_ms = 50\n",
        sim.sink("all", SECRET)
    );
    let roles = "campaigns,resolver,dispatcher,relay,scheduler";
    let servers = [Server::start(world, roles, &more)?, Server::start(world, roles, &more)?];

    let run = stage.deploy_one("news", "email").await?;
    let clients = Clients::new(world.client("postrider_app").await?);
    let (invoking, publishing) = (clients.invoke(stage.tenant), clients.publish());

    let current = Tree::current();
    let files = current.sources.iter().filter(|source| source.kind == Kind::Replaceable).count();
    let mut replies = 0..;
    for (tree, steps) in [(&current, 0), (&current, 0), (&beside, 0), (&after, 1)] {
        clients.begin_work();
        for n in replies.by_ref().take(REPLIES as usize) {
            bots.reply(vendor, n).await?;
        }
        assert_eq!(apply_again(admin, &world.admin_url(), tree).await?, files + steps);
        // The release with both signatures is there: now the code is moved.
        clients.is_moved.store(tree.release >= beside.release, Ordering::SeqCst);
    }
    assert_eq!(stage.run_status(run).await?, "running", "the campaign had ended before the upgrades");
    clients.end().await?;
    let (runs, published) = (invoking.await??, publishing.await??);
    assert_eq!((runs.len(), published.len()), (4 * RUNS, 4 * BATCHES * EVENTS as usize));

    // Everything arrives, once where once is promised.
    assert_eq!(stage.ended(run).await?, "completed");
    let mut keys: BTreeMap<String, usize> = BTreeMap::new();
    for receipt in sim.receipts()? {
        if let (true, true, Some(key)) =
            (receipt["acted"] == true, receipt["channel"] == "email", receipt["key"].as_str())
        {
            *keys.entry(key.to_owned()).or_default() += 1;
        }
    }
    let twice = keys.values().filter(|count| **count > 1).count();
    assert_eq!((keys.len(), twice), (PEOPLE, 0), "people who were called, and called twice");
    assert_eq!(stage.items(run).await?, BTreeMap::from([("sent".to_owned(), PEOPLE)]));

    settled(admin).await?;
    let mut arrived = accepted(&sim, "/hooks/all")?;
    arrived.sort_unstable();
    arrived.dedup();
    let missing: Vec<_> = published.iter().filter(|id| arrived.binary_search(id).is_err()).collect();
    assert!(missing.is_empty(), "events that did not arrive: {missing:?}");

    eventually("every reply was sent", async || {
        Ok(bots.count("select count(*) from channels.channel_outbox where status <> 'sent'").await? == 0)
    })
    .await?;
    for n in 0..4 * REPLIES {
        assert_eq!(acted(&sim, vendor, n)?, 1, "reply {n}");
    }

    let unfinished = "select count(*) from jobs.job_runs where status <> 'completed'";
    eventually("every run has completed", async || Ok(number(admin, unfinished).await? == 0)).await?;
    let mut done: Vec<Uuid> = sqlx::query_scalar("select run_id from shop.done").fetch_all(admin).await?;
    done.sort_unstable();
    assert_eq!(done, runs, "each run worked once");

    let gone = format!(
        "select to_regprocedure('{FUNCTION}({OLD_ARGUMENTS})') is null
            and to_regprocedure('{FUNCTION}({NEW_ARGUMENTS})') is not null"
    );
    assert_eq!(texts(admin, format!("select ({gone})::text")).await?, ["true"]);
    for server in servers {
        let complaints: Vec<String> =
            server.process.lines().into_iter().filter(|line| line.contains("panicked")).collect();
        assert!(complaints.is_empty(), "{complaints:?}");
    }
    Ok(())
}

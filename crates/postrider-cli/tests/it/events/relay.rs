//! The relay: events to their sinks, at least once, and one sink never in the way of another.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use postrider_engine::{Relay, RelaySettings, Retention, Route};
use postrider_model::{EventSink, Pattern, events::sink};
use postrider_store::{events, postgres::wakeups};
use serde_json::Value;
use sqlx::{PgPool, Row};
use tokio_util::sync::CancellationToken;

use crate::world::{Process, Server, Sim, World, eventually, postrider, run};

const SECRET: &str = "whsec_dGVzdHMgb2YgdGhlIHJlbGF5IHNpZ24gd2l0aCB0aGlz";

/// Publishes as an application would: in a transaction of its own, knowing nothing but the function.
pub async fn publish(client: &PgPool, event_type: &str, count: i64) -> anyhow::Result<BTreeSet<String>> {
    let rows = sqlx::query(
        "select m10_recovery.publish_outbox('order', n::text, $1, jsonb_build_object('n', n))::text as id
           from generate_series(1, $2::bigint) as n",
    )
    .bind(event_type)
    .bind(count)
    .fetch_all(client)
    .await?;
    Ok(rows.iter().map(|row| row.get("id")).collect())
}

/// Ids that a receiver has accepted on one path.
pub fn accepted(sim: &Sim, path: &str) -> anyhow::Result<Vec<String>> {
    let receipts = sim.receipts()?;
    let on_path = receipts.iter().filter(|receipt| receipt["path"] == path && receipt["acted"] == true);
    Ok(on_path.filter_map(|receipt| receipt["webhook_id"].as_str().map(str::to_owned)).collect())
}

pub async fn waiting(admin: &PgPool) -> anyhow::Result<i64> {
    Ok(sqlx::query_scalar("select count(*) from m10_recovery.outbox where processed_at is null")
        .fetch_one(admin)
        .await?)
}

pub async fn settled(admin: &PgPool) -> anyhow::Result<()> {
    eventually("every event is processed", async || Ok(waiting(admin).await? == 0)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_reaches_each_sink_whose_pattern_matches_and_is_signed() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&["--secret", SECRET])?);
    let admin = world.client("postgres").await?;
    let more = format!(
        "{}events = ['order.*']\n[relay.sinks.all]\nkind = 'http'\nurl = '{}/hooks/all'\nsecrets = ['{SECRET}']\n",
        sim.sink("orders", SECRET),
        sim.http_url
    );
    let _server = Server::start(&world, "relay", &more)?;

    let app = world.client("postrider_app").await?;
    let orders = publish(&app, "order.placed", 40).await?;
    let items = publish(&app, "order.item.added", 20).await?;
    settled(&admin).await?;

    assert_eq!(accepted(&sim, "/hooks/orders")?.into_iter().collect::<BTreeSet<_>>(), orders);
    assert_eq!(accepted(&sim, "/hooks/all")?.into_iter().collect::<BTreeSet<_>>(), &orders | &items);
    let receipts = sim.receipts()?;
    assert!(receipts.iter().all(|receipt| receipt["verified"] == true), "{receipts:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_sink_events_wait_instead_of_vanishing() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let admin = world.client("postgres").await?;
    let published = publish(&world.client("postrider_app").await?, "order.placed", 10).await?;
    // Every role: the relay is left out, and the log does not list it.
    let config = world.config("")?;
    let mut command = postrider();
    let mut idle = Process::start(command.arg("--config").arg(config.path()).arg("serve"))?;
    idle.wait_for_line("no sinks are configured, so events wait")?;
    let serving = idle.wait_for_line("postrider is serving at ")?;
    assert!(serving.contains("Resolver") && !serving.contains("Relay"), "{serving}");
    idle.signal("TERM")?;
    assert!(idle.wait()?.success());
    // Named, it is a mistake.
    for roles in ["relay", "api,relay"] {
        let mut command = postrider();
        let named = run(command.arg("--config").arg(config.path()).args(["serve", "--roles", roles]))?;
        let says = "error: no sinks are configured, so the relay that --roles names would deliver nothing";
        assert!(named.code == 1 && named.stderr.starts_with(says), "{}", named.stderr);
    }
    assert_eq!(waiting(&admin).await?, 10);

    let _server = Server::start(&world, "relay", &sim.sink("late", SECRET))?;
    settled(&admin).await?;
    assert_eq!(accepted(&sim, "/hooks/late")?.into_iter().collect::<BTreeSet<_>>(), published);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_sink_does_not_hold_up_the_events_of_another() -> anyhow::Result<()> {
    let (world, good, dead) = (World::new().await?, Sim::start(&[])?, Sim::start(&["--fault", "stall=1"])?);
    let admin = world.client("postgres").await?;
    let more = format!(
        "{}events = ['good.*']\n[relay.sinks.dead]\nkind = 'http'\nurl = '{}/hooks/dead'\nsecrets = ['{SECRET}']\n\
         events = ['dead.*']\nconcurrency = 8\n[relay]\nin_flight_max = 64\ndelivery_timeout_seconds = 100\n",
        good.sink("good", SECRET),
        dead.http_url
    );
    // The dead sink's events come first and are many times what the relay holds at once.
    let app = world.client("postrider_app").await?;
    publish(&app, "dead.event", 600).await?;
    let wanted = publish(&app, "good.event", 100).await?;
    let _server = Server::start(&world, "relay", &more)?;

    eventually("the good sink has its events", async || {
        let arrived: BTreeSet<String> = accepted(&good, "/hooks/good")?.into_iter().collect();
        Ok(arrived == wanted)
    })
    .await?;
    assert!(waiting(&admin).await? >= 600, "the dead sink took nothing, so its events still wait");
    // The relay released the events that did not fit; no sink refused them, so no failure is counted.
    let failed = "select count(*) from m10_recovery.outbox where retry_count > 0";
    assert_eq!(sqlx::query_scalar::<_, i64>(failed).fetch_one(&admin).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slower_sink_gets_all_its_events_without_one_counted_as_failed() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&["--fault", "latency=1", "--latency-ms", "20"])?);
    let admin = world.client("postgres").await?;
    let more = format!(
        "{}events = ['slow.*']\nconcurrency = 16\n[relay.sinks.other]\nkind = 'http'\nurl = '{}/hooks/other'\n\
         secrets = ['{SECRET}']\nevents = ['other.*']\n[relay]\nin_flight_max = 64\n",
        sim.sink("slow", SECRET),
        sim.http_url
    );
    let published = publish(&world.client("postrider_app").await?, "slow.event", 2000).await?;
    let _server = Server::start(&world, "relay", &more)?;
    settled(&admin).await?;
    let arrived = accepted(&sim, "/hooks/slow")?;
    assert_eq!((arrived.len(), arrived.into_iter().collect::<BTreeSet<_>>()), (2000, published));
    let failed = "select count(*) from m10_recovery.outbox where retry_count > 0";
    assert_eq!(sqlx::query_scalar::<_, i64>(failed).fetch_one(&admin).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_took_an_event_does_not_get_it_again_because_another_failed() -> anyhow::Result<()> {
    let (world, healthy, failing) =
        (World::new().await?, Sim::start(&[])?, Sim::start(&["--fault", "fail=0.7", "--seed", "3"])?);
    let admin = world.client("postgres").await?;
    let more = format!(
        "{}[relay.sinks.failing]\nkind = 'http'\nurl = '{}/hooks/failing'\nsecrets = ['{SECRET}']\n",
        healthy.sink("healthy", SECRET),
        failing.http_url
    );
    let _server = Server::start(&world, "relay", &more)?;
    let wanted = publish(&world.client("postrider_app").await?, "order.placed", 10).await?;
    // Backoff is real; a person who does not want to wait asks for a retry now.
    eventually("every event is processed", async || {
        sqlx::query(
            "select events.retry_outbox_event(tenant_id, id, 'test') from m10_recovery.outbox
              where processed_at is null and claimed_at is null and retry_count > 0",
        )
        .execute(&admin)
        .await?;
        Ok(waiting(&admin).await? == 0)
    })
    .await?;

    let mut once = accepted(&healthy, "/hooks/healthy")?;
    once.sort_by_key(|id| id.parse::<i64>().unwrap_or_default());
    assert_eq!(once.len(), wanted.len(), "each event exactly once: {once:?}");
    assert!(failing.receipts()?.len() > wanted.len(), "the failing sink was tried again");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_wakes_the_relay_and_without_one_the_poll_does() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);

    // A poll once a minute would come too late for `eventually`.
    let slow = format!("{}[relay]\npoll_interval_ms = 60000\n", sim.sink("hinted", SECRET));
    let mut server = Server::start(&world, "relay", &slow)?;
    eventually("the relay listens", async || {
        let listening = "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'";
        Ok(sqlx::query_scalar::<_, i64>(listening).fetch_one(&admin).await? > 0)
    })
    .await?;
    publish(&app, "order.placed", 1).await?;
    sqlx::query("select pg_notify('postrider_events', '')").execute(&app).await?;
    settled(&admin).await?;
    // A killed relay may leave a claim that its backend still executes, and that claim would hold the next event.
    server.process.signal("TERM")?;
    assert!(server.process.wait()?.success());

    let quick = format!("{}[relay]\npoll_interval_ms = 50\n", sim.sink("hinted", SECRET));
    let _server = Server::start(&world, "relay", &quick)?;
    publish(&app, "order.placed", 1).await?;
    settled(&admin).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_commits_late_is_still_delivered() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let _server = Server::start(&world, "relay", &sim.sink("late", SECRET))?;

    let mut slow = app.begin().await?;
    let early: i64 =
        sqlx::query_scalar("select m10_recovery.publish_outbox('order', '1', 'order.placed', '{}')")
            .fetch_one(&mut *slow)
            .await?;
    let later = publish(&app, "order.placed", 50).await?;
    settled(&admin).await?;
    assert!(later.iter().all(|id| id.parse::<i64>().is_ok_and(|id| id > early)));
    slow.commit().await?;
    eventually("the late event arrives", async || {
        Ok(accepted(&sim, "/hooks/late")?.contains(&early.to_string()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_relay_leaves_nothing_claimed() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&["--fault", "latency=1"])?);
    let admin = world.client("postgres").await?;
    let published = publish(&world.client("postrider_app").await?, "order.placed", 2000).await?;
    let mut server = Server::start(&world, "relay", &sim.sink("slow", SECRET))?;
    eventually("deliveries are under way", async || Ok(!sim.receipts()?.is_empty())).await?;
    server.process.signal("TERM")?;
    assert!(server.process.wait()?.success());

    let claimed: i64 = sqlx::query_scalar(
        "select count(*) from m10_recovery.outbox where processed_at is null and claimed_by is not null",
    )
    .fetch_one(&admin)
    .await?;
    assert_eq!(claimed, 0);
    let done: i64 =
        sqlx::query_scalar("select count(*) from m10_recovery.outbox where processed_at is not null")
            .fetch_one(&admin)
            .await?;
    let arrived: BTreeSet<String> = accepted(&sim, "/hooks/slow")?.into_iter().collect();
    assert_eq!(arrived.len() as i64, done, "what was taken is recorded, what is recorded was taken");
    assert!(arrived.is_subset(&published));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_survive_connections_that_are_cut() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let _server = Server::start(&world, "relay", &sim.sink("cut", SECRET))?;
    let mut published = BTreeSet::new();
    for _ in 0..20 {
        published.extend(publish(&app, "order.placed", 50).await?);
        sqlx::query(
            "select pg_terminate_backend(pid) from pg_stat_activity
              where datname = current_database() and usename = 'postrider_worker'",
        )
        .execute(&admin)
        .await?;
        eventually("something arrives", async || Ok(!sim.receipts()?.is_empty())).await?;
    }
    // A claim whose answer was lost with its connection is held until it is stale; time is moved, not waited for.
    eventually("every event is processed", async || {
        sqlx::query(
            "update m10_recovery.outbox set claimed_at = claimed_at - interval '5 minutes'
              where processed_at is null and claimed_at > now() - interval '5 minutes' and claimed_at < now() - interval '2 seconds'",
        )
        .execute(&admin)
        .await?;
        Ok(waiting(&admin).await? == 0)
    })
    .await?;
    assert_eq!(accepted(&sim, "/hooks/cut")?.into_iter().collect::<BTreeSet<_>>(), published);
    Ok(())
}

/// A relay inside this process, as a library user would run it.
async fn run_here(
    world: &World,
    sink: Arc<dyn EventSink>,
    settings: RelaySettings,
) -> anyhow::Result<(CancellationToken, tokio::task::JoinHandle<()>)> {
    let shutdown = CancellationToken::new();
    let (wakeups, listening) =
        wakeups::listen(&world.url("postrider_worker"), events::HINT_CHANNEL, shutdown.clone())?;
    tokio::spawn(listening);
    let route = Route { name: "here".to_owned(), events: vec![Pattern::everything()], concurrency: 4, sink };
    let relay = Relay::new(world.pool("postrider_worker").await?, wakeups, vec![route], settings).await?;
    Ok((shutdown.clone(), tokio::spawn(relay.run(shutdown))))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rust_handler_gets_events_and_its_panic_is_a_failed_delivery() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let (calls, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (counted, kept) = (Arc::clone(&calls), Arc::clone(&seen));
    let handler = sink::handler(move |event| {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        let (kept, payload) = (Arc::clone(&kept), event.payload.get().to_owned());
        async move {
            assert!(!first, "the first delivery panics on purpose");
            kept.lock().map(|mut kept| kept.push(payload)).ok();
            Ok(())
        }
    });
    let (shutdown, running) = run_here(&world, Arc::new(handler), RelaySettings::default()).await?;
    publish(&app, "order.placed", 1).await?;
    settled(&admin).await?;
    shutdown.cancel();
    running.await?;

    let (retries, error): (i32, String) =
        sqlx::query_as("select retry_count, last_error from m10_recovery.outbox").fetch_one(&admin).await?;
    assert_eq!((retries, error.as_str()), (1, "here: no answer: the handler panicked"));
    let seen: Vec<Value> =
        seen.lock().unwrap().iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    assert_eq!(seen, [serde_json::json!({ "n": 1 })]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_never_returns_is_a_failed_delivery() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let settings = RelaySettings { delivery_timeout: Duration::from_millis(50), ..RelaySettings::default() };
    let handler = sink::handler(|_| std::future::pending());
    let (shutdown, running) = run_here(&world, Arc::new(handler), settings).await?;
    publish(&app, "order.placed", 1).await?;
    eventually("the failure is recorded", async || {
        let error: Option<String> =
            sqlx::query_scalar("select last_error from m10_recovery.outbox").fetch_one(&admin).await?;
        Ok(error.is_some_and(|error| error.contains("no answer: timeout after 50ms")))
    })
    .await?;
    shutdown.cancel();
    running.await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_removes_old_processed_events_and_nothing_else() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    sqlx::query(
        "insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, created_at, processed_at)
         select 'order', n::text, 'order.placed', '{}', now() - interval '40 days',
                case when n % 2 = 0 then now() - interval '39 days' end
           from generate_series(1, 5000) as n",
    )
    .execute(&admin)
    .await?;
    publish(&admin, "order.placed", 100).await?;

    let retention = Retention {
        events: Some(Duration::from_secs(30 * 24 * 3600)),
        history: None,
        items: None,
        export_dir: None,
        messages: None,
        runs: None,
        every: Duration::from_secs(3600),
    };
    let removed =
        retention.sweep_events(&world.pool("postrider_worker").await?, &CancellationToken::new()).await?;
    assert_eq!(removed, 2500);
    assert_eq!(waiting(&admin).await?, 2600, "whatever still waits is kept, however old");
    assert_eq!(
        retention.sweep_events(&world.pool("postrider_worker").await?, &CancellationToken::new()).await?,
        0
    );
    Ok(())
}

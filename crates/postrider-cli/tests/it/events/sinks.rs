//! The registered sinks: relays that would deliver elsewhere do not start, and replacing the sinks loses no event.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use postrider_engine::{Relay, RelayError, RelaySettings, Route};
use postrider_model::{EventSink, Pattern, events::sink};
use postrider_store::{events, postgres::wakeups};
use serde_json::Value;
use sqlx::PgPool;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    events::relay::{accepted, publish, settled, waiting},
    http::get,
    world::{Output, Process, Server, Sim, World, eventually, postrider, run},
};

const SECRET: &str = "whsec_dGVzdHMgb2YgcmVnaXN0ZXJlZCBzaW5rcyBzaWduIGl0";

/// Starts `serve` and waits until it serves or has ended. Answers with the process if it serves, else with its output.
fn try_to_serve(config: &tempfile::NamedTempFile) -> anyhow::Result<Result<Process, String>> {
    let mut command = postrider();
    command.arg("--config").arg(config.path()).args(["serve", "--roles", "relay"]);
    let mut process = Process::start(&mut command)?;
    if process.wait_for_line("postrider is serving at ").is_ok() {
        return Ok(Ok(process));
    }
    process.wait()?;
    Ok(Err(process.lines().join("\n")))
}

/// Runs `postrider relay sinks …` with the sinks of this configuration, as an administrator would.
fn relay_sinks(world: &World, more: &str, args: &[&str]) -> anyhow::Result<Output> {
    let config = world.config(more)?;
    let mut command = postrider();
    command.env("POSTRIDER_DATABASE__ADMIN_URL", world.admin_url());
    run(command.arg("--config").arg(config.path()).args(["relay", "sinks"]).args(args))
}

async fn processed(admin: &PgPool) -> anyhow::Result<i64> {
    let processed = "select count(*) from m10_recovery.outbox where processed_at is not null";
    Ok(sqlx::query_scalar(processed).fetch_one(admin).await?)
}

/// Which sink received which events, over all relays of a test.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<BTreeMap<String, Vec<String>>>>);

impl Received {
    /// A sink that notes what it receives, once `open` is true.
    fn sink(&self, name: &str, open: watch::Receiver<bool>) -> Arc<dyn EventSink> {
        let (received, name) = (self.clone(), name.to_owned());
        Arc::new(sink::handler(move |event| {
            let (received, name, id, mut open) =
                (received.clone(), name.clone(), event.id.to_string(), open.clone());
            async move {
                let _ = open.wait_for(|open| *open).await;
                received.0.lock().unwrap().entry(name).or_default().push(id);
                Ok(())
            }
        }))
    }

    fn by(&self, name: &str) -> Vec<String> {
        self.0.lock().unwrap().get(name).cloned().unwrap_or_default()
    }
}

/// A relay inside this process, as a library user would run it.
struct Here {
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

impl Here {
    async fn start(world: &World, sinks: Vec<(&str, Arc<dyn EventSink>)>) -> anyhow::Result<Self> {
        let shutdown = CancellationToken::new();
        let (wakeups, listening) =
            wakeups::listen(&world.url("postrider_worker"), events::HINT_CHANNEL, shutdown.clone())?;
        tokio::spawn(listening);
        let routes = sinks.into_iter().map(|(name, sink)| Route {
            name: name.to_owned(),
            events: vec![Pattern::everything()],
            concurrency: 8,
            sink,
        });
        let settings = RelaySettings {
            batch_size: 10,
            in_flight_max: 20,
            poll_interval: std::time::Duration::from_millis(20),
            ..RelaySettings::default()
        };
        let pool = world.pool("postrider_worker").await?;
        let relay = Relay::new(pool, wakeups, routes.collect(), settings).await?;
        Ok(Self { shutdown: shutdown.clone(), running: tokio::spawn(relay.run(shutdown)) })
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.shutdown.cancel();
        Ok(self.running.await?)
    }
}

/// Registers handlers with these names, as `postrider relay sinks set` does with those of a configuration.
async fn register(admin: &PgPool, names: &[&str]) -> anyhow::Result<()> {
    let sinks: Vec<Value> = names
        .iter()
        .map(|name| serde_json::json!({ "name": name, "kind": "handler", "target": "", "events": ["**"] }))
        .collect();
    sqlx::query("select events.replace_sinks($1, 'test')").bind(Value::from(sinks)).execute(admin).await?;
    Ok(())
}

fn opened() -> watch::Receiver<bool> {
    watch::channel(true).1
}

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_with_different_sinks_lose_no_event() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let admin = world.client("postgres").await?;
    let _first = Server::start(&world, "relay", &sim.sink("first", SECRET))?;
    let second = try_to_serve(&world.config(&sim.sink("second", SECRET))?)?;

    let mut published = BTreeSet::new();
    for _ in 0..40 {
        published.extend(publish(&world.client("postrider_app").await?, "order.placed", 1).await?);
    }
    settled(&admin).await?;
    assert_eq!(processed(&admin).await?, 40);
    let at = |path: &str| anyhow::Ok(accepted(&sim, path)?.into_iter().collect::<BTreeSet<_>>());
    assert_eq!(at("/hooks/first")?, published);
    if second.is_ok() {
        assert_eq!(at("/hooks/second")?, published);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_with_other_sinks_is_refused_with_the_difference_and_what_to_do() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let _first = Server::start(&world, "relay", &sim.sink("orders", SECRET))?;
    let moved = sim.sink("orders", SECRET).replace("/hooks/orders", "/hooks/elsewhere");
    for (more, says) in [
        (sim.sink("mail", SECRET), vec!["- orders: http http://127.0.0.1", "+ mail: http http://127.0.0.1"]),
        (
            format!("{}events = ['order.*']\n", sim.sink("orders", SECRET)),
            vec!["~ orders: http", "for order.*"],
        ),
        (moved, vec!["~ orders: http"]),
    ] {
        let refused = try_to_serve(&world.config(&more)?)?.err().unwrap();
        for says in says.into_iter().chain(["`postrider relay sinks set`"]) {
            assert!(refused.contains(says), "`{says}` is not in: {refused}");
        }
    }
    // The relay does not compare settings that change no destination.
    let same = format!("{}concurrency = 3\nevents = ['**']\n", sim.sink("orders", SECRET));
    assert!(try_to_serve(&world.config(&same)?)?.is_ok());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_registered_sinks_hold_no_secret() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let admin = world.client("postgres").await?;
    let secret = "whsec_Y2FuYXJ5IGNhbmFyeSBjYW5hcnkgY2FuYXJ5IGNhbmE=";
    let canary = sim.sink("orders", secret).replace("/hooks/orders", "/hooks/canary?token=canary");
    let shown = relay_sinks(&world, &canary, &["set"])?;
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let stored: String = sqlx::query_scalar("select jsonb_agg(set)::text from events.sink_sets as set")
        .fetch_one(&admin)
        .await?;
    for text in [shown.stdout, shown.stderr, stored, relay_sinks(&world, &canary, &["--json"])?.stdout] {
        assert!(text.contains("orders"), "{text}");
        assert!(!text.contains("canary") && !text.contains("whsec"), "{text}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_shows_the_difference_and_replaces_the_registered_sinks() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let (old, new) = (sim.sink("old", SECRET), sim.sink("new", SECRET));
    assert!(relay_sinks(&world, &old, &[])?.stderr.contains("no sinks are registered"));
    let empty = relay_sinks(&world, "", &["set"])?;
    assert!(
        empty.code == 1 && empty.stderr.contains("has no sinks, and nothing was changed"),
        "{}",
        empty.stderr
    );

    let mut first = Server::start(&world, "relay", &old)?;
    let difference = relay_sinks(&world, &new, &[])?;
    assert!(difference.stdout.contains("old"), "{}", difference.stdout);
    assert!(
        difference.stderr.contains("- old: http") && difference.stderr.contains("+ new: http"),
        "{}",
        difference.stderr
    );
    let set = relay_sinks(&world, &new, &["set", "--json"])?;
    let set: Value = serde_json::from_str(&set.stdout)?;
    assert_eq!((&set["registered"]["generation"], &set["changes"][1]).0, 2, "{set}");
    let again = relay_sinks(&world, &new, &["set"])?;
    assert!(again.stderr.contains("nothing was changed"), "{}", again.stderr);
    let audited: i64 =
        sqlx::query_scalar("select count(*) from tenancy.audit_log where action = 'sinks.replaced'")
            .fetch_one(&admin)
            .await?;
    assert_eq!(audited, 1);

    // The old relay waits, the new one delivers.
    first.process.wait_for_line("the relay stopped claiming: other sinks are registered")?;
    let ready = get(&first.http_url, "/readyz")?;
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("relay cannot work: other sinks are registered"), "{}", ready.body);
    let published = publish(&app, "order.placed", 10).await?;
    let _second = Server::start(&world, "relay", &new)?;
    settled(&admin).await?;
    assert_eq!(accepted(&sim, "/hooks/new")?.into_iter().collect::<BTreeSet<_>>(), published);
    assert_eq!(accepted(&sim, "/hooks/old")?, [""; 0]);
    first.process.signal("TERM")?;
    assert!(first.process.wait()?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_under_way_when_a_sink_is_added_reaches_the_added_sink_too() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let received = Received::default();
    let (open, opens) = watch::channel(false);
    let old = Here::start(&world, vec![("a", received.sink("a", opens))]).await?;
    let published = publish(&app, "order.placed", 5).await?;
    eventually("the old relay holds the events", async || {
        let held = "select count(*) from m10_recovery.outbox where claimed_by is not null";
        Ok(sqlx::query_scalar::<_, i64>(held).fetch_one(&admin).await? == 5)
    })
    .await?;

    // Its deliveries end after the change, and would complete the events without the added sink.
    register(&admin, &["a", "b"]).await?;
    open.send_replace(true);
    old.stop().await?;
    assert_eq!(received.by("a").len(), 5);
    assert_eq!(processed(&admin).await?, 0, "nothing is completed under sinks that were replaced");

    let new =
        Here::start(&world, vec![("a", received.sink("a", opened())), ("b", received.sink("b", opened()))])
            .await?;
    settled(&admin).await?;
    new.stop().await?;
    assert_eq!(received.by("b").into_iter().collect::<BTreeSet<_>>(), published);
    assert_eq!(received.by("a").len(), 5, "the sink that had the events does not get them again");
    let retries: i64 =
        sqlx::query_scalar("select sum(retry_count) from m10_recovery.outbox").fetch_one(&admin).await?;
    assert_eq!(retries, 0, "no attempt is counted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn replacing_the_sinks_under_load_loses_no_event() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let received = Received::default();
    let sets: [&[&str]; 3] = [&["a"], &["a", "b"], &["b", "c"]];
    let mut before: Vec<Here> = Vec::new();
    // Which events were published while which sinks were registered.
    let mut published: Vec<BTreeSet<String>> = Vec::new();
    for names in sets {
        register(&admin, names).await?;
        let mut now = Vec::new();
        for _ in 0..2 {
            let sinks = names.iter().map(|name| (*name, received.sink(name, opened()))).collect();
            now.push(Here::start(&world, sinks).await?);
        }
        let mut ids = BTreeSet::new();
        for _ in 0..30 {
            ids.extend(publish(&app, "order.placed", 10).await?);
        }
        published.push(ids);
        // The relays of the last set stop while those of this one work.
        for relay in std::mem::replace(&mut before, now) {
            relay.stop().await?;
        }
    }
    settled(&admin).await?;
    for relay in before {
        relay.stop().await?;
    }
    assert_eq!(processed(&admin).await?, 900);
    for (ids, names) in published.iter().zip(sets) {
        for id in ids {
            // An event may outlive its set, and then goes to a later one; it reaches every sink of one set in any case.
            let has = |names: &[&str]| names.iter().all(|name| received.by(name).contains(id));
            let from = sets.iter().position(|set| *set == names).unwrap();
            assert!(
                sets[from..].iter().any(|set| has(set)),
                "event {id} reached no whole set from {names:?} on"
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_claims_again_when_its_sinks_are_registered_again() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let received = Received::default();
    let relay = Here::start(&world, vec![("a", received.sink("a", opened()))]).await?;
    publish(&app, "order.placed", 1).await?;
    settled(&admin).await?;
    register(&admin, &["b"]).await?;
    publish(&app, "order.placed", 3).await?;
    let other = Here::start(&world, vec![("b", received.sink("b", opened()))]).await?;
    settled(&admin).await?;
    other.stop().await?;
    assert_eq!((received.by("a").len(), received.by("b").len()), (1, 3));

    register(&admin, &["a"]).await?;
    publish(&app, "order.placed", 2).await?;
    settled(&admin).await?;
    relay.stop().await?;
    assert_eq!((received.by("a").len(), received.by("b").len()), (3, 3));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_library_relay_is_refused_with_other_sinks_none_or_two_of_one_name() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let received = Received::default();
    let sink = |name: &str| received.sink(name, opened());
    let refusal = async |names: Vec<&'static str>| {
        let sinks = names.into_iter().map(|name| (name, sink(name))).collect();
        let error = Here::start(&world, sinks).await.err().unwrap();
        anyhow::Ok(error.downcast::<RelayError>()?)
    };
    publish(&app, "order.placed", 3).await?;
    assert!(matches!(refusal(vec![]).await?, RelayError::NoSinks));
    assert!(matches!(refusal(vec!["a", "a"]).await?, RelayError::SameName(_)));
    let first = Here::start(&world, vec![("a", sink("a"))]).await?;
    assert!(matches!(refusal(vec!["b"]).await?, RelayError::OtherSinks { .. }));
    assert!(matches!(refusal(vec!["a", "b"]).await?, RelayError::OtherSinks { .. }));
    settled(&admin).await?;
    first.stop().await?;
    assert_eq!((received.by("a").len(), received.by("b").len(), waiting(&admin).await?), (3, 0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_that_start_at_once_register_one_set() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let pool = world.client("postrider_worker").await?;
    let register = async |name: String| {
        let sinks = serde_json::json!([{ "name": name, "kind": "handler", "target": "", "events": ["**"] }]);
        let registered = "select sinks->0->>'name' from events.register_sinks($1, 'test')";
        sqlx::query_scalar::<_, String>(registered).bind(sinks).fetch_one(&pool).await
    };
    let names = futures::future::try_join_all((0..20).map(|n| register(format!("sink-{n}")))).await?;
    assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
    assert_eq!(
        sqlx::query_scalar::<_, i64>("select count(*) from events.sink_sets").fetch_one(&admin).await?,
        1
    );
    for change in [
        "update events.sink_sets set sinks = sinks || sinks",
        "delete from events.sink_sets",
        "truncate events.sink_sets",
    ] {
        assert!(sqlx::query(change).execute(&admin).await.is_err(), "{change}");
    }
    Ok(())
}

/// Two publishers commit one event at a time while a relay claims: some events are committed while a claim is being executed.
#[tokio::test(flavor = "multi_thread")]
async fn every_claimed_event_is_returned_to_the_relay_that_claimed_it() -> anyhow::Result<()> {
    const EVENTS: usize = 1000;
    let world = World::new().await?;
    let (admin, worker) = (world.client("postgres").await?, world.client("postrider_worker").await?);
    register(&admin, &["a"]).await?;
    let mut publishers = Vec::new();
    for _ in 0..2 {
        let app = world.client("postrider_app").await?;
        publishers.push(tokio::spawn(async move {
            for _ in 0..EVENTS {
                publish(&app, "order.placed", 1).await?;
            }
            anyhow::Ok(())
        }));
    }

    let mut returned = BTreeSet::new();
    loop {
        let is_last = publishers.iter().all(JoinHandle::is_finished);
        let claimed: Vec<i64> = sqlx::query_scalar("select id from events.claim_events(1, 'the relay', 100)")
            .fetch_all(&worker)
            .await?;
        let is_empty = claimed.is_empty();
        returned.extend(claimed);
        if is_last && is_empty {
            break;
        }
    }
    for publisher in publishers {
        publisher.await??;
    }
    let claimed: Vec<i64> =
        sqlx::query_scalar("select id from m10_recovery.outbox where claimed_by = 'the relay'")
            .fetch_all(&admin)
            .await?;
    assert_eq!(claimed.len(), 2 * EVENTS);
    let lost: Vec<&i64> = claimed.iter().filter(|id| !returned.contains(id)).collect();
    assert!(lost.is_empty(), "{} events were claimed and not returned: {lost:?}", lost.len());
    Ok(())
}

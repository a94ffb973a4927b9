//! The relay: its rate with a sink that does nothing, and its memory while very many events wait.

use std::{
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use postrider_engine::{Relay, RelaySettings, Route};
use postrider_model::{Pattern, events::sink::handler};
use postrider_store::{
    events,
    postgres::{pool, wakeups},
};
use sqlx::PgConnection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Scale,
    drain::{BATCH, drain},
    drive::Side,
    machine,
    place::{Database, Place},
    report::{Report, count},
};

const MEMORY_BAR_MB: f64 = 64.0;
const POLL_EVERY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(600);

/// Compares the relay with claim + complete in plain SQL.
pub(crate) async fn measure(place: &Place, scale: Scale, report: &mut Report) -> anyhow::Result<()> {
    for (label, settings) in [
        ("as configured by default", RelaySettings::default()),
        (
            "batch 1,000, 4,096 in flight",
            RelaySettings { batch_size: 1000, in_flight_max: 4096, ..Default::default() },
        ),
    ] {
        let mut rounds = Vec::new();
        for round in 0..scale.rounds {
            let database = place.fresh(&format!("bench_relay_{}_{round}", settings.batch_size)).await?;
            for side in Side::BOTH {
                database.fill(side.table(), scale.events).await?;
            }
            let raw = drain(&database, Side::Raw, BATCH, 1).await?.rate();
            rounds.push((raw, relay_all(&database, settings.clone(), scale.events).await?));
            database.remove().await?;
        }
        report.compare(&format!("relay to a null sink, {label}"), &rounds, None);
    }
    measure_memory(place, scale.waiting, report).await
}

/// Events per second from the start of a relay in this process until all are processed.
async fn relay_all(database: &Database<'_>, settings: RelaySettings, events: i64) -> anyhow::Result<f64> {
    let shutdown = CancellationToken::new();
    let url = database.url("postrider_worker");
    let pool = pool::connect(&url, pool::Settings::default()).await?;
    let (hints, listening) = wakeups::listen(&url, events::HINT_CHANNEL, shutdown.clone())?;
    tokio::spawn(listening);
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let sink = handler(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(()))
    });
    let route = Route {
        name: "null".to_owned(),
        events: vec![Pattern::everything()],
        concurrency: settings.in_flight_max,
        sink: Arc::new(sink),
    };
    let wanted = usize::try_from(events)?;
    let begun = Instant::now();
    let relay = Relay::new(pool.clone(), hints, vec![route], settings).await?;
    let relay = tokio::spawn(relay.run(shutdown.clone()));
    let mut admin = database.admin().await?;
    while taken.load(Ordering::Relaxed) < wanted || waiting(&mut admin).await? {
        anyhow::ensure!(begun.elapsed() < PATIENCE, "the relay did not finish in time");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll interval
    }
    let took = begun.elapsed();
    shutdown.cancel();
    relay.await?;
    pool.close().await;
    Ok(events as f64 / took.as_secs_f64())
}

async fn waiting(admin: &mut PgConnection) -> anyhow::Result<bool> {
    let waiting = "select exists (select from m10_recovery.outbox where processed_at is null)";
    Ok(sqlx::query_scalar(waiting).fetch_one(admin).await?)
}

/// Measures rate and memory of a process `postrider serve --roles relay`.
async fn measure_memory(place: &Place, events: i64, report: &mut Report) -> anyhow::Result<()> {
    let database = place.fresh("bench_waiting").await?;
    database.fill(Side::Ours.table(), events).await?;
    let mut served = Served::start(place, &database).await?;
    let begun = Instant::now();
    let mut progress = Vec::new();
    let mut peak = 0.0_f64;
    loop {
        tokio::time::sleep(POLL_EVERY).await; // poll interval
        anyhow::ensure!(
            begun.elapsed() < PATIENCE,
            "the relay did not finish in time; see {}",
            served.log.display()
        );
        let exited = served.child.try_wait()?;
        anyhow::ensure!(exited.is_none(), "the relay ended early: {}", std::fs::read_to_string(&served.log)?);
        peak = peak.max(served.peak_memory_mb()?);
        let Some(done) = served.completed().await else { continue };
        progress.push((begun.elapsed().as_secs_f64(), done));
        if done >= events as f64 {
            break;
        }
    }
    served.child.kill().await?;
    let mut admin = database.admin().await?;
    anyhow::ensure!(!waiting(&mut admin).await?, "the relay counted events that are not processed");
    drop(admin);
    database.remove().await?;

    let total = events as f64;
    let rate = |from: f64, to: f64| rate_between(&progress, total * from, total * to);
    report.single(
        &format!("serve --roles relay, {} waiting, no sink matches", count(total)),
        &count(rate(0.0, 1.0)),
        None,
    );
    report.single(
        "its peak memory (VmHWM)",
        &format!("{peak:.1} MB"),
        Some((&format!("< {MEMORY_BAR_MB} MB"), peak < MEMORY_BAR_MB)),
    );
    let quarters = [0.0, 0.25, 0.5, 0.75].map(|from| count(rate(from, from + 0.25))).join(", ");
    report.note(format!(
        "The relay's rate in each quarter of the {} waiting events: {quarters}.",
        count(total)
    ));
    Ok(())
}

/// The rate between two counts, from samples of (seconds, count).
fn rate_between(progress: &[(f64, f64)], from: f64, to: f64) -> f64 {
    let first = progress.iter().rfind(|sample| sample.1 <= from).or(progress.first());
    let last = progress.iter().find(|sample| sample.1 >= to).or(progress.last());
    match (first, last) {
        (Some(first), Some(last)) if last.0 > first.0 => (last.1 - first.1) / (last.0 - first.0),
        _ => f64::NAN,
    }
}

/// A sink that matches no event of the benchmark, because a relay needs at least one sink.
const UNUSED_SINK: &str = "[relay.sinks.unused]\nkind = 'http'\nurl = 'https://receiver.invalid/'\n\
    secrets = ['whsec_bm9ib2R5IHJlYWRzIHdoYXQgaXMgc2lnbmVkIGhlcmU=']\nevents = ['nothing.of.this.type']\n";

/// The process of the relay. Dropping the value kills it.
struct Served {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Served {
    async fn start(place: &Place, database: &Database<'_>) -> anyhow::Result<Self> {
        // A free port; the listener is closed before the relay binds it.
        let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let config = place.dir().join("bench.toml");
        std::fs::write(
            &config,
            format!(
                "[database]\nurl = '{}'\napp_url = '{}'\n[http]\nlisten = '{address}'\n{UNUSED_SINK}",
                database.url("postrider_worker"),
                database.url("postrider_app"),
            ),
        )?;
        let log = place.dir().join("bench_relay.log");
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTRIDER_"))
        {
            command.env_remove(name);
        }
        let child = command
            .arg("--config")
            .arg(config)
            .args(["serve", "--roles", "relay"])
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the relay's process")?;
        Ok(Self { child, address, log })
    }

    fn peak_memory_mb(&self) -> anyhow::Result<f64> {
        machine::peak_memory_mb(self.child.id().context("the relay's process is gone")?)
    }

    /// Number of completed events from its metrics; `None` before the process serves.
    async fn completed(&self) -> Option<f64> {
        let mut stream = TcpStream::connect(&self.address).await.ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let line = answer.lines().find_map(|line| line.strip_prefix("postrider_events_completed_total "))?;
        line.trim().parse().ok()
    }
}

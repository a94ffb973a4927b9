//! `postrider demo`: the whole thing at work, in a minute, on a cluster and a receiver of its own.
//!
//! An application publishes orders in its own transactions, some of which it rolls back. The server relays them to a
//! receiver that is a separate process, fails now and then, and keeps its own receipts. At the end the two are compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::IsTerminal,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use postrider_model::NewEvent;
use postrider_store::{Pool, events, pool};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::shutdown;

#[derive(Args)]
pub struct DemoArgs {
    /// How many orders to publish
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    events: u32,
}

/// For the demo alone: a real installation makes its own.
const SECRET: &str = "whsec_cG9zdHJpZGVyIGRlbW8gc2VjcmV0IG5vdCBhIHNlY3JldA==";
/// One transaction in ten is rolled back.
const ROLLED_BACK_EVERY: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(120);

pub async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let interrupted = shutdown::on_signal()?;
    let home = Home::new()?;
    let mut receiver = Receiver::start(&home).await?;
    eprintln!(
        "receiver   a separate process at {}; it fails 1 request in 20, and keeps receipts",
        receiver.url
    );
    let mut server = Server::start(&home, &receiver).await?;
    eprintln!("server     {} on a private PostgreSQL in {}", server.http_url, home.path.display());

    let demo = async {
        let pool = pool::connect(&server.database_url, pool::Settings::default()).await?;
        let published = publish(&pool, args.events).await?;
        eprintln!(
            "publisher  {} orders committed with their events, {} rolled back",
            published.committed.len(),
            published.rolled_back.len()
        );
        watch(&pool, &receiver, &published).await?;
        let verdict = compare(&pool, &receiver, &published).await?;
        pool.close().await;
        anyhow::Ok(verdict)
    };
    let verdict = tokio::select! {
        verdict = demo => verdict,
        () = interrupted.cancelled() => Err(anyhow::anyhow!("interrupted")),
    };

    if std::io::stdout().is_terminal() && matches!(verdict, Ok(true)) {
        linger(&server);
        interrupted.cancelled().await;
    }
    // Whatever happened, the server stops its cluster before its directory goes away.
    server.stop().await?;
    receiver.child.kill().await?;
    Ok(if verdict? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Published {
    committed: BTreeSet<String>,
    rolled_back: BTreeSet<String>,
}

/// What an application does: its own change and the event, in one transaction.
async fn publish(pool: &Pool, count: u32) -> anyhow::Result<Published> {
    let mut published = Published { committed: BTreeSet::new(), rolled_back: BTreeSet::new() };
    let per_transaction = count.div_ceil(100).max(1);
    let mut transaction_number = 0;
    let mut order = 0;
    while order < count {
        transaction_number += 1;
        let mut transaction = pool::begin(pool).await?;
        let mut ids = Vec::new();
        for _ in 0..per_transaction.min(count - order) {
            order += 1;
            let event = NewEvent {
                aggregate_type: "order".to_owned(),
                aggregate_id: order.to_string(),
                event_type: "order.placed".to_owned(),
                payload: serde_json::value::to_raw_value(
                    &serde_json::json!({ "order": order, "total": f64::from(order % 90) + 9.99 }),
                )?,
            };
            ids.push(events::publish(&mut transaction, &event).await?.to_string());
        }
        if transaction_number % ROLLED_BACK_EVERY == 0 {
            drop(transaction);
            published.rolled_back.extend(ids);
        } else {
            pool::commit(transaction).await?;
            published.committed.extend(ids);
        }
    }
    let mut hinting = pool::begin(pool).await?;
    events::hint(&mut hinting).await?;
    pool::commit(hinting).await?;
    Ok(published)
}

/// Shows the events arrive.
async fn watch(pool: &Pool, receiver: &Receiver, published: &Published) -> anyhow::Result<()> {
    let total = published.committed.len();
    let style = ProgressStyle::with_template("arriving   {bar:40} {pos}/{len}  {msg}")?;
    let terminal = std::io::stderr().is_terminal();
    let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total as u64), target).with_style(style);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut quarter = 0;
    loop {
        let arrived = receiver.arrivals()?.len();
        bar.set_position(arrived as u64);
        if !terminal && arrived * 4 / total > quarter {
            quarter = arrived * 4 / total;
            eprintln!("arriving   {arrived}/{total}");
        }
        let mut transaction = pool::begin(pool).await?;
        let waiting = events::backlog(&mut transaction, i32::MAX).await?.pending;
        drop(transaction);
        if waiting == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        bar.set_message(format!("{waiting} waiting"));
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "{waiting} events are still waiting after {PATIENCE:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The receiver's receipts against what was published.
async fn compare(pool: &Pool, receiver: &Receiver, published: &Published) -> anyhow::Result<bool> {
    let arrivals = receiver.arrivals()?;
    let missing = published.committed.iter().filter(|id| !arrivals.contains_key(*id)).count();
    let phantoms = arrivals.keys().filter(|id| !published.committed.contains(*id)).count();
    let repeated = arrivals.values().filter(|count| **count > 1).count();
    let (failed, unverified) = receiver.faults()?;
    let mut transaction = pool::begin(pool).await?;
    let backlog = events::backlog(&mut transaction, i32::MAX).await?;
    drop(transaction);

    println!("events committed            {}", published.committed.len());
    println!("events rolled back          {}", published.rolled_back.len());
    println!("arrived at the receiver     {}", arrivals.len());
    println!("missing                     {missing}");
    println!("of rolled-back transactions {phantoms}");
    println!("arrived more than once      {repeated}   (at least once: the id tells a repeat)");
    println!("failures on the way         {failed}   (retried after a second or two)");
    println!(
        "signatures that verify      {}",
        if unverified == 0 { "all".to_owned() } else { format!("all but {unverified}") }
    );
    println!("still waiting               {}", backlog.pending);
    let good = missing == 0 && phantoms == 0 && unverified == 0 && backlog.pending == 0;
    println!(
        "verdict                     {}",
        if good { "every committed event arrived, and no other" } else { "FAILED" }
    );
    Ok(good)
}

fn linger(server: &Server) {
    eprintln!();
    eprintln!("The server stays up until you press Ctrl-C. Try in another terminal:");
    eprintln!(
        "  psql '{}' -c \"select m10_recovery.publish_outbox('order', '1', 'order.shipped', '{{}}')\"",
        server.database_url
    );
    eprintln!(
        "  psql '{}' -c 'select id, event_type, processed_at from m10_recovery.outbox order by id desc limit 5'",
        server.database_url
    );
    eprintln!("  curl {}/metrics", server.http_url);
}

/// A directory that is gone when the demo is. Short and in /tmp, so that the user Postgres runs as can reach it.
struct Home {
    path: PathBuf,
    _temporary: tempfile::TempDir,
}

impl Home {
    fn new() -> anyhow::Result<Self> {
        let temporary = tempfile::Builder::new().prefix("postrider-demo-").tempdir()?;
        // Postgres may run as another user; what is private inside has modes of its own.
        std::fs::set_permissions(temporary.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        Ok(Self { path: temporary.path().to_owned(), _temporary: temporary })
    }
}

fn ourselves() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTRIDER_"))
    {
        command.env_remove(name);
    }
    // A process group of its own: Ctrl-C is for us, and we stop the others in order.
    command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    Ok(command)
}

/// `postrider sim`, a process of its own.
struct Receiver {
    child: Child,
    url: String,
    receipts: PathBuf,
}

impl Receiver {
    async fn start(home: &Home) -> anyhow::Result<Self> {
        let receipts = home.path.join("receipts.ndjson");
        let mut child = ourselves()?
            .arg("sim")
            .args(["--secret", SECRET, "--fault", "fail=0.05", "--receipts"])
            .arg(&receipts)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take().context("the receiver has no output")?;
        let line = BufReader::new(stdout).lines().next_line().await?.context("the receiver did not start")?;
        let url =
            serde_json::from_str::<Value>(&line)?["http_url"].as_str().context("no address")?.to_owned();
        Ok(Self { child, url, receipts })
    }

    fn read(&self) -> anyhow::Result<Vec<Value>> {
        let text = std::fs::read_to_string(&self.receipts).context("cannot read the receipts")?;
        // The last line may be half written at this moment.
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// How often each event was accepted, by id.
    fn arrivals(&self) -> anyhow::Result<BTreeMap<String, usize>> {
        let mut arrivals = BTreeMap::new();
        for receipt in self.read()? {
            if receipt["acted"] == true {
                *arrivals
                    .entry(receipt["webhook_id"].as_str().unwrap_or_default().to_owned())
                    .or_insert(0) += 1;
            }
        }
        Ok(arrivals)
    }

    /// How many requests failed on purpose, and how many were not signed as they should be.
    fn faults(&self) -> anyhow::Result<(usize, usize)> {
        let receipts = self.read()?;
        let failed = receipts.iter().filter(|receipt| !receipt["fault"].is_null()).count();
        Ok((failed, receipts.iter().filter(|receipt| receipt["verified"] != true).count()))
    }
}

/// `postrider serve` in embedded mode, a process of its own.
struct Server {
    child: Child,
    http_url: String,
    database_url: String,
}

impl Server {
    async fn start(home: &Home, receiver: &Receiver) -> anyhow::Result<Self> {
        let config = home.path.join("postrider.toml");
        std::fs::write(
            &config,
            format!(
                "[outbound]\nallow_private = true\n[relay.sinks.shop]\nkind = \"http\"\nurl = \"{}/hooks/shop\"\n\
                 secrets = [\"{SECRET}\"]\nevents = [\"order.*\"]\n",
                receiver.url
            ),
        )?;
        let data_dir = home.path.join("data");
        let log = std::fs::File::create(home.path.join("server.log"))?;
        let mut child = ourselves()?
            .arg("--config")
            .arg(&config)
            .arg("--data-dir")
            .arg(&data_dir)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let run =
            wait_for_run_file(&mut child, &data_dir.join("run.json"), &home.path.join("server.log")).await?;
        let text = |key: &str| {
            run[key].as_str().map(str::to_owned).with_context(|| format!("run.json has no {key}"))
        };
        Ok(Self { child, http_url: text("http_url")?, database_url: text("database_url")? })
    }

    async fn stop(&mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.child.id() {
            Command::new("kill").args(["-TERM", &pid.to_string()]).status().await?;
        }
        let status =
            tokio::time::timeout(PATIENCE, self.child.wait()).await.context("the server did not stop")??;
        anyhow::ensure!(status.success(), "the server stopped with {status}");
        Ok(())
    }
}

async fn wait_for_run_file(child: &mut Child, file: &Path, log: &Path) -> anyhow::Result<Value> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Ok(text) = std::fs::read_to_string(file) {
            return Ok(serde_json::from_str(&text)?);
        }
        if let Some(status) = child.try_wait()? {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            anyhow::bail!(
                "the server ended with {status}: {}",
                log.lines().last().unwrap_or("it said nothing")
            );
        }
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "the server did not come up within {PATIENCE:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

//! A provider that takes everything at once, and a worker that has no other, in a process of its own.

use std::{
    io::Read,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use async_trait::async_trait;
use postrider_engine::{CampaignSettings, CampaignWorker};
use postrider_model::{Channel, Manifest, Message, Outcome, seal::MasterKey};
use postrider_providers::{Account, Adapter, Adapters, InvalidAccount, Provider};
use postrider_store::{Reservation, jobs, pool, wakeups};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
};
use tokio_util::sync::CancellationToken;

use crate::{machine, place::Database};

pub(super) const MANIFEST: Manifest = Manifest::new("null", &[Channel::Email]);

/// Enough that each of the two writers finds about a thousand items whenever it looks.
const JOBS: usize = 48;
/// How often the worker says how far it is.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// The accounts here have no secrets, so the key needs none either.
pub(super) fn master_key() -> anyhow::Result<MasterKey> {
    Ok("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse()?)
}

struct Null;

#[async_trait]
impl Provider for Null {
    async fn call(&self, reservation: &Reservation, _message: &Message) -> Outcome {
        Outcome::Delivered { message_id: reservation.outbox_id().0.to_string() }
    }
}

impl Adapter for Null {
    fn manifest(&self) -> &'static Manifest {
        &MANIFEST
    }

    fn open(&self, _account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount> {
        Ok(Arc::new(Self))
    }
}

/// Everything but how much is done at a time is as it comes; the window too.
fn settings(commit_connections: u32) -> CampaignSettings {
    CampaignSettings {
        jobs_max: JOBS,
        jobs_per_tenant_max: JOBS,
        account_concurrency: 100_000,
        commit_connections: commit_connections as usize,
        ..CampaignSettings::default()
    }
}

/// Works on campaigns with the null provider until standard input ends. `metrics` are this process's, as text.
pub(crate) async fn work(
    url: &str,
    commit_connections: u32,
    metrics: impl Fn() -> String + Send + 'static,
) -> anyhow::Result<()> {
    let shutdown = CancellationToken::new();
    let pool = pool::connect(url, pool::Settings::default()).await?;
    let writes = pool::Settings { connections_max: commit_connections, ..pool::Settings::default() };
    let writes = pool::connect(url, writes).await?;
    let (hints, listening) = wakeups::listen(url, jobs::HINT_CHANNEL, shutdown.clone())?;
    let adapters = Adapters::none().with(Arc::new(Null));
    let settings = settings(commit_connections);
    let worker = CampaignWorker::new(pool.clone(), writes.clone(), hints, adapters, master_key()?, settings);
    tokio::spawn(listening);
    tokio::spawn(async move {
        loop {
            println!("{}", Told::from_metrics(&metrics()).to_line());
            tokio::time::sleep(TELL_EVERY).await; // until the next time
        }
    });
    let working = tokio::spawn(worker.run(shutdown.clone()));
    // Whoever started this process holds the other end, and is gone when it ends.
    tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await??;
    shutdown.cancel();
    working.await?;
    pool.close().await;
    writes.close().await;
    Ok(())
}

/// What a worker has told about itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) calls: u64,
    /// Transactions that reserve and settle.
    pub(super) commits: u64,
}

impl Told {
    fn from_metrics(metrics: &str) -> Self {
        let value = |name: &str| {
            let line = metrics.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
        };
        Self {
            calls: value("postrider_calls_total{provider=\"null\",outcome=\"delivered\"}"),
            commits: value("postrider_commits_total "),
        }
    }

    fn to_line(self) -> String {
        format!("{} {}", self.calls, self.commits)
    }

    fn from_line(line: &str) -> Option<Self> {
        let (calls, commits) = line.split_once(' ')?;
        Some(Self { calls: calls.parse().ok()?, commits: commits.parse().ok()? })
    }
}

/// A worker's process. It ends when this is dropped.
pub(super) struct Worker {
    child: Child,
    pid: u32,
    told: Arc<Mutex<(Told, Instant)>>,
}

impl Worker {
    pub(super) fn start(database: &Database<'_>, commit_connections: u32) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "--null-worker", &database.url("postrider_worker")])
            .args(["--commit-connections", &commit_connections.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the worker's process")?;
        let pid = child.id().context("the worker's process is gone")?;
        let told = Arc::new(Mutex::new((Told::default(), Instant::now())));
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(listen(stdout, Arc::clone(&told)));
        }
        Ok(Self { child, pid, told })
    }

    /// What it told last, and when.
    pub(super) fn told(&self) -> (Told, Instant) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has used of the processor.
    pub(super) fn processor_time(&self) -> anyhow::Result<Duration> {
        machine::processor_time(self.pid)
    }

    pub(super) fn peak_memory_mb(&self) -> anyhow::Result<f64> {
        machine::peak_memory_mb(self.pid)
    }

    /// An error when it has ended by itself.
    pub(super) fn must_run(&mut self) -> anyhow::Result<()> {
        let ended = self.child.try_wait()?;
        anyhow::ensure!(ended.is_none(), "the worker ended early");
        Ok(())
    }

    /// Lets it finish what is under way.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait().await?;
        anyhow::ensure!(status.success(), "the worker failed: {status}");
        Ok(())
    }
}

async fn listen(stdout: ChildStdout, told: Arc<Mutex<(Told, Instant)>>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(now) = Told::from_line(&line) {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = (now, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_tells_comes_from_its_metrics() {
        let metrics = "# TYPE postrider_commits_total counter\npostrider_commits_total 12\n\
                       postrider_calls_total{provider=\"null\",outcome=\"delivered\"} 3400\n";
        let told = Told::from_metrics(metrics);
        assert_eq!(told, Told { calls: 3400, commits: 12 });
        assert_eq!(Told::from_line(&told.to_line()), Some(told));
        assert_eq!(Told::from_metrics(""), Told::default());
    }
}

//! A provider that accepts every call at once, and a worker with this provider in its own process.

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
use postrider_store::{
    Reservation,
    campaigns::send_jobs,
    postgres::{pool, wakeups},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
};
use tokio_util::sync::CancellationToken;

use crate::{machine, place::Database};

pub(super) const MANIFEST: Manifest = Manifest::new("null", &[Channel::Email]);

/// Enough send jobs to keep about a thousand items ready for each of the two writers.
const JOBS: usize = 48;
/// How often the worker says how far it is.
const PRINT_EVERY: Duration = Duration::from_millis(50);

/// A constant key, because the accounts of the benchmark have no secrets.
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

/// Default settings, also for the window, with more send jobs and calls at a time.
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
    let (hints, listening) = wakeups::listen(url, send_jobs::HINT_CHANNEL, shutdown.clone())?;
    let adapters = Adapters::none().with(Arc::new(Null));
    let settings = settings(commit_connections);
    let worker = CampaignWorker::new(pool.clone(), writes.clone(), hints, adapters, master_key()?, settings);
    tokio::spawn(listening);
    tokio::spawn(async move {
        loop {
            println!("{}", Progress::from_metrics(&metrics()).to_line());
            tokio::time::sleep(PRINT_EVERY).await; // interval
        }
    });
    let working = tokio::spawn(worker.run(shutdown.clone()));
    // The parent process holds the other end; standard input ends when the parent exits.
    tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await??;
    shutdown.cancel();
    working.await?;
    pool.close().await;
    writes.close().await;
    Ok(())
}

/// The counters of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) calls: u64,
    /// Transactions that reserve and settle.
    pub(super) commits: u64,
}

impl Progress {
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

/// The process of a worker. Dropping the value kills it.
pub(super) struct Worker {
    child: Child,
    pid: u32,
    progress: Arc<Mutex<(Progress, Instant)>>,
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
        let progress = Arc::new(Mutex::new((Progress::default(), Instant::now())));
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(listen(stdout, Arc::clone(&progress)));
        }
        Ok(Self { child, pid, progress })
    }

    /// The last counters, and the time at which they arrived.
    pub(super) fn progress(&self) -> (Progress, Instant) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processor time of the process.
    pub(super) fn processor_time(&self) -> anyhow::Result<Duration> {
        machine::processor_time(self.pid)
    }

    pub(super) fn peak_memory_mb(&self) -> anyhow::Result<f64> {
        machine::peak_memory_mb(self.pid)
    }

    /// Fails if the process has exited.
    pub(super) fn must_run(&mut self) -> anyhow::Result<()> {
        let ended = self.child.try_wait()?;
        anyhow::ensure!(ended.is_none(), "the worker ended early");
        Ok(())
    }

    /// Stops the worker after the calls in flight.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait().await?;
        anyhow::ensure!(status.success(), "the worker failed: {status}");
        Ok(())
    }
}

async fn listen(stdout: ChildStdout, progress: Arc<Mutex<(Progress, Instant)>>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(now) = Progress::from_line(&line) {
            *progress.lock().unwrap_or_else(PoisonError::into_inner) = (now, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_a_worker_is_read_from_its_metrics() {
        let metrics = "# TYPE postrider_commits_total counter\npostrider_commits_total 12\n\
                       postrider_calls_total{provider=\"null\",outcome=\"delivered\"} 3400\n";
        let progress = Progress::from_metrics(metrics);
        assert_eq!(progress, Progress { calls: 3400, commits: 12 });
        assert_eq!(Progress::from_line(&progress.to_line()), Some(progress));
        assert_eq!(Progress::from_metrics(""), Progress::default());
    }
}

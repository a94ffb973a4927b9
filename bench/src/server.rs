//! A server process, for measurements over HTTP.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::Context;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::place::Database;

const PATIENCE: Duration = Duration::from_secs(60);

/// `postrider serve --roles api`.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) async fn start(database: &Database<'_>, dir: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTRIDER_"))
        {
            command.env_remove(name);
        }
        let mut child = command
            .args(["serve", "--roles", "api", "--listen", "127.0.0.1:0", "--log-format", "json"])
            .current_dir(dir)
            .env("POSTRIDER_DATABASE__URL", database.url("postrider_worker"))
            .env("POSTRIDER_DATABASE__APP_URL", database.url("postrider_app"))
            .env("POSTRIDER_API__RATE_PER_SECOND", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the server")?;
        let mut lines = BufReader::new(child.stderr.take().context("no stderr")?).lines();
        let mut wrote = Vec::new();
        let address = loop {
            let line = timeout(PATIENCE, lines.next_line()).await.context("the server does not start")??;
            let line = line.with_context(|| format!("the server ended:\n{}", wrote.join("\n")))?;
            if let Some((_, rest)) = line.split_once("postrider is serving at http://") {
                break rest.split('"').next().unwrap_or_default().to_owned();
            }
            wrote.push(line);
        };
        // The log must be read, or the server would block on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { child, address })
    }

    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the server has ended")
    }

    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot stop the server")
    }
}

/// The median and the 99th percentile.
pub(crate) fn percentiles(mut delays: Vec<Duration>) -> String {
    delays.sort();
    let at = |share: f64| {
        let position = ((delays.len() as f64 * share) as usize).min(delays.len().saturating_sub(1));
        delays.get(position).copied().unwrap_or_default().as_secs_f64() * 1000.0
    };
    format!("{:.1} / {:.1} ms", at(0.5), at(0.99))
}

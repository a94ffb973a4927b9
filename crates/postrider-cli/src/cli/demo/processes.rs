//! The processes of the demo: providers, a server, workers. Each can be killed without the others.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use postrider_model::Span;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};
use uuid::Uuid;

/// Timeout of every command and every wait of the demo.
pub const TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A directory that is removed at the end of the demo. Its path is short and in /tmp, so that the user of Postgres can access it.
pub struct Home {
    pub path: PathBuf,
    _temporary: tempfile::TempDir,
}

impl Home {
    pub fn new() -> anyhow::Result<Self> {
        let temporary = tempfile::Builder::new().prefix("postrider-demo-").tempdir()?;
        // Postgres may run as another user; private files inside have modes of their own.
        std::fs::set_permissions(temporary.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        let config = "[outbound]\nallow_private = true\n[log]\nformat = \"json\"\n\
                      [campaigns]\nheartbeat_interval_seconds = 1\nretry_pause_seconds = 1\njobs_max = 2\n\
                      call_timeout_seconds = 2\ncall_within_seconds = 2\n\
                      [resolver]\npoll_interval_ms = 200\nretry_pause_seconds = 1\n";
        std::fs::write(temporary.path().join("postrider.toml"), config)?;
        Ok(Self { path: temporary.path().to_owned(), _temporary: temporary })
    }

    pub fn data_dir(&self) -> PathBuf {
        self.path.join("data")
    }

    /// Runs a command as an operator would, and prints it with its messages.
    pub async fn postrider(&self, args: &[&str]) -> anyhow::Result<()> {
        let shown: Vec<String> = args
            .iter()
            .map(|arg| arg.replace(&format!("{}/", self.path.display()), ""))
            .map(|arg| if arg.contains([' ', '{']) { format!("'{arg}'") } else { arg })
            .collect();
        message!("$ postrider {}", shown.join(" "));
        let child = self.own_program()?.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let output = tokio::time::timeout(TIMEOUT, child.wait_with_output())
            .await
            .context("the command did not end in time")??;
        let stderr = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "`postrider {}` failed: {}", shown.join(" "), stderr.trim());
        for line in stderr.lines().chain(String::from_utf8_lossy(&output.stdout).lines()).take(6) {
            message!("  {line}");
        }
        Ok(())
    }

    /// Runs a command without a word, and returns its output.
    pub async fn output(&self, args: &[&str]) -> anyhow::Result<String> {
        let child = self.own_program()?.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let output = tokio::time::timeout(TIMEOUT, child.wait_with_output())
            .await
            .context("the command did not end in time")??;
        let stderr = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "`postrider {}` failed: {}", args.join(" "), stderr.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn own_program(&self) -> anyhow::Result<Command> {
        let mut command = own_program()?;
        command.arg("--config").arg(self.path.join("postrider.toml")).arg("--data-dir").arg(self.data_dir());
        Ok(command)
    }
}

fn own_program() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTRIDER_"))
    {
        command.env_remove(name);
    }
    // A process group of its own: Ctrl-C stops only the demo, which then stops the others in order.
    command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    Ok(command)
}

/// `postrider sim`: the providers.
pub struct Sim {
    child: Child,
    pub http_url: String,
    pub receipts: PathBuf,
}

impl Sim {
    pub async fn start(home: &Home) -> anyhow::Result<Self> {
        let receipts = home.path.join("receipts.ndjson");
        let mut child = own_program()?
            .arg("sim")
            .args([
                "--fault",
                "latency=0.9",
                "--latency-ms",
                "200",
                "--fault",
                "busy=0.02",
                "--fault",
                "refuse=0.01",
                "--fault",
                "reset=0.02",
            ])
            .arg("--receipts")
            .arg(&receipts)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take().context("the sim has no output")?;
        let line = BufReader::new(stdout).lines().next_line().await?.context("the sim did not start")?;
        let announced: Value = serde_json::from_str(&line)?;
        let text =
            |key: &str| announced[key].as_str().map(str::to_owned).with_context(|| format!("no {key}"));
        Ok(Self { child, http_url: text("http_url")?, receipts })
    }

    pub async fn stop(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// `postrider serve` in embedded mode, which owns the private cluster and serves HTTP.
pub struct Server {
    child: Child,
    pub http_url: String,
    pub database_url: String,
    pub tenant_id: Uuid,
}

impl Server {
    pub async fn start(home: &Home) -> anyhow::Result<Self> {
        let log = home.path.join("server.log");
        let mut child = serve(home, "api", &log)?;
        let file = home.data_dir().join("run.json");
        let run = wait_for(&mut child, &log, || {
            std::fs::read_to_string(&file).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok())
        })
        .await?;
        let text = |key: &str| {
            run[key].as_str().map(str::to_owned).with_context(|| format!("run.json has no {key}"))
        };
        Ok(Self {
            child,
            http_url: text("http_url")?,
            database_url: text("database_url")?,
            tenant_id: text("tenant_id")?.parse()?,
        })
    }

    pub async fn stop(&mut self) -> anyhow::Result<()> {
        stop(&mut self.child).await
    }
}

/// `postrider serve --roles campaigns,resolver`.
pub struct Worker {
    child: Child,
    /// The name in the locks of its jobs.
    pub name: String,
}

impl Worker {
    pub async fn start(home: &Home, number: u32) -> anyhow::Result<Self> {
        let log = home.path.join(format!("worker-{number}.log"));
        let mut child = serve(home, "campaigns,resolver", &log)?;
        let name = wait_for(&mut child, &log, || {
            let text = std::fs::read_to_string(&log).ok()?;
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.filter_map(|line| line["worker"].as_str().map(str::to_owned)).next()
        })
        .await?;
        Ok(Self { child, name })
    }

    /// Kills the worker with SIGKILL, and returns its name.
    pub async fn kill(&mut self) -> anyhow::Result<String> {
        self.child.kill().await?;
        Ok(self.name.clone())
    }

    pub async fn stop(&mut self) -> anyhow::Result<()> {
        stop(&mut self.child).await
    }
}

fn serve(home: &Home, roles: &str, log: &Path) -> anyhow::Result<Child> {
    let log = std::fs::File::create(log)?;
    let mut command = home.own_program()?;
    command.args(["serve", "--listen", "127.0.0.1:0", "--roles", roles]).stdout(Stdio::null()).stderr(log);
    Ok(command.spawn()?)
}

async fn stop(child: &mut Child) -> anyhow::Result<()> {
    if let Some(pid) = child.id() {
        Command::new("kill").args(["-TERM", &pid.to_string()]).status().await?;
    }
    let status = tokio::time::timeout(TIMEOUT, child.wait()).await.context("a server did not stop")??;
    anyhow::ensure!(status.success(), "a server stopped with {status}");
    Ok(())
}

/// Waits until a process has started, as `up` detects it.
async fn wait_for<T>(child: &mut Child, log: &Path, mut up: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = up() {
            return Ok(found);
        }
        if let Some(status) = child.try_wait()? {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            anyhow::bail!(
                "a server ended with {status}: {}",
                log.lines().last().unwrap_or("it wrote no log line")
            );
        }
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "a server did not start within {}",
            Span(TIMEOUT)
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

//! Fixtures shared by tests: one private cluster per test run, one database per test, processes that end with their test.
//!
//! The first test of a run starts the cluster and the others adopt it, whether they are threads of one process
//! (`cargo test`) or processes of one run (`cargo nextest`). A watchdog stops and removes it when the run is over,
//! however it ends. No other cluster is ever touched.

mod commands;

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{LazyLock, Mutex, PoisonError, mpsc},
    time::{Duration, Instant},
};

use anyhow::Context;
use postrider_model::ids::TenantId;
use postrider_store::{
    ContextKey, Pool,
    postgres::{
        context,
        embedded::{Cluster, Options, SUPERUSER},
        migrate, pool,
    },
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection};

pub use self::commands::succeeded;
use crate::http::send;

const TEMPLATE: &str = "postrider_template";

/// The key that servers and accounts of tests share.
pub const MASTER_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// How long a test waits for something that must happen. Only a failing test ever waits so long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How long a command may take to its end.
const COMMAND_PATIENCE: Duration = Duration::from_secs(180);

/// A database of its own for one test.
pub struct World {
    cluster: &'static Cluster,
    database: String,
}

impl World {
    /// A migrated database.
    pub async fn new() -> anyhow::Result<Self> {
        Self::made_from(Some(TEMPLATE)).await
    }

    /// A database without our schema.
    pub async fn empty() -> anyhow::Result<Self> {
        Self::made_from(None).await
    }

    async fn made_from(template: Option<&str>) -> anyhow::Result<Self> {
        let cluster = tokio::task::spawn_blocking(|| &*CLUSTER)
            .await?
            .as_ref()
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        let database = format!("test_{}", uuid::Uuid::now_v7().simple());
        let maintenance = sqlx::PgPool::connect(&cluster.url(SUPERUSER, "postgres")).await?;
        let from = template.map(|template| format!(" template {template}")).unwrap_or_default();
        sqlx::raw_sql(AssertSqlSafe(format!("create database {database}{from}")))
            .execute(&maintenance)
            .await?;
        maintenance.close().await;
        Ok(Self { cluster, database })
    }

    /// The way in as this role.
    pub fn url(&self, role: &str) -> String {
        self.cluster.url(role, &self.database)
    }

    /// Its name.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Where the cluster's socket is.
    pub fn socket_dir(&self) -> &Path {
        self.cluster.socket_dir()
    }

    /// The way in as superuser.
    pub fn admin_url(&self) -> String {
        self.url(SUPERUSER)
    }

    /// Plain connections of an ordinary client, which know nothing of Postrider.
    pub async fn client(&self, role: &str) -> anyhow::Result<sqlx::PgPool> {
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(40);
        Ok(options.connect(&self.url(role)).await?)
    }

    /// Postrider's own pool. It signs tenants where the role needs that, as the server's does.
    pub async fn pool(&self, role: &str) -> anyhow::Result<Pool> {
        let settings = pool::Settings { connections_max: 8, ..Default::default() };
        match role {
            "postrider_app" | "postrider_read" => {
                signing_pool(&self.url(role), &self.admin_url(), settings).await
            }
            _ => Ok(pool::connect(&self.url(role), settings).await?),
        }
    }

    /// Runs a command of the binary to its end against this database, as an administrator would.
    pub fn postrider(&self, args: &[&str]) -> anyhow::Result<Output> {
        run(postrider().args(["--database-url", &self.admin_url()]).args(args))
    }

    /// The configuration of a server on this database; `more` is appended.
    pub fn config(&self, more: &str) -> anyhow::Result<tempfile::NamedTempFile> {
        let file = tempfile::NamedTempFile::new()?;
        let config = format!(
            "master_key = '{MASTER_KEY}'\n[database]\nurl = '{}'\napp_url = '{}'\n[http]\nlisten = '127.0.0.1:0'\n[log]\nformat = 'json'\n{more}",
            self.url("postrider_worker"),
            self.url("postrider_app"),
        );
        std::fs::write(file.path(), config)?;
        Ok(file)
    }
}

/// A pool that signs tenants with the key of its database, which the administrator reads.
pub async fn signing_pool(url: &str, admin_url: &str, settings: pool::Settings) -> anyhow::Result<Pool> {
    let mut admin = sqlx::PgConnection::connect(admin_url).await?;
    let key = context::key(&mut admin).await?;
    admin.close().await?;
    Ok(pool::connect(url, settings).await?.signing_with(key).await?)
}

/// The signature of a tenant in every database that was made from the template.
pub fn signature(tenant: uuid::Uuid) -> String {
    #[expect(clippy::expect_used, reason = "a test without the key of its cluster cannot go on")]
    static KEY: LazyLock<ContextKey> = LazyLock::new(|| {
        let cluster = CLUSTER.as_ref().expect("a test that has a database has started the cluster");
        let key =
            std::fs::read_to_string(cluster.data_dir().join(TEMPLATE_READY)).expect("the template is ready");
        ContextKey::from_bytes(&hex::decode(key).expect("a key in hex")).expect("a key of 32 bytes")
    });
    KEY.sign(TenantId(tenant))
}

/// This file exists when the template does. It holds the key that signs tenants there.
const TEMPLATE_READY: &str = "template.ready";

static CLUSTER: LazyLock<Result<Cluster, String>> =
    LazyLock::new(|| start_cluster().map_err(|error| format!("{error:#}")));

fn start_cluster() -> anyhow::Result<Cluster> {
    let runner = match std::env::var("NEXTEST_RUN_ID") {
        Ok(_) => std::os::unix::process::parent_id(),
        Err(_) => std::process::id(),
    };
    let data_dir = run_dir();
    let settings = [
        ("max_connections", "400"),
        ("shared_buffers", "256MB"),
        ("max_wal_size", "4GB"),
        ("jit", "off"),
        ("autovacuum_naptime", "1h"),
    ];
    let cluster = Cluster::start_or_adopt(&Options {
        data_dir: data_dir.clone(),
        bin_dir: None,
        settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
    })?;

    // The first test makes the template and the watchdog; the others wait for it.
    let gate = std::fs::File::create(data_dir.join("template.lock"))?;
    gate.lock()?;
    let ready = data_dir.join(TEMPLATE_READY);
    if !ready.exists() {
        watch(&data_dir, runner)?;
        std::fs::write(ready, make_template(&cluster)?)?;
    }
    Ok(cluster)
}

/// Makes the template, and answers with the key that signs tenants there, in hex.
fn make_template(cluster: &Cluster) -> anyhow::Result<String> {
    let (maintenance, template) = (cluster.url(SUPERUSER, "postgres"), cluster.url(SUPERUSER, TEMPLATE));
    // A thread of its own, because the caller may be inside another runtime.
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            let pool = sqlx::PgPool::connect(&maintenance).await?;
            sqlx::raw_sql(AssertSqlSafe(format!("create database {TEMPLATE}"))).execute(&pool).await?;
            pool.close().await;
            migrate::run(&template).await?;
            let mut template = sqlx::PgConnection::connect(&template).await?;
            let key = sqlx::query_scalar("select encode(tenancy.context_key(), 'hex')")
                .fetch_one(&mut template)
                .await?;
            // A database with open connections cannot be copied.
            template.close().await?;
            anyhow::Ok(key)
        })
    })
    .join()
    .map_err(|_| anyhow::anyhow!("the thread that made the template panicked"))?
}

/// The folder of the server programs of this run's cluster, and the user and group that it runs as.
pub async fn server_programs() -> anyhow::Result<(PathBuf, u32, u32)> {
    let cluster = tokio::task::spawn_blocking(|| &*CLUSTER)
        .await?
        .as_ref()
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let program = std::fs::read_link(format!("/proc/{}/exe", cluster.postmaster_pid()))?;
    let data = std::fs::metadata(cluster.data_dir().join("pg"))?;
    let (user, group) =
        (std::os::unix::fs::MetadataExt::uid(&data), std::os::unix::fs::MetadataExt::gid(&data));
    Ok((program.parent().context("the server program has no folder")?.to_owned(), user, group))
}

/// Stops and removes the cluster when the runner is gone.
pub fn watch(data_dir: &Path, runner: u32) -> anyhow::Result<()> {
    let script = r#"
        while kill -0 "$1" 2>/dev/null; do sleep 0.3; done
        pid=$(head -n 1 "$2/pg/postmaster.pid" 2>/dev/null) && socket=$(sed -n 5p "$2/pg/postmaster.pid")
        kill -QUIT "$pid" 2>/dev/null
        while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
        rm -rf "$2"; case "$socket" in /tmp/*|/run/*) rm -rf "$socket" ;; esac
    "#;
    Command::new("setsid")
        .args(["sh", "-c", script, "watchdog", &runner.to_string()])
        .arg(data_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start the watchdog")?;
    Ok(())
}

/// The binary under test, away from this machine's own configuration.
pub fn postrider() -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTRIDER_"))
    {
        command.env_remove(name);
    }
    command.current_dir(std::env::temp_dir());
    command.env("POSTRIDER_WITNESS__DIR", run_dir().join("witness"));
    command
}

/// The program, in the folder above that of the running test.
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let built = test.ancestors().nth(2).unwrap_or(Path::new("")).join("postrider");
    assert!(built.exists(), "{} is missing; `cargo build -p postrider-cli` builds it", built.display());
    built
}

/// The directory of a run of the tests, which is removed with it.
pub fn run_dir() -> PathBuf {
    let run = std::env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| format!("pid-{}", std::process::id()));
    std::env::temp_dir().join(format!("postrider-test-{run}"))
}

/// The output of a command, and its exit code.
pub struct Output {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> anyhow::Result<Output> {
    run_with_input(command, "")
}

/// The same with something on its stdin.
pub fn run_with_input(command: &mut Command, input: &str) -> anyhow::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // A command that refuses may be gone before it reads.
    let _ = child.stdin.take().context("no stdin")?.write_all(input.as_bytes());
    let pid = child.id().to_string();
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match ended.recv_timeout(COMMAND_PATIENCE) {
        Ok(output) => Output::of(output?),
        Err(_) => {
            // A server that should have been refused must not outlive its test.
            Command::new("kill").args(["-KILL", &pid]).status()?;
            anyhow::bail!("the command did not end within {COMMAND_PATIENCE:?}: {command:?}")
        }
    }
}

impl Output {
    fn of(output: std::process::Output) -> anyhow::Result<Self> {
        Ok(Output {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }
}

/// A process that is killed when its test ends.
pub struct Process {
    pub child: Child,
    lines: mpsc::Receiver<String>,
    seen: Mutex<Vec<String>>,
}

impl Process {
    /// Starts a process and gathers the lines that it writes to stdout and stderr.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (sender, lines) = mpsc::channel();
        let streams: [Option<Box<dyn std::io::Read + Send>>; 2] = [
            child.stdout.take().map(|stream| Box::new(stream) as _),
            child.stderr.take().map(|stream| Box::new(stream) as _),
        ];
        for stream in streams.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        Ok(Self { child, lines, seen: Mutex::default() })
    }

    /// Starts a process whose reader goes away after the line with this text. Answers with that line.
    pub fn start_unread(command: &mut Command, text: &str) -> anyhow::Result<(Self, String)> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take().context("it has no stderr")?;
        let process = Self { child, lines: mpsc::channel().1, seen: Mutex::default() };
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let line =
            lines.find(|line| line.contains(text)).with_context(|| format!("no line with `{text}`"))?;
        Ok((process, line))
    }

    /// Waits until it writes a line with this text.
    pub fn wait_for_line(&self, text: &str) -> anyhow::Result<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = seen.iter().find(|line| line.contains(text)) {
            return Ok(line.clone());
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    seen.push(line.clone());
                    if line.contains(text) {
                        return Ok(line);
                    }
                }
                Err(_) => anyhow::bail!("no line with `{text}`; it wrote:\n{}", seen.join("\n")),
            }
        }
    }

    /// Everything it has written so far.
    pub fn lines(&self) -> Vec<String> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.extend(self.lines.try_iter());
        seen.clone()
    }

    /// Sends a signal.
    pub fn signal(&self, name: &str) -> anyhow::Result<()> {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status()?;
        anyhow::ensure!(status.success(), "kill -{name} failed");
        Ok(())
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> anyhow::Result<std::process::ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "the process did not end:\n{}",
                self.lines().join("\n")
            );
            std::thread::sleep(Duration::from_millis(5)); // waits for the child, which has no other signal
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `postrider serve` on a database.
pub struct Server {
    pub process: Process,
    pub http_url: String,
    _config: tempfile::NamedTempFile,
}

impl Server {
    pub fn start(world: &World, roles: &str, more: &str) -> anyhow::Result<Self> {
        Self::start_with(world.config(more)?, roles)
    }

    /// With a configuration that logs as JSON.
    pub fn start_with(config: tempfile::NamedTempFile, roles: &str) -> anyhow::Result<Self> {
        let process = Process::start(&mut Self::command(&config, roles))?;
        let line = process.wait_for_line(Self::IS_SERVING)?;
        Self::new(process, &line, config)
    }

    /// With a configuration that also says where the witness is kept.
    pub fn start_with_witness(config: tempfile::NamedTempFile, roles: &str) -> anyhow::Result<Self> {
        let process = Process::start(Self::command(&config, roles).env_remove("POSTRIDER_WITNESS__DIR"))?;
        let line = process.wait_for_line(Self::IS_SERVING)?;
        Self::new(process, &line, config)
    }

    /// A server whose log is not read once it serves.
    pub fn start_unread(world: &World, roles: &str, more: &str) -> anyhow::Result<Self> {
        let config = world.config(more)?;
        let (process, line) = Process::start_unread(&mut Self::command(&config, roles), Self::IS_SERVING)?;
        Self::new(process, &line, config)
    }

    /// A program that serves as `postrider serve` does; the configuration is its last argument.
    pub fn start_program(program: &Path, config: tempfile::NamedTempFile) -> anyhow::Result<Self> {
        let process = Process::start(Command::new(program).arg(config.path()))?;
        let line = process.wait_for_line(Self::IS_SERVING)?;
        Self::new(process, &line, config)
    }

    const IS_SERVING: &str = "postrider is serving at ";

    fn command(config: &tempfile::NamedTempFile, roles: &str) -> Command {
        let mut command = postrider();
        command.arg("--config").arg(config.path()).args(["serve", "--roles", roles]);
        command
    }

    fn new(process: Process, line: &str, config: tempfile::NamedTempFile) -> anyhow::Result<Self> {
        let http_url = line.split(Self::IS_SERVING).nth(1).unwrap_or_default();
        let http_url = http_url.split(['"', ' ']).next().unwrap_or_default().to_owned();
        Ok(Self { process, http_url, _config: config })
    }
}

/// `postrider sim`: the outside world, with receipts of its own.
pub struct Sim {
    process: Process,
    pub http_url: String,
    pub receipts: PathBuf,
    _home: tempfile::TempDir,
}

impl Sim {
    pub fn start(args: &[&str]) -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        let receipts = home.path().join("receipts.ndjson");
        let process = Process::start(postrider().arg("sim").arg("--receipts").arg(&receipts).args(args))?;
        let line = process.wait_for_line("http_url")?;
        let http_url =
            serde_json::from_str::<Value>(&line)?["http_url"].as_str().context("no http_url")?.to_owned();
        Ok(Self { process, http_url, receipts, _home: home })
    }

    /// Stops it in the middle of whatever it does: it acts on nothing and answers nothing until [`Self::thaw`].
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.process.signal("STOP")
    }

    /// Lets it go on after [`Self::freeze`].
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.process.signal("CONT")
    }

    /// Rules of which the first that matches a request applies. Answers that earlier rules held are given now.
    pub fn set_rules(&self, rules: &Value) -> anyhow::Result<()> {
        let answer = send(&self.http_url, "PUT", "/faults/rules", &[], &rules.to_string())?;
        anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Ok(())
    }

    /// Answers so many further requests, and holds the answers to all after them until the rules are set again.
    pub fn hold_after(&self, answered: usize) -> anyhow::Result<()> {
        self.set_rules(&json!([
            { "fault": "latency", "delay_ms": 10, "times": answered },
            { "fault": "latency", "hold": true },
        ]))
    }

    /// Gives the answers that were held, and answers every request from now on.
    pub fn release(&self) -> anyhow::Result<()> {
        self.set_rules(&json!([]))
    }

    /// Every receipt so far, from its own file.
    pub fn receipts(&self) -> anyhow::Result<Vec<Value>> {
        let text = std::fs::read_to_string(&self.receipts)?;
        whole_lines(&text).map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// Part of a relay's configuration that sends everything here.
    pub fn sink(&self, name: &str, secret: &str) -> String {
        format!(
            "[outbound]\nallow_private = true\n[relay.sinks.{name}]\nkind = 'http'\nurl = '{}/hooks/{name}'\nsecrets = ['{secret}']\n",
            self.http_url
        )
    }
}

/// The lines of a file that another process is writing: the last one may be incomplete.
pub fn whole_lines(text: &str) -> std::str::Lines<'_> {
    text.rsplit_once('\n').map_or("", |(whole, _)| whole).lines()
}

/// Waits until something is true.
pub async fn eventually<F, Fut>(what: &str, mut condition: F) -> anyhow::Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<bool>>,
{
    let deadline = Instant::now() + PATIENCE;
    while !condition().await? {
        anyhow::ensure!(Instant::now() < deadline, "it never came true: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await; // between two looks, never instead of one
    }
    Ok(())
}

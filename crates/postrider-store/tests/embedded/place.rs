//! Where a test keeps its cluster, and how it looks at it.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use postrider_store::postgres::embedded::{Cluster, EmbeddedError, Options};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

/// A directory of a test. No server stays in it, even after a failed test.
pub struct Place {
    dir: TempDir,
    /// The data directory of its cluster.
    pub data: PathBuf,
}

impl Place {
    pub fn new() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("embedded-test-").tempdir_in("/tmp")?;
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
        let data = dir.path().join("data");
        Ok(Self { dir, data })
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }

    pub fn options(&self) -> Options {
        Options { data_dir: self.data(), ..Options::default() }
    }

    pub fn start(&self) -> anyhow::Result<Cluster> {
        Ok(Cluster::start_or_adopt(&self.options())?)
    }

    /// A start that must fail, with one sentence.
    pub fn fail(&self, options: &Options) -> anyhow::Result<EmbeddedError> {
        let error = Cluster::start_or_adopt(options).err().context("it started")?;
        ensure!(error.to_string().lines().count() == 1, "not one line: {error}");
        println!("{error}");
        Ok(error)
    }

    /// Three server programs that run this shell script.
    pub fn programs(&self, script: &str) -> anyhow::Result<PathBuf> {
        let bin = self.root().join("bin");
        fs::create_dir_all(&bin)?;
        for name in ["initdb", "pg_ctl", "postgres"] {
            // Written by a process of its own: a test that forks meanwhile would inherit our open file, and a
            // program that is open for writing cannot be run.
            let path = bin.join(name);
            let mut write = Command::new("sh");
            write
                .args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$2\" && chmod 755 \"$2\"", "sh", script])
                .arg(path);
            ensure!(write.status()?.success());
        }
        Ok(bin)
    }

    pub fn names(&self) -> anyhow::Result<BTreeSet<String>> {
        fs::read_dir(&self.data)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    pub fn pid_file(&self) -> PathBuf {
        self.data.join("pg/postmaster.pid")
    }

    pub fn pid_file_naming(&self, pid: u32) -> String {
        format!("{pid}\n{}\n1700000000\n5432\n/tmp/gone\n\n  1 2\nready\n", self.data.join("pg").display())
    }

    /// Writes a file in the server's data as the server would.
    pub fn write_as_server(&self, path: &Path, content: &str) -> anyhow::Result<()> {
        fs::write(path, content)?;
        let owner = fs::metadata(self.data.join("pg"))?;
        Ok(std::os::unix::fs::chown(path, Some(owner.uid()), Some(owner.gid()))?)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let named = fs::read_to_string(self.pid_file()).unwrap_or_default();
        let pid = named.lines().next().and_then(|line| line.parse().ok());
        if let Some(pid) = pid
            && fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(self.root()))
            && kill(pid, Signal::QUIT).is_ok()
        {
            wait_until("the server of a failed test is gone", || !is_alive(pid));
        }
        if let Ok(socket_dir) = fs::read_link(self.data.join("socket")) {
            let _ = fs::remove_dir_all(socket_dir);
        }
    }
}

pub fn ask(url: &str, query: &'static str) -> anyhow::Result<String> {
    in_a_session(url, async |session| Ok(sqlx::query_scalar(query).fetch_one(session).await?))
}

pub fn run(url: &str, script: &'static str) -> anyhow::Result<()> {
    in_a_session(url, async |session| {
        sqlx::raw_sql(script).execute(session).await?;
        Ok(())
    })
}

pub fn in_a_session<T>(
    url: &str,
    work: impl AsyncFnOnce(&mut PgConnection) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut session = PgConnection::connect(url).await?;
        let result = work(&mut session).await?;
        session.close().await?;
        Ok(result)
    })
}

pub fn mode(path: &Path) -> anyhow::Result<u32> {
    Ok(fs::metadata(path)?.mode() & 0o777)
}

pub fn kill(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("pid 0")?;
    Ok(kill_process(pid, signal)?)
}

/// A process that has ended but was not yet waited for is not alive.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        thread::park_timeout(Duration::from_millis(20));
    }
}

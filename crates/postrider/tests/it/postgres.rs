//! A Postgres server of one test, which may stop it, start it again, and set it up wrongly.

use std::{
    fs::{DirBuilder, File},
    os::unix::{
        fs::{DirBuilderExt, chown},
        process::CommandExt,
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::Context;
use sqlx::{Connection, PgConnection};

use crate::world::{eventually, server_programs, watch};

/// The server, on a socket that stays where it is.
pub struct Postgres {
    // Not a `TempDir`, because the watchdog must find it when this test is killed.
    home: PathBuf,
    programs: PathBuf,
    /// Whom to become, where the tests run as root.
    user: Option<(u32, u32)>,
    server: Option<Child>,
}

impl Postgres {
    /// A new cluster that answers.
    pub async fn start() -> anyhow::Result<Self> {
        let (programs, user, group) = server_programs().await?;
        let home = std::env::temp_dir().join(format!("pr-{}", uuid::Uuid::now_v7().simple()));
        DirBuilder::new().mode(0o700).create(&home)?;
        let is_root =
            std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
        if is_root {
            chown(&home, Some(user), Some(group))?;
        }
        let mut postgres = Self { home, programs, user: is_root.then_some((user, group)), server: None };
        let made = postgres
            .command("initdb")
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync", "-D"])
            .arg(postgres.home.join("pg"))
            .output()?;
        anyhow::ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        watch(&postgres.home, std::process::id())?;
        postgres.start_again().await?;
        Ok(postgres)
    }

    /// Starts the server and waits until it answers.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        let log = File::create(self.home.join("log"))?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.home.join("pg")).args([
            "-c",
            "listen_addresses=",
            "-c",
            "shared_buffers=16MB",
            "-k",
        ]);
        self.server = Some(command.arg(&self.home).stdout(log.try_clone()?).stderr(log).spawn()?);
        let url = self.url("postgres");
        eventually("the server answers", async || Ok(PgConnection::connect(&url).await.is_ok())).await
    }

    /// Stops it: clients are sent away.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.end("INT")
    }

    /// Stops it at once, as if it had crashed: the next start recovers what was committed.
    pub fn crash(&mut self) -> anyhow::Result<()> {
        self.end("QUIT")
    }

    /// The way in as this role, the same after every start.
    pub fn url(&self, role: &str) -> String {
        format!("postgres:///postgres?host={}&user={role}", self.home.display())
    }

    fn end(&mut self, signal: &str) -> anyhow::Result<()> {
        let mut server = self.server.take().context("it does not run")?;
        Command::new("kill").args([&format!("-{signal}"), &server.id().to_string()]).status()?;
        server.wait()?;
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir("/").stdin(Stdio::null());
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.end("QUIT");
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

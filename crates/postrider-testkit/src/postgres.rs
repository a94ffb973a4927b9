//! A Postgres server of one test, which may stop it, start it again, and set it up wrongly.

use std::{
    fs::{DirBuilder, File},
    os::unix::{
        fs::{DirBuilderExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Context;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::world::{eventually, server_programs, watch};

/// The server, on a socket that stays where it is.
pub struct Postgres {
    // Not a `TempDir`, because the watchdog must find it when this test is killed.
    home: PathBuf,
    programs: PathBuf,
    /// Whom to become, where the tests run as root.
    user: Option<(u32, u32)>,
    server: Option<Child>,
    /// The port on loopback where it listens beside its socket, with passwords.
    port: Option<u16>,
}

impl Postgres {
    /// A new cluster that answers.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(None).await
    }

    /// A new cluster that also listens on this port of loopback, where logins need their passwords.
    pub async fn start_listening(port: u16) -> anyhow::Result<Self> {
        Self::start_with(Some(port)).await
    }

    async fn start_with(port: Option<u16>) -> anyhow::Result<Self> {
        let (programs, user, group) = server_programs().await?;
        let home = std::env::temp_dir().join(format!("pr-{}", uuid::Uuid::now_v7().simple()));
        DirBuilder::new().mode(0o700).create(&home)?;
        let is_root =
            std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
        if is_root {
            chown(&home, Some(user), Some(group))?;
        }
        let mut postgres =
            Self { home, programs, user: is_root.then_some((user, group)), server: None, port };
        let made = postgres
            .command("initdb")
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync"])
            .args(["--auth-host=scram-sha-256", "-D"])
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
        command.arg("-D").arg(self.home.join("pg")).args(["-c", "shared_buffers=16MB", "-c"]);
        match self.port {
            Some(port) => command.args(["listen_addresses=127.0.0.1", "-p", &port.to_string()]),
            None => command.arg("listen_addresses="),
        };
        command.arg("-k");
        self.server = Some(command.arg(&self.home).stdout(log.try_clone()?).stderr(log).spawn()?);
        let url = self.url("postgres");
        eventually("the server answers", async || Ok(PgConnection::connect(&url).await.is_ok())).await
    }

    /// Where its socket is.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Keeps a copy of the files of a server that does not run, as a backup of files does.
    pub fn copy_files(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.server.is_none(), "it runs");
        self.shell(r#"rm -rf "$1/kept" && cp -a "$1/pg" "$1/kept""#)
    }

    /// Puts the copy back in place of the files.
    pub fn restore_files(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.server.is_none(), "it runs");
        self.shell(r#"rm -rf "$1/pg" && cp -a "$1/kept" "$1/pg" && rm -f "$1/pg/postmaster.pid""#)
    }

    /// Another server with a base backup of this one. It does not run; `settings` are appended to its configuration, and `signal` is the
    /// file that says how it starts: `recovery.signal` or `standby.signal`.
    pub fn base_backup(&self, signal: &str, settings: &str) -> anyhow::Result<Self> {
        let home = std::env::temp_dir().join(format!("pr-{}", uuid::Uuid::now_v7().simple()));
        DirBuilder::new().mode(0o700).create(&home)?;
        if let Some((user, group)) = self.user {
            chown(&home, Some(user), Some(group))?;
        }
        let copy = Self { home, programs: self.programs.clone(), user: self.user, server: None, port: None };
        watch(&copy.home, std::process::id())?;
        let taken = self
            .command("pg_basebackup")
            .args(["-U", "postgres", "-X", "stream", "-c", "fast", "--no-sync", "-h"])
            .arg(&self.home)
            .arg("-D")
            .arg(copy.home.join("pg"))
            .output()?;
        anyhow::ensure!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
        copy.configure(settings)?;
        copy.shell(&format!(r#"touch "$1/pg/{signal}""#))?;
        Ok(copy)
    }

    /// Appends settings to the configuration. They count from the next start on.
    pub fn configure(&self, settings: &str) -> anyhow::Result<()> {
        std::fs::write(self.home.join("more.conf"), settings)?;
        self.shell(r#"cat "$1/more.conf" >> "$1/pg/postgresql.auto.conf""#)
    }

    /// Archives every segment of the log from now on, as an operator sets it up.
    pub async fn archive(&mut self) -> anyhow::Result<()> {
        self.shell(r#"mkdir "$1/archive""#)?;
        let command = format!("test ! -f {0}/archive/%f && cp %p {0}/archive/%f", self.home.display());
        let mut admin = PgConnection::connect(&self.url("postgres")).await?;
        for statement in [
            "alter system set archive_mode = on".to_owned(),
            format!("alter system set archive_command = '{command}'"),
        ] {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut admin).await?;
        }
        admin.close().await?;
        self.stop()?;
        self.start_again().await
    }

    /// Waits until the log is archived up to now.
    pub async fn archive_everything(&self) -> anyhow::Result<()> {
        let mut admin = PgConnection::connect(&self.url("postgres")).await?;
        let last: String =
            sqlx::query_scalar("select pg_walfile_name(pg_switch_wal())").fetch_one(&mut admin).await?;
        eventually("the last segment is archived", async || {
            let archived = "select coalesce(last_archived_wal, '') >= $1 from pg_stat_archiver";
            Ok(sqlx::query_scalar::<_, bool>(archived)
                .bind(&last)
                .fetch_one(&mut PgConnection::connect(&self.url("postgres")).await?)
                .await?)
        })
        .await
    }

    /// The `restore_command` of a server that recovers from the archive of this one.
    pub fn restore_command(&self) -> String {
        format!("cp {}/archive/%f %p", self.home.display())
    }

    /// Makes a standby the primary, on a timeline of its own.
    pub async fn promote(&self) -> anyhow::Result<()> {
        let mut admin = PgConnection::connect(&self.url("postgres")).await?;
        sqlx::query("select pg_promote()").execute(&mut admin).await?;
        eventually("it is the primary", async || {
            let mut admin = PgConnection::connect(&self.url("postgres")).await?;
            Ok(!sqlx::query_scalar::<_, bool>("select pg_is_in_recovery()").fetch_one(&mut admin).await?)
        })
        .await
    }

    /// One of the programs that come with the server.
    pub fn program(&self, name: &str) -> Command {
        self.command(name)
    }

    fn shell(&self, script: &str) -> anyhow::Result<()> {
        let mut command = Command::new("sh");
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        let done = command.current_dir("/").args(["-ec", script, "sh"]).arg(&self.home).output()?;
        anyhow::ensure!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
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
        let port = self.port.map(|port| format!("&port={port}")).unwrap_or_default();
        format!("postgres:///postgres?host={}&user={role}{port}", self.home.display())
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

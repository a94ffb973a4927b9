//! The private Postgres cluster: real server programs, run on a directory of our own.
//!
//! ```text
//! start_or_adopt ──▶ a live server on the data? ──yes──▶ adopt it
//!                        │ no
//!                        └─▶ initdb (if there is no data) ──▶ start it
//! stop ──▶ another process uses it? ──yes──▶ leave it running
//!              │ no
//!              └─▶ stop it
//! ```
//!
//! Several processes may share one cluster: the first one starts it, and the last one stops it. A `Cluster` that is dropped, or whose
//! process is killed, leaves the server running, and the next one adopts it.
//!
//! Everything here blocks; call it from `spawn_blocking`.

mod account;
mod binaries;
mod errors;
mod home;
mod initdb;
mod install;
mod pg_ctl;
mod postmaster;
mod socket_dir;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Instant;

use account::ServerUser;
use binaries::Binaries;
pub use errors::EmbeddedError;
use errors::io_error;
use home::{Home, Users};
use postmaster::{Answer, Postmaster};

/// The superuser of every cluster made here.
pub const SUPERUSER: &str = "postgres";

/// Location and settings of the cluster.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The directory that holds the cluster, its log and its locks. Made if it is missing.
    pub data_dir: PathBuf,
    /// The folder of the server programs; without it, the newest installed ones are used.
    pub bin_dir: Option<PathBuf>,
    /// Further settings of the server, such as `("shared_buffers", "256MB")`. They count when it is started, not
    /// when it is adopted, and cannot change where it listens or turn `fsync` off.
    pub settings: Vec<(String, String)>,
}

/// A use of a running cluster. Dropping it leaves the server running, as a crash would.
#[derive(Debug)]
#[must_use = "a cluster that is not stopped keeps running"]
pub struct Cluster {
    server: Server,
    /// Settings for a further start.
    settings: Vec<(String, String)>,
    running: Postmaster,
    /// The server's main process, which a further start changes.
    pid: AtomicU32,
    started_here: bool,
    users: Users,
}

/// Keeps other processes from using the cluster, until dropped.
#[derive(Debug)]
pub struct Alone {
    _deciding: home::Lock,
}

/// Result of ending a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// No other process used the server, and it is down.
    ShutDown,
    /// Another process still uses the server.
    LeftRunning,
}

/// Everything that is needed to command the server.
#[derive(Debug)]
struct Server {
    home: Home,
    user: ServerUser,
    binaries: Binaries,
}

impl Cluster {
    /// Uses the cluster in the data directory, starting it (and making it) if it does not run.
    pub fn start_or_adopt(options: &Options) -> Result<Self, EmbeddedError> {
        let home = Home::locate(&options.data_dir)?;
        // Missing programs are reported before anything is made.
        let mut server = Server::for_home(home, options)?;
        let made_here = server.home.create(&server.user)?;
        let result = Self::decide(server.home.clone(), options);
        if result.is_err() && made_here {
            server.home.remove_if_unused();
        }
        result
    }

    fn decide(home: Home, options: &Options) -> Result<Self, EmbeddedError> {
        let _deciding = home.lock()?;
        let users = home.users()?;
        // Again, because another process may have made the cluster while we waited.
        let server = Server::for_home(home, options)?;
        let adopted = server.adopt(&users)?;
        let started_here = adopted.is_none();
        let running = match adopted {
            Some(running) => running,
            None => server.start(&options.settings)?,
        };
        users.join()?;
        let verb = if started_here { "started" } else { "adopted" };
        tracing::info!(pid = running.pid, "{verb} the private Postgres in {}", server.home.dir().display());
        let (settings, pid) = (options.settings.clone(), AtomicU32::new(running.pid));
        Ok(Self { server, settings, running, pid, started_here, users })
    }

    /// The address of a database for `sqlx`, `psql` and everything that uses libpq.
    #[must_use]
    pub fn url(&self, user: &str, database: &str) -> String {
        let socket_dir = percent_encode(&self.running.socket_dir.to_string_lossy());
        // The user is a parameter, because some parsers want a host where a user stands before the slash.
        format!(
            "postgres:///{}?host={socket_dir}&port={}&user={}",
            percent_encode(database),
            self.running.port,
            percent_encode(user),
        )
    }

    /// Whether this handle started the server, rather than found it running.
    #[must_use]
    pub fn started_here(&self) -> bool {
        self.started_here
    }

    /// The data directory, as an absolute path without links.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        self.server.home.dir()
    }

    /// The directory of the server's socket.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        &self.running.socket_dir
    }

    /// The server's log.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        self.server.home.log()
    }

    /// The server's main process.
    #[must_use]
    pub fn postmaster_pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Starts the server again after its end, with the same socket directory, so that the same URLs lead to it.
    pub fn start_again(&self) -> Result<(), EmbeddedError> {
        let _deciding = self.server.home.lock()?;
        let running = match self.server.adopt(&self.users)? {
            Some(running) => running,
            None => pg_ctl::start(&self.server, &self.settings, Some(&self.running.socket_dir))?,
        };
        // The search for the server may have given up our own use.
        self.users.join()?;
        if running.socket_dir != self.running.socket_dir {
            let (pgdata, pid) = (self.server.home.pgdata(), running.pid);
            return Err(EmbeddedError::NotAnswering {
                pgdata,
                pid,
                socket_dir: self.running.socket_dir.clone(),
            });
        }
        self.pid.store(running.pid, Ordering::Relaxed);
        tracing::info!(
            pid = running.pid,
            "started the private Postgres again in {}",
            self.server.home.dir().display()
        );
        Ok(())
    }

    /// Whether the server of this handle still runs. An error means that the answer is not known.
    pub fn is_running(&self) -> Result<bool, EmbeddedError> {
        Ok(self.server.find()?.is_some_and(|found| found.pid == self.postmaster_pid()))
    }

    /// Makes this process the only user while the result is held: other processes wait. `None` when another process uses the cluster.
    pub fn alone(&self) -> Result<Option<Alone>, EmbeddedError> {
        let deciding = self.server.home.lock()?;
        let is_alone = self.users.is_alone()?;
        // The check has given up our own use.
        self.users.join()?;
        Ok(is_alone.then_some(Alone { _deciding: deciding }))
    }

    /// Ends this use. The last user stops the server; its clients are disconnected.
    pub fn stop(self) -> Result<Stopped, EmbeddedError> {
        let _deciding = self.server.home.lock()?;
        if !self.users.is_alone()? {
            return Ok(Stopped::LeftRunning);
        }
        // Looked up again: the server may have died, or another process may have started it anew since.
        if let Some(running) = self.server.find()? {
            pg_ctl::stop(&self.server, &running)?;
        }
        socket_dir::remove(&self.server.home);
        tracing::info!("stopped the private Postgres in {}", self.server.home.dir().display());
        Ok(Stopped::ShutDown)
    }
}

impl Server {
    fn for_home(home: Home, options: &Options) -> Result<Self, EmbeddedError> {
        let pgdata = home.pgdata();
        let user = ServerUser::for_data(&pgdata)?;
        let binaries = Binaries::find(options.bin_dir.as_deref(), &pgdata, home.major()?)?;
        Ok(Self { home, user, binaries })
    }

    /// The server that runs on the data, if there is one.
    fn find(&self) -> Result<Option<Postmaster>, EmbeddedError> {
        let pgdata = self.home.pgdata();
        Postmaster::find(&pgdata).map_err(io_error("see whether a server runs on", &pgdata))
    }

    /// The server that already runs on the data, once it accepts connections.
    fn adopt(&self, users: &Users) -> Result<Option<Postmaster>, EmbeddedError> {
        let pgdata = self.home.pgdata();
        let begun = Instant::now();
        loop {
            // A server that is stopping is gone after a while.
            let Some(running) = self.find()? else {
                return Ok(None);
            };
            match running.answer() {
                Answer::Ready => return Ok(Some(running)),
                Answer::NoSocket if users.is_alone()? => {
                    tracing::warn!(pid = running.pid, "the server has lost its socket and is started anew");
                    pg_ctl::stop(self, &running)?;
                    return Ok(None);
                }
                Answer::NoSocket | Answer::NotYet => {}
            }
            if begun.elapsed() > pg_ctl::time_limit() {
                let Postmaster { pid, socket_dir, .. } = running;
                return Err(EmbeddedError::NotAnswering { pgdata, pid, socket_dir });
            }
            sleep(pg_ctl::POLL_EVERY);
        }
    }

    fn start(&self, settings: &[(String, String)]) -> Result<Postmaster, EmbeddedError> {
        socket_dir::remove(&self.home);
        self.home.remove_unfinished();
        if self.home.major()?.is_none() {
            initdb::create(&self.home, &self.user, &self.binaries)?;
        }
        pg_ctl::start(self, settings, None)
    }
}

fn percent_encode(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

//! The running server: its process, whether it answers, and what a killed one left behind.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::SUPERUSER;
use super::socket_dir::socket_path;

/// Maximum time for the server's answer to one connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The SQLSTATE of a server that starts or stops (`cannot_connect_now`).
const CANNOT_CONNECT_NOW: &[u8] = b"57P03";

/// A live server on our data, as its `postmaster.pid` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Postmaster {
    pub pid: u32,
    pub port: u16,
    pub socket_dir: PathBuf,
}

/// The server's answer to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Ready,
    NotYet,
    NoSocket,
}

impl Postmaster {
    /// The server that runs on `pgdata`, if there is one. A stale file is no server. An error means that the answer is not known: a process
    /// without a free file descriptor sees nothing, and must not take its server for dead.
    pub fn find(pgdata: &Path) -> io::Result<Option<Self>> {
        let Some(text) = known(fs::read(pid_file(pgdata)))? else { return Ok(None) };
        let Some(found) = Self::parse(&String::from_utf8_lossy(&text)) else { return Ok(None) };
        Ok(serves(found.pid, pgdata)?.then_some(found))
    }

    /// Lines: process, data directory, start time, port, socket directory, address, shared memory, status.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::trim);
        let pid = lines.next()?.parse().ok()?;
        let port = lines.nth(2).and_then(|line| line.parse().ok()).unwrap_or(0);
        let socket_dir = lines.next().unwrap_or_default().into();
        Some(Self { pid, port, socket_dir })
    }

    /// Connects as a client would.
    pub fn answer(&self) -> Answer {
        match self.connect() {
            Ok(true) => Answer::Ready,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Answer::NoSocket,
            Ok(false) | Err(_) => Answer::NotYet,
        }
    }

    /// Whether a session could begin. A server that refuses for any reason but starting or stopping is up.
    fn connect(&self) -> io::Result<bool> {
        let mut server = UnixStream::connect(socket_path(&self.socket_dir, self.port))?;
        server.set_read_timeout(Some(ANSWER_WITHIN))?;
        server.set_write_timeout(Some(ANSWER_WITHIN))?;
        server.write_all(&startup_message())?;
        let mut head = [0; 5];
        server.read_exact(&mut head)?;
        if head[0] == b'E' {
            let mut text = Vec::new();
            server.read_to_end(&mut text)?;
            return Ok(!text.windows(CANNOT_CONNECT_NOW.len()).any(|code| code == CANNOT_CONNECT_NOW));
        }
        // Terminate, so that the server's log stays clean.
        server.write_all(b"X\0\0\0\x04")?;
        Ok(true)
    }
}

/// Protocol 3.0: length, version, and pairs of names and values.
fn startup_message() -> Vec<u8> {
    let fields = format!("user\0{SUPERUSER}\0database\0postgres\0\0");
    let mut message = Vec::from(196_608_u32.to_be_bytes());
    message.extend(fields.as_bytes());
    let length = u32::try_from(message.len() + 4).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), message.as_slice()].concat()
}

fn pid_file(pgdata: &Path) -> PathBuf {
    pgdata.join("postmaster.pid")
}

/// Removes a pid file that would keep a server from starting: one that names no process, or one that is alive
/// and not a server on this data. A file that names a dead process is left for the server to judge, because
/// it also names the shared memory that orphans may still use.
pub(super) fn remove_misleading_pid_file(pgdata: &Path) -> io::Result<()> {
    let path = pid_file(pgdata);
    let named = match fs::read_to_string(&path) {
        Ok(text) => Postmaster::parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    match named {
        Some(server) if !exists(server.pid) || serves(server.pid, pgdata)? => Ok(()),
        _ => fs::remove_file(path),
    }
}

/// Server processes on this data whose parent may be gone. Empty where the system does not show them.
pub(super) fn processes_on(pgdata: &Path) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| is_server(name.trim()))
    })
    .filter(|pid| works_in(*pid, pgdata) == Some(true))
    .collect()
}

/// Sends a signal; a process that is gone needs none.
pub(super) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = as_pid(pid)
        && let Err(error) = kill_process(pid, signal)
    {
        tracing::debug!(%error, ?pid, ?signal, "no signal was sent");
    }
}

/// The content; `None` where there is no such file or process. Any other error says nothing about either.
fn known<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the process is a live server on this data.
fn serves(pid: u32, pgdata: &Path) -> io::Result<bool> {
    let Some(words) = command_line(pid)? else {
        return Ok(false);
    };
    let program = words.first().and_then(|word| Path::new(word).file_name()).unwrap_or_default();
    if !is_server(&program.to_string_lossy()) {
        return Ok(false);
    }
    // The working directory is certain, but not every user may see it (root in a container may not).
    Ok(works_in(pid, pgdata).unwrap_or_else(|| {
        let data = words.iter().position(|word| word == "-D").and_then(|at| words.get(at + 1));
        data.is_none_or(|data| Path::new(data) == pgdata)
    }))
}

fn is_server(program: &str) -> bool {
    matches!(program, "postgres" | "postmaster")
}

fn works_in(pid: u32, pgdata: &Path) -> Option<bool> {
    let cwd = fs::metadata(format!("/proc/{pid}/cwd")).ok()?;
    let data = fs::metadata(pgdata).ok()?;
    Some((cwd.dev(), cwd.ino()) == (data.dev(), data.ino()))
}

/// The words of a live process's command; nothing for a dead one or a zombie.
fn command_line(pid: u32) -> io::Result<Option<Vec<String>>> {
    if Path::new("/proc/self/cmdline").exists() {
        let Some(line) = known(fs::read(format!("/proc/{pid}/cmdline")))? else { return Ok(None) };
        let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        return Ok((!line.is_empty()).then(|| words.collect()));
    }
    let ps =
        Command::new("ps").args(["-o", "args=", "-p", &pid.to_string()]).stdin(Stdio::null()).output()?;
    let line = String::from_utf8_lossy(&ps.stdout).into_owned();
    Ok((!line.trim().is_empty()).then(|| line.split_whitespace().map(ToOwned::to_owned).collect()))
}

/// Whether the process still runs. A process that has ended and was not waited for yet does not.
pub(super) fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let has_ended = stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['Z', 'X']));
    exists(pid) && !has_ended
}

fn exists(pid: u32) -> bool {
    as_pid(pid).is_some_and(|pid| !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH)))
}

fn as_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_is_read_line_by_line() {
        let text = "4242\n/data/pg\n1700000000\n5432\n/tmp/postrider-a\n\n  1 2\nready   \n";
        let expected = Postmaster { pid: 4242, port: 5432, socket_dir: "/tmp/postrider-a".into() };
        assert_eq!(Postmaster::parse(text), Some(expected));
        assert_eq!(Postmaster::parse("4242\n").map(|server| server.pid), Some(4242));
        assert_eq!(Postmaster::parse(""), None);
        assert_eq!(Postmaster::parse("garbage"), None);
    }

    #[test]
    fn a_process_that_is_not_a_server_serves_nothing() {
        assert!(exists(std::process::id()));
        assert!(!serves(std::process::id(), Path::new("/")).unwrap());
    }

    #[test]
    fn a_pid_file_that_cannot_be_read_does_not_mean_that_the_server_is_gone() {
        let pgdata = tempfile::tempdir().unwrap();
        assert_eq!(Postmaster::find(pgdata.path()).unwrap(), None, "there is no file");
        fs::write(pid_file(pgdata.path()), format!("{}\n", i32::MAX)).unwrap();
        assert_eq!(Postmaster::find(pgdata.path()).unwrap(), None, "there is no such process");
        fs::remove_file(pid_file(pgdata.path())).unwrap();
        // As with EMFILE, something is there and cannot be read.
        fs::create_dir(pid_file(pgdata.path())).unwrap();
        assert!(Postmaster::find(pgdata.path()).is_err());
        for errno in [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE, rustix::io::Errno::NOMEM] {
            assert!(known::<()>(Err(errno.into())).is_err(), "{errno}");
        }
        assert_eq!(known::<()>(Err(rustix::io::Errno::SRCH.into())).unwrap(), None);
    }
}

//! Starts and stops the server with `pg_ctl`, which detaches it from our terminal and our pipes.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Output;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Server;
use super::errors::{EmbeddedError, complaint, io_error, reports_full_disk};
use super::postmaster::{self, Postmaster};
use super::socket_dir::{self, PORT};

/// Poll interval for the end of a process.
pub(super) const POLL_EVERY: Duration = Duration::from_millis(50);

/// Processes of a killed server end by themselves unless they are busy.
const ORPHANS_LEAVE_WITHIN: Duration = Duration::from_secs(2);
const ORPHANS_GONE_WITHIN: Duration = Duration::from_secs(15);

/// Between the removal of its pid file and its end, a server does nothing.
const LAST_STEP_WITHIN: Duration = Duration::from_secs(10);

/// Maximum time for the server to start or stop: 60 s, or `PGCTLTIMEOUT`, as for `pg_ctl` itself.
pub(super) fn time_limit() -> Duration {
    let seconds = env::var("PGCTLTIMEOUT").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

/// Starts the server on data that no live server uses. Waits until the processes of a killed one have ended. `socket_dir` is the
/// directory of an earlier server; without it, a new one is made.
pub(super) fn start(
    server: &Server,
    settings: &[(String, String)],
    socket_dir: Option<&Path>,
) -> Result<Postmaster, EmbeddedError> {
    server.home.must_have_space_to_start()?;
    let begun = Instant::now();
    let mut told_to_leave = false;
    loop {
        let result = start_once(server, settings, socket_dir);
        let Err(EmbeddedError::OldProcesses { .. }) = result else {
            return result;
        };
        if begun.elapsed() > ORPHANS_GONE_WITHIN {
            return result;
        }
        if begun.elapsed() > ORPHANS_LEAVE_WITHIN && !told_to_leave {
            told_to_leave = true;
            // The signal that the server itself sends to its processes after one of them crashed.
            for pid in postmaster::processes_on(&server.home.pgdata()) {
                tracing::warn!(pid, "ending process {pid} of a server that was killed");
                postmaster::signal(pid, Signal::QUIT);
            }
        }
        sleep(POLL_EVERY);
    }
}

fn start_once(
    server: &Server,
    settings: &[(String, String)],
    socket_dir: Option<&Path>,
) -> Result<Postmaster, EmbeddedError> {
    let pgdata = server.home.pgdata();
    postmaster::remove_misleading_pid_file(&pgdata)
        .map_err(io_error("remove the stale pid file in", &pgdata))?;
    let log_begins = prepare_log(server)?;
    let (socket_dir, made) = match socket_dir {
        Some(dir) => (dir.to_owned(), None),
        None => {
            let made = socket_dir::make(&server.home, &server.user)?;
            (made.path().to_owned(), Some(made))
        }
    };
    let limit = time_limit();

    let mut command = server.user.command(server.binaries.program("pg_ctl"));
    // The data directory and the log are not given as arguments, because `pg_ctl` would have a shell expand them.
    command.env("PGDATA", &pgdata).current_dir(server.home.dir()).args([
        "start",
        "-w",
        "-s",
        "-l",
        "postgres.log",
    ]);
    command.arg("-t").arg(limit.as_secs().to_string());
    command.arg("-o").arg(server_arguments(&pgdata, &socket_dir, settings));
    let outcome = match server.user.run(&mut command) {
        Ok(output) if output.status.success() => match server.find() {
            Ok(Some(started)) => {
                let _ = made.map(tempfile::TempDir::keep);
                return Ok(started);
            }
            Ok(None) => Err(diagnose(server, log_begins, "it ended at once", limit)),
            Err(error) => Err(error),
        },
        Ok(output) => Err(diagnose(server, log_begins, &text(&output), limit)),
        Err(error) => Err(error),
    };
    stop_after_failure(server);
    if made.is_some() {
        let _ = fs::remove_file(server.home.socket_link());
    }
    outcome
}

/// Stops the server: it disconnects clients and writes its data, and has ended when this returns.
pub(super) fn stop(server: &Server, running: &Postmaster) -> Result<(), EmbeddedError> {
    let mut said = run_stop(server, "fast", time_limit())?;
    if server.find()?.is_some() {
        tracing::warn!(pid = running.pid, "the server did not stop in time and is stopped at once: {said}");
        said = run_stop(server, "immediate", time_limit())?;
    }
    if server.find()?.is_some() {
        return Err(EmbeddedError::Stop { pid: running.pid, detail: said, log: server.home.log() });
    }
    await_end(running.pid);
    Ok(())
}

/// `pg_ctl` waits until the pid file is removed, which is the last step but one of the server.
fn await_end(pid: u32) {
    let begun = Instant::now();
    while postmaster::is_running(pid) && begun.elapsed() < LAST_STEP_WITHIN {
        sleep(Duration::from_millis(1));
    }
}

/// After a failed start: ends every process of the server.
fn stop_after_failure(server: &Server) {
    let pgdata = server.home.pgdata();
    let Ok(Some(running)) = server.find() else {
        return;
    };
    let _ = run_stop(server, "immediate", Duration::from_secs(10));
    if server.find().is_ok_and(|found| found.is_some()) {
        let processes = postmaster::processes_on(&pgdata);
        postmaster::signal(running.pid, Signal::KILL);
        processes.into_iter().for_each(|pid| postmaster::signal(pid, Signal::KILL));
    }
    await_end(running.pid);
}

fn run_stop(server: &Server, mode: &str, limit: Duration) -> Result<String, EmbeddedError> {
    let mut command = server.user.command(server.binaries.program("pg_ctl"));
    command.env("PGDATA", server.home.pgdata()).args(["stop", "-w", "-s", "-m", mode]);
    command.arg("-t").arg(limit.as_secs().to_string());
    // A second Ctrl-C does not interrupt this.
    command.process_group(0);
    server.user.run(&mut command).map(|output| complaint(&text(&output)))
}

/// The server's arguments. The last value of a setting counts, and it is ours where safety depends on it.
fn server_arguments(pgdata: &Path, socket_dir: &Path, settings: &[(String, String)]) -> String {
    let port = PORT.to_string();
    let socket_dir = socket_dir.to_string_lossy();
    let ours = [
        ("listen_addresses", ""),
        ("port", &port),
        ("unix_socket_directories", &socket_dir),
        ("unix_socket_permissions", "0700"),
        ("fsync", "on"),
        ("logging_collector", "off"),
    ];
    let theirs = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut arguments = vec!["-D".to_owned(), quote(&pgdata.to_string_lossy())];
    for (name, value) in theirs.chain(ours) {
        arguments.extend(["-c".to_owned(), quote(&format!("{name}={value}"))]);
    }
    arguments.join(" ")
}

/// Quotes one word for the shell that `pg_ctl` starts the server with.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Makes the log writable for the server's user, and returns the position at which this start begins in it.
fn prepare_log(server: &Server) -> Result<u64, EmbeddedError> {
    let path = server.home.log();
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let length = log.and_then(|log| log.metadata()).map_err(io_error("write", &path))?.len();
    server.user.own(&path).map_err(io_error("change the owner of", &path))?;
    Ok(length)
}

fn diagnose(server: &Server, log_begins: u64, pg_ctl_said: &str, limit: Duration) -> EmbeddedError {
    let log = server.home.log();
    let mut logged = Vec::new();
    let _ = fs::File::open(&log).and_then(|mut file| {
        file.seek(SeekFrom::Start(log_begins))?;
        file.read_to_end(&mut logged)
    });
    let logged = String::from_utf8_lossy(&logged);
    let pgdata = server.home.pgdata();
    if pg_ctl_said.contains("did not start in time") {
        EmbeddedError::TooSlow { seconds: limit.as_secs(), log }
    } else if reports_full_disk(&logged) || reports_full_disk(pg_ctl_said) {
        EmbeddedError::DiskFull { path: server.home.dir().to_owned(), detail: complaint(&logged) }
    } else if logged.contains("pre-existing shared memory block") {
        let pids: Vec<String> = postmaster::processes_on(&pgdata).iter().map(u32::to_string).collect();
        let processes = if pids.is_empty() { "unknown".to_owned() } else { pids.join(", ") };
        EmbeddedError::OldProcesses { pgdata, processes }
    } else {
        let detail = complaint(if logged.trim().is_empty() { pg_ctl_said } else { &logged });
        EmbeddedError::Start { detail, log }
    }
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_settings_come_after_theirs_and_are_safe_from_the_shell() {
        let theirs =
            [("fsync".to_owned(), "off".to_owned()), ("cluster_name".to_owned(), "it's $HOME".to_owned())];
        let arguments = server_arguments(Path::new("/a b/pg"), Path::new("/tmp/postrider-x"), &theirs);
        assert!(arguments.starts_with(r"-D '/a b/pg' -c 'fsync=off' -c 'cluster_name=it'\''s $HOME' -c "));
        assert!(arguments.find("'fsync=off'") < arguments.find("'fsync=on'"));
    }
}

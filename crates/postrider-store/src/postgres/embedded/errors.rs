//! Errors of the private cluster, each as one sentence that ends with what to try.

use std::io;
use std::path::{Path, PathBuf};

use super::binaries::OLDEST_MAJOR;

/// Why the private cluster could not be started or stopped. Each message is one line, fit to be shown as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// No server programs are installed.
    #[error(
        "no PostgreSQL server programs (initdb, pg_ctl, postgres) were found in {place}; install them with `{install}`"
    )]
    MissingBinaries {
        /// The places that were searched.
        place: String,
        /// The command that installs them.
        install: String,
    },
    /// Only servers below the oldest supported major are installed.
    #[error(
        "PostgreSQL {found} in {place} is too old, Postrider needs {OLDEST_MAJOR} or newer; install it with `{install}`"
    )]
    TooOld {
        /// The newest version found.
        found: String,
        /// The folder it is in.
        place: PathBuf,
        /// The command that installs a newer one.
        install: String,
    },
    /// The data was written by a major version that is not installed.
    #[error(
        "{pgdata} was made by PostgreSQL {major}, which is not installed; install it with `{install}` or choose another data directory"
    )]
    MajorNotInstalled {
        /// The data directory of the server.
        pgdata: PathBuf,
        /// The major version in its `PG_VERSION`.
        major: u32,
        /// The command that installs that version.
        install: String,
    },
    /// The data directory cannot be used: it is a file, read-only, or forbidden.
    #[error("cannot use {path} as the data directory: {reason}; choose another data directory")]
    DataDir {
        /// The directory, or the part of it that failed.
        path: PathBuf,
        /// The problem with it.
        reason: String,
    },
    /// The server's user cannot reach the data directory.
    #[error(
        "the server runs as user `{user}` because Postrider is root, and `{user}` may not enter {parent}; allow it with `chmod o+x {parent}` or choose another data directory"
    )]
    Untraversable {
        /// The user the server would run as.
        user: String,
        /// The first directory on the way that it may not enter.
        parent: PathBuf,
    },
    /// The cluster belongs to another user.
    #[error("{pgdata} belongs to user {owner}; run Postrider as that user or choose another data directory")]
    OtherOwner {
        /// The data directory of the server.
        pgdata: PathBuf,
        /// Name or number of the user it belongs to.
        owner: String,
    },
    /// Postrider is root, and no other user can run the server.
    #[error(
        "PostgreSQL refuses to run as root, and there is neither a user `postgres` nor `nobody`; make one with `useradd --system postgres`"
    )]
    NoServerUser,
    /// The disk is full, or nearly so.
    #[error("not enough disk space under {path} ({detail}); free some, or choose another data directory")]
    DiskFull {
        /// A directory on the full disk.
        path: PathBuf,
        /// How much is missing, or the server's message.
        detail: String,
    },
    /// There is no directory short enough for the server's socket.
    #[error("no directory can hold the server's socket ({tried}); make /tmp writable")]
    NoSocketDir {
        /// The directories that were tried, each with its problem.
        tried: String,
    },
    /// A server program could not be run at all.
    #[error("could not run {program} as user {user}: {source}; check that this user may execute it")]
    Run {
        /// The program.
        program: PathBuf,
        /// The user it was to run as.
        user: String,
        /// The answer of the operating system.
        source: io::Error,
    },
    /// `initdb` failed.
    #[error("could not make a database cluster in {path}: {detail}")]
    Initdb {
        /// The data directory.
        path: PathBuf,
        /// The message of `initdb`.
        detail: String,
    },
    /// The server refused to start.
    #[error("PostgreSQL did not start: {detail}; see {log}")]
    Start {
        /// The last message of the server.
        detail: String,
        /// Its log.
        log: PathBuf,
    },
    /// The server did not come up in time, and was stopped again.
    #[error(
        "PostgreSQL was not ready within {seconds} s and was stopped again; see {log}, or set PGCTLTIMEOUT to wait longer"
    )]
    TooSlow {
        /// The time limit.
        seconds: u64,
        /// Its log.
        log: PathBuf,
    },
    /// Processes of a killed server still use the data.
    #[error("processes of an earlier server still use {pgdata} ({processes}); end them and try again")]
    OldProcesses {
        /// The data directory of the server.
        pgdata: PathBuf,
        /// Their ids, where they are known.
        processes: String,
    },
    /// A server runs on the data, but cannot be reached.
    #[error(
        "the server that runs on {pgdata} (process {pid}) does not accept connections in {socket_dir}; stop it with `kill -INT {pid}` and try again"
    )]
    NotAnswering {
        /// The data directory of the server.
        pgdata: PathBuf,
        /// Its process.
        pid: u32,
        /// Where its socket should be.
        socket_dir: PathBuf,
    },
    /// The server could not be stopped.
    #[error("PostgreSQL (process {pid}) did not stop: {detail}; see {log}")]
    Stop {
        /// Its process.
        pid: u32,
        /// The message of `pg_ctl`.
        detail: String,
        /// Its log.
        log: PathBuf,
    },
    /// An operation that rarely fails has failed.
    #[error("could not {action} {path}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The answer of the operating system.
        source: io::Error,
    },
}

/// Names the operation and the file of an IO error.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EmbeddedError {
    let path = path.to_owned();
    move |source| EmbeddedError::Io { action, path, source }
}

/// Says why a path cannot serve as (a part of) the data directory.
pub(super) fn unusable(path: &Path) -> impl FnOnce(io::Error) -> EmbeddedError {
    let path = path.to_owned();
    move |error| {
        let reason = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                return EmbeddedError::DiskFull { path, detail: error.to_string() };
            }
            io::ErrorKind::ReadOnlyFilesystem => "its file system is read-only".to_owned(),
            io::ErrorKind::PermissionDenied => "this user may not write there".to_owned(),
            io::ErrorKind::NotADirectory => "a part of its path is a file".to_owned(),
            _ => error.to_string(),
        };
        EmbeddedError::DataDir { path, reason }
    }
}

/// The most telling line of a server's or `initdb`'s output: the last fatal one, else the last error, else the last.
pub(super) fn complaint(output: &str) -> String {
    let last = |marker: &str| {
        output.lines().rev().find_map(|line| line.split_once(marker).map(|(_, rest)| rest.trim().to_owned()))
    };
    last("PANIC:")
        .or_else(|| last("FATAL:"))
        .or_else(|| last("ERROR:"))
        .or_else(|| last("error:"))
        .or_else(|| output.lines().map(str::trim).rfind(|line| !line.is_empty()).map(ToOwned::to_owned))
        .unwrap_or_else(|| "there was no output".to_owned())
}

/// Whether the output says that the disk is full.
pub(super) fn reports_full_disk(output: &str) -> bool {
    output.contains("No space left on device") || output.contains("Disk quota exceeded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_fatal_line_tells_most() {
        let log = "2024-01-01 LOG:  starting\n2024-01-01 FATAL:  one\n2024-01-01 FATAL:  two\nHINT:  no\n";
        assert_eq!(complaint(log), "two");
        assert_eq!(complaint("initdb: error: a\ninitdb: removing\n"), "a");
        assert_eq!(complaint("plain\n\n"), "plain");
        assert_eq!(complaint(""), "there was no output");
    }
}

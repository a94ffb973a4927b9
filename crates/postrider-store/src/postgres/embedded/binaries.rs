//! Finds the server programs: the newest installed major, or the one that existing data asks for.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::errors::EmbeddedError;
use super::install;

/// Oldest supported major version.
pub(super) const OLDEST_MAJOR: u32 = 15;

const NEEDED: [&str; 3] = ["initdb", "pg_ctl", "postgres"];

/// One folder with server programs, and their version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binaries {
    dir: PathBuf,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u32,
    minor: u32,
}

impl Binaries {
    /// The newest programs, or the newest of `major` if data of that major exists in `pgdata`.
    pub fn find(bin_dir: Option<&Path>, pgdata: &Path, major: Option<u32>) -> Result<Self, EmbeddedError> {
        let (places, place) = match bin_dir {
            Some(dir) => (BTreeSet::from([dir.to_owned()]), dir.display().to_string()),
            None => (usual_places(), "PATH or the usual folders".to_owned()),
        };
        if let Some(major) = major.filter(|major| *major < OLDEST_MAJOR) {
            let reason =
                format!("it was made by PostgreSQL {major}, and Postrider needs {OLDEST_MAJOR} or newer");
            return Err(EmbeddedError::DataDir { path: pgdata.to_owned(), reason });
        }
        let mut found: Vec<Self> = places.iter().filter_map(|dir| Self::inspect(dir)).collect();
        found.sort_by_key(|binaries| binaries.version);

        let Some(newest) = found.last().cloned() else {
            return Err(EmbeddedError::MissingBinaries { place, install: install::command(major) });
        };
        if newest.version.major < OLDEST_MAJOR {
            return Err(EmbeddedError::TooOld {
                found: newest.version.to_string(),
                place: newest.dir,
                install: install::command(None),
            });
        }
        let Some(major) = major else {
            return Ok(newest);
        };
        found.into_iter().rfind(|binaries| binaries.version.major == major).ok_or_else(|| {
            EmbeddedError::MajorNotInstalled {
                pgdata: pgdata.to_owned(),
                major,
                install: install::command(Some(major)),
            }
        })
    }

    /// The path of one of the programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn inspect(dir: &Path) -> Option<Self> {
        if !NEEDED.iter().all(|name| is_executable(&dir.join(name))) {
            return None;
        }
        let postgres = dir.join("postgres");
        let output = Command::new(&postgres).arg("--version").stdin(Stdio::null()).output().ok()?;
        let version = Version::parse(&String::from_utf8_lossy(&output.stdout));
        if version.is_none() {
            tracing::warn!(program = %postgres.display(), "{} prints no version", postgres.display());
        }
        Some(Self { dir: dir.to_owned(), version: version? })
    }
}

impl Version {
    /// Reads the answer of `postgres --version`, such as `postgres (PostgreSQL) 15.8 (Debian 15.8-1)` or `… 18beta1`.
    fn parse(answer: &str) -> Option<Self> {
        let (_, version) = answer.split_once("(PostgreSQL)")?;
        let mut numbers = version.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
        let major = numbers.next()?.parse().ok()?;
        // A beta of a major is older than its releases.
        let minor =
            match version.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix('.') {
                Some(_) => numbers.next()?.parse().ok()?,
                None => 0,
            };
        Some(Self { major, minor })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Every folder that may hold server programs, each once.
fn usual_places() -> BTreeSet<PathBuf> {
    let mut places = Vec::new();
    if let Some(path) = env::var_os("PATH") {
        places.extend(env::split_paths(&path).filter(|dir| dir.is_absolute()));
    }
    if let Ok(output) = Command::new("pg_config").arg("--bindir").stdin(Stdio::null()).output() {
        places.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    for (parent, prefix, rest) in [
        ("/usr/lib/postgresql", "", "bin"),
        ("/usr/libexec", "postgresql", ""),
        ("/usr", "pgsql-", "bin"),
        ("/opt/homebrew/opt", "postgresql", "bin"),
        ("/usr/local/opt", "postgresql", "bin"),
    ] {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                places.push(entry.path().join(rest));
            }
        }
    }
    // A program in PATH may be a link into the folder that holds the others.
    let linked: Vec<PathBuf> = places
        .iter()
        .filter_map(|dir| Some(fs::canonicalize(dir.join("pg_ctl")).ok()?.parent()?.to_owned()))
        .collect();
    places.into_iter().filter_map(|dir| fs::canonicalize(dir).ok()).chain(linked).collect()
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_vendors_write_them() {
        for (answer, expected) in [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", Some((15, 18))),
            ("postgres (PostgreSQL) 9.6.24", Some((9, 6))),
            ("postgres (PostgreSQL) 18beta1", Some((18, 0))),
            ("postgres (PostgreSQL) 19devel\n", Some((19, 0))),
            ("sh: not found", None),
        ] {
            assert_eq!(Version::parse(answer).map(|v| (v.major, v.minor)), expected, "{answer}");
        }
    }
}

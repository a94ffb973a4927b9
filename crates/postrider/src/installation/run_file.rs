//! `run.json`: how to reach a process that serves this private installation.
//!
//! Several processes may serve it at once. Each has a file in `run/`, on which it holds a lock while it lives; `run.json` is a copy of the
//! newest whose process lives. The process that ends puts the copy right.

use std::{
    fs::{DirBuilder, File},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{read_private, write_private};

/// The content of `run.json`.
#[derive(Serialize, Deserialize)]
pub struct RunFile {
    pub database_url: String,
    pub http_url: String,
    pub tenant_id: uuid::Uuid,
    pub workspace_id: uuid::Uuid,
    pub admin_key: String,
    pub pid: u32,
}

/// The file of this process. It counts as alive until this is dropped or the process ends.
pub struct Announced {
    data_dir: PathBuf,
    ours: PathBuf,
    _lock: File,
}

/// Writes the file of this process, and makes it the one that others read.
pub fn announce(data_dir: &Path, run: &RunFile) -> anyhow::Result<Announced> {
    let gate = Gate::enter(data_dir)?;
    let ours = gate.dir.join(format!("{}.json", std::process::id()));
    write_private(&ours, &serde_json::to_string_pretty(run)?)?;
    let lock = File::open(&ours).with_context(|| format!("cannot read {}", ours.display()))?;
    lock.lock().with_context(|| format!("cannot lock {}", ours.display()))?;
    write_private(&data_dir.join("run.json"), &serde_json::to_string_pretty(run)?)?;
    Ok(Announced { data_dir: data_dir.to_owned(), ours, _lock: lock })
}

impl Announced {
    /// Takes the file back. `run.json` becomes that of another process that serves, or goes away with the last one.
    pub fn withdraw(self) -> anyhow::Result<()> {
        let gate = Gate::enter(&self.data_dir)?;
        let _ = std::fs::remove_file(&self.ours);
        let shared = self.data_dir.join("run.json");
        match newest_alive(&gate.dir) {
            Some(other) => write_private(&shared, &serde_json::to_string_pretty(&other)?),
            None => {
                let _ = std::fs::remove_file(shared);
                Ok(())
            }
        }
    }
}

/// The newest process that serves and lives. A process that was killed is passed over.
pub fn read(data_dir: &Path) -> Option<RunFile> {
    newest_alive(&data_dir.join("run"))
}

/// One process at a time changes the files.
struct Gate {
    dir: PathBuf,
    _lock: File,
}

impl Gate {
    fn enter(data_dir: &Path) -> anyhow::Result<Self> {
        let dir = data_dir.join("run");
        let cannot = || format!("cannot use {}", dir.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).with_context(cannot)?;
        let lock = File::create(dir.join("lock")).with_context(cannot)?;
        lock.lock().with_context(cannot)?;
        Ok(Self { _lock: lock, dir })
    }
}

fn newest_alive(dir: &Path) -> Option<RunFile> {
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let files =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|it| it == "json"));
    let alive = files.filter(|path| is_held(path));
    let written = |path: &PathBuf| {
        std::fs::metadata(path).and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let newest = alive.max_by_key(written)?;
    serde_json::from_str(&read_private(&newest).ok()?).ok()
}

/// Whether the process that wrote a file lives: it holds the lock on it.
fn is_held(path: &Path) -> bool {
    File::open(path)
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_file(pid: u32) -> RunFile {
        RunFile {
            database_url: String::new(),
            http_url: format!("http://127.0.0.1:{pid}"),
            tenant_id: uuid::Uuid::nil(),
            workspace_id: uuid::Uuid::nil(),
            admin_key: String::new(),
            pid,
        }
    }

    #[test]
    fn a_file_whose_process_was_killed_is_passed_over() {
        let home = tempfile::tempdir().unwrap();
        assert!(read(home.path()).is_none());
        let announced = announce(home.path(), &run_file(std::process::id())).unwrap();
        // As a killed process leaves it: no lock.
        write_private(&home.path().join("run/1.json"), &serde_json::to_string(&run_file(1)).unwrap())
            .unwrap();
        assert_eq!(read(home.path()).map(|run| run.pid), Some(std::process::id()));
        announced.withdraw().unwrap();
        assert!(read(home.path()).is_none() && !home.path().join("run.json").exists());
    }
}

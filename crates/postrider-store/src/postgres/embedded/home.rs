//! The data directory: its layout, its access rights, and the two locks in it.
//!
//! ```text
//! lock          held exclusively by a process that decides to start or to stop the server
//! users         held shared by every live `Cluster`; a process that can hold it exclusively is the last one
//! pg/           the server's data
//! pg.new-…      what `initdb` is making; renamed to `pg` when it is complete
//! postgres.log
//! socket        link to the directory of the server's socket
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfs, StatVfsMountFlags};

use super::account::ServerUser;
use super::errors::{EmbeddedError, io_error, unusable};

/// Space that `initdb` and a first start need.
const SPACE_TO_CREATE: u64 = 100 << 20;
/// Space that a start needs: a segment of the write-ahead log, and some for the log.
const SPACE_TO_START: u64 = 32 << 20;

pub(super) const UNFINISHED_PREFIX: &str = "pg.new-";

/// The data directory.
#[derive(Debug, Clone)]
pub(super) struct Home {
    dir: PathBuf,
}

impl Home {
    /// Reads the directory and changes nothing.
    pub fn locate(path: &Path) -> Result<Self, EmbeddedError> {
        let dir = std::path::absolute(path).map_err(unusable(path))?;
        let reject =
            |reason: &str| Err(EmbeddedError::DataDir { path: dir.clone(), reason: reason.to_owned() });
        // The server's own files hold one path per line, as text.
        if dir.to_str().is_none_or(|text| text.contains('\n')) {
            return reject("its name is not plain text");
        }
        match fs::metadata(&dir) {
            Ok(meta) if !meta.is_dir() => reject("it is a file"),
            Ok(_) => Ok(Self { dir: fs::canonicalize(&dir).map_err(unusable(&dir))? }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self { dir }),
            Err(error) => Err(unusable(&dir)(error)),
        }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn pgdata(&self) -> PathBuf {
        self.dir.join("pg")
    }

    pub fn log(&self) -> PathBuf {
        self.dir.join("postgres.log")
    }

    /// The link to the directory of the socket.
    pub fn socket_link(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// The major version of the data, if there is any.
    pub fn major(&self) -> Result<Option<u32>, EmbeddedError> {
        let pgdata = self.pgdata();
        let not_data =
            |reason: &str| EmbeddedError::DataDir { path: pgdata.clone(), reason: reason.to_owned() };
        match fs::read_to_string(pgdata.join("PG_VERSION")) {
            Ok(text) => text.trim().parse().map(Some).map_err(|_| not_data("its PG_VERSION is damaged")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // `initdb`'s result is renamed into place whole, so this is not ours.
                let holds_something = fs::read_dir(&pgdata).is_ok_and(|mut entries| entries.next().is_some());
                if holds_something {
                    Err(not_data("it holds files that are not PostgreSQL's"))
                } else {
                    Ok(None)
                }
            }
            Err(error) => Err(unusable(&pgdata)(error)),
        }
    }

    /// Makes the directory if it is missing. Returns whether it was missing.
    pub fn create(&mut self, user: &ServerUser) -> Result<bool, EmbeddedError> {
        let missing = !self.dir.exists();
        if missing {
            let standing = self.dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
            must_have_space(standing, SPACE_TO_CREATE)?;
            user.must_reach(standing)?;
            if let Some(parent) = self.dir.parent() {
                fs::create_dir_all(parent).map_err(unusable(parent))?;
            }
            let made = DirBuilder::new().mode(0o700).create(&self.dir);
            // Another process may have been faster.
            if let Err(error) = made
                && error.kind() != io::ErrorKind::AlreadyExists
            {
                return Err(unusable(&self.dir)(error));
            }
        }
        self.dir = fs::canonicalize(&self.dir).map_err(unusable(&self.dir))?;
        if user.is_another() && !user.may_enter(&self.dir) {
            let mode = fs::metadata(&self.dir).map_err(unusable(&self.dir))?.permissions().mode();
            fs::set_permissions(&self.dir, Permissions::from_mode(mode | 0o011))
                .map_err(unusable(&self.dir))?;
        }
        if let Err(error) = user.must_reach(&self.dir) {
            if missing {
                self.remove_if_unused();
            }
            return Err(error);
        }
        Ok(missing)
    }

    /// Undoes `create` after a failure, if nothing but our own files came into the directory.
    pub fn remove_if_unused(&self) {
        if self.pgdata().exists() {
            return;
        }
        let known = ["lock", "users", "postgres.log"];
        let foreign = fs::read_dir(&self.dir)
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| !known.iter().any(|name| entry.file_name() == *name));
        if foreign {
            return;
        }
        for name in known {
            let _ = fs::remove_file(self.dir.join(name));
        }
        let _ = fs::remove_dir(&self.dir);
    }

    /// Removes what an interrupted `initdb` left behind.
    pub fn remove_unfinished(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().starts_with(UNFINISHED_PREFIX) {
                continue;
            }
            if let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::warn!(path = %entry.path().display(), %error, "could not remove an unfinished cluster");
            }
        }
    }

    pub fn must_have_space_to_create(&self) -> Result<(), EmbeddedError> {
        must_have_space(&self.dir, SPACE_TO_CREATE)
    }

    pub fn must_have_space_to_start(&self) -> Result<(), EmbeddedError> {
        must_have_space(&self.dir, SPACE_TO_START)
    }

    /// Waits until no other process decides about this cluster.
    pub fn lock(&self) -> Result<Lock, EmbeddedError> {
        let path = self.dir.join("lock");
        loop {
            let file = open_lock(&path)?;
            file.lock().map_err(io_error("lock", &path))?;
            // A process that failed to make the cluster may have removed the directory, and the file that we locked with it.
            let ours = file.metadata().map_err(io_error("read", &path))?.ino();
            match fs::metadata(&path) {
                Ok(meta) if meta.ino() == ours => return Ok(Lock { file }),
                _ => drop(Lock { file }),
            }
        }
    }

    /// Opens the lock of the users, and does not take it yet.
    pub fn users(&self) -> Result<Users, EmbeddedError> {
        let path = self.dir.join("users");
        Ok(Users { file: open_lock(&path)?, path })
    }
}

/// The right to decide about the cluster, until dropped.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing would not do: a child that was forked a moment ago and has not yet begun its program has a copy.
        let _ = self.file.unlock();
    }
}

/// A use of the cluster, until dropped.
#[derive(Debug)]
pub(super) struct Users {
    file: File,
    path: PathBuf,
}

impl Users {
    /// Becomes a user. Only the holder of `Lock` may call this, so there is nothing to wait for.
    pub fn join(&self) -> Result<(), EmbeddedError> {
        self.file.lock_shared().map_err(io_error("lock", &self.path))
    }

    /// Whether there is no other user. Gives up our own use. Only the holder of `Lock` may call this.
    pub fn is_alone(&self) -> Result<bool, EmbeddedError> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(io_error("lock", &self.path)(error)),
        }
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// Opened close-on-exec, as Rust opens every file: the server does not inherit the lock.
fn open_lock(path: &Path) -> Result<File, EmbeddedError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(path).map_err(|error| unusable(path.parent().unwrap_or(path))(error))
}

fn must_have_space(dir: &Path, needed: u64) -> Result<(), EmbeddedError> {
    let disk = rustix::fs::statvfs(dir).map_err(|errno| unusable(dir)(errno.into()))?;
    has_space(dir, &disk, needed)
}

fn has_space(dir: &Path, disk: &StatVfs, needed: u64) -> Result<(), EmbeddedError> {
    // Such a file system often counts no free blocks, and is not full for that.
    if disk.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(unusable(dir)(io::ErrorKind::ReadOnlyFilesystem.into()));
    }
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    // File systems without blocks, such as /proc, count nothing.
    if disk.f_blocks == 0 || free >= needed {
        return Ok(());
    }
    let detail = format!("{} MB free, {} MB needed", free >> 20, needed >> 20);
    Err(EmbeddedError::DiskFull { path: dir.to_owned(), detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_with_less_than_needed_is_full() {
        let dir = tempfile::tempdir().unwrap();
        must_have_space(dir.path(), 1).unwrap();
        let error = must_have_space(dir.path(), u64::MAX).unwrap_err();
        assert!(matches!(error, EmbeddedError::DiskFull { .. }), "{error}");
    }

    #[test]
    fn a_read_only_file_system_is_not_called_full() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = rustix::fs::statvfs(dir.path()).unwrap();
        disk.f_bavail = 0;
        disk.f_flag = StatVfsMountFlags::empty();
        let full = has_space(dir.path(), &disk, 1).unwrap_err();
        assert!(matches!(full, EmbeddedError::DiskFull { .. }), "{full}");
        disk.f_flag = StatVfsMountFlags::RDONLY;
        let read_only = has_space(dir.path(), &disk, 1).unwrap_err();
        assert!(read_only.to_string().contains("its file system is read-only"), "{read_only}");
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_taken_again_on_the_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::locate(dir.path()).unwrap();
        let first = home.lock().unwrap();
        let waiting = std::thread::spawn({
            let home = home.clone();
            move || home.lock().unwrap().file.metadata().unwrap().ino()
        });
        fs::remove_file(dir.path().join("lock")).unwrap();
        drop(first);
        let locked = waiting.join().unwrap();
        assert_eq!(locked, fs::metadata(dir.path().join("lock")).unwrap().ino());
    }
}

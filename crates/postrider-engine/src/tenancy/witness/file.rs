//! Witness files in a directory: each process locks one file while it runs, and a later process reuses the file.
//!
//! | position in the file | content |
//! |---|---|
//! | the first 1024 bytes | a [`Record`] as JSON, padded with spaces; synced to disk with every mark |
//! | 37 bytes each after that | the last reservation of each writer, written before its call |

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use jiff::{SignedDuration, Timestamp};
use postrider_model::ids::{OutboxId, TenantId};
use postrider_store::tenancy::installation::Observed;
use uuid::Uuid;

use super::Record;

const HEAD: usize = 1024;
/// Two UUIDs, a space and a line break.
const LINE: usize = 74;
/// Maximum processes of one installation on one machine.
const SLOTS: usize = 256;
/// Marks are kept for 90 days, so older records cannot be compared.
const KEPT_FOR: SignedDuration = SignedDuration::from_hours(80 * 24);

/// The file of this process.
#[derive(Debug)]
pub(super) struct Slot {
    file: File,
    left_by: Option<Record>,
    /// Whether this process has written to it.
    is_ours: AtomicBool,
}

impl Slot {
    /// Locks the first file that no running process uses.
    pub(super) fn take(dir: &Path, installation: Uuid) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        for number in 0..SLOTS {
            let path = dir.join(format!("{installation}.{number}"));
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            if file.try_lock().is_ok() {
                let left_by = read(&file).filter(|record| record.installation_id == installation);
                return Ok(Self { file, left_by, is_ours: AtomicBool::new(false) });
            }
        }
        Err(io::Error::other("every file of the installation is in use"))
    }

    /// The record of the process that used the file before.
    pub(super) fn left_by(&self) -> Option<Record> {
        self.left_by.clone()
    }

    /// Writes a reservation. The operating system has it when this function returns, so it survives a kill of the process.
    pub(super) fn write_reservation(&self, writer: usize, tenant: TenantId, reservation: OutboxId) {
        let at = HEAD + writer * LINE;
        let line = format!("{} {}\n", tenant.0, reservation.0);
        if let Err(error) = self.file.write_all_at(line.as_bytes(), at as u64) {
            tracing::warn!("failed to write a reservation to the witness file: {error}");
        }
    }

    /// Writes the record, and syncs the file to disk.
    pub(super) fn write(
        &self,
        mut record: Record,
        is_beside_the_database: bool,
        epoch_begins: bool,
    ) -> io::Result<()> {
        if is_beside_the_database {
            record.inode = Some(self.file.metadata()?.ino());
        }
        // The reservations are stored after the head.
        record.reservations.clear();
        let text = record.to_text();
        if text.len() >= HEAD {
            return Err(io::Error::other("the record is too long"));
        }
        self.file.write_all_at(format!("{text:<width$}\n", width = HEAD - 1).as_bytes(), 0)?;
        // Reservations of the previous process were compared before the first mark, and this process writes none before it. An
        // adoption settles the reservations before it.
        if !self.is_ours.swap(true, Ordering::Relaxed) || epoch_begins {
            self.file.set_len(HEAD as u64)?;
        }
        self.file.sync_data()
    }
}

fn read(file: &File) -> Option<Record> {
    let mut bytes = vec![0; usize::try_from(file.metadata().ok()?.len()).ok()?.min(1 << 20)];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let (head, notes) = bytes.split_at_checked(HEAD)?;
    let mut record = Record::parse(str::from_utf8(head).ok()?)?;
    let lines = notes.chunks(LINE).filter_map(|line| str::from_utf8(line).ok());
    record.reservations = lines
        .filter_map(|line| {
            let (tenant, id) = line.trim().split_once(' ')?;
            Some((Uuid::parse_str(tenant).ok()?, Uuid::parse_str(id).ok()?))
        })
        .collect();
    if let Some(inode) = record.inode {
        // A copy of the file is another file.
        let is_this = file.metadata().is_ok_and(|file| file.ino() == inode);
        record.inode = is_this.then_some(inode).or(Some(0));
    }
    Some(record)
}

/// The records of ended processes of this installation or of this very database, each with a flag: false if the file is a
/// copy of the file that the process wrote.
pub(super) fn read_all(dir: &Path, observed: &Observed) -> Vec<(Record, bool)> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let installation = observed.epoch.as_ref().map(|epoch| epoch.installation_id);
    let mut records = Vec::new();
    for entry in entries.flatten() {
        let Ok(file) = File::open(entry.path()) else { continue };
        // The process of a locked file compares its record itself.
        if file.try_lock_shared().is_err() {
            continue;
        }
        let Some(record) = read(&file) else { continue };
        let is_ours = Some(record.installation_id) == installation
            || !record.system_identifier.is_empty()
                && record.system_identifier == observed.system_identifier
                && record.database_oid == observed.database_oid;
        if is_ours && Timestamp::now().duration_since(record.written_at) < KEPT_FOR {
            let is_here = record.inode != Some(0);
            records.push((record, is_here));
        }
    }
    records
}

/// The records of running processes. A record that is being written at this moment may be missing.
pub(super) fn read_live(dir: &Path, installation: Uuid) -> Vec<Record> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let files = entries.flatten().filter_map(|entry| File::open(entry.path()).ok());
    let live = files.filter(|file| file.try_lock_shared().is_err());
    live.filter_map(|file| read(&file)).filter(|record| record.installation_id == installation).collect()
}

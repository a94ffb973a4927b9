//! The commits that a process saw, and their comparison with a database.

use jiff::Timestamp;
use postrider_model::ids::{OutboxId, TenantId};
use postrider_store::tenancy::installation::{Known, Observed};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The last commits that one process saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Installation of the database.
    pub installation_id: Uuid,
    /// Id under which the process writes its mark.
    pub witness_id: Uuid,
    /// Epoch of the installation.
    pub epoch_id: Uuid,
    /// System identifier of the cluster.
    pub system_identifier: String,
    /// Oid of the database in the cluster.
    pub database_oid: i64,
    /// Timeline of the cluster.
    pub timeline: Option<i32>,
    /// Flushed position of the write-ahead log.
    pub lsn: i64,
    /// The mark, a counter in the database.
    pub mark: i64,
    /// Name of the process, for people.
    pub process: String,
    /// Time of the record, by the clock of the process's machine.
    pub written_at: Timestamp,
    /// Boot id of the machine. A restart of the machine loses data that was not synced; the end of a process does not.
    pub boot_id: String,
    /// Whether the process ended in order, without a reservation afterwards.
    pub is_stopped: bool,
    /// Inode of the file, if copies of the file must be recognised.
    pub inode: Option<u64>,
    /// The last reservation of each writer, with its tenant.
    #[serde(default)]
    pub reservations: Vec<(Uuid, Uuid)>,
}

impl Record {
    /// Parses a record. `None` if the text is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text.trim()).ok()
    }

    /// The record as one line.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The query to the database about this record.
    #[must_use]
    pub fn known(&self) -> Known {
        Known {
            witness: Some(self.witness_id),
            epoch: Some(self.epoch_id),
            reservations: self
                .reservations
                .iter()
                .map(|(tenant, id)| (TenantId(*tenant), OutboxId(*id)))
                .collect(),
        }
    }
}

/// The boot id of this machine.
#[must_use]
pub fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Checks that a database has the commits of a record. The error is the reason why it is behind. `observed` is the database's answer
/// about this very record.
pub fn judge(known: &Record, observed: &Observed, boot_id: &str) -> Result<(), String> {
    let Record { process, timeline, lsn, mark, .. } = known;
    let Some(epoch) = &observed.epoch else {
        return Err(format!("{process} has sent from this database, and the database has no record of that"));
    };
    if known.installation_id != epoch.installation_id {
        // The same database in the same cluster had another installation id, so the record is older than the present id.
        return if epoch.cause != "enrolled" && epoch.began_at > known.written_at {
            Ok(())
        } else {
            Err(format!("{process} has sent from this database under another installation id"))
        };
    }
    if !observed.knows_epoch {
        return Err(format!("{process} has recorded an adoption that the database lacks"));
    }
    if known.epoch_id != epoch.id {
        // The record is from before the adoption, which settles it.
        return Ok(());
    }
    if known.inode == Some(0) {
        return Err(format!(
            "the data directory is a copy: the witness of {process} was written to another file than this one"
        ));
    }
    if let (Some(was), Some(is)) = (timeline, observed.timeline) {
        if is < *was {
            return Err(format!("its log is on timeline {is}, but {process} saw timeline {was}"));
        }
        if is == *was && observed.lsn < *lsn {
            return Err(format!(
                "its log ends at {}, but {process} saw it at {}",
                position(observed.lsn),
                position(*lsn)
            ));
        }
    }
    match observed.mark {
        None => return Err(format!("it lacks the marks of {process}")),
        Some(is) if is < *mark => {
            return Err(format!("it has mark {is} of {process}, but {process} wrote mark {mark}"));
        }
        Some(_) => {}
    }
    if !observed.has_reservations {
        return Err(format!("it lacks a reservation that {process} saw committed"));
    }
    if timeline != &observed.timeline && !known.is_stopped && known.boot_id != boot_id {
        return Err(format!(
            "its timeline has changed, and the machine of {process} was restarted: the last second before that is not known"
        ));
    }
    Ok(())
}

/// A log position in the notation of Postgres.
fn position(lsn: i64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xFFFF_FFFF)
}

#[cfg(test)]
mod tests {
    use postrider_store::tenancy::installation::Epoch;

    use super::*;

    const BOOT: &str = "boot";

    fn record() -> Record {
        Record {
            installation_id: Uuid::from_u128(1),
            witness_id: Uuid::from_u128(2),
            epoch_id: Uuid::from_u128(3),
            system_identifier: "7".to_owned(),
            database_oid: 5,
            timeline: Some(1),
            lsn: 0x1_0000_0010,
            mark: 40,
            process: "host:1".to_owned(),
            written_at: Timestamp::from_second(100).unwrap(),
            boot_id: BOOT.to_owned(),
            is_stopped: false,
            inode: None,
            reservations: vec![(Uuid::from_u128(8), Uuid::from_u128(9))],
        }
    }

    fn observed() -> Observed {
        Observed {
            epoch: Some(Epoch {
                installation_id: Uuid::from_u128(1),
                id: Uuid::from_u128(3),
                number: 1,
                cause: "enrolled".to_owned(),
                began_at: Timestamp::from_second(50).unwrap(),
            }),
            refusal: None,
            system_identifier: "7".to_owned(),
            database_oid: 5,
            database_name: "d".to_owned(),
            timeline: Some(1),
            lsn: 0x1_0000_0010,
            mark: Some(40),
            knows_epoch: true,
            has_reservations: true,
            unconfirmed: Vec::new(),
            last_mark_at: None,
            all_stopped: false,
        }
    }

    fn epoch(change: impl Fn(&mut Epoch)) -> Observed {
        let mut observed = observed();
        observed.epoch.iter_mut().for_each(change);
        observed
    }

    #[test]
    fn a_database_that_has_everything_or_more_is_not_behind() {
        let of = |known: &Record, observed: &Observed| judge(known, observed, BOOT);
        assert_eq!(of(&record(), &observed()), Ok(()));
        assert_eq!(of(&record(), &Observed { lsn: i64::MAX, mark: Some(41), ..observed() }), Ok(()));
        // A promoted replica that has everything.
        assert_eq!(of(&record(), &Observed { timeline: Some(2), lsn: 0, ..observed() }), Ok(()));
        // A server that does not report its position.
        assert_eq!(
            of(&Record { timeline: None, ..record() }, &Observed { timeline: None, ..observed() }),
            Ok(())
        );
        // An adoption settles everything before it.
        let adopted =
            Observed { mark: None, lsn: 0, has_reservations: false, ..epoch(|epoch| epoch.id = Uuid::max()) };
        assert_eq!(of(&record(), &adopted), Ok(()));
        let renamed = epoch(|epoch| {
            epoch.installation_id = Uuid::max();
            epoch.cause = "adopted".to_owned();
            epoch.began_at = Timestamp::from_second(101).unwrap();
        });
        assert_eq!(of(&record(), &renamed), Ok(()));
        // A restarted machine loses data that was not synced, which matters only after a failover.
        assert_eq!(judge(&record(), &observed(), "another boot"), Ok(()));
        let stopped = Record { is_stopped: true, ..record() };
        assert_eq!(judge(&stopped, &Observed { timeline: Some(2), ..observed() }, "another boot"), Ok(()));
    }

    #[test]
    fn a_database_that_lacks_anything_that_is_known_is_behind() {
        #[rustfmt::skip]
        let table = [
            (Observed { epoch: None, ..observed() }, "the database has no record of that"),
            (epoch(|epoch| epoch.installation_id = Uuid::max()), "under another installation id"),
            (Observed { knows_epoch: false, ..observed() }, "has recorded an adoption that the database lacks"),
            (Observed { timeline: Some(0), ..observed() }, "its log is on timeline 0, but host:1 saw timeline 1"),
            (Observed { lsn: 0x1_0000_000F, ..observed() }, "its log ends at 1/F, but host:1 saw it at 1/10"),
            (Observed { mark: Some(39), ..observed() }, "it has mark 39 of host:1, but host:1 wrote mark 40"),
            (Observed { mark: None, ..observed() }, "it lacks the marks of host:1"),
            (Observed { has_reservations: false, ..observed() }, "it lacks a reservation that host:1 saw committed"),
            // Positions of different timelines cannot be compared; marks can.
            (Observed { timeline: Some(2), mark: Some(39), lsn: i64::MAX, ..observed() }, "it has mark 39"),
        ];
        for (observed, says) in table {
            let why = judge(&record(), &observed, BOOT).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        let failed_over = Observed { timeline: Some(2), ..observed() };
        assert!(judge(&record(), &failed_over, "another boot").unwrap_err().contains("was restarted"));
        let copied = Record { inode: Some(0), ..record() };
        assert!(judge(&copied, &observed(), BOOT).unwrap_err().contains("the data directory is a copy"));
    }

    #[test]
    fn a_record_is_parsed_back_and_invalid_text_is_none() {
        assert_eq!(Record::parse(&record().to_text()), Some(record()));
        for nonsense in ["", "{", "{}", "[1]", "\0\0"] {
            assert_eq!(Record::parse(nonsense), None);
        }
    }
}

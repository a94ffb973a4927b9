//! What a process knows to be committed, and whether a database has it.

use jiff::Timestamp;
use postrider_model::ids::{OutboxId, TenantId};
use postrider_store::installation::{Known, Observed};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What one process last saw committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Of which installation.
    pub installation_id: Uuid,
    /// Whose mark it is.
    pub witness_id: Uuid,
    /// In which epoch.
    pub epoch_id: Uuid,
    /// In which cluster.
    pub system_identifier: String,
    /// In which of its databases.
    pub database_oid: i64,
    /// On which timeline.
    pub timeline: Option<i32>,
    /// How far the log was on disk.
    pub lsn: i64,
    /// The mark.
    pub mark: i64,
    /// The process, for people.
    pub process: String,
    /// When, by the clock of its machine.
    pub written_at: Timestamp,
    /// Since which start of its machine. What is not yet on disk is lost with the machine, not with the process.
    pub boot_id: String,
    /// Whether the process had ended in order, and reserved nothing afterwards.
    pub is_stopped: bool,
    /// The file it was written to, where copies of the file must tell themselves from it.
    pub inode: Option<u64>,
    /// The last reservations, with their tenants.
    #[serde(default)]
    pub reservations: Vec<(Uuid, Uuid)>,
}

impl Record {
    /// Reads one. What cannot be read is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text.trim()).ok()
    }

    /// As one line.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What to ask the database about.
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

/// The name of this start of the machine.
#[must_use]
pub fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Whether a database has what is known; if not, what is missing. `observed` is what it answered about this very record.
pub fn judge(known: &Record, observed: &Observed, boot_id: &str) -> Result<(), String> {
    let Record { process, timeline, lsn, mark, .. } = known;
    let Some(epoch) = &observed.epoch else {
        return Err(format!("{process} has sent from this database, and the database does not know of it"));
    };
    if known.installation_id != epoch.installation_id {
        // The same database in the same cluster had another name: it is from before that name was given.
        return if epoch.cause != "enrolled" && epoch.began_at > known.written_at {
            Ok(())
        } else {
            Err(format!("{process} has sent from this database before it was recorded as what it is now"))
        };
    }
    if !observed.knows_epoch {
        return Err(format!("{process} knows of an adoption that is not in it"));
    }
    if known.epoch_id != epoch.id {
        // Whatever it knows is from before the adoption.
        return Ok(());
    }
    if known.inode == Some(0) {
        return Err(format!(
            "the data directory is a copy: the witness of {process} was written to another file than this one"
        ));
    }
    if let (Some(was), Some(is)) = (timeline, observed.timeline) {
        if is < *was {
            return Err(format!("its log is on timeline {is}, and {process} has seen timeline {was}"));
        }
        if is == *was && observed.lsn < *lsn {
            return Err(format!(
                "its log ends at {}, and {process} has seen it at {}",
                position(observed.lsn),
                position(*lsn)
            ));
        }
    }
    match observed.mark {
        None => return Err(format!("it lacks the marks of {process}")),
        Some(is) if is < *mark => {
            return Err(format!("it has mark {is} of {process}, which has written mark {mark}"));
        }
        Some(_) => {}
    }
    if !observed.has_reservations {
        return Err(format!("it lacks a reservation that {process} has seen committed"));
    }
    if timeline != &observed.timeline && !known.is_stopped && known.boot_id != boot_id {
        return Err(format!(
            "its timeline has changed, and the machine of {process} was restarted: the last second before that is not known"
        ));
    }
    Ok(())
}

/// As Postgres writes it.
fn position(lsn: i64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xFFFF_FFFF)
}

#[cfg(test)]
mod tests {
    use postrider_store::installation::Epoch;

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
        // A server that does not tell its position.
        assert_eq!(
            of(&Record { timeline: None, ..record() }, &Observed { timeline: None, ..observed() }),
            Ok(())
        );
        // Everything before an adoption is settled by it.
        let adopted =
            Observed { mark: None, lsn: 0, has_reservations: false, ..epoch(|epoch| epoch.id = Uuid::max()) };
        assert_eq!(of(&record(), &adopted), Ok(()));
        let renamed = epoch(|epoch| {
            epoch.installation_id = Uuid::max();
            epoch.cause = "adopted".to_owned();
            epoch.began_at = Timestamp::from_second(101).unwrap();
        });
        assert_eq!(of(&record(), &renamed), Ok(()));
        // A machine that was restarted loses what was not on disk; without a failover nothing follows from that.
        assert_eq!(judge(&record(), &observed(), "another boot"), Ok(()));
        let stopped = Record { is_stopped: true, ..record() };
        assert_eq!(judge(&stopped, &Observed { timeline: Some(2), ..observed() }, "another boot"), Ok(()));
    }

    #[test]
    fn a_database_that_lacks_anything_that_is_known_is_behind() {
        #[rustfmt::skip]
        let table = [
            (Observed { epoch: None, ..observed() }, "the database does not know of it"),
            (epoch(|epoch| epoch.installation_id = Uuid::max()), "before it was recorded as what it is now"),
            (Observed { knows_epoch: false, ..observed() }, "knows of an adoption that is not in it"),
            (Observed { timeline: Some(0), ..observed() }, "its log is on timeline 0, and host:1 has seen timeline 1"),
            (Observed { lsn: 0x1_0000_000F, ..observed() }, "its log ends at 1/F, and host:1 has seen it at 1/10"),
            (Observed { mark: Some(39), ..observed() }, "it has mark 39 of host:1, which has written mark 40"),
            (Observed { mark: None, ..observed() }, "it lacks the marks of host:1"),
            (Observed { has_reservations: false, ..observed() }, "it lacks a reservation that host:1 has seen committed"),
            // Across timelines positions do not compare, and marks do.
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
    fn a_record_reads_as_it_was_written_and_nonsense_is_none() {
        assert_eq!(Record::parse(&record().to_text()), Some(record()));
        for nonsense in ["", "{", "{}", "[1]", "\0\0"] {
            assert_eq!(Record::parse(nonsense), None);
        }
    }
}

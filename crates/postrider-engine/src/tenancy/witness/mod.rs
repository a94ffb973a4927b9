//! Prevents a restored copy of a database from repeating calls of the original.
//! See docs/decisions/0019-a-copy-waits-for-adopt.md.
//!
//! ```text
//! every second, in each process that sends:
//! read the database ──▶ compare with the known records ──▶ increment the mark ──▶ write the witness file ──▶ open the fence
//!                              │ a commit is missing
//!                              └─▶ record that in the database, close the fence: sending waits for `postrider adopt`
//! ```
//!
//! A process knows the commits that it saw: its mark, and the last reservation of each of its writers. It stores them outside the
//! database ([`Place`]), so that they survive a restart: a reservation is written to the file before its call, and
//! synced to disk with the next mark. A database that lacks any of them has lost commits: it is an older copy, or a replica that was
//! promoted while it was behind.
//!
//! After a change of the timeline no process reserves before every process that was running has compared its record, because a
//! process that ended may have made reservations that are missing now.

mod file;
mod record;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use postrider_store::{
    Pool, StoreError,
    postgres::pool,
    tenancy::{
        fence::{Fence, Note},
        installation::{self, Known, Observed},
        witness::WitnessDatabase,
    },
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::file::Slot;
pub use self::record::{Record, boot_id, judge};
use crate::common::{health::Health, round::within};

/// Interval of the comparison.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A comparison that takes longer is reported as failing, long before the fence closes.
const LOOK_WITHIN: Duration = Duration::from_secs(4);
/// Number of comparisons after which a waiting process logs the reason again.
const SAY_EVERY: u32 = 60;
/// Time for which the loops continue, with a closed fence, while other processes have not compared a new timeline.
const OTHERS_LOOK_WITHIN: Duration = Duration::from_secs(10);

/// Where a process stores its witness.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// A directory on this machine.
    pub dir: Option<PathBuf>,
    /// Whether a process that cannot write there must not start.
    pub is_required: bool,
    /// Whether the database is in the same directory tree and is copied with it. Then the inode distinguishes a copied file.
    pub is_beside_the_database: bool,
    /// A second database.
    pub database: Option<WitnessDatabase>,
}

/// Whether the process may make reservations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// No commit is missing.
    Clear,
    /// Sending waits for adopt, for this reason.
    Waits(String),
}

/// The record of another process.
struct Left {
    record: Record,
    /// Whether the record is complete up to the last reservation: the process has ended and wrote it on this machine.
    is_whole: bool,
}

/// Compares the database with the records, for one process.
pub struct Witness {
    pool: Pool,
    place: Place,
    process: String,
    id: Uuid,
    slot: Option<Arc<Slot>>,
    /// Record of this process.
    known: Option<Record>,
    /// Records of the second database at the start.
    elsewhere: Vec<Record>,
    /// The epoch and timeline on which the database had all commits of the other records.
    compared_on: Option<(Uuid, Option<i32>)>,
    fence: Fence,
    standing: watch::Sender<Standing>,
    health: Health,
    looks: u32,
    /// Time since which other processes have not compared the new timeline.
    unconfirmed_since: Option<Instant>,
}

impl Witness {
    /// Opens the witness, records the installation if none is recorded, and compares. `process` is a name for people.
    pub async fn open(pool: Pool, place: Place, process: String) -> Result<Self, StoreError> {
        let mut observed = Self::observe(&pool, &Known::default()).await?;
        let is_unknown = observed.epoch.is_none()
            && place.dir.as_ref().is_none_or(|dir| file::read_all(dir, &observed).is_empty());
        if is_unknown {
            within(installation::enrol(&pool, &process)).await?;
            observed = Self::observe(&pool, &Known::default()).await?;
        }
        let mut elsewhere = Vec::new();
        if let (Some(second), Some(epoch)) = (&place.database, &observed.epoch) {
            let texts = within(second.read(epoch.installation_id)).await?;
            elsewhere.extend(texts.iter().filter_map(|text| Record::parse(text)));
        }
        let slot = match (&place.dir, &observed.epoch) {
            (Some(dir), Some(epoch)) => match Slot::take(dir, epoch.installation_id) {
                Ok(slot) => Some(Arc::new(slot)),
                Err(error) if place.is_required => {
                    return Err(StoreError::Unfit(format!(
                        "the witness cannot be kept in {}: {error}; set witness.dir to a directory that this process may write to",
                        dir.display()
                    )));
                }
                Err(error) => {
                    tracing::warn!(
                        "no witness is kept in {}: {error}; a copy of this database in the same cluster would not be recognised \
                         after a restart; set witness.dir to a directory that this process may write to, or witness.url",
                        dir.display()
                    );
                    None
                }
            },
            _ => None,
        };
        // The previous process of the slot has ended, and this process continues its mark under the same id.
        let own = slot.as_ref().and_then(|slot| slot.left_by());
        let id = own.as_ref().map_or_else(Uuid::now_v7, |record| record.witness_id);
        if own.is_none() && elsewhere.is_empty() {
            tracing::debug!(
                "no witness of an earlier process was found: the database is known by its recorded identity alone"
            );
        }
        let note = slot.clone().map(|slot| -> Note {
            Box::new(move |writer, tenant, reservation| slot.write_reservation(writer, tenant, reservation))
        });
        let mut witness = Self {
            pool,
            place,
            process,
            id,
            slot,
            known: own,
            elsewhere,
            compared_on: None,
            fence: Fence::closed(note),
            standing: watch::Sender::new(Standing::Clear),
            health: Health::new("witness"),
            looks: 0,
            unconfirmed_since: None,
        };
        let mut standing = witness.look().await?;
        // The other processes may compare within the next interval.
        while standing == Standing::Clear && witness.unconfirmed_since.is_some() {
            tokio::time::sleep(LOOK_EVERY).await;
            standing = witness.look().await?;
        }
        witness.publish(standing);
        Ok(witness)
    }

    /// The fence that reservations of this process need.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Whether the process may send, now and later.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Whether the process compares the database and writes its mark. Without that it may reserve nothing.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Compares until shutdown, and then records that this process makes no further reservations.
    pub async fn run(mut self, ended: CancellationToken) {
        while ended.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            match self.look_and_report().await {
                Ok(standing) => {
                    self.health.passed();
                    self.publish(standing);
                }
                // The fence closes automatically when comparisons keep failing.
                Err(error) => {
                    self.health.failed(&error);
                    tracing::warn!(?error, "failed to compare the database with the witness: {error}");
                }
            }
        }
        self.fence.close();
        if let Err(error) = self.stop().await {
            tracing::warn!(?error, "failed to write the last mark: {error}");
        }
    }

    /// Compares once, and reports a comparison that does not end. It is not interrupted, because its mark may be committed.
    async fn look_and_report(&mut self) -> Result<Standing, StoreError> {
        let health = self.health.clone();
        let mut looking = std::pin::pin!(self.look());
        if let Ok(looked) = tokio::time::timeout(LOOK_WITHIN, &mut looking).await {
            return looked;
        }
        health.failed(&format_args!("the database has not answered for {} s", LOOK_WITHIN.as_secs()));
        looking.await
    }

    fn publish(&mut self, standing: Standing) {
        let has_changed = *self.standing.borrow() != standing;
        match &standing {
            Standing::Waits(why) => {
                if has_changed || self.looks.is_multiple_of(SAY_EVERY) || self.looks == 1 {
                    tracing::error!("restored copy: sending waits for adopt: {why}; run `postrider adopt`");
                }
            }
            Standing::Clear if has_changed => {
                tracing::info!("the database has all known commits; sending continues");
            }
            Standing::Clear => {}
        }
        metrics::gauge!("postrider_sending_waits").set(f64::from(u8::from(standing != Standing::Clear)));
        self.standing.send_if_modified(|known| {
            *known = standing;
            has_changed
        });
    }

    async fn observe(pool: &Pool, known: &Known) -> Result<Observed, StoreError> {
        within(async {
            let mut transaction = pool::begin(pool).await?;
            let observed = installation::observe(&mut transaction, known).await?;
            pool::commit(transaction).await?;
            Ok(observed)
        })
        .await
    }

    /// Compares once. An error changes nothing.
    async fn look(&mut self) -> Result<Standing, StoreError> {
        self.looks = self.looks.wrapping_add(1);
        // Read before the database, so that every reservation in it was committed before.
        let mut known = self.known.as_ref().map(Record::known).unwrap_or_default();
        known.witness = Some(self.id);
        let noted = self.fence.last_reservations();
        if !noted.is_empty() {
            known.reservations = noted;
        }
        let mut observed = Self::observe(&self.pool, &known).await?;
        match self.compare(&observed).await? {
            Ok(epoch) => {
                if !observed.unconfirmed.is_empty() {
                    // `compare` has just confirmed the processes whose witness is on this machine.
                    observed.unconfirmed = Self::observe(&self.pool, &known).await?.unconfirmed;
                }
                let has_confirmed = self
                    .known
                    .as_ref()
                    .is_some_and(|known| (known.epoch_id, known.timeline) == (epoch, observed.timeline));
                if observed.unconfirmed.is_empty() || !has_confirmed {
                    self.mark(&observed, epoch, false).await?;
                }
                if observed.unconfirmed.is_empty() {
                    self.unconfirmed_since = None;
                    self.fence.open(epoch, observed.timeline);
                    return Ok(Standing::Clear);
                }
                self.fence.close();
                let since = *self.unconfirmed_since.get_or_insert_with(Instant::now);
                if since.elapsed() < OTHERS_LOOK_WITHIN && *self.standing.borrow() == Standing::Clear {
                    return Ok(Standing::Clear);
                }
                Ok(Standing::Waits(installation::unconfirmed(&observed.unconfirmed)))
            }
            Err(why) => {
                self.fence.close();
                Ok(Standing::Waits(why))
            }
        }
    }

    /// The records of other processes: ended processes of this machine, and all records of the second database.
    fn left(&self, observed: &Observed) -> Vec<Left> {
        let here = self.place.dir.as_deref().map(|dir| file::read_all(dir, observed)).unwrap_or_default();
        let here = here.into_iter().map(|(record, is_whole)| Left { record, is_whole });
        let elsewhere = self.elsewhere.iter().map(|record| Left { record: record.clone(), is_whole: false });
        here.chain(elsewhere).filter(|left| left.record.witness_id != self.id).collect()
    }

    /// Compares with all known records. Returns the epoch, or the reason why the database is behind.
    async fn compare(&mut self, observed: &Observed) -> Result<Result<Uuid, String>, StoreError> {
        let boot = boot_id();
        let Some(epoch) = observed.epoch.as_ref().map(|epoch| epoch.id) else {
            let why = self.left(observed).iter().find_map(|left| judge(&left.record, observed, &boot).err());
            return Ok(Err(why.unwrap_or_else(|| "the record of the installation is gone".to_owned())));
        };
        if let Some(why) = &observed.refusal {
            return Ok(Err(why.clone()));
        }
        let mut missing = self.known.as_ref().and_then(|known| judge(known, observed, &boot).err());
        let here = Some((epoch, observed.timeline));
        if missing.is_none() && self.compared_on != here {
            for left in self.left(observed) {
                let of_left = Self::observe(&self.pool, &left.record.known()).await?;
                missing = judge(&left.record, &of_left, &boot).err();
                if missing.is_some() {
                    break;
                }
                if let (true, Some(timeline)) = (left.is_whole, of_left.timeline) {
                    within(installation::confirm(&self.pool, left.record.witness_id, timeline)).await?;
                }
            }
            if missing.is_none() {
                self.compared_on = here;
            }
        }
        match missing {
            None => Ok(Ok(epoch)),
            Some(why) => {
                within(installation::suspect(&self.pool, epoch, &why)).await?;
                Ok(Err(why))
            }
        }
    }

    /// Increments the mark in the database, and writes the witness after the commit.
    async fn mark(&mut self, observed: &Observed, epoch: Uuid, is_stopped: bool) -> Result<(), StoreError> {
        let Some(installation_id) = observed.epoch.as_ref().map(|epoch| epoch.installation_id) else {
            return Ok(());
        };
        let begins = self.known.as_ref().is_none_or(|known| known.epoch_id != epoch);
        if begins {
            self.fence.forget();
        }
        let marking =
            installation::mark(&self.pool, self.id, epoch, &self.process, observed.timeline, is_stopped);
        let marked = within(marking).await?;
        let record = Record {
            installation_id,
            witness_id: self.id,
            epoch_id: epoch,
            system_identifier: observed.system_identifier.clone(),
            database_oid: observed.database_oid,
            timeline: observed.timeline,
            lsn: marked.lsn,
            mark: marked.mark,
            process: self.process.clone(),
            written_at: Timestamp::now(),
            boot_id: boot_id(),
            is_stopped,
            inode: None,
            reservations: self
                .fence
                .last_reservations()
                .iter()
                .map(|(tenant, id)| (tenant.0, id.0))
                .collect(),
        };
        if let Some(slot) = self.slot.clone() {
            let (kept, is_beside) = (record.clone(), self.place.is_beside_the_database);
            let written = tokio::task::spawn_blocking(move || slot.write(kept, is_beside, begins)).await;
            if let Ok(Err(error)) = written {
                tracing::warn!("failed to write the witness: {error}");
            }
        }
        if let Some(second) = &self.place.database
            && let Err(error) = within(second.write(self.id, installation_id, &record.to_text())).await
        {
            tracing::warn!(?error, "failed to write the mark to the second database: {error}");
        }
        self.known = Some(record);
        Ok(())
    }

    /// Records that this process makes no further reservations.
    async fn stop(&mut self) -> Result<(), StoreError> {
        let Some(known) = self.known.clone() else { return Ok(()) };
        let observed = Self::observe(&self.pool, &known.known()).await?;
        let is_same = observed.epoch.as_ref().is_some_and(|epoch| epoch.id == known.epoch_id)
            && observed.timeline == known.timeline
            && observed.refusal.is_none();
        if is_same && judge(&known, &observed, &boot_id()).is_ok() {
            self.mark(&observed, known.epoch_id, true).await?;
        }
        Ok(())
    }
}

/// The reason why a database is behind a directory and a second database, if it is. For commands, which write no witness.
pub async fn missing(pool: &Pool, place: &Place) -> Result<Option<String>, StoreError> {
    let observed = Witness::observe(pool, &Known::default()).await?;
    let mut records = Vec::new();
    if let Some(dir) = &place.dir {
        let all = file::read_all(dir, &observed);
        records.extend(all.into_iter().map(|(record, _)| record));
        if let Some(epoch) = &observed.epoch {
            records.extend(file::read_live(dir, epoch.installation_id));
        }
    }
    if let (Some(second), Some(epoch)) = (&place.database, &observed.epoch) {
        let texts = within(second.read(epoch.installation_id)).await?;
        records.extend(texts.iter().filter_map(|text| Record::parse(text)));
    }
    for record in records {
        let observed = Witness::observe(pool, &record.known()).await?;
        if let Err(why) = judge(&record, &observed, &boot_id()) {
            return Ok(Some(why));
        }
    }
    Ok(None)
}

//! Keeps a database that was restored from sending again what the original has sent.
//!
//! ```text
//! every second, in each process that sends:
//! look at the database ──▶ compare with what this process knows ──▶ count the mark up ──▶ keep it outside ──▶ open the fence
//!                              │ something is missing
//!                              └─▶ note it in the database, close the fence: sending waits for `postrider adopt`
//! ```
//!
//! A process knows what it saw committed: its mark, and the last reservation of each of its writers. It keeps them outside the
//! database ([`Place`]), so that it knows them after a restart, too: reservations are written to the file before they are called, and
//! brought to disk with the next mark. A database that lacks any of them has lost commits: it is an older copy, or a replica that was
//! promoted while it was behind.
//!
//! After a change of the timeline every process that was at work must have looked before any of them reserves: one that is gone may
//! have reserved what is missing now.

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
    fence::{Fence, Note},
    installation::{self, Known, Observed},
    pool,
    witness::WitnessDatabase,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::file::Slot;
pub use self::record::{Record, boot_id, judge};
use crate::common::round::within;

/// How often a process looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a process that waits says so again.
const SAY_EVERY: u32 = 60;
/// So long the loops wait, without being stopped, for others to look at a new timeline. The fence is closed meanwhile.
const OTHERS_LOOK_WITHIN: Duration = Duration::from_secs(10);

/// Where a process keeps what it knows.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// A directory on this machine.
    pub dir: Option<PathBuf>,
    /// Whether a process that cannot write there must not start.
    pub is_required: bool,
    /// Whether the database lies beside the directory and is copied with it. A copied file tells itself from the one that was written.
    pub is_beside_the_database: bool,
    /// A second database.
    pub database: Option<WitnessDatabase>,
}

/// Whether the process may send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is missing.
    Clear,
    /// Sending waits for adopt, for this reason.
    Waits(String),
}

/// What was kept by another process.
struct Left {
    record: Record,
    /// Whether the process has ended and kept it on this machine, up to its last reservation: then nothing is known about it that is not
    /// here.
    is_whole: bool,
}

/// Compares, for one process.
pub struct Witness {
    pool: Pool,
    place: Place,
    process: String,
    id: Uuid,
    slot: Option<Arc<Slot>>,
    /// What this process knows.
    known: Option<Record>,
    /// What the second database knew at the start.
    elsewhere: Vec<Record>,
    /// The epoch and timeline on which everything that others have kept was there.
    compared_on: Option<(Uuid, Option<i32>)>,
    fence: Fence,
    standing: watch::Sender<Standing>,
    looks: u32,
    /// Since when others have not looked at the new timeline.
    unconfirmed_since: Option<Instant>,
}

impl Witness {
    /// Opens what is kept, records the installation if none is recorded, and looks. `process` names this process to people.
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
        // The slot's last user has ended, and its mark goes on under the same name.
        let own = slot.as_ref().and_then(|slot| slot.left_by());
        let id = own.as_ref().map_or_else(Uuid::now_v7, |record| record.witness_id);
        if own.is_none() && elsewhere.is_empty() {
            tracing::debug!(
                "no witness of an earlier process was found: the database is known by its recorded identity alone"
            );
        }
        let note = slot
            .clone()
            .map(|slot| -> Note { Box::new(move |writer, tenant, id| slot.note(writer, tenant, id)) });
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
            looks: 0,
            unconfirmed_since: None,
        };
        let mut standing = witness.look().await?;
        // The others may be about to look, too.
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

    /// Looks until the end, and says at the end that this process reserves nothing any more.
    pub async fn run(mut self, ended: CancellationToken) {
        while ended.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            match self.look().await {
                Ok(standing) => self.publish(standing),
                // The fence closes by itself when this goes on.
                Err(error) => {
                    tracing::warn!(?error, "the database was not compared with what is known: {error}");
                }
            }
        }
        self.fence.close();
        if let Err(error) = self.stop().await {
            tracing::warn!(?error, "the last mark was not written: {error}");
        }
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
                tracing::info!("nothing is missing in the database: sending goes on");
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

    /// Looks once. An error leaves everything as it was.
    async fn look(&mut self) -> Result<Standing, StoreError> {
        self.looks = self.looks.wrapping_add(1);
        // Asked for before the database is: what is in it was committed before.
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
                    // For those that left their witness here, it has just been confirmed.
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

    /// What others have kept: processes of this machine that have ended, and all that the second database knew.
    fn left(&self, observed: &Observed) -> Vec<Left> {
        let here = self.place.dir.as_deref().map(|dir| file::read_all(dir, observed)).unwrap_or_default();
        let here = here.into_iter().map(|(record, is_whole)| Left { record, is_whole });
        let elsewhere = self.elsewhere.iter().map(|record| Left { record: record.clone(), is_whole: false });
        here.chain(elsewhere).filter(|left| left.record.witness_id != self.id).collect()
    }

    /// Compares with everything that is known. Answers with the epoch, or with what is missing.
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

    /// Writes the mark, and keeps it once it is committed.
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
                tracing::warn!("the witness was not written: {error}");
            }
        }
        if let Some(second) = &self.place.database
            && let Err(error) = within(second.write(self.id, installation_id, &record.to_text())).await
        {
            tracing::warn!(?error, "the second database does not have the newest mark: {error}");
        }
        self.known = Some(record);
        Ok(())
    }

    /// This process reserves nothing any more.
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

/// What a directory and a second database know that a database lacks. For commands, which keep nothing themselves.
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

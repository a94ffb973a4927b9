//! Records the completions of claimed events.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    Pool, StoreError,
    events::{self, Completion, Recorded},
    postgres::pool,
};
use tokio::sync::OwnedSemaphorePermit;

use super::registration::Registration;
use crate::common::recorder::{Failure, Ledger};

/// A completion, and the slot that its event occupies until the completion is recorded.
pub(super) struct Completed {
    pub(super) completion: Completion,
    pub(super) slot: OwnedSemaphorePermit,
}

/// Completions under the claims of this processor.
pub(super) struct Completer {
    pool: Pool,
    processor: Arc<str>,
    registration: Arc<Registration>,
}

impl Completer {
    pub(super) fn new(pool: Pool, processor: Arc<str>, registration: Arc<Registration>) -> Self {
        Self { pool, processor, registration }
    }
}

impl Ledger for Completer {
    type Entry = Completed;
    type Receipt = Recorded;

    const BATCH_MAX: usize = 1000;
    const NAME: &'static str = "completions of events";
    // A claim is stale after five minutes, and another relay delivers the event again.
    const GIVE_UP_AFTER: Option<Duration> = Some(Duration::from_secs(300));

    async fn write(&mut self, entries: &mut Vec<Completed>) -> Result<Recorded, StoreError> {
        let completions: Vec<&Completion> = entries.iter().map(|entry| &entry.completion).collect();
        let mut transaction = pool::begin(&self.pool).await?;
        let generation = self.registration.generation();
        let recorded = events::complete(&mut transaction, generation, &self.processor, &completions).await?;
        pool::commit(transaction).await?;
        Ok(recorded)
    }

    fn recorded(&mut self, entries: Vec<Completed>, recorded: Recorded) {
        match recorded {
            Recorded::Completed => {
                let done = entries.iter().filter(|entry| entry.completion.error.is_none()).count();
                metrics::counter!("postrider_events_completed_total").increment(done as u64);
            }
            Recorded::Released => tracing::warn!(
                count = entries.len(),
                "the relay released events because other sinks were registered during their delivery"
            ),
        }
        entries.into_iter().for_each(|entry| drop(entry.slot));
    }

    async fn refused(&mut self, _entry: Completed, error: StoreError) -> Option<Completed> {
        tracing::warn!(%error, "the claim of a delivered event was lost; the event may be delivered again");
        None
    }

    fn classify(error: &StoreError, _tries: u32) -> Failure {
        match error {
            StoreError::ClaimNotHeld { .. } | StoreError::Refused { .. } => Failure::Refused,
            _ => Failure::Passing,
        }
    }
}

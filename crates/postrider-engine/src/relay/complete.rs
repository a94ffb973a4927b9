//! Records what became of claimed events: whatever has gathered while the last statement ran goes into the next one.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    Pool, StoreError,
    events::{self, Completion, Recorded},
    pool,
};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::joined::Joined;

const BATCH_MAX: usize = 1000;
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// After this long a claim is stale anyway and the event will be delivered again by whoever takes it.
const GIVE_UP_AFTER: Duration = Duration::from_secs(300);

pub(super) struct Completer {
    pool: Pool,
    processor: Arc<str>,
    joined: Arc<Joined>,
}

impl Completer {
    pub(super) fn new(pool: Pool, processor: Arc<str>, joined: Arc<Joined>) -> Self {
        Self { pool, processor, joined }
    }

    /// Works until the last delivery has handed in its completion.
    pub(super) async fn run(self, mut receiver: mpsc::Receiver<(Completion, OwnedSemaphorePermit)>) {
        let mut gathered = Vec::with_capacity(BATCH_MAX);
        while receiver.recv_many(&mut gathered, BATCH_MAX).await > 0 {
            let (completions, slots): (Vec<Completion>, Vec<OwnedSemaphorePermit>) =
                gathered.drain(..).unzip();
            self.record_for_sure(&completions).await;
            drop(slots);
        }
    }

    /// An outcome is never dropped because the database is away for a moment.
    async fn record_for_sure(&self, completions: &[Completion]) {
        let started = tokio::time::Instant::now();
        let mut pause = PAUSE;
        loop {
            match self.record(completions).await {
                Ok(Recorded::Completed) => {
                    let done = completions.iter().filter(|completion| completion.error.is_none()).count();
                    metrics::counter!("postrider_events_completed_total").increment(done as u64);
                    return;
                }
                Ok(Recorded::Released) => {
                    tracing::warn!(
                        count = completions.len(),
                        "the relay released events: other sinks were registered while it delivered them"
                    );
                    return;
                }
                Err(StoreError::ClaimNotHeld { .. } | StoreError::Refused { .. })
                    if completions.len() > 1 =>
                {
                    // One of them spoils the statement for all: find it by telling them one by one.
                    for completion in completions {
                        Box::pin(self.record_for_sure(std::slice::from_ref(completion))).await;
                    }
                    return;
                }
                Err(error @ (StoreError::ClaimNotHeld { .. } | StoreError::Refused { .. })) => {
                    tracing::warn!(%error, "an event was delivered under a claim that is gone; it may be delivered again");
                    return;
                }
                Err(error) if started.elapsed() > GIVE_UP_AFTER => {
                    tracing::error!(
                        ?error,
                        count = completions.len(),
                        "completions could not be recorded; the events will be delivered again"
                    );
                    return;
                }
                Err(error) => {
                    tracing::warn!(
                        ?error,
                        count = completions.len(),
                        "completions are not recorded yet: {error}; trying again"
                    );
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    async fn record(&self, completions: &[Completion]) -> Result<Recorded, StoreError> {
        let mut transaction = pool::begin(&self.pool).await?;
        let generation = self.joined.generation();
        let recorded = events::complete(&mut transaction, generation, &self.processor, completions).await?;
        pool::commit(transaction).await?;
        Ok(recorded)
    }
}

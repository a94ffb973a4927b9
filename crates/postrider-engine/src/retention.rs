//! Removes old processed events in small steps, so that claims never wait for it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use postrider_store::{Pool, StoreError, events, pool};
use tokio_util::sync::CancellationToken;

/// How long processed events are kept.
#[derive(Debug, Clone)]
pub struct Retention {
    /// Since they were processed.
    pub keep: Duration,
    /// How often to look for older ones.
    pub every: Duration,
}

/// Rows looked at in one transaction.
const WINDOW: i32 = 1000;
/// Room for others between two of them.
const BREATH: Duration = Duration::from_millis(20);

impl Retention {
    /// Removes what is too old, now and then, until shutdown.
    pub async fn run(self, pool: Pool, shutdown: CancellationToken) {
        loop {
            match self.sweep(&pool, &shutdown).await {
                Ok(0) => {}
                Ok(removed) => {
                    tracing::info!(removed, "removed {removed} processed events past their retention");
                }
                Err(error) => tracing::warn!(?error, "old events stay until the next round: {error}"),
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(self.every) => {}
            }
        }
    }

    /// One pass over everything that may be too old. Returns how many events were removed.
    pub async fn sweep(&self, pool: &Pool, shutdown: &CancellationToken) -> Result<i64, StoreError> {
        let keep = SignedDuration::try_from(self.keep).unwrap_or(SignedDuration::MAX);
        let before = Timestamp::now().checked_sub(keep).unwrap_or(Timestamp::MIN);
        let (mut after_id, mut removed) = (0, 0);
        loop {
            let mut transaction = pool::begin(pool).await?;
            let step = events::prune(&mut transaction, before, after_id, WINDOW).await?;
            pool::commit(transaction).await?;
            removed += step.removed;
            after_id = step.last_id;
            if step.done || shutdown.is_cancelled() {
                return Ok(removed);
            }
            tokio::time::sleep(BREATH).await;
        }
    }
}

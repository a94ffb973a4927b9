//! Records the results of deliveries, replies, job runs and items.
//!
//! ```text
//! results ──▶ batch ──▶ write ──▶ recorded
//!                         ├─ the database is unavailable: write the same batch again, with backoff
//!                         └─ the database refuses the batch: write each entry alone, so that one entry does not delay the others
//! ```
//!
//! The results that arrive while one statement runs are the next batch. So batches are large for a fast provider and small for a slow
//! one, and no result waits for a timer. A result is never dropped because the database is unavailable. The number of waiting results is
//! bounded by the concurrency of the loop, because a task occupies its slot until its result is recorded.

use std::time::{Duration, Instant};

use postrider_store::StoreError;
use tokio::sync::mpsc;

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// The kind of a failed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The database refused the batch, and would refuse it again.
    Refused,
    /// The batch may succeed later.
    Passing,
    /// The batch failed repeatedly although the database is available; smaller batches may succeed.
    TooLarge,
}

/// A kind of results, and the statements that record them.
pub(crate) trait Ledger: Send {
    /// A result.
    type Entry: Send;
    /// The database's response to a batch.
    type Receipt: Send;

    /// Maximum entries per batch.
    const BATCH_MAX: usize;
    /// The name of the entries in log lines.
    const NAME: &'static str;
    /// Entries are dropped after this time, because their claims have expired. `None`: never.
    const GIVE_UP_AFTER: Option<Duration> = None;

    /// Writes all entries in one transaction. May remove entries that need no write.
    fn write(
        &mut self,
        entries: &mut Vec<Self::Entry>,
    ) -> impl Future<Output = Result<Self::Receipt, StoreError>> + Send;

    /// Reports entries that were written.
    fn recorded(&mut self, entries: Vec<Self::Entry>, receipt: Self::Receipt);

    /// Handles an entry that the database refuses even alone. Returns an entry to write instead, if there is one.
    fn refused(
        &mut self,
        entry: Self::Entry,
        error: StoreError,
    ) -> impl Future<Output = Option<Self::Entry>> + Send;

    /// Classifies a failed write. `_tries` counts the writes of the batch so far.
    fn classify(error: &StoreError, _tries: u32) -> Failure {
        match error {
            StoreError::Refused { .. } => Failure::Refused,
            _ => Failure::Passing,
        }
    }

    /// Reports a failed write that will be retried.
    fn retrying(&self, entries: usize, error: &StoreError) {
        tracing::warn!(?error, entries, "{entries} {} are not recorded yet: {error}; retrying", Self::NAME);
    }
}

/// Records the results that arrive, until the last sender is dropped.
pub(crate) async fn record_all<L: Ledger>(mut ledger: L, mut results: mpsc::Receiver<L::Entry>) {
    let mut next = Vec::with_capacity(L::BATCH_MAX);
    while results.recv_many(&mut next, L::BATCH_MAX).await > 0 {
        let batch = std::mem::replace(&mut next, Vec::with_capacity(L::BATCH_MAX));
        record(&mut ledger, batch).await;
    }
}

/// Records a batch. Returns when every entry is recorded, refused or dropped.
pub(crate) async fn record<L: Ledger>(ledger: &mut L, mut batch: Vec<L::Entry>) {
    let began = Instant::now();
    let (mut tries, mut backoff) = (0, BACKOFF_MIN);
    while !batch.is_empty() {
        tries += 1;
        let error = match ledger.write(&mut batch).await {
            Ok(receipt) => return ledger.recorded(batch, receipt),
            Err(error) => error,
        };
        match L::classify(&error, tries) {
            Failure::Refused | Failure::TooLarge if batch.len() > 1 => {
                tracing::warn!(
                    ?error,
                    entries = batch.len(),
                    "a batch of {} failed and is recorded entry by entry: {error}",
                    L::NAME
                );
                for entry in batch {
                    Box::pin(record(ledger, vec![entry])).await;
                }
                return;
            }
            Failure::Refused => {
                // The batch has exactly one entry.
                if let Some(entry) = batch.pop()
                    && let Some(instead) = ledger.refused(entry, error).await
                {
                    Box::pin(record(ledger, vec![instead])).await;
                }
                return;
            }
            Failure::Passing | Failure::TooLarge => {
                if L::GIVE_UP_AFTER.is_some_and(|limit| began.elapsed() > limit) {
                    tracing::error!(
                        ?error,
                        entries = batch.len(),
                        "failed to record {} before their claims expired: {error}",
                        L::NAME
                    );
                    return;
                }
                ledger.retrying(batch.len(), &error);
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A ledger of numbers. The first writes fail with `failures`; after that, writes with negative numbers are refused.
    #[derive(Default)]
    struct Numbers {
        failures: VecDeque<Failure>,
        writes: Vec<Vec<i32>>,
        recorded: Vec<i32>,
        refused: Vec<i32>,
        instead: Option<i32>,
    }

    fn refusal() -> StoreError {
        StoreError::Refused { message: "no".to_owned(), hint: None }
    }

    impl Ledger for Numbers {
        type Entry = i32;
        type Receipt = ();
        const BATCH_MAX: usize = 3;
        const NAME: &'static str = "numbers";

        async fn write(&mut self, entries: &mut Vec<i32>) -> Result<(), StoreError> {
            self.writes.push(entries.clone());
            match self.failures.pop_front() {
                Some(Failure::Refused) => Err(refusal()),
                Some(Failure::TooLarge) => Err(StoreError::Unfit("too large".to_owned())),
                Some(Failure::Passing) => Err(StoreError::Conflict { message: "unavailable".to_owned() }),
                None if entries.iter().any(|entry| *entry < 0) => Err(refusal()),
                None => Ok(()),
            }
        }

        fn recorded(&mut self, entries: Vec<i32>, (): ()) {
            self.recorded.extend(entries);
        }

        async fn refused(&mut self, entry: i32, _error: StoreError) -> Option<i32> {
            self.refused.push(entry);
            self.instead.take()
        }

        fn classify(error: &StoreError, _tries: u32) -> Failure {
            match error {
                StoreError::Refused { .. } => Failure::Refused,
                StoreError::Unfit(_) => Failure::TooLarge,
                _ => Failure::Passing,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_retried_until_every_entry_is_recorded_or_refused() {
        use Failure::{Passing, Refused, TooLarge};
        #[rustfmt::skip]
        let table = [
            // entries     failures                     recorded        refused  writes
            (vec![1, 2],   vec![],                      vec![1, 2],     vec![],  1),
            (vec![1, 2],   vec![Passing, Passing],      vec![1, 2],     vec![],  3),
            // A refused entry does not delay the others.
            (vec![1, -2, 3], vec![],                    vec![1, 3],     vec![-2], 4),
            (vec![1, 2],   vec![TooLarge],              vec![1, 2],     vec![],  3),
            // A single entry cannot be divided further.
            (vec![1],      vec![TooLarge, TooLarge],    vec![1],        vec![],  3),
            (vec![1],      vec![Refused],               vec![],         vec![1], 1),
        ];
        for (entries, failures, recorded, refused, writes) in table {
            let mut numbers = Numbers { failures: failures.clone().into(), ..Numbers::default() };
            record(&mut numbers, entries.clone()).await;
            let row = format!("{entries:?} {failures:?}");
            assert_eq!(
                (numbers.recorded, numbers.refused, numbers.writes.len()),
                (recorded, refused, writes),
                "{row}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_can_be_recorded_instead_of_a_refused_one() {
        let mut numbers = Numbers { instead: Some(7), ..Numbers::default() };
        record(&mut numbers, vec![-1]).await;
        assert_eq!((numbers.refused, numbers.recorded), (vec![-1], vec![7]));
    }

    #[tokio::test(start_paused = true)]
    async fn results_that_arrive_during_a_write_are_the_next_batch() {
        let (results, receiver) = mpsc::channel(10);
        for number in 1..=7 {
            results.send(number).await.unwrap();
        }
        drop(results);
        let mut numbers = Numbers::default();
        record_all(ByReference(&mut numbers), receiver).await;
        assert_eq!(numbers.writes, [vec![1, 2, 3], vec![4, 5, 6], vec![7]]);
    }

    struct ByReference<'a>(&'a mut Numbers);

    impl Ledger for ByReference<'_> {
        type Entry = i32;
        type Receipt = ();
        const BATCH_MAX: usize = Numbers::BATCH_MAX;
        const NAME: &'static str = Numbers::NAME;

        async fn write(&mut self, entries: &mut Vec<i32>) -> Result<(), StoreError> {
            self.0.write(entries).await
        }

        fn recorded(&mut self, entries: Vec<i32>, receipt: ()) {
            self.0.recorded(entries, receipt);
        }

        async fn refused(&mut self, entry: i32, error: StoreError) -> Option<i32> {
            self.0.refused(entry, error).await
        }
    }
}

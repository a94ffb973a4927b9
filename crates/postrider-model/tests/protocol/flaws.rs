//! Variants of the protocol: flaws that the checker must find, and safe variants that it must accept.

/// A flaw. Each one has occurred in a comparable system, or is easy to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Rows that a statement returned count as reserved although no COMMIT was seen. A pooled connection inside another
    /// client's open transaction has the same effect: the rows that it acknowledges are rolled back later.
    ReservedBeforeCommit,
    /// The outbox takes a second row for a key. The model keeps the newer one, which its worker acts on.
    NoUniqueKey,
    /// The worker calls first and makes the row afterwards, with the outcome.
    ReservedAfterCall,
    /// No answer within the timeout counts as a refusal.
    TimeoutMeansRejected,
    /// No answer within the timeout counts as "nothing was sent", which permits another call.
    TimeoutMeansNotSent,
    /// A worker that takes over a stale lock calls the items that the last worker had reserved.
    StaleReservationsTakenOver,
    /// An outcome is written to its row even if the row is terminal or reserved under another claim.
    NoFencing,
    /// "Not found" counts while a request may still be in flight.
    NotFoundBeforeQuiet,
    /// "Not found" is recorded after the quiet time, as it should be, but the lookup was before its end.
    NotFoundAskedBeforeQuiet,
    /// A worker begins calls with a reservation of any age.
    OldReservationCalled,
    /// A job without attempts left is dead, and its items that were never reserved get no row.
    DeadJobLeavesNoRows,
    /// A job whose last worker left a stale lock is dead, even if all its rows are terminal.
    DeadWithoutLooking,
    /// A claim, a reservation or the end of the job leaves `queued` rows unchanged, as it should, but does not mark them in
    /// doubt.
    QueuedRowsNotMarked,
    /// Heartbeats renew every lock in the worker's name, also of jobs that the worker does not know it claimed.
    HeartbeatsByName,
}

/// A change of the protocol that keeps it safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SafeVariant {
    /// Every lock is stale at once, and writes do not check it. Only the unique key is left.
    NoLocks,
    /// A worker whose COMMIT was not acknowledged asks again, finds its own row, and takes that for the acknowledgement.
    OwnRowAdopted,
}

//! Departures from the protocol: mistakes that the checker must find, and liberties that it must let pass.

/// One mistake. Each is a way in which a comparable system has failed, or one that is easy to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Rows that a statement returned count as reserved although no COMMIT was seen. A pooled connection with somebody
    /// else's open transaction has the same effect: what it acknowledges is rolled back later.
    ReservedBeforeCommit,
    /// The outbox takes a second row for a key. The model keeps the newer one, which its worker acts on.
    NoUniqueKey,
    /// The worker calls first and makes the row afterwards, with the outcome.
    ReservedAfterCall,
    /// No answer within the timeout counts as a refusal.
    TimeoutMeansRejected,
    /// No answer within the timeout counts as "nothing left", which may be tried again.
    TimeoutMeansNotSent,
    /// Whoever takes over a stale lock calls what the last worker had reserved.
    StaleReservationsTakenOver,
    /// An outcome is written to its row whatever the row says by then and whoever reserved it.
    NoFencing,
    /// "Never heard of it" counts while a request may still be under way.
    NotFoundBeforeQuiet,
    /// "Never heard of it" is written down after the quiet time, as it should be, but was asked for before its end.
    NotFoundAskedBeforeQuiet,
    /// A worker begins calls with a reservation however old it is.
    OldReservationCalled,
    /// A job without attempts left is dead, and its items that were never reserved get no row.
    DeadJobLeavesNoRows,
    /// A job whose last worker left a stale lock is dead, whatever its rows say.
    DeadWithoutLooking,
    /// A `queued` row that a claim, a reservation or the end of the job meets is left alone, as it should be, and not
    /// marked in doubt.
    LeftoversNotMarked,
    /// Heartbeats renew every lock in the worker's name, also of jobs it does not know it has.
    HeartbeatsByName,
}

/// Something the protocol does without, or could do as well, and stays safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liberty {
    /// Every lock is stale at once, and nobody asks who holds it. Only the unique key is left.
    NoLocks,
    /// A worker whose COMMIT was not acknowledged asks again, finds its own row, and takes that for the acknowledgement.
    OwnRowAdopted,
}

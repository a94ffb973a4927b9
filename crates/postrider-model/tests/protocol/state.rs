//! The state between two steps: the database, the workers, and the messages between them.

/// The whole state. The first three fields are durable; a crash affects only `workers` and the messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The one job. Its items are numbered from 0, and an item's number stands for its idempotency key.
    pub job: Job,
    /// The outbox: the row of each item's key, if it exists.
    pub rows: Vec<Option<Row>>,
    /// How often the provider acted for each key. It does not recognise repeats: two acts are two messages.
    pub acts: Vec<u8>,
    /// The worker processes.
    pub workers: Vec<Worker>,
    /// Reservations on their way to the database, or whose acknowledgement is on its way back.
    pub commits: Vec<Commit>,
    /// Requests on their way to the provider, and its answers on their way back.
    pub network: Vec<Message>,
    /// Whether a lookup found nothing for an item and the resolver has not recorded that yet.
    pub unknown_to_provider: Vec<bool>,
    /// The faults that may still happen. They are bounded so that every sequence of steps ends.
    pub faults: FaultBudget,
    /// Whether a terminal row has ever changed. No step reads it.
    pub terminal_row_changed: bool,
}

/// A row of `job_queue`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Job {
    pub status: JobStatus,
    /// The claim that holds the lock, or held it last.
    pub lease: Option<Lease>,
    /// Counted at the claim, so that a job that kills its workers also runs out of attempts.
    pub attempts: u8,
}

/// The model has no time, so a job that waits for its next attempt is `Queued`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobStatus {
    Queued,
    Locked,
    Completed,
    Dead,
}

/// One claim of the job. Claims differ, since each one counts an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    pub worker: WorkerId,
    pub attempt: u8,
}

/// A process that restarts in the same place is another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId {
    pub place: usize,
    pub restarts: u8,
}

/// A row of `channel_outbox`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Row {
    pub status: RowStatus,
    /// The claim it was made under. A row that was never meant to be called has none.
    pub reserved_by: Option<Lease>,
    /// Whether the row was ever in doubt. Only a `Queued` row is in doubt; a terminal one keeps the mark like the audit log.
    pub in_doubt: bool,
    /// Whether the quiet time is over: no request of this reservation is in flight, and none will be sent.
    pub quiet: bool,
    /// The evidence that made the row terminal.
    pub evidence: Option<Evidence>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowStatus {
    Queued,
    Sent,
    Failed,
}

impl RowStatus {
    pub fn is_terminal(self) -> bool {
        self != RowStatus::Queued
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// The outcome of the worker's own call.
    Call(Outcome),
    /// The provider knows the key, by a lookup or a status callback.
    Receipt,
    /// The provider does not know the key.
    NotFound,
    /// The job had no attempts left, and no worker had reserved the key.
    NeverReserved,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    Delivered,
    Rejected,
    NotSent,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Worker {
    pub id: WorkerId,
    /// The claim it works under, as far as it knows.
    pub task: Option<Task>,
}

/// A worker's own view of the job it claimed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Task {
    pub lease: Lease,
    /// The step of each item.
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    Unreserved,
    /// The worker sent the COMMIT and waits for its acknowledgement.
    Reserving,
    /// The worker holds the reservation and may call. `not_sent` counts calls of which provably nothing was sent.
    Reserved {
        not_sent: u8,
    },
    /// The worker sent the request.
    Calling {
        not_sent: u8,
    },
    /// The call is over and its outcome not yet recorded.
    Answered(Outcome),
    /// Recorded, or reserved under another claim.
    Done,
}

/// A transaction that reserves items, from `begin_outbox_items` to the acknowledgement of its COMMIT.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Commit {
    pub lease: Lease,
    pub items: Vec<usize>,
    /// Whether its worker still waits for it. If not, the commit may still happen.
    pub awaited: bool,
    /// The items it reserved, after it happened.
    pub reserved: Option<Vec<usize>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    pub item: usize,
    /// The claim under which the worker called.
    pub lease: Lease,
    pub kind: MessageKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MessageKind {
    Request,
    Answer(Outcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FaultBudget {
    /// Kills of a process that has work.
    pub crashes: u8,
    /// Locks that expire although their worker is alive: it was stopped, or cut off, or its heartbeats came too late.
    pub stalls: u8,
    /// COMMITs of claims and reservations whose acknowledgement does not arrive.
    pub lost_acks: u8,
}

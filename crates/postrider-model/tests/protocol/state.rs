//! What the world looks like between two steps: the database, the workers, and all that is on its way between them.

/// Everything there is. The first three fields are durable; a crash takes from `workers` what it pleases.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The one job. Its items are numbered from 0, and an item's number stands for its idempotency key.
    pub job: Job,
    /// The outbox: the row of each item's key, once there is one.
    pub rows: Vec<Option<Row>>,
    /// How often the provider acted for each key. It does not recognise repeats: two acts are two messages.
    pub acts: Vec<u8>,
    /// The worker processes.
    pub workers: Vec<Worker>,
    /// Reservations on their way to the database, or whose acknowledgement is on its way back.
    pub commits: Vec<Commit>,
    /// Requests on their way to the provider, and its answers on their way back.
    pub network: Vec<Message>,
    /// Whether the resolver has asked for an item, been told "never heard of it", and not yet written that down.
    pub unknown_to_provider: Vec<bool>,
    /// The misfortunes that may still happen. They are bounded so that there is an end to every story.
    pub misfortunes: Misfortunes,
    /// Whether a terminal row has ever changed. No step reads it.
    pub overturned: bool,
}

/// A row of `job_queue`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Job {
    pub status: JobStatus,
    /// Who holds the lock, or held it last.
    pub lease: Option<Lease>,
    /// Counted at the claim, so that a job that kills its workers comes to an end too.
    pub attempts: u8,
}

/// There is no time here, so a job that waits for its next attempt is simply `Queued`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobStatus {
    Queued,
    Locked,
    Completed,
    Dead,
}

/// One claim of the job. No two claims are alike, since each counts as an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    pub worker: WorkerId,
    pub attempt: u8,
}

/// A process that starts again in the same place is somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId {
    pub place: usize,
    pub life: u8,
}

/// A row of `channel_outbox`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Row {
    pub status: RowStatus,
    /// The claim it was made under. A row that was never meant to be called has none.
    pub reserved_by: Option<Lease>,
    /// Whether it has been in doubt. Only a `Queued` row is; a terminal one keeps the mark as the audit log does.
    pub in_doubt: bool,
    /// Whether the quiet time is over: nothing of this reservation is under way, and nothing will set out any more.
    pub quiet: bool,
    /// What made it terminal.
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
    /// What the worker's own call came to.
    Call(Outcome),
    /// The provider knows the key: it was looked up, or the provider reported it by itself.
    Receipt,
    /// The provider does not know the key.
    NotFound,
    /// The job had no attempts left, and nobody had reserved the key.
    NeverReserved,
}

/// What a call comes to.
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
    /// How far each item is.
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    Unreserved,
    /// The COMMIT has been sent, and not been heard of since.
    Reserving,
    /// The worker holds the reservation and may call. So often it tried and provably nothing left.
    Reserved {
        not_sent: u8,
    },
    /// The request has left.
    Calling {
        not_sent: u8,
    },
    /// The call is over and its outcome not yet recorded.
    Answered(Outcome),
    /// Recorded, or somebody else's.
    Done,
}

/// A transaction that reserves items, from `begin_outbox_items` to the acknowledgement of its COMMIT.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Commit {
    pub lease: Lease,
    pub items: Vec<usize>,
    /// Whether its worker still waits for it. If not, it may happen all the same.
    pub awaited: bool,
    /// The items it reserved, once it has happened.
    pub won: Option<Vec<usize>>,
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
pub struct Misfortunes {
    /// Kills of a process that has work.
    pub crashes: u8,
    /// Locks that expire although their worker is alive: it was stopped, or cut off, or its heartbeats came too late.
    pub stalls: u8,
    /// COMMITs of claims and reservations whose acknowledgement does not arrive.
    pub lost_acks: u8,
}

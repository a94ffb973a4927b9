//! The steps of the protocol.

use crate::protocol::Protocol;
use crate::state::{MessageKind, Row, State, Step, Task};

/// One step of a worker, the database, the network, the provider, the resolver, or of time.
/// `place` is a worker, `item` an item, `n` the index of a commit or message in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    // 1 claim
    Claim {
        place: usize,
    },
    /// The job is locked, but its worker did not receive the acknowledgement.
    ClaimUnacknowledged {
        place: usize,
    },

    // 2 reserve
    Reserve {
        place: usize,
    },
    /// The database executes the transaction and its COMMIT.
    CommitHappens {
        n: usize,
    },
    /// A transaction without a waiting worker is rolled back.
    CommitNeverHappens {
        n: usize,
    },
    CommitSeen {
        place: usize,
    },
    /// The connection breaks, and the worker cannot know whether the COMMIT has happened or will.
    CommitUnacknowledged {
        place: usize,
    },
    /// Only with [`Flaw::ReservedBeforeCommit`](crate::flaws::Flaw::ReservedBeforeCommit).
    RowsSeen {
        place: usize,
    },

    // 3 call
    Call {
        place: usize,
        item: usize,
    },
    /// The provider cannot be reached, and nothing was sent.
    NotSent {
        place: usize,
        item: usize,
    },
    /// The reservation is too old for a call, so the worker settles the item as not sent.
    Abandon {
        place: usize,
        item: usize,
    },
    ProviderActs {
        n: usize,
    },
    ProviderRefuses {
        n: usize,
    },
    RequestLost {
        n: usize,
    },
    AnswerArrives {
        n: usize,
    },
    /// Stands for everything that leaves the outcome open: a timeout, a reset, half an answer, a 5xx.
    NoAnswer {
        place: usize,
        item: usize,
    },

    // 4 finalize
    Settle {
        place: usize,
        item: usize,
    },
    /// The row is settled, but its worker did not receive the acknowledgement and retries.
    SettleUnacknowledged {
        place: usize,
        item: usize,
    },

    // 5 complete
    Complete {
        place: usize,
    },
    /// The job has a stale lock and no attempts left; the database ends it.
    EndStaleJob,

    // The process is killed, and another one starts in its place.
    Crash {
        place: usize,
    },

    // In doubt
    QuietTimeEnds {
        item: usize,
    },
    ReceiptFound {
        item: usize,
    },
    /// The resolver looks the key up, and the provider does not know it.
    NotFound {
        item: usize,
    },
    SettleNotFound {
        item: usize,
    },
}

impl Protocol {
    /// The candidates for the next step. [`Protocol::step`] decides whether a candidate is possible.
    pub fn candidates(&self, s: &State, actions: &mut Vec<Action>) {
        for (place, worker) in s.workers.iter().enumerate() {
            match &worker.task {
                Some(task) => candidates_at_work(place, task, actions),
                // The workers are equal, so only the first one makes the first claim.
                None if place > 0 && s.job.attempts == 0 => {}
                None => actions.extend([Action::ClaimUnacknowledged { place }, Action::Claim { place }]),
            }
        }
        for n in 0..s.commits.len() {
            actions.extend([Action::CommitHappens { n }, Action::CommitNeverHappens { n }]);
        }
        for (n, message) in s.network.iter().enumerate() {
            match message.kind {
                MessageKind::Request => actions.extend([
                    Action::ProviderActs { n },
                    Action::ProviderRefuses { n },
                    Action::RequestLost { n },
                ]),
                MessageKind::Answer(_) => actions.push(Action::AnswerArrives { n }),
            }
        }
        let queued = |row: &Option<Row>| row.as_ref().is_some_and(|row| !row.status.is_terminal());
        for item in (0..s.rows.len()).filter(|&item| queued(&s.rows[item])) {
            actions.extend([
                Action::QuietTimeEnds { item },
                Action::ReceiptFound { item },
                Action::NotFound { item },
                Action::SettleNotFound { item },
            ]);
        }
        actions.push(Action::EndStaleJob);
    }
}

fn candidates_at_work(place: usize, task: &Task, actions: &mut Vec<Action>) {
    if task.steps.contains(&Step::Unreserved) {
        actions.push(Action::Reserve { place });
    }
    if task.steps.contains(&Step::Reserving) {
        actions.extend([
            Action::CommitSeen { place },
            Action::CommitUnacknowledged { place },
            Action::RowsSeen { place },
        ]);
    }
    for (item, step) in task.steps.iter().enumerate() {
        match step {
            Step::Unreserved => actions.push(Action::Call { place, item }),
            Step::Reserved { .. } => actions.extend([
                Action::Call { place, item },
                Action::NotSent { place, item },
                Action::Abandon { place, item },
            ]),
            Step::Calling { .. } => actions.push(Action::NoAnswer { place, item }),
            Step::Answered(_) => {
                actions
                    .extend([Action::Settle { place, item }, Action::SettleUnacknowledged { place, item }]);
            }
            Step::Reserving | Step::Done => {}
        }
    }
    actions.extend([Action::Complete { place }, Action::Crash { place }]);
}

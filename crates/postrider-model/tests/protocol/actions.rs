//! Everything that can happen.

use crate::protocol::Protocol;
use crate::state::{MessageKind, Row, State, Step, Task};

/// One step of a worker, the database, the network, the provider, the resolver, or of time.
/// `place` is a worker, `item` an item, `n` the place of a commit or message among those on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    // 1 claim
    Claim {
        place: usize,
    },
    /// The job is locked, and the worker in whose name it is does not know.
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
    /// A transaction that nobody waits for is rolled back.
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
    /// The provider cannot be reached, and nothing left.
    NotSent {
        place: usize,
        item: usize,
    },
    /// The reservation is too old to begin a call with.
    LetGo {
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
    /// The row is settled, and its worker will try again.
    SettleUnacknowledged {
        place: usize,
        item: usize,
    },

    // 5 complete
    Complete {
        place: usize,
    },
    /// The last attempt left a stale lock.
    Bury,

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
    /// The resolver asks, and the provider does not know the key.
    NotFound {
        item: usize,
    },
    SettleNotFound {
        item: usize,
    },
}

impl Protocol {
    /// What might happen next. Whether it can is decided where its effect is, in [`Protocol::step`].
    pub fn candidates(&self, s: &State, actions: &mut Vec<Action>) {
        for (place, worker) in s.workers.iter().enumerate() {
            match &worker.task {
                Some(task) => candidates_at_work(place, task, actions),
                // The workers are alike, so it does not matter which of them is first.
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
        actions.push(Action::Bury);
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
                Action::LetGo { place, item },
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

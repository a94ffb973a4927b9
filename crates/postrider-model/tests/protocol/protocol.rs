//! The protocol: every step with its guard and its effect.

use stateright::{Model, Property};

use crate::actions::Action;
use crate::database::Settlement;
use crate::flaws::{Flaw, SafeVariant};
use crate::properties;
use crate::state::{
    Commit, Evidence, FaultBudget, Job, JobStatus, Lease, Message, MessageKind, Outcome, RowStatus, State,
    Step, Task, Worker, WorkerId,
};

/// Maximum calls of which provably nothing was sent, under one reservation.
const TRIES: u8 = 2;

/// The protocol, within bounds that leave a finite number of states.
#[derive(Debug, Clone, Copy)]
pub struct Protocol {
    pub workers: usize,
    pub items: usize,
    /// Maximum items of a worker that are reserved and not settled.
    pub window: usize,
    /// Maximum claims of the job.
    pub attempts: u8,
    pub faults: FaultBudget,
    pub flaw: Option<Flaw>,
    pub variant: Option<SafeVariant>,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let worker = |place| Worker { id: WorkerId { place, restarts: 0 }, task: None };
        vec![State {
            job: Job { status: JobStatus::Queued, lease: None, attempts: 0 },
            rows: vec![None; self.items],
            acts: vec![0; self.items],
            workers: (0..self.workers).map(worker).collect(),
            commits: vec![],
            network: vec![],
            unknown_to_provider: vec![false; self.items],
            faults: self.faults,
            terminal_row_changed: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.candidates(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action)?;
        // The order of messages in flight does not matter, since each may overtake the others.
        state.commits.sort_unstable();
        state.network.sort_unstable();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

impl Protocol {
    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    pub fn uses(&self, variant: SafeVariant) -> bool {
        self.variant == Some(variant)
    }

    /// Takes the step, or returns `None` if it cannot happen now. `database.rs` has the transactions of a claim, a
    /// reservation, a settlement and the end of a job.
    pub fn step(&self, s: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Claim { place } => {
                let lease = self.lock(s, s.workers[place].id)?;
                s.workers[place].task = Some(Task { lease, steps: vec![Step::Unreserved; self.items] });
            }
            Action::ClaimUnacknowledged { place } => {
                spend(&mut s.faults.lost_acks)?;
                self.lock(s, s.workers[place].id)?;
            }

            Action::Reserve { place } => {
                when(!self.has(Flaw::ReservedAfterCall))?;
                let task = s.workers[place].task.as_mut()?;
                let items = task.next_window(self.window);
                when(!items.is_empty() && !task.steps.contains(&Step::Reserving))?;
                for &item in &items {
                    task.steps[item] = Step::Reserving;
                }
                s.commits.push(Commit { lease: task.lease, items, awaited: true, reserved: None });
            }
            Action::CommitHappens { n } => {
                when(s.commits[n].reserved.is_none())?;
                let mut commit = s.commits.remove(n);
                commit.reserved = Some(self.begin_outbox_items(s, &commit));
                if commit.awaited {
                    s.commits.push(commit);
                }
            }
            Action::CommitNeverHappens { n } => {
                when(!s.commits[n].awaited)?;
                s.commits.remove(n);
            }
            // The only way to a reservation: the worker saw the COMMIT, and this transaction inserted the row.
            Action::CommitSeen { place } => {
                let task = s.workers[place].task.as_mut()?;
                let n = s
                    .commits
                    .iter()
                    .position(|c| c.awaited && c.lease == task.lease && c.reserved.is_some())?;
                let reserved = s.commits.remove(n).reserved?;
                // An item that was not reserved has a row already, or another claim holds the lock: skip the item.
                task.replace(Step::Reserving, Step::Done);
                for item in reserved {
                    task.steps[item] = Step::Reserved { not_sent: 0 };
                }
            }
            // The worker holds no reservation, even if the database has the row. It begins again, and finds its own row
            // if the COMMIT has happened.
            Action::CommitUnacknowledged { place } => {
                let task = s.workers[place].task.as_mut()?;
                when(task.replace(Step::Reserving, Step::Unreserved))?;
                spend(&mut s.faults.lost_acks)?;
                let lease = task.lease;
                s.stop_waiting_for_commit(lease);
            }
            Action::RowsSeen { place } => {
                when(self.has(Flaw::ReservedBeforeCommit))?;
                let task = s.workers[place].task.as_mut()?;
                when(task.replace(Step::Reserving, Step::Reserved { not_sent: 0 }))?;
                let lease = task.lease;
                s.stop_waiting_for_commit(lease);
            }

            Action::Call { place, item } => {
                let too_old = s.is_quiet(item) && !self.has(Flaw::OldReservationCalled);
                let task = s.workers[place].task.as_mut()?;
                task.steps[item] = match task.steps[item] {
                    // The worker does not check its lock, since the lock could expire just after the check.
                    Step::Reserved { not_sent } if !too_old => Step::Calling { not_sent },
                    Step::Unreserved if self.has(Flaw::ReservedAfterCall) => Step::Calling { not_sent: 0 },
                    _ => return None,
                };
                s.network.push(Message { item, lease: task.lease, kind: MessageKind::Request });
            }
            Action::NotSent { place, item } => {
                when(!s.is_quiet(item))?;
                let step = &mut s.workers[place].task.as_mut()?.steps[item];
                let Step::Reserved { not_sent } = *step else { return None };
                *step = after_not_sent(not_sent);
            }
            // Only the holder of a reservation can call, and this one did not.
            Action::Abandon { place, item } => {
                when(s.is_quiet(item))?;
                let step = &mut s.workers[place].task.as_mut()?.steps[item];
                when(matches!(step, Step::Reserved { .. }))?;
                *step = Step::Answered(Outcome::NotSent);
            }
            Action::ProviderActs { n } => {
                let request = s.take_request(n)?;
                s.acts[request.item] += 1;
                s.answer(request, Outcome::Delivered);
            }
            Action::ProviderRefuses { n } => {
                let request = s.take_request(n)?;
                s.answer(request, Outcome::Rejected);
            }
            Action::RequestLost { n } => {
                s.take_request(n)?;
            }
            Action::AnswerArrives { n } => {
                let Message { item, lease, kind: MessageKind::Answer(outcome) } = s.network.remove(n) else {
                    return None;
                };
                *s.caller(item, lease)? = Step::Answered(outcome);
            }
            Action::NoAnswer { place, item } => {
                let task = s.workers[place].task.as_mut()?;
                let Step::Calling { not_sent } = task.steps[item] else { return None };
                task.steps[item] = match self.flaw {
                    Some(Flaw::TimeoutMeansRejected) => Step::Answered(Outcome::Rejected),
                    Some(Flaw::TimeoutMeansNotSent) => after_not_sent(not_sent),
                    _ => Step::Answered(Outcome::Unknown),
                };
                let lease = task.lease;
                s.drop_answers(lease, Some(item));
            }

            // The lock is not checked: an answer is evidence, even if another worker holds the job by now.
            Action::Settle { place, item } => {
                let settlement = s.settlement(place, item)?;
                self.finalize(s, item, settlement);
                s.workers[place].task.as_mut()?.steps[item] = Step::Done;
            }
            Action::SettleUnacknowledged { place, item } => {
                let settlement = s.settlement(place, item)?;
                let before = s.rows[item].clone();
                self.finalize(s, item, settlement);
                when(s.rows[item] != before)?;
            }

            Action::Complete { place } => {
                let task = s.workers[place]
                    .task
                    .take_if(|task| task.steps.iter().all(|step| *step == Step::Done))?;
                if self.holds_lock(s, task.lease) {
                    self.complete_job(s);
                }
            }
            Action::EndStaleJob => {
                when(s.job.status == JobStatus::Locked && s.job.attempts == self.attempts)?;
                self.expire(s)?;
                if self.has(Flaw::DeadWithoutLooking) { self.end_job(s) } else { self.complete_job(s) }
            }

            Action::Crash { place } => {
                let task = s.workers[place].task.take()?;
                spend(&mut s.faults.crashes)?;
                s.workers[place].id.restarts += 1;
                s.stop_waiting_for_commit(task.lease);
                s.drop_answers(task.lease, None);
            }

            // Negative evidence relies on this: when the quiet time ends, no request of the reservation is in flight, and
            // from then on `Call` sends none.
            Action::QuietTimeEnds { item } => {
                when(!s.network.iter().any(|m| m.item == item && m.kind == MessageKind::Request))?;
                let row =
                    s.rows[item].as_mut().filter(|row| row.status == RowStatus::Queued && !row.quiet)?;
                row.quiet = true;
            }
            // A receipt proves an act at any time, even if the row is not in doubt.
            Action::ReceiptFound { item } => {
                when(s.acts[item] > 0)?;
                s.resolve(item, RowStatus::Sent, Evidence::Receipt)?;
            }
            Action::NotFound { item } => {
                let early = self.has(Flaw::NotFoundBeforeQuiet) || self.has(Flaw::NotFoundAskedBeforeQuiet);
                let row = s.rows[item].as_ref()?;
                when(row.status == RowStatus::Queued && row.in_doubt && (row.quiet || early))?;
                when(s.acts[item] == 0 && !s.unknown_to_provider[item])?;
                s.unknown_to_provider[item] = true;
            }
            Action::SettleNotFound { item } => {
                when(s.unknown_to_provider[item])?;
                when(s.is_quiet(item) || self.has(Flaw::NotFoundBeforeQuiet))?;
                s.resolve(item, RowStatus::Failed, Evidence::NotFound)?;
            }
        }
        Some(())
    }

    /// Whether the job is still locked under this claim.
    pub fn holds_lock(&self, s: &State, lease: Lease) -> bool {
        self.uses(SafeVariant::NoLocks) || (s.job.status == JobStatus::Locked && s.job.lease == Some(lease))
    }
}

impl State {
    /// The settlement that the worker at `place` has to record for an item, if its call is over.
    fn settlement(&self, place: usize, item: usize) -> Option<Settlement> {
        let task = self.workers[place].task.as_ref()?;
        let Step::Answered(outcome) = task.steps[item] else { return None };
        Some(Settlement { lease: task.lease, outcome })
    }
}

/// The step after a call of which nothing was sent: the worker may call again under the same reservation, up to `TRIES`.
fn after_not_sent(before: u8) -> Step {
    let not_sent = before + 1;
    if not_sent < TRIES { Step::Reserved { not_sent } } else { Step::Answered(Outcome::NotSent) }
}

/// Guards a step with a condition.
pub fn when(condition: bool) -> Option<()> {
    condition.then_some(())
}

/// Spends one fault, if the budget has one left.
pub fn spend(left: &mut u8) -> Option<()> {
    *left = left.checked_sub(1)?;
    Some(())
}

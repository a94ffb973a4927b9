//! The transactions of the database, and the delivery of messages.

use crate::flaws::{Flaw, SafeVariant};
use crate::protocol::{Protocol, spend, when};
use crate::state::{
    Commit, Evidence, JobStatus, Lease, Message, MessageKind, Outcome, Row, RowStatus, State, Step, Task,
    WorkerId,
};

/// The outcome of a call, and the claim under which its item was reserved.
#[derive(Debug, Clone, Copy)]
pub struct Settlement {
    pub lease: Lease,
    pub outcome: Outcome,
}

impl Protocol {
    /// `claim_queued_jobs`: locks the job if it is queued or its lock is stale. Items that an earlier attempt reserved
    /// and did not settle are in doubt from here on.
    pub fn lock(&self, s: &mut State, worker: WorkerId) -> Option<Lease> {
        when(s.job.attempts < self.attempts)?;
        match s.job.status {
            JobStatus::Queued => {}
            JobStatus::Locked => self.expire(s)?,
            JobStatus::Completed | JobStatus::Dead => return None,
        }
        s.job.attempts += 1;
        let lease = Lease { worker, attempt: s.job.attempts };
        s.job.status = JobStatus::Locked;
        s.job.lease = Some(lease);
        self.mark_queued_rows_in_doubt(s);
        Some(lease)
    }

    /// Expires the lock. A lock without a live worker always expires; a lock whose worker is alive expires only as a
    /// fault.
    pub fn expire(&self, s: &mut State) -> Option<()> {
        let lease = s.job.lease?;
        let kept = s.workers.iter().any(|worker| {
            worker.task.as_ref().is_some_and(|task| task.lease == lease)
                || (self.has(Flaw::HeartbeatsByName) && worker.id == lease.worker)
        });
        if kept && !self.uses(SafeVariant::NoLocks) { spend(&mut s.faults.stalls) } else { Some(()) }
    }

    /// `begin_outbox_items`: makes a row for each key that has none, if the claim still holds. Returns the items it
    /// reserved. A key that has a row is never reserved again, by anyone.
    pub fn begin_outbox_items(&self, s: &mut State, commit: &Commit) -> Vec<usize> {
        if !self.holds_lock(s, commit.lease) {
            return vec![];
        }
        let mut reserved = vec![];
        for &item in &commit.items {
            let new_row = Some(Row {
                status: RowStatus::Queued,
                reserved_by: Some(commit.lease),
                in_doubt: false,
                quiet: false,
                evidence: None,
            });
            match &mut s.rows[item] {
                None => s.rows[item] = new_row,
                Some(_) if self.has(Flaw::NoUniqueKey) => s.rows[item] = new_row,
                Some(row) if row.status.is_terminal() => continue,
                Some(_) if self.has(Flaw::StaleReservationsTakenOver) => s.rows[item] = new_row,
                Some(row)
                    if self.uses(SafeVariant::OwnRowAdopted) && row.reserved_by == Some(commit.lease) => {}
                // No record shows whether the item was called. If its worker is alive, the mark does no harm.
                Some(row) => {
                    row.in_doubt |= !self.has(Flaw::QueuedRowsNotMarked);
                    continue;
                }
            }
            reserved.push(item);
        }
        reserved
    }

    /// `finalize_outbox_items`: settles a row that is still queued, for the claim that reserved it.
    pub fn finalize(&self, s: &mut State, item: usize, Settlement { lease, outcome }: Settlement) {
        if self.has(Flaw::ReservedAfterCall) && s.rows[item].is_none() {
            self.begin_outbox_items(s, &Commit { lease, items: vec![item], awaited: true, reserved: None });
        }
        let Some(row) = s.rows[item].as_mut() else { return };
        let fenced = row.status.is_terminal() || row.reserved_by != Some(lease);
        if fenced && !self.has(Flaw::NoFencing) {
            return;
        }
        let (status, evidence) = match outcome {
            Outcome::Delivered => (RowStatus::Sent, Some(Evidence::Call(outcome))),
            Outcome::Rejected | Outcome::NotSent => (RowStatus::Failed, Some(Evidence::Call(outcome))),
            Outcome::Unknown => (RowStatus::Queued, None),
        };
        s.terminal_row_changed |= row.status.is_terminal() && row.status != status;
        row.in_doubt |= outcome == Outcome::Unknown;
        row.status = status;
        row.evidence = evidence;
    }

    /// `complete_job`: the job's status follows from its rows.
    pub fn complete_job(&self, s: &mut State) {
        let status = |item: &Option<Row>| item.as_ref().map(|row| row.status);
        if s.rows.iter().all(|item| status(item) == Some(RowStatus::Failed)) {
            s.job.status = JobStatus::Dead;
        } else if s.rows.iter().all(|item| status(item).is_some_and(RowStatus::is_terminal)) {
            s.job.status = JobStatus::Completed;
        } else if s.job.attempts < self.attempts {
            s.job.status = JobStatus::Queued;
        } else {
            self.end_job(s);
        }
    }

    /// Ends a job that has no attempts left. A key without a row gets a `failed` one: it takes the key from any worker
    /// that might still resume, and a retry of the phase includes the item.
    pub fn end_job(&self, s: &mut State) {
        s.job.status = JobStatus::Dead;
        self.mark_queued_rows_in_doubt(s);
        if self.has(Flaw::DeadJobLeavesNoRows) {
            return;
        }
        for item in s.rows.iter_mut().filter(|item| item.is_none()) {
            *item = Some(Row {
                status: RowStatus::Failed,
                reserved_by: None,
                in_doubt: false,
                quiet: false,
                evidence: Some(Evidence::NeverReserved),
            });
        }
    }

    fn mark_queued_rows_in_doubt(&self, s: &mut State) {
        for row in s.rows.iter_mut().flatten() {
            row.in_doubt |= row.status == RowStatus::Queued && !self.has(Flaw::QueuedRowsNotMarked);
        }
    }
}

impl State {
    /// Settles a row without its worker, if it is not settled yet.
    pub fn resolve(&mut self, item: usize, status: RowStatus, evidence: Evidence) -> Option<()> {
        let row = self.rows[item].as_mut().filter(|row| row.status == RowStatus::Queued)?;
        row.status = status;
        row.evidence = Some(evidence);
        Some(())
    }

    /// Whether the reservation of an item is so old that no call may begin with it.
    pub fn is_quiet(&self, item: usize) -> bool {
        self.rows[item].as_ref().is_some_and(|row| row.quiet)
    }

    /// From now on no worker waits for the commit's acknowledgement. The commit itself may still happen.
    pub fn stop_waiting_for_commit(&mut self, lease: Lease) {
        self.commits.retain(|commit| commit.lease != lease || !commit.awaited || commit.reserved.is_none());
        for commit in self.commits.iter_mut().filter(|commit| commit.lease == lease) {
            commit.awaited = false;
        }
    }

    /// The step of the item at the worker that called under this claim, if it still waits for an answer.
    pub fn caller(&mut self, item: usize, lease: Lease) -> Option<&mut Step> {
        let task = self
            .workers
            .iter_mut()
            .filter_map(|worker| worker.task.as_mut())
            .find(|task| task.lease == lease)?;
        Some(&mut task.steps[item]).filter(|step| matches!(step, Step::Calling { .. }))
    }

    pub fn take_request(&mut self, n: usize) -> Option<Message> {
        when(self.network[n].kind == MessageKind::Request)?;
        Some(self.network.remove(n))
    }

    /// Sends an answer, if a worker still waits for it.
    pub fn answer(&mut self, request: Message, outcome: Outcome) {
        if self.caller(request.item, request.lease).is_some() {
            self.network.push(Message { kind: MessageKind::Answer(outcome), ..request });
        }
    }

    /// Closes the connections on which answers to this claim's calls would arrive.
    pub fn drop_answers(&mut self, lease: Lease, item: Option<usize>) {
        self.network.retain(|message| {
            message.kind == MessageKind::Request
                || message.lease != lease
                || item.is_some_and(|i| i != message.item)
        });
    }
}

impl Task {
    /// The items to reserve next.
    pub fn next_window(&self, window: usize) -> Vec<usize> {
        let unreserved = (0..self.steps.len()).filter(|&item| self.steps[item] == Step::Unreserved);
        let in_hand = self.steps.iter().filter(|step| !matches!(step, Step::Unreserved | Step::Done)).count();
        unreserved.take(window.saturating_sub(in_hand)).collect()
    }

    /// Moves every item from one step to another. Returns whether there was any.
    pub fn replace(&mut self, from: Step, to: Step) -> bool {
        let mut any = false;
        for step in self.steps.iter_mut().filter(|step| **step == from) {
            *step = to;
            any = true;
        }
        any
    }
}

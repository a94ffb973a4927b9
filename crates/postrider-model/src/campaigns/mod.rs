//! Campaigns: channels, and the states of phases, runs, send jobs and items with their transitions.
//!
//! A transition that is not in its table cannot happen: the database refuses it, too, and a test compares both.

pub mod audience;
pub mod limits;
pub mod message;

use crate::words::words;

words!(
    /// The channel of a message.
    Channel, "channel" {
        /// An e-mail to a lead.
        Email => "email",
        /// A call to a lead.
        Voice => "voice",
        /// A post to the public.
        Social => "social",
        /// A reply in a chat. Campaigns do not use it.
        Chat => "chat",
    }
);

words!(
    /// The state of a phase.
    PhaseStatus, "phase status" {
        /// The phase was never started.
        NotStarted => "not_started",
        /// A run is under way, or another service works on it.
        InProgress => "in_progress",
        /// Workers reserve no further items until the phase is resumed.
        Paused => "paused",
        /// The run ended within the failure tolerance.
        Completed => "completed",
        /// The run ended outside the failure tolerance.
        Failed => "failed",
    }
);

words!(
    /// A control or an event that changes the state of a phase.
    PhaseTrigger, "phase control" {
        /// Start the phase.
        Start => "start",
        /// Suspend the phase.
        Pause => "pause",
        /// Continue a paused phase.
        Resume => "resume",
        /// Send the failed items of the last run again.
        Retry => "retry",
        /// Deploy the audience again.
        Rerun => "rerun",
        /// End the phase with success.
        Complete => "complete",
        /// End the phase with failure.
        Fail => "fail",
    }
);

words!(
    /// The state of a run, computed from its send jobs.
    RunStatus, "run status" {
        /// No worker has claimed a send job of the run yet.
        Queued => "queued",
        /// A worker claimed a send job of the run.
        Running => "running",
        /// Every send job completed.
        Completed => "completed",
        /// Some items succeeded.
        Partial => "partial",
        /// No item succeeded.
        Failed => "failed",
    }
);

words!(
    /// The cause of a run.
    RunCause, "cause of a run" {
        /// The phase was started.
        Start => "start",
        /// The phase was retried: the run has the failed items of the run before.
        Retry => "retry",
        /// The phase was rerun: the run has the whole audience, or its failed items.
        Rerun => "rerun",
        /// Single messages were due: the run has no campaign and no phase.
        Message => "message",
    }
);

words!(
    /// The state of a send job.
    JobStatus, "send job status" {
        /// The send job waits for a worker.
        Queued => "queued",
        /// A worker claimed the send job.
        Locked => "locked",
        /// Every item is terminal, and not all of them failed.
        Completed => "completed",
        /// Some items are not terminal; the send job is queued again at `run_after`.
        Failed => "failed",
        /// All items failed, or no attempts are left.
        Dead => "dead",
    }
);

words!(
    /// The computed outcome of a send job.
    JobOutcome, "send job outcome" {
        /// All items succeeded or were skipped.
        Completed => "completed",
        /// Some items succeeded or were skipped.
        Partial => "partial",
        /// All items failed.
        Failed => "failed",
    }
);

words!(
    /// The state of an item: one row of the outbox, one key, at most one provider call.
    ItemStatus, "item status" {
        /// The item is reserved: its call is under way, or its outcome is unknown and the item is in doubt.
        Queued => "queued",
        /// The provider accepted the e-mail.
        Sent => "sent",
        /// The provider placed the call.
        Called => "called",
        /// The provider published the post.
        Posted => "posted",
        /// The provider refused the item, or provably nothing was sent.
        Failed => "failed",
        /// The worker skipped the item on purpose, without a call.
        Skipped => "skipped",
    }
);

words!(
    /// The kind of a phase.
    PhaseKind, "phase kind" {
        /// Postrider sends the items of the phase.
        Delivery => "delivery",
        /// Another service does the work and reports it.
        External => "external",
    }
);

words!(
    /// The type of an event in a campaign's history.
    EventType, "event type" {
        /// A phase was started, retried or rerun.
        PhaseStarted => "phase_started",
        /// A phase was suspended.
        PhasePaused => "phase_paused",
        /// A phase was resumed.
        PhaseResumed => "phase_resumed",
        /// A phase ended with success.
        PhaseCompleted => "phase_completed",
        /// A phase ended with failure.
        PhaseFailed => "phase_failed",
        /// The progress of a phase.
        CampaignProgress => "campaign_progress",
    }
);

impl Channel {
    /// The channels that campaigns can use.
    pub const OF_CAMPAIGNS: &[Self] = &[Self::Email, Self::Voice, Self::Social];

    /// The status of a successful item of this channel.
    #[must_use]
    pub const fn success(self) -> ItemStatus {
        match self {
            Self::Email | Self::Chat => ItemStatus::Sent,
            Self::Voice => ItemStatus::Called,
            Self::Social => ItemStatus::Posted,
        }
    }
}

/// Every legal transition of a phase: from, trigger, to. Tests compare the database, the API and docs/lifecycle.md with this table.
pub const PHASE_MACHINE: &[(PhaseStatus, PhaseTrigger, PhaseStatus)] = &[
    (PhaseStatus::NotStarted, PhaseTrigger::Start, PhaseStatus::InProgress),
    (PhaseStatus::InProgress, PhaseTrigger::Pause, PhaseStatus::Paused),
    (PhaseStatus::InProgress, PhaseTrigger::Complete, PhaseStatus::Completed),
    (PhaseStatus::InProgress, PhaseTrigger::Fail, PhaseStatus::Failed),
    (PhaseStatus::Paused, PhaseTrigger::Resume, PhaseStatus::InProgress),
    (PhaseStatus::Completed, PhaseTrigger::Rerun, PhaseStatus::InProgress),
    (PhaseStatus::Failed, PhaseTrigger::Retry, PhaseStatus::InProgress),
];

/// Every legal transition of a run.
pub const RUN_TRANSITIONS: &[(RunStatus, RunStatus)] = &[
    (RunStatus::Queued, RunStatus::Running),
    (RunStatus::Running, RunStatus::Completed),
    (RunStatus::Running, RunStatus::Partial),
    (RunStatus::Running, RunStatus::Failed),
];

/// Every legal transition of a send job. `locked` returns to `queued` when the worker releases the send job or its lock is stale.
pub const JOB_TRANSITIONS: &[(JobStatus, JobStatus)] = &[
    (JobStatus::Queued, JobStatus::Locked),
    (JobStatus::Locked, JobStatus::Completed),
    (JobStatus::Locked, JobStatus::Failed),
    (JobStatus::Locked, JobStatus::Queued),
    (JobStatus::Failed, JobStatus::Queued),
    (JobStatus::Failed, JobStatus::Dead),
];

/// Every legal transition of an item.
pub const ITEM_TRANSITIONS: &[(ItemStatus, ItemStatus)] = &[
    (ItemStatus::Queued, ItemStatus::Sent),
    (ItemStatus::Queued, ItemStatus::Called),
    (ItemStatus::Queued, ItemStatus::Posted),
    (ItemStatus::Queued, ItemStatus::Failed),
    (ItemStatus::Queued, ItemStatus::Skipped),
];

impl PhaseStatus {
    /// Whether this transition is legal.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        PHASE_MACHINE.iter().any(|(from, _, to)| (*from, *to) == (self, next))
    }

    /// The state that a trigger leads to from this one, if the transition is legal.
    #[must_use]
    pub fn after(self, trigger: PhaseTrigger) -> Option<Self> {
        PHASE_MACHINE.iter().find(|(from, by, _)| (*from, *by) == (self, trigger)).map(|(_, _, to)| *to)
    }

    /// The triggers that a caller may use on a phase of this kind in this state. Workers end a delivery phase.
    pub fn allowed(self, kind: PhaseKind) -> impl Iterator<Item = PhaseTrigger> {
        PHASE_MACHINE
            .iter()
            .filter(move |(from, by, _)| *from == self && by.is_for(kind))
            .map(|(_, by, _)| *by)
    }
}

impl PhaseTrigger {
    /// The state that this trigger leads to.
    #[must_use]
    pub fn goal(self) -> PhaseStatus {
        match self {
            Self::Start | Self::Resume | Self::Retry | Self::Rerun => PhaseStatus::InProgress,
            Self::Pause => PhaseStatus::Paused,
            Self::Complete => PhaseStatus::Completed,
            Self::Fail => PhaseStatus::Failed,
        }
    }

    /// Whether a caller may use this trigger on a phase of this kind.
    #[must_use]
    pub fn is_for(self, kind: PhaseKind) -> bool {
        kind == PhaseKind::External || !matches!(self, Self::Complete | Self::Fail)
    }

    /// The event that records this trigger.
    #[must_use]
    pub fn event(self) -> EventType {
        match self {
            Self::Start | Self::Retry | Self::Rerun => EventType::PhaseStarted,
            Self::Pause => EventType::PhasePaused,
            Self::Resume => EventType::PhaseResumed,
            Self::Complete => EventType::PhaseCompleted,
            Self::Fail => EventType::PhaseFailed,
        }
    }
}

impl EventType {
    /// The state of the phase after this event. Progress does not change the state.
    #[must_use]
    pub fn sets(self) -> Option<PhaseStatus> {
        match self {
            Self::PhaseStarted | Self::PhaseResumed => Some(PhaseStatus::InProgress),
            Self::PhasePaused => Some(PhaseStatus::Paused),
            Self::PhaseCompleted => Some(PhaseStatus::Completed),
            Self::PhaseFailed => Some(PhaseStatus::Failed),
            Self::CampaignProgress => None,
        }
    }
}

impl RunStatus {
    /// Whether this transition is legal.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        RUN_TRANSITIONS.contains(&(self, next))
    }

    /// Whether no transition leaves this state.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !RUN_TRANSITIONS.iter().any(|(from, _)| *from == self)
    }
}

impl JobStatus {
    /// Whether this transition is legal.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        JOB_TRANSITIONS.contains(&(self, next))
    }

    /// Whether no transition leaves this state.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !JOB_TRANSITIONS.iter().any(|(from, _)| *from == self)
    }
}

impl ItemStatus {
    /// Whether this transition is legal.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        ITEM_TRANSITIONS.contains(&(self, next))
    }

    /// Whether no transition leaves this state.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !ITEM_TRANSITIONS.iter().any(|(from, _)| *from == self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_parsed_back_and_unknown_ones_are_refused_with_the_known_ones() {
        for status in ItemStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(*status));
        }
        let error = "fax".parse::<Channel>().unwrap_err();
        assert_eq!(error.to_string(), "`fax` is not a channel; known are email, voice, social, chat");
    }

    #[test]
    fn words_are_the_same_in_json() {
        for status in PhaseStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
    }

    #[test]
    fn every_trigger_leads_to_its_goal_and_its_event_says_so() {
        for (_, by, to) in PHASE_MACHINE {
            assert_eq!(by.goal(), *to);
            assert_eq!(by.event().sets(), Some(*to));
        }
        // A state and a trigger lead to one state at most.
        for (n, (from, by, _)) in PHASE_MACHINE.iter().enumerate() {
            assert!(PHASE_MACHINE.iter().skip(n + 1).all(|other| (other.0, other.1) != (*from, *by)));
        }
    }

    #[test]
    fn the_illegal_changes_of_the_contract_are_not_in_the_table() {
        use PhaseStatus::{Completed, Failed, NotStarted, Paused};
        let illegal = [
            (NotStarted, Paused),
            (NotStarted, Completed),
            (Paused, Completed),
            (Paused, Failed),
            (Completed, Paused),
            (Failed, Paused),
        ];
        assert!(illegal.iter().all(|(from, to)| !from.may_become(*to)));
        let legal = PhaseStatus::ALL
            .iter()
            .flat_map(|from| PhaseStatus::ALL.iter().map(move |to| (*from, *to)))
            .filter(|(from, to)| from.may_become(*to));
        assert_eq!(legal.count(), 7);
    }

    #[test]
    fn callers_cannot_complete_or_fail_a_delivery_phase() {
        let allowed =
            |kind| PhaseStatus::InProgress.allowed(kind).map(PhaseTrigger::as_str).collect::<Vec<_>>();
        assert_eq!(allowed(PhaseKind::Delivery), ["pause"]);
        assert_eq!(allowed(PhaseKind::External), ["pause", "complete", "fail"]);
    }

    #[test]
    fn the_terminal_states_are_those_of_the_contract() {
        let terminal = |all: &[ItemStatus]| -> Vec<&'static str> {
            all.iter().filter(|status| status.is_terminal()).map(|status| status.as_str()).collect()
        };
        assert_eq!(terminal(ItemStatus::ALL), ["sent", "called", "posted", "failed", "skipped"]);
        let runs: Vec<_> = RunStatus::ALL.iter().filter(|status| status.is_terminal()).collect();
        assert_eq!(runs, [&RunStatus::Completed, &RunStatus::Partial, &RunStatus::Failed]);
        let jobs: Vec<_> = JobStatus::ALL.iter().filter(|status| status.is_terminal()).collect();
        assert_eq!(jobs, [&JobStatus::Completed, &JobStatus::Dead]);
    }
}

//! Campaigns: channels, the states of phases, runs, jobs and items, and what follows from what.
//!
//! What is absent from a table of transitions cannot happen: the database refuses it too, and a test compares the two.

use crate::words::words;

words!(
    /// How people are reached.
    Channel, "channel" {
        /// An e-mail to a lead.
        Email => "email",
        /// A call to a lead.
        Voice => "voice",
        /// A post to the public.
        Social => "social",
        /// An answer to somebody who wrote. Campaigns have none.
        Chat => "chat",
    }
);

words!(
    /// The state of a phase.
    PhaseStatus, "phase status" {
        /// Nothing was deployed.
        NotStarted => "not_started",
        /// A run is under way, or another service works on it.
        InProgress => "in_progress",
        /// Nothing new is reserved until it is resumed.
        Paused => "paused",
        /// Its run ended within the tolerance.
        Completed => "completed",
        /// Its run ended outside the tolerance.
        Failed => "failed",
    }
);

words!(
    /// What changes the state of a phase.
    PhaseTrigger, "phase control" {
        /// It begins.
        Start => "start",
        /// It is suspended.
        Pause => "pause",
        /// It goes on.
        Resume => "resume",
        /// What failed is tried again.
        Retry => "retry",
        /// All of it is done again.
        Rerun => "rerun",
        /// It has ended well.
        Complete => "complete",
        /// It has ended badly.
        Fail => "fail",
    }
);

words!(
    /// The state of a run, computed from its jobs.
    RunStatus, "run status" {
        /// Its jobs exist and none was taken yet.
        Queued => "queued",
        /// A job was taken.
        Running => "running",
        /// Every job completed.
        Completed => "completed",
        /// Some of it succeeded.
        Partial => "partial",
        /// None of it succeeded.
        Failed => "failed",
    }
);

words!(
    /// Why a run was made.
    RunCause, "cause of a run" {
        /// The phase was started.
        Start => "start",
        /// What had failed is tried again.
        Retry => "retry",
        /// Everybody is addressed again.
        Rerun => "rerun",
    }
);

words!(
    /// The state of a job.
    JobStatus, "job status" {
        /// It waits for a worker.
        Queued => "queued",
        /// A worker holds it.
        Locked => "locked",
        /// Every item has an end, and not all of them failed.
        Completed => "completed",
        /// Not finished; it comes again at `run_after`.
        Failed => "failed",
        /// There is nothing left to try.
        Dead => "dead",
    }
);

words!(
    /// What a job came to.
    JobOutcome, "job outcome" {
        /// All items succeeded or were skipped.
        Completed => "completed",
        /// Some did.
        Partial => "partial",
        /// None did.
        Failed => "failed",
    }
);

words!(
    /// The state of an item: one row of the outbox, one key, at most one provider call.
    ItemStatus, "item status" {
        /// Reserved: the call is under way, or nobody knows (then it is in doubt).
        Queued => "queued",
        /// The provider took the e-mail.
        Sent => "sent",
        /// The provider placed the call.
        Called => "called",
        /// The provider published the post.
        Posted => "posted",
        /// The provider refused, or provably nothing left us.
        Failed => "failed",
        /// No call was made on purpose.
        Skipped => "skipped",
    }
);

words!(
    /// What a phase is.
    PhaseKind, "phase kind" {
        /// We send it.
        Delivery => "delivery",
        /// Another service does it and reports.
        External => "external",
    }
);

words!(
    /// What a campaign's history consists of.
    EventType, "event type" {
        /// A phase began, or began again.
        PhaseStarted => "phase_started",
        /// A phase was suspended.
        PhasePaused => "phase_paused",
        /// A phase goes on.
        PhaseResumed => "phase_resumed",
        /// A phase ended well.
        PhaseCompleted => "phase_completed",
        /// A phase ended badly.
        PhaseFailed => "phase_failed",
        /// How far a phase is.
        CampaignProgress => "campaign_progress",
    }
);

impl Channel {
    /// Those that campaigns can use.
    pub const OF_CAMPAIGNS: &[Self] = &[Self::Email, Self::Voice, Self::Social];

    /// How success is called on it.
    #[must_use]
    pub const fn success(self) -> ItemStatus {
        match self {
            Self::Email | Self::Chat => ItemStatus::Sent,
            Self::Voice => ItemStatus::Called,
            Self::Social => ItemStatus::Posted,
        }
    }
}

/// Every legal change of a phase: from where, by what, to where. Nothing else is said about phases anywhere: the database, the API and the
/// documents are tested against this table.
pub const PHASE_MACHINE: &[(PhaseStatus, PhaseTrigger, PhaseStatus)] = &[
    (PhaseStatus::NotStarted, PhaseTrigger::Start, PhaseStatus::InProgress),
    (PhaseStatus::InProgress, PhaseTrigger::Pause, PhaseStatus::Paused),
    (PhaseStatus::InProgress, PhaseTrigger::Complete, PhaseStatus::Completed),
    (PhaseStatus::InProgress, PhaseTrigger::Fail, PhaseStatus::Failed),
    (PhaseStatus::Paused, PhaseTrigger::Resume, PhaseStatus::InProgress),
    (PhaseStatus::Completed, PhaseTrigger::Rerun, PhaseStatus::InProgress),
    (PhaseStatus::Failed, PhaseTrigger::Retry, PhaseStatus::InProgress),
];

/// Every legal change of a run.
pub const RUN_TRANSITIONS: &[(RunStatus, RunStatus)] = &[
    (RunStatus::Queued, RunStatus::Running),
    (RunStatus::Running, RunStatus::Completed),
    (RunStatus::Running, RunStatus::Partial),
    (RunStatus::Running, RunStatus::Failed),
];

/// Every legal change of a job. `locked` goes back to `queued` when its worker hands it back, or is gone.
pub const JOB_TRANSITIONS: &[(JobStatus, JobStatus)] = &[
    (JobStatus::Queued, JobStatus::Locked),
    (JobStatus::Locked, JobStatus::Completed),
    (JobStatus::Locked, JobStatus::Failed),
    (JobStatus::Locked, JobStatus::Queued),
    (JobStatus::Failed, JobStatus::Queued),
    (JobStatus::Failed, JobStatus::Dead),
];

/// Every legal change of an item.
pub const ITEM_TRANSITIONS: &[(ItemStatus, ItemStatus)] = &[
    (ItemStatus::Queued, ItemStatus::Sent),
    (ItemStatus::Queued, ItemStatus::Called),
    (ItemStatus::Queued, ItemStatus::Posted),
    (ItemStatus::Queued, ItemStatus::Failed),
    (ItemStatus::Queued, ItemStatus::Skipped),
];

impl PhaseStatus {
    /// Whether this change is legal.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        PHASE_MACHINE.iter().any(|(from, _, to)| (*from, *to) == (self, next))
    }

    /// Where a trigger leads from here, if anywhere.
    #[must_use]
    pub fn after(self, trigger: PhaseTrigger) -> Option<Self> {
        PHASE_MACHINE.iter().find(|(from, by, _)| (*from, *by) == (self, trigger)).map(|(_, _, to)| *to)
    }

    /// What may be done about a phase of this kind from here. A delivery ends by itself.
    pub fn allowed(self, kind: PhaseKind) -> impl Iterator<Item = PhaseTrigger> {
        PHASE_MACHINE
            .iter()
            .filter(move |(from, by, _)| *from == self && by.is_for(kind))
            .map(|(_, by, _)| *by)
    }
}

impl PhaseTrigger {
    /// The state that it asks for.
    #[must_use]
    pub fn goal(self) -> PhaseStatus {
        match self {
            Self::Start | Self::Resume | Self::Retry | Self::Rerun => PhaseStatus::InProgress,
            Self::Pause => PhaseStatus::Paused,
            Self::Complete => PhaseStatus::Completed,
            Self::Fail => PhaseStatus::Failed,
        }
    }

    /// Whether somebody may say it about a phase of this kind.
    #[must_use]
    pub fn is_for(self, kind: PhaseKind) -> bool {
        kind == PhaseKind::External || !matches!(self, Self::Complete | Self::Fail)
    }

    /// The event that tells of it.
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
    /// The state of the phase after it. Progress has none: it never touches the state.
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
    /// Whether this change is legal.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        RUN_TRANSITIONS.contains(&(self, next))
    }

    /// Whether nothing can follow.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !RUN_TRANSITIONS.iter().any(|(from, _)| *from == self)
    }
}

impl JobStatus {
    /// Whether this change is legal.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        JOB_TRANSITIONS.contains(&(self, next))
    }

    /// Whether nothing can follow.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !JOB_TRANSITIONS.iter().any(|(from, _)| *from == self)
    }
}

impl ItemStatus {
    /// Whether this change is legal.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        ITEM_TRANSITIONS.contains(&(self, next))
    }

    /// Whether nothing can follow.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !ITEM_TRANSITIONS.iter().any(|(from, _)| *from == self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_and_others_are_refused_with_the_known_ones() {
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
        // A state and a trigger lead to one place at most.
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
    fn a_delivery_ends_by_itself() {
        let allowed =
            |kind| PhaseStatus::InProgress.allowed(kind).map(PhaseTrigger::as_str).collect::<Vec<_>>();
        assert_eq!(allowed(PhaseKind::Delivery), ["pause"]);
        assert_eq!(allowed(PhaseKind::External), ["pause", "complete", "fail"]);
    }

    #[test]
    fn the_ends_are_those_of_the_contract() {
        let ends = |all: &[ItemStatus]| -> Vec<&'static str> {
            all.iter().filter(|status| status.is_terminal()).map(|status| status.as_str()).collect()
        };
        assert_eq!(ends(ItemStatus::ALL), ["sent", "called", "posted", "failed", "skipped"]);
        let runs: Vec<_> = RunStatus::ALL.iter().filter(|status| status.is_terminal()).collect();
        assert_eq!(runs, [&RunStatus::Completed, &RunStatus::Partial, &RunStatus::Failed]);
        let jobs: Vec<_> = JobStatus::ALL.iter().filter(|status| status.is_terminal()).collect();
        assert_eq!(jobs, [&JobStatus::Completed, &JobStatus::Dead]);
    }
}

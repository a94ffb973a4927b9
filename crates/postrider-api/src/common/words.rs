//! Enums of the model as the document shows them. Only their schemas are used; a test compares them with the model.

use serde::Serialize;
use utoipa::ToSchema;

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$renamed:meta])* $variant:ident),+ $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Serialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        #[cfg_attr(not(test), expect(dead_code, reason = "only its schema is used"))]
        pub(crate) enum $name { $($(#[$renamed])* $variant),+ }

        #[cfg(test)]
        impl $name {
            const ALL: &[Self] = &[$(Self::$variant),+];
        }
    )*};
}

words! {
    /// Channel on which people are reached.
    Channel { Email, Voice, Social }
    /// Channel that a provider serves. On `chat` it sends replies to messages.
    ProviderChannel { Email, Voice, Social, Chat }
    /// How items in doubt are settled at a provider: it recognises idempotency keys, takes an id of ours, can be asked, reports with the
    /// key, or only a person can find out.
    DoubtClass { Key, Natural, Lookup, Echo, Person }
    /// Type of an event of a campaign.
    EventType { PhaseStarted, PhasePaused, PhaseResumed, PhaseCompleted, PhaseFailed, CampaignProgress }
    /// Kind of a phase: Postrider delivers it, or another service carries it out and reports.
    PhaseKind { Delivery, External }
    /// The state of a phase.
    PhaseStatus { NotStarted, InProgress, Paused, Completed, Failed }
    /// Control of a phase. `complete` and `fail` are for phases that another service carries out.
    PhaseTrigger { Start, Pause, Resume, Retry, Rerun, Complete, Fail }
    /// Cause of a run.
    RunCause { Start, Retry, Rerun, Message }
    /// The state of a run.
    RunStatus { Queued, Running, Completed, Partial, Failed }
    /// The state of a send job.
    JobStatus { Queued, Locked, Completed, Failed, Dead }
    /// Result of a send job.
    JobOutcome { Completed, Partial, Failed }
    /// The state of an item. A `queued` item is being processed, or in doubt: then `doubted_since` has the time.
    ItemStatus { Queued, Sent, Called, Posted, Failed, Skipped }
    /// Filter for items: a state; `queued` are those being processed, and `in_doubt` those whose result is not known.
    ItemState { Queued, Sent, Called, Posted, Failed, Skipped, InDoubt }
    /// Reason why a send job waits: the account's rate, its daily number, its hours, because the provider asked for it, or because the
    /// provider fails.
    Why { Rate, Daily, Hours, RetryAfter, Circuit }
    /// How an item in doubt is settled: by a repeat that is harmless, a look-up, the provider's callback, or a person.
    SettledBy { Repeat, LookUp, Callback, Person }
    /// State of a received message. `accepted` is being executed, `dispatch_failed` is retried, the others are final.
    MessageStatus { Accepted, Executed, DeniedUnlinked, DeniedRbac, DeniedSentinel, DispatchFailed }
    /// The state of a reply.
    ReplyStatus { Pending, Sending, Sent, Dead }
    /// Grain within which a function runs once.
    Grain { Day, Hour, #[serde(rename = "5min")] FiveMinutes }
    /// The state of a run of a function. A `running` run waits for a runner or has one; a `failed` run waits for its retry where it
    /// has a `retry_at`, and for a person where it has none.
    JobRunStatus { Running, Completed, Failed, Cancelled }
    /// Policy for missed firings: none of them runs, the last one, or all.
    Misfire { Skip, Once, All }
    /// Result of a firing.
    FiringOutcome { Started, Waiting, Skipped }
    /// Whether an alert holds.
    AlertStatus { Active, Open, Triggered, Resolved }
    /// The state of a decision card.
    CardStatus {
        #[serde(rename = "OPEN")] Open,
        #[serde(rename = "IN_PROGRESS")] InProgress,
        #[serde(rename = "RESOLVED")] Resolved,
        #[serde(rename = "DISMISSED")] Dismissed,
    }
}

#[cfg(test)]
mod tests {
    use postrider_engine::campaigns::resolver;
    use postrider_model::{
        DoubtClass::{Echo, Key, Lookup, Natural, Person},
        campaigns, channels,
        jobs::{self, lock_key, schedule},
    };

    use super::*;

    fn spelled<T: Serialize>(words: &[T]) -> Vec<serde_json::Value> {
        words.iter().map(|word| serde_json::to_value(word).unwrap()).collect()
    }

    #[test]
    fn the_document_knows_the_words_of_the_model() {
        assert_eq!(spelled(Channel::ALL), spelled(campaigns::Channel::OF_CAMPAIGNS));
        assert_eq!(spelled(ProviderChannel::ALL), spelled(campaigns::Channel::ALL));
        let classes = [Key, Natural, Lookup, Echo, Person];
        assert_eq!(spelled(DoubtClass::ALL), spelled(&classes));
        assert_eq!(spelled(EventType::ALL), spelled(campaigns::EventType::ALL));
        assert_eq!(spelled(PhaseKind::ALL), spelled(campaigns::PhaseKind::ALL));
        assert_eq!(spelled(PhaseStatus::ALL), spelled(campaigns::PhaseStatus::ALL));
        assert_eq!(spelled(PhaseTrigger::ALL), spelled(campaigns::PhaseTrigger::ALL));
        assert_eq!(spelled(RunCause::ALL), spelled(campaigns::RunCause::ALL));
        assert_eq!(spelled(RunStatus::ALL), spelled(campaigns::RunStatus::ALL));
        assert_eq!(spelled(JobStatus::ALL), spelled(campaigns::JobStatus::ALL));
        assert_eq!(spelled(JobOutcome::ALL), spelled(campaigns::JobOutcome::ALL));
        assert_eq!(spelled(ItemStatus::ALL), spelled(campaigns::ItemStatus::ALL));
        assert_eq!(spelled(Why::ALL), spelled(postrider_model::campaigns::limits::Why::ALL));
        assert_eq!(spelled(SettledBy::ALL), spelled(resolver::SettledBy::ALL));
        assert_eq!(spelled(MessageStatus::ALL), spelled(channels::MessageStatus::ALL));
        assert_eq!(spelled(ReplyStatus::ALL), spelled(channels::ReplyStatus::ALL));
        assert_eq!(spelled(Grain::ALL), spelled(lock_key::Grain::ALL));
        assert_eq!(spelled(JobRunStatus::ALL), spelled(jobs::JobRunStatus::ALL));
        assert_eq!(spelled(Misfire::ALL), spelled(schedule::Misfire::ALL));
        assert_eq!(spelled(FiringOutcome::ALL), spelled(jobs::FiringOutcome::ALL));
        assert_eq!(spelled(AlertStatus::ALL), spelled(jobs::AlertStatus::ALL));
        assert_eq!(spelled(CardStatus::ALL), spelled(jobs::CardStatus::ALL));
        assert_eq!(spelled(ItemState::ALL)[..6], spelled(ItemStatus::ALL)[..]);
    }
}

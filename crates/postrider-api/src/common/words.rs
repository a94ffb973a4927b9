//! Enums as the OpenAPI document shows them. The words are those of the model's own lists.

use std::borrow::Cow;

use postrider_engine::campaigns::resolver;
use postrider_model::{
    campaigns::{self, limits},
    channels,
    jobs::{self, lock_key, schedule},
};
use serde::Serialize;
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{ObjectBuilder, Type},
    },
};

macro_rules! words {
    ($($(#[doc = $doc:literal])+ $name:ident: $($values:expr),+;)*) => {$(
        $(#[doc = $doc])+
        #[derive(Serialize)]
        pub(crate) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let words = [$(spelled($values)),+].concat();
                let words = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words));
                words.description(Some([$($doc),+].map(str::trim).join("\n"))).into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        }
    )*};
}

words! {
    /// Channel on which people are reached.
    Channel: campaigns::Channel::OF_CAMPAIGNS;
    /// Channel that a provider serves. On `chat` it sends replies to messages.
    ProviderChannel: campaigns::Channel::ALL;
    /// How items in doubt are settled at a provider: it recognises idempotency keys, takes an id of ours, can be asked, reports with the
    /// key, or only a person can find out.
    DoubtClass: postrider_model::DoubtClass::ALL;
    /// Type of an event of a campaign.
    EventType: campaigns::EventType::ALL;
    /// Kind of a phase: Postrider delivers it, or another service carries it out and reports.
    PhaseKind: campaigns::PhaseKind::ALL;
    /// The state of a phase.
    PhaseStatus: campaigns::PhaseStatus::ALL;
    /// Control of a phase. `complete` and `fail` are for phases that another service carries out, `cancel` for those that Postrider
    /// delivers.
    PhaseTrigger: campaigns::PhaseTrigger::ALL;
    /// Cause of a run.
    RunCause: campaigns::RunCause::ALL;
    /// The state of a run.
    RunStatus: campaigns::RunStatus::ALL;
    /// The state of a send job.
    JobStatus: campaigns::JobStatus::ALL;
    /// Result of a send job.
    JobOutcome: campaigns::JobOutcome::ALL;
    /// The delivery status of an item, as its provider reported it.
    DeliveryStatus: campaigns::delivery::DeliveryStatus::ALL;
    /// The state of an item. A `queued` item is being processed, or in doubt: then `doubted_since` has the time.
    ItemStatus: campaigns::ItemStatus::ALL;
    /// Filter for items: a state; `queued` are those being processed, and `in_doubt` those whose result is not known.
    ItemState: campaigns::ItemStatus::ALL, &["in_doubt"];
    /// Reason why a send job waits: the account's rate, its daily number, its hours, because the provider asked for it, or because the
    /// provider fails.
    Why: limits::Why::ALL;
    /// How an item in doubt is settled: by a repeat that is harmless, a look-up, the provider's callback, or a person.
    SettledBy: resolver::SettledBy::ALL;
    /// State of a received message. `accepted` is being executed, `dispatch_failed` is retried, the others are final.
    MessageStatus: channels::MessageStatus::ALL;
    /// The state of a reply.
    ReplyStatus: channels::ReplyStatus::ALL;
    /// Grain within which a function runs once.
    Grain: lock_key::Grain::ALL;
    /// The state of a run of a function. A `running` run waits for a runner or has one; a `failed` run waits for its retry where it
    /// has a `retry_at`, and for a person where it has none.
    JobRunStatus: jobs::JobRunStatus::ALL;
    /// Policy for missed firings: none of them runs, the last one, or all.
    Misfire: schedule::Misfire::ALL;
    /// Result of a firing.
    FiringOutcome: jobs::FiringOutcome::ALL;
    /// Whether an alert holds.
    AlertStatus: jobs::AlertStatus::ALL;
    /// The state of a decision card.
    CardStatus: jobs::CardStatus::ALL;
}

/// The words as the API writes them.
fn spelled<T: Serialize>(words: &[T]) -> Vec<Value> {
    words.iter().filter_map(|word| serde_json::to_value(word).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_has_the_words_of_the_model() {
        let shown = serde_json::to_value(Grain::schema()).unwrap();
        assert_eq!(shown["enum"], serde_json::json!(["day", "hour", "5min"]));
        let shown = serde_json::to_value(ItemState::schema()).unwrap();
        let words = shown["enum"].as_array().unwrap();
        assert_eq!(words.len(), campaigns::ItemStatus::ALL.len() + 1);
        assert_eq!(words.last().unwrap(), "in_doubt");
    }
}

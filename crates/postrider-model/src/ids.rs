//! One type per kind of id. Postrider creates ids as UUIDv7; people see them with a prefix, programs see the bare UUID.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text that is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{input}` is not a {kind} id; expected a UUID, with or without the prefix `{kind}_`")]
pub struct NotAnId {
    input: String,
    kind: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id, ordered by time.
            #[must_use]
            #[expect(clippy::new_without_default, reason = "a fresh id is not a default value")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($kind, "_{}"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;

            fn from_str(input: &str) -> Result<Self, NotAnId> {
                let bare = input.strip_prefix(concat!($kind, "_")).unwrap_or(input);
                Uuid::parse_str(bare).map(Self).map_err(|_| NotAnId { input: input.to_owned(), kind: $kind })
            }
        }
    };
}

id!(
    /// A tenant.
    TenantId,
    "tenant"
);
id!(
    /// A workspace inside a tenant.
    WorkspaceId,
    "workspace"
);
id!(
    /// An API key (the row, not the secret).
    ApiKeyId,
    "key"
);
id!(
    /// A session of the dashboard (the row, not the token).
    SessionId,
    "session"
);
id!(
    /// An account of a tenant at a provider.
    ProviderAccountId,
    "account"
);

id!(
    /// An inbound chat message.
    ChannelMessageId,
    "message"
);
id!(
    /// A link from a sender at an account to a user and a role.
    LinkId,
    "link"
);
id!(
    /// An executor of inbound messages.
    ExecutorId,
    "executor"
);

id!(
    /// A function that job runs call (the row; people use its name).
    FunctionId,
    "function"
);

id!(
    /// A person or a place that campaigns address.
    LeadId,
    "lead"
);
id!(
    /// A list of leads.
    ListId,
    "list"
);
id!(
    /// One version of content; it never changes.
    AssetId,
    "asset"
);
id!(
    /// A campaign.
    CampaignId,
    "campaign"
);
id!(
    /// A message outside a campaign.
    SingleMessageId,
    "single_message"
);
id!(
    /// A step of a campaign.
    PhaseId,
    "phase"
);
id!(
    /// One execution of a phase.
    RunId,
    "run"
);
id!(
    /// A send job: a part of a run that one worker claims at a time.
    JobId,
    "job"
);
id!(
    /// The record of one provider call.
    OutboxId,
    "item"
);

id!(
    /// One run of a function: at most one at a time for its lock key.
    JobRunId,
    "job_run"
);
id!(
    /// A schedule of a function.
    ScheduleId,
    "schedule"
);
id!(
    /// A dead letter: a job run that failed and is not retried.
    SyncErrorId,
    "sync_error"
);
id!(
    /// An alert.
    AlertId,
    "alert"
);
id!(
    /// A decision that a person makes about an alert.
    DecisionCardId,
    "card"
);

/// A domain event. The contract makes it a `bigint`, and consumers use it to recognise repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(pub i64);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_with_and_without_its_prefix() {
        let id = TenantId::new();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.0.to_string().parse(), Ok(id));
    }

    #[test]
    fn an_id_of_another_kind_is_refused() {
        let error = ApiKeyId::new().to_string().parse::<TenantId>().unwrap_err();
        assert!(error.to_string().contains("is not a tenant id"), "{error}");
    }
}

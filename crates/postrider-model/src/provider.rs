//! Manifests of adapters, outcomes of calls, and findings about items in doubt.

use std::time::Duration;

use serde::Serialize;

use crate::campaigns::{Channel, ItemStatus};

/// The outcome of a call. An adapter must choose one of the five.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider accepted the message.
    Delivered {
        /// The provider's id of the message.
        message_id: String,
    },
    /// The provider refused the message, and would refuse it again.
    Rejected {
        /// The provider's reason, shortened.
        reason: String,
    },
    /// Provably nothing was sent: the worker may repeat the call under the same reservation.
    NotSent {
        /// The reason.
        reason: String,
        /// For a rate limit: the time to wait, which the provider named or the adapter knows. The account waits as a whole, and
        /// neither an attempt is counted nor does the item fail. Without a time the call failed.
        retry_after: Option<Duration>,
    },
    /// The provider refused the account and not the message, and nothing was sent. The circuit of the account opens, and no item fails.
    AccountRefused {
        /// The reason.
        reason: String,
        /// Whether the provider refused the login. It may lock an account after a few of those, so nothing is tried again before the
        /// secret is changed.
        is_login: bool,
    },
    /// The request may have arrived. The item is in doubt and is not called again.
    Unknown {
        /// The event instead of a response.
        reason: String,
    },
}

impl Outcome {
    /// Every result of [`kind`](Self::kind).
    pub const KINDS: [&'static str; 5] = ["delivered", "rejected", "not_sent", "account_refused", "unknown"];

    /// Label for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Delivered { .. } => "delivered",
            Self::Rejected { .. } => "rejected",
            Self::NotSent { .. } => "not_sent",
            Self::AccountRefused { .. } => "account_refused",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// The reason; the provider's id of a delivered message.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Delivered { message_id } => message_id,
            Self::Rejected { reason }
            | Self::NotSent { reason, .. }
            | Self::AccountRefused { reason, .. }
            | Self::Unknown { reason } => reason,
        }
    }

    /// Whether the account must wait before the item is tried again: nothing is known about the item itself.
    #[must_use]
    pub const fn waits_for_account(&self) -> bool {
        matches!(self, Self::NotSent { retry_after: Some(_), .. } | Self::AccountRefused { .. })
    }

    /// Final state of an item with this outcome. `None`: the item waits for its account, or stays reserved and is in doubt.
    #[must_use]
    pub const fn ends_as(&self, channel: Channel) -> Option<ItemStatus> {
        match self {
            Self::Delivered { .. } => Some(channel.success()),
            Self::Rejected { .. } | Self::NotSent { retry_after: None, .. } => Some(ItemStatus::Failed),
            Self::NotSent { retry_after: Some(_), .. }
            | Self::AccountRefused { .. }
            | Self::Unknown { .. } => None,
        }
    }
}

/// How an item in doubt can be settled at this provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DoubtClass {
    /// The provider deduplicates on the idempotency key for a documented time.
    Key,
    /// The call is a put under an id that Postrider chooses.
    Natural,
    /// The provider offers a lookup.
    Lookup,
    /// The provider's status callback carries the idempotency key.
    Echo,
    /// Only a person can find out.
    Person,
}

/// The result of a lookup or a repeat about an item in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The provider acted: this settles the item at any time.
    Done {
        /// The provider's id of the message.
        message_id: String,
        /// The evidence, for the audit log.
        evidence: String,
    },
    /// A lookup found nothing: this settles the item only after the quiet time. Or the provider refused a repeat, perhaps because
    /// it already has the message.
    Absent {
        /// The evidence.
        evidence: String,
    },
    /// The provider gave no usable answer; the resolver asks again later.
    Unclear {
        /// The reason.
        reason: String,
    },
    /// The provider's limit of look-ups is used up, or the look-up goes on later. The next one comes after this time.
    Later {
        /// The reason.
        reason: String,
        /// Time until the next look-up.
        retry_after: Duration,
    },
    /// The provider cannot give evidence about this item.
    CannotTell {
        /// The reason.
        reason: String,
    },
}

/// A number of calls per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rate {
    /// Number of calls.
    pub calls: u32,
    /// Length of the period.
    pub per: Duration,
}

impl Rate {
    /// Calls per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        f64::from(self.calls) / self.per.as_secs_f64().max(0.001)
    }

    /// Time from one call to the next.
    #[must_use]
    pub fn every(&self) -> Duration {
        self.per / self.calls.max(1)
    }
}

/// The description of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Manifest {
    /// Name in `provider_accounts.provider`.
    pub name: &'static str,
    /// Channels that the adapter serves.
    pub channels: &'static [Channel],
    /// How the resolver settles items in doubt.
    pub doubt: DoubtClass,
    /// Time for which the provider deduplicates on a key, if it does.
    pub key_lifetime: Option<Duration>,
    /// Documented rate limit of an account at the provider. The account's own limits take precedence.
    pub rate: Option<Rate>,
    /// Documented limit over a longer period, beside the rate. The account's own limits take precedence.
    pub quota: Option<Rate>,
    /// Documented rate limit of look-ups of an account at the provider. All processes share it. The account's own limits take precedence.
    pub look_ups: Option<Rate>,
    /// Documented limit of concurrent calls of an account at the provider.
    pub concurrency: Option<u32>,
}

impl Manifest {
    /// The default manifest: a person settles items in doubt, and there are no limits. Complete it with `..`.
    #[must_use]
    pub const fn new(name: &'static str, channels: &'static [Channel]) -> Self {
        Self {
            name,
            channels,
            doubt: DoubtClass::Person,
            key_lifetime: None,
            rate: None,
            quota: None,
            look_ups: None,
            concurrency: None,
        }
    }

    /// Time after the first call in which a repeat under the same key is harmless: the key's lifetime minus a tenth of it, or
    /// minus five minutes if that is more.
    #[must_use]
    pub fn repeat_within(&self) -> Option<Duration> {
        let margin = |life: Duration| (life / 10).max(Duration::from_secs(300));
        self.key_lifetime.map(|life| life.saturating_sub(margin(life)))
    }
}

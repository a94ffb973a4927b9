//! What an adapter says about itself and about a call.

use std::time::Duration;

use serde::Serialize;

use crate::campaign::{Channel, ItemStatus};

/// What became of a call. There are four answers, and an adapter must choose one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider took it.
    Delivered {
        /// The provider's own name for it.
        message_id: String,
    },
    /// The provider said no, and would say so again.
    Rejected {
        /// In its words, shortened.
        reason: String,
    },
    /// Provably nothing was done: it may be tried again under the same reservation.
    NotSent {
        /// Why.
        reason: String,
        /// When the provider wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// The request may have arrived. Nobody knows, so nobody tries again: the item is in doubt.
    Unknown {
        /// What happened instead of an answer.
        reason: String,
    },
}

impl Outcome {
    /// Every word that [`kind`](Self::kind) can say.
    pub const KINDS: [&'static str; 4] = ["delivered", "rejected", "not_sent", "unknown"];

    /// A word for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Delivered { .. } => "delivered",
            Self::Rejected { .. } => "rejected",
            Self::NotSent { .. } => "not_sent",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// The state that an item ends in when this is the last word about it. `None`: it stays reserved, in doubt.
    #[must_use]
    pub const fn ends_as(&self, channel: Channel) -> Option<ItemStatus> {
        match self {
            Self::Delivered { .. } => Some(channel.success()),
            Self::Rejected { .. } | Self::NotSent { .. } => Some(ItemStatus::Failed),
            Self::Unknown { .. } => None,
        }
    }
}

/// How an item in doubt can be settled at this provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DoubtClass {
    /// The provider recognises our key for a documented time.
    Key,
    /// The write is a put under an id that we choose.
    Natural,
    /// The provider can be asked.
    Lookup,
    /// The provider's status callback carries our key.
    Echo,
    /// Only a person can find out.
    Person,
}

/// What a vendor says about an item in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It was done: this counts at any time.
    Done {
        /// The provider's own name for it.
        message_id: String,
        /// How it is known, for the audit log.
        evidence: String,
    },
    /// To a look-up: the vendor does not know it. This counts only when the quiet time is over. To a repeat: the vendor refuses
    /// this very message, which may be so because it has it.
    Absent {
        /// How it is known.
        evidence: String,
    },
    /// Nothing was learned: to be asked again later.
    Unclear {
        /// Why.
        reason: String,
    },
    /// Nothing will ever be learned this way.
    CannotTell {
        /// Why.
        reason: String,
    },
}

/// So many calls in so much time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rate {
    /// How many.
    pub calls: u32,
    /// In how long.
    pub per: Duration,
}

/// What an adapter says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Manifest {
    /// Its name in `provider_accounts.provider`.
    pub name: &'static str,
    /// What it can carry.
    pub channels: &'static [Channel],
    /// How its doubts are settled.
    pub doubt: DoubtClass,
    /// For how long the provider recognises a key, where it does.
    pub key_lifetime: Option<Duration>,
    /// What the provider allows an account, where it says so. An account's own limits come before it.
    pub rate: Option<Rate>,
    /// Most calls at a time that the provider allows an account, where it says so.
    pub concurrency: Option<u32>,
}

impl Manifest {
    /// The least that a manifest says: doubts are for a person, and nothing is limited. Complete it with `..`.
    #[must_use]
    pub const fn new(name: &'static str, channels: &'static [Channel]) -> Self {
        Self { name, channels, doubt: DoubtClass::Person, key_lifetime: None, rate: None, concurrency: None }
    }

    /// Until how long after the first call a repeat under the same key is harmless: the key's life less a tenth of it, and
    /// less five minutes at least.
    #[must_use]
    pub fn repeat_within(&self) -> Option<Duration> {
        let margin = |life: Duration| (life / 10).max(Duration::from_secs(300));
        self.key_lifetime.map(|life| life.saturating_sub(margin(life)))
    }
}

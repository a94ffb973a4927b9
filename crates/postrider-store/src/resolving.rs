//! Items in doubt in the hands of a resolver: claim, settle with evidence, or put off.

use jiff::Timestamp;
use postrider_model::{
    Channel, IdempotencyKey,
    ids::{OutboxId, TenantId},
};

/// An item in doubt that a resolver holds: the right to ask its provider about it, and to repeat its call where the provider
/// guarantees that this is harmless. Only the store makes one, from a committed claim; settling consumes it.
#[must_use = "a doubt that is dropped waits until its lease is over"]
#[derive(Debug)]
pub struct HeldDoubt {
    outbox_id: OutboxId,
    tenant_id: TenantId,
    channel: Channel,
    key: IdempotencyKey,
    recipient: Option<String>,
    reserved_at: Timestamp,
    doubted_since: Timestamp,
    quiet_until: Timestamp,
    look: i32,
}

impl HeldDoubt {
    /// Which item.
    #[must_use]
    pub fn outbox_id(&self) -> OutboxId {
        self.outbox_id
    }

    /// Whose.
    #[must_use]
    pub fn tenant_id(&self) -> TenantId {
        self.tenant_id
    }

    /// How the person is reached.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// The key that its call carried.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// The address.
    #[must_use]
    pub fn recipient(&self) -> Option<&str> {
        self.recipient.as_deref()
    }

    /// When it was reserved, by the database's clock: its call began after that.
    #[must_use]
    pub fn reserved_at(&self) -> Timestamp {
        self.reserved_at
    }

    /// Since when nobody knows.
    #[must_use]
    pub fn doubted_since(&self) -> Timestamp {
        self.doubted_since
    }

    /// From then on the provider's silence counts.
    #[must_use]
    pub fn quiet_until(&self) -> Timestamp {
        self.quiet_until
    }

    /// How many times somebody has looked, this time included.
    #[must_use]
    pub fn look(&self) -> i32 {
        self.look
    }
}

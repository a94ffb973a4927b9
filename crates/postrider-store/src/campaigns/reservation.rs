//! Reservations: at most one provider call per idempotency key.
//!
//! ```text
//! begin_outbox_items ──commit──▶ Reservation ──the call──▶ Outcome ──settle──▶ Settlement ──commit──▶ a final row
//!                                     └─ dropped, or its worker dies: the row stays `queued`, and is in doubt
//! ```
//!
//! A [`Reservation`] is evidence of a committed row. Only the store makes one, after it has seen the COMMIT; nothing can
//! copy one; an adapter cannot be called without one; settling consumes it. A reply has one for each attempt
//! (`ClaimedReply`): the right to call comes with the committed claim.

use std::time::{Duration, Instant, SystemTime};

use postrider_model::{
    Channel, IdempotencyKey, Outcome, ResponseExcerpt,
    ids::{OutboxId, TenantId},
};

/// The right to make one provider call.
#[must_use = "a reservation that is dropped leaves its row in doubt"]
#[derive(Debug)]
pub struct Reservation {
    outbox_id: OutboxId,
    tenant_id: TenantId,
    channel: Channel,
    key: IdempotencyKey,
    asked: Asked,
    /// Whether it is for the account that the run fails over to.
    has_moved: bool,
}

/// When a reservation was first asked for. Its row cannot be older, however often the request had to be repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    by_the_machine: Instant,
    by_the_calendar: SystemTime,
}

impl Asked {
    pub(crate) fn now() -> Self {
        Self { by_the_machine: Instant::now(), by_the_calendar: SystemTime::now() }
    }

    /// How long ago that was.
    pub(crate) fn age(self) -> Duration {
        // One clock stands still while the machine sleeps, the other can be set back: the larger value counts.
        let by_the_calendar = self.by_the_calendar.elapsed().unwrap_or_default();
        self.by_the_machine.elapsed().max(by_the_calendar)
    }
}

impl Reservation {
    /// For the store alone, after the COMMIT of the row was seen.
    pub(crate) fn committed(
        outbox_id: OutboxId,
        tenant_id: TenantId,
        channel: Channel,
        key: IdempotencyKey,
        asked: Asked,
    ) -> Self {
        Self { outbox_id, tenant_id, channel, key, asked, has_moved: false }
    }

    /// For the store alone, after the COMMIT of the move was seen. The row was not in doubt then, so it is as new as the move.
    pub(crate) fn moved(self, asked: Asked) -> Self {
        Self { asked, has_moved: true, ..self }
    }

    /// Whether it was moved to the account that its run fails over to.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// The row that this is evidence of.
    #[must_use]
    pub fn outbox_id(&self) -> OutboxId {
        self.outbox_id
    }

    /// Tenant of the row.
    #[must_use]
    pub fn tenant_id(&self) -> TenantId {
        self.tenant_id
    }

    /// The channel of the call.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// The key for a provider that takes one.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// How long ago it was first asked for. A worker that was delayed must not call any more: others may already take the
    /// provider's silence for an answer.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.asked.age()
    }

    /// Settles the item with the provider's outcome. [`Outcome::Unknown`] leaves the row `queued`, in doubt.
    pub fn settle(self, outcome: Outcome) -> Settlement {
        let Self { outbox_id, tenant_id, channel, .. } = self;
        Settlement { outbox_id, tenant_id, channel, outcome, response: None }
    }
}

/// The outcome of a reservation, to be recorded. It is kept until the database has it.
#[must_use = "an outcome that is not recorded is lost"]
#[derive(Debug)]
pub struct Settlement {
    pub(crate) outbox_id: OutboxId,
    pub(crate) tenant_id: TenantId,
    pub(crate) channel: Channel,
    pub(crate) outcome: Outcome,
    pub(crate) response: Option<ResponseExcerpt>,
}

impl Settlement {
    /// The same with the provider's response, which the row keeps.
    pub fn with_response(self, response: Option<ResponseExcerpt>) -> Self {
        Self { response, ..self }
    }

    /// Id of the row that it ends.
    #[must_use]
    pub fn outbox_id(&self) -> OutboxId {
        self.outbox_id
    }

    /// Outcome of the call.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }
}

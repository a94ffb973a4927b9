use std::time::{Instant, SystemTime};

use postrider_model::{
    Channel, IdempotencyKey, Outcome,
    ids::{JobId, OutboxId, TenantId},
};
use postrider_store::{Reservation, Settlement};

fn a_reservation_of_nothing() -> Reservation {
    Reservation {
        outbox_id: OutboxId::new(),
        tenant_id: TenantId::new(),
        job_id: JobId::new(),
        channel: Channel::Email,
        key: IdempotencyKey::from_row("key".to_owned()),
        committed: Instant::now(),
        committed_at: SystemTime::now(),
    }
}

fn a_settlement_of_nothing() -> Settlement {
    Settlement {
        outbox_id: OutboxId::new(),
        channel: Channel::Email,
        outcome: Outcome::Delivered { message_id: "m".to_owned() },
    }
}

fn main() {}

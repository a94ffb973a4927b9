use postrider_model::{
    Channel, Outcome,
    ids::{OutboxId, TenantId},
};
use postrider_store::{Reservation, Settlement};

fn another_reservation(of: Reservation) -> Reservation {
    Reservation { outbox_id: OutboxId::new(), ..of } //~ E0451
}

fn a_settlement_of_nothing() -> Settlement {
    Settlement {
        tenant_id: TenantId::new(), //~ E0451
        outbox_id: OutboxId::new(),
        channel: Channel::Email,
        outcome: Outcome::Delivered { message_id: "m".to_owned() },
    }
}

use postrider_model::{Channel, Outcome, ids::OutboxId};
use postrider_store::{Reservation, Settlement};

fn another_reservation(of: Reservation) -> Reservation {
    Reservation { outbox_id: OutboxId::new(), ..of } //~ E0451
}

fn a_settlement_of_nothing() -> Settlement {
    Settlement {
        outbox_id: OutboxId::new(), //~ E0451
        channel: Channel::Email,
        outcome: Outcome::Delivered { message_id: "m".to_owned() },
    }
}

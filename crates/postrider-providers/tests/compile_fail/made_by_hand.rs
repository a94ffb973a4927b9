use postrider_model::{
    Channel, IdempotencyKey,
    ids::{OutboxId, TenantId},
};
use postrider_store::Reservation;

fn by_the_stores_own_function() -> Reservation {
    Reservation::committed(
        OutboxId::new(),
        TenantId::new(),
        Channel::Email,
        IdempotencyKey::from_row("key".to_owned()),
        todo!(),
    )
}

fn main() {}

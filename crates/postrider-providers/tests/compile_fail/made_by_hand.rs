use postrider_model::{
    Channel, IdempotencyKey,
    ids::{OutboxId, TenantId},
};
use postrider_store::Reservation;

fn by_the_stores_own_function() -> Reservation {
    Reservation::committed( //~ E0624
        OutboxId::new(),
        TenantId::new(),
        Channel::Email,
        IdempotencyKey::from_row("key".to_owned()),
        loop {},
    )
}

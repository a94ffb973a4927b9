use postrider_model::Message;
use postrider_providers::Provider;
use postrider_store::{Reservation, Settlement};

async fn send(provider: &dyn Provider, reservation: Reservation, message: &Message) -> Settlement {
    let outcome = provider.call(&reservation, message).await;
    reservation.settle(outcome)
}

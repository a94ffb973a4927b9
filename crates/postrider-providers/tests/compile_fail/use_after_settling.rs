use postrider_model::Message;
use postrider_providers::Provider;
use postrider_store::{Reservation, Settlement};

async fn again(provider: &dyn Provider, reservation: Reservation, message: &Message) -> Settlement {
    let outcome = provider.call(&reservation, message).await;
    let settlement = reservation.settle(outcome);
    provider.call(&reservation, message).await; //~ E0382
    settlement
}

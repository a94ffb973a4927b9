use postrider_model::{Message, Outcome, ids::OutboxId};
use postrider_providers::Provider;

async fn send(provider: &dyn Provider, message: &Message) -> Outcome {
    provider.call(&OutboxId::new(), message).await //~ E0308
}

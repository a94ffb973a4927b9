use postrider_model::{Message, Outcome};
use postrider_providers::Provider;

async fn send(provider: &dyn Provider, message: &Message) -> Outcome {
    provider.call(message).await //~ E0061
}

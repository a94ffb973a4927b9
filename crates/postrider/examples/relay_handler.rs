//! Runs a relay that hands events to Rust code.
//!
//! ```sh
//! DATABASE_URL=postgres://server@db.example.com/shop cargo run -p postrider --example relay_handler
//! ```

// docs:begin
use postrider::{
    CancellationToken, async_trait,
    relay::{self, Event, EventSink, RelaySettings, Route, SinkError},
};

/// Prints orders. The id of an event is the same at every delivery, so a real handler recognises a repeat by it.
struct PrintOrders;

#[async_trait]
impl EventSink for PrintOrders {
    async fn deliver(&self, event: &Event) -> Result<(), SinkError> {
        println!("event {}: {} {}", event.id.0, event.event_type, event.payload);
        Ok(())
    }
}

/// Relays the events of orders until the token is cancelled.
async fn relay_orders(
    database_url: &str,
    shutdown: CancellationToken,
) -> Result<(), Box<dyn std::error::Error>> {
    let orders = Route { events: vec!["order.**".parse()?], ..Route::new("orders", PrintOrders) };
    relay::run(database_url, vec![orders], RelaySettings::default(), shutdown).await?;
    Ok(())
}
// docs:end

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shutdown = CancellationToken::new();
    let interrupted = shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        interrupted.cancel();
    });
    relay_orders(&std::env::var("DATABASE_URL")?, shutdown).await?;
    Ok(())
}

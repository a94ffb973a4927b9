//! Publishes an event in the transaction that makes the change it tells of.
//!
//! ```sh
//! DATABASE_URL=postgres://your_application@db.example.com/shop cargo run -p postrider --example publish
//! ```

// docs:begin
use postrider::events::{self, EventId, NewEvent};

/// Stores an order and publishes its event in one transaction: committed, both exist; rolled back, neither does.
async fn place_order(
    pool: &sqlx::PgPool,
    id: i32,
    cents: i64,
) -> Result<EventId, Box<dyn std::error::Error>> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into orders (id, total) values ($1, $2)")
        .bind(id)
        .bind(cents)
        .execute(&mut *tx)
        .await?;
    let payload = serde_json::json!({ "total": cents });
    let event = NewEvent::new("order", id.to_string(), "order.placed", &payload)?;
    let event_id = events::publish(&mut tx, &event).await?;
    tx.commit().await?;
    Ok(event_id)
}
// docs:end

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = sqlx::PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    sqlx::query("create table if not exists orders (id integer primary key, total bigint not null)")
        .execute(&pool)
        .await?;
    let event_id = place_order(&pool, 1, 1250).await?;
    println!("published event {}", event_id.0);
    // The order exists already, so the transaction is rolled back, and there is no second event.
    let refused = place_order(&pool, 1, 1250).await;
    println!("the second order was {}", if refused.is_err() { "refused" } else { "accepted" });
    Ok(())
}

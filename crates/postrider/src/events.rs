//! Publishes domain events in the application's own transaction.
//!
//! The commit of that transaction makes the event. A relay delivers it to every sink that wants it, at least once.
//!
//! ```no_run
//! # async fn place_order(connection: &mut sqlx::PgConnection) -> Result<(), Box<dyn std::error::Error>> {
//! use postrider::events::{self, NewEvent};
//!
//! let event = NewEvent::new("order", "42", "order.placed", &serde_json::json!({ "total": 1250 }))?;
//! let id = events::publish(connection, &event).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The login of the application needs the role `postrider_publish`, which lets it publish and nothing else. In a multi-tenant
//! application, `set local app.current_tenant_id` names the tenant first. `examples/publish.rs` is a whole program.

pub use postrider_model::{NewEvent, ids::EventId};
pub use postrider_store::events::{hint, publish};

//! The registered sinks: those that every relay of the installation delivers to.
//!
//! A relay claims and completes events under the generation of its sinks ([`crate::events`]). Registering other sinks makes a new
//! generation, and completions under the old one release their events.

use jiff::Timestamp;
use postrider_model::SinkSet;
use serde::Serialize;
use sqlx::{PgConnection, types::Json};

use crate::{StoreError, postgres::unprepared::unprepared};

/// A registered set of sinks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Registered {
    /// Rises by one with each change of the sinks.
    pub generation: i64,
    /// The sinks, without their secrets.
    pub sinks: SinkSet,
    /// Time of the registration.
    pub registered_at: Timestamp,
    /// The relay or the operator that registered them.
    pub registered_by: String,
}

struct Row {
    generation: i64,
    sinks: Json<SinkSet>,
    registered_at: jiff_sqlx::Timestamp,
    registered_by: String,
}

impl From<Row> for Registered {
    fn from(row: Row) -> Self {
        Self {
            generation: row.generation,
            sinks: row.sinks.0,
            registered_at: row.registered_at.to_jiff(),
            registered_by: row.registered_by,
        }
    }
}

/// Registers the sinks if none are registered yet, and returns the registered ones.
pub async fn register(
    connection: &mut PgConnection,
    sinks: &SinkSet,
    actor: &str,
) -> Result<Registered, StoreError> {
    sqlx::query_as!(
        Row,
        r#"
        select generation as "generation!",
               sinks as "sinks!: Json<SinkSet>",
               registered_at as "registered_at!: jiff_sqlx::Timestamp",
               registered_by as "registered_by!"
          from events.register_sinks($1, $2)
        "#,
        Json(sinks) as _,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map(Registered::from)
    .map_err(StoreError::on("registering the sinks"))
}

/// Registers these sinks instead of the registered ones, and returns the registered ones. Only operators may.
pub async fn replace(
    connection: &mut PgConnection,
    sinks: &SinkSet,
    actor: &str,
) -> Result<Registered, StoreError> {
    sqlx::query_as!(
        Row,
        r#"
        select generation as "generation!",
               sinks as "sinks!: Json<SinkSet>",
               registered_at as "registered_at!: jiff_sqlx::Timestamp",
               registered_by as "registered_by!"
          from events.replace_sinks($1, $2)
        "#,
        Json(sinks) as _,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map(Registered::from)
    .map_err(StoreError::on("replacing the sinks"))
}

/// The registered sinks, if any are.
pub async fn registered(connection: &mut PgConnection) -> Result<Option<Registered>, StoreError> {
    let row = sqlx::query_as!(
        Row,
        r#"
        select generation,
               sinks as "sinks: Json<SinkSet>",
               registered_at as "registered_at: jiff_sqlx::Timestamp",
               registered_by
          from events.sink_sets
         order by generation desc
         limit 1
        "#,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the registered sinks"))?;
    Ok(row.map(Registered::from))
}

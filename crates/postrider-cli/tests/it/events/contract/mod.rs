//! The event contract, in raw SQL, as an ordinary client in any language would use it.
//!
//! Time is set, never waited for: rows get the times that a test needs, and where a moment counts, set-up and call
//! share one transaction, in which `now()` stands still.

mod claim;
mod complete;
mod operate;
mod plans;
mod prune;
mod publish;
mod signatures;
mod together;

use sqlx::{AssertSqlSafe, PgExecutor};

/// Publishes an event about the aggregate with this id.
async fn publish(client: impl PgExecutor<'_>, aggregate_id: &str) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("select m10_recovery.publish_outbox('order', $1, 'order.placed', '{\"total\": 12}')")
        .bind(aggregate_id)
        .fetch_one(client)
        .await
}

/// Claims events and gives their ids.
async fn claim(client: impl PgExecutor<'_>, processor: &str, batch: i32) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar("select id from m10_recovery.claim_outbox_events($1, $2)")
        .bind(processor)
        .bind(batch)
        .fetch_all(client)
        .await
}

/// Completes an event: with an error, as failed.
async fn complete(
    client: impl PgExecutor<'_>,
    id: i64,
    processor: &str,
    error: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query("select m10_recovery.complete_outbox_event($1, $2, $3, $4)")
        .bind(id)
        .bind(processor)
        .bind(error.is_none())
        .bind(error)
        .execute(client)
        .await
        .map(drop)
}

/// Inserts an event as only a superuser can, with these columns set beside the usual ones.
async fn insert(admin: impl PgExecutor<'_>, columns: &str, values: &str) -> Result<i64, sqlx::Error> {
    let sql = format!(
        "insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, {columns}) \
         values ('order', '42', 'order.placed', '{{}}', {values}) returning id"
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(admin).await
}

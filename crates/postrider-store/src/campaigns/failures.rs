//! The errors of a run's failed items, grouped.

use std::time::Duration;

use postrider_model::ids::{OutboxId, RunId, TenantId};
use serde::Serialize;
use sqlx::PgConnection;

use crate::{
    StoreError,
    postgres::{pool, unprepared::unprepared},
};

/// Number of errors that are shown.
const SHOWN: i64 = 50;
/// How long the grouping may take.
const GROUPING_MAX: Duration = Duration::from_secs(5);

/// An error, and the items that failed with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The error. Empty for items that failed without one.
    pub error: String,
    /// Number of items.
    pub count: i64,
    /// Three of them, the first in the order of the run.
    pub item_ids: Vec<OutboxId>,
}

/// The most frequent errors of a run's failed items. The error [`StoreError::is_timeout`] means that there are too many items.
pub async fn list(
    connection: &mut PgConnection,
    tenant: TenantId,
    run: RunId,
) -> Result<Vec<Failure>, StoreError> {
    // The statistics may take the send jobs of a run for scattered.
    pool::read_in_order_of_an_index(connection).await?;
    pool::limit_statements(connection, GROUPING_MAX).await?;
    let rows = sqlx::query_file!("sql/campaigns/list_failures.sql", tenant.0, run.0, SHOWN)
        .fetch_all(unprepared(connection))
        .await
        .map_err(StoreError::on("grouping the failed items of the run"))?;
    Ok(rows
        .into_iter()
        .map(|row| Failure {
            error: row.error,
            count: row.total,
            item_ids: row.item_ids.into_iter().map(OutboxId).collect(),
        })
        .collect())
}

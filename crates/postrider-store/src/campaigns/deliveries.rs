//! Delivery statuses of items, as their providers reported them.

use jiff::Timestamp;
use postrider_model::{
    Channel,
    campaigns::{ItemStatus, delivery::DeliveryStatus},
    ids::{RunId, TenantId},
};
use serde::Serialize;
use sqlx::PgConnection;

use crate::{
    StoreError,
    campaigns::runs::Run,
    postgres::{unprepared::unprepared, values::word},
};

/// The delivery status of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Delivery {
    /// The status.
    pub status: DeliveryStatus,
    /// Details, in the provider's words.
    pub detail: Option<String>,
    /// The provider's time of the status, or the time of the report if it names none.
    pub at: Timestamp,
}

impl Delivery {
    /// From the columns of a left join, which are null if the item has no status.
    pub(super) fn of(
        status: Option<&str>,
        detail: Option<String>,
        at: Option<jiff_sqlx::Timestamp>,
    ) -> Result<Option<Self>, StoreError> {
        let (Some(status), Some(at)) = (status, at) else { return Ok(None) };
        Ok(Some(Self { status: word(status)?, detail, at: at.to_jiff() }))
    }
}

/// Number of items of a run that have a delivery status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The status.
    pub status: DeliveryStatus,
    /// Number of items.
    pub items: i64,
}

/// The delivery statuses of the items of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// By status, in the order of their ranks. Statuses without items are left out.
    pub statuses: Vec<Count>,
    /// Of a run of calls: how many of them were answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<Calls>,
}

/// Calls of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Calls {
    /// Calls that the provider placed.
    pub placed: i64,
    /// Calls that a person or a machine answered.
    pub answered: i64,
    /// Calls that a machine answered.
    pub answered_by_machine: i64,
}

impl Summary {
    fn of(channel: Channel, placed: i64, statuses: Vec<Count>) -> Self {
        let sum = |counts: fn(DeliveryStatus) -> bool| {
            statuses.iter().filter(|count| counts(count.status)).map(|count| count.items).sum()
        };
        let calls = (channel.success() == ItemStatus::Called).then(|| Calls {
            placed,
            answered: sum(DeliveryStatus::is_answered),
            answered_by_machine: sum(|status| status == DeliveryStatus::AnsweredByMachine),
        });
        Self { statuses, calls }
    }
}

/// The delivery statuses of a run, of which `placed` items succeeded. An archived run has the counts of the time when it was archived.
pub async fn summary(
    connection: &mut PgConnection,
    tenant: TenantId,
    run: &Run,
    placed: i64,
) -> Result<Summary, StoreError> {
    let mut statuses = counts(connection, tenant, run.id).await?;
    statuses.sort_by_key(|count| count.status.rank());
    Ok(Summary::of(run.channel, placed, statuses))
}

async fn counts(
    connection: &mut PgConnection,
    tenant: TenantId,
    run: RunId,
) -> Result<Vec<Count>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select delivery.status as "status!",
               count(*) as "items!"
          from execution.deliveries as delivery
         where delivery.tenant_id = $1
           and delivery.run_id = $2
           and not exists (select
                             from execution.run_archives as archive
                            where archive.tenant_id = $1
                              and archive.run_id = $2)
         group by delivery.status
         union all
        select entry.key,
               entry.value::bigint
          from execution.run_archives as archive
               cross join lateral jsonb_each_text(archive.deliveries) as entry
         where archive.tenant_id = $1
           and archive.run_id = $2
        "#,
        tenant.0,
        run.0,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("counting the delivery statuses of the run"))?;
    rows.into_iter().map(|row| Ok(Count { status: word(&row.status)?, items: row.items })).collect()
}

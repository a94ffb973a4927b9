//! Items in doubt: they were reserved, and the provider may or may not have acted.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    Channel, IdempotencyKey,
    campaigns::ItemStatus,
    ids::{CampaignId, JobId, OutboxId, RunId, TenantId},
};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    StoreError,
    postgres::{unprepared::unprepared, values::word},
};

/// An item in doubt.
#[derive(Debug, Clone, Serialize)]
pub struct Doubt {
    /// Its id.
    pub id: OutboxId,
    /// Its run.
    pub run_id: RunId,
    /// Its send job.
    pub job_id: JobId,
    /// Its campaign. A single message has none.
    pub campaign_id: Option<CampaignId>,
    /// Name of the campaign.
    pub campaign: Option<String>,
    /// The name of the phase.
    pub phase: Option<String>,
    /// How the person is reached.
    pub channel: Channel,
    /// The vendor that was called.
    pub provider: String,
    /// The lead, or the post.
    pub recipient_id: Option<Uuid>,
    /// The address.
    pub recipient: Option<String>,
    /// Idempotency key of the call.
    pub idempotency_key: IdempotencyKey,
    /// Worker that reserved it.
    pub reserved_by: Option<String>,
    /// Attempt of its send job that reserved it.
    pub attempt: Option<i32>,
    /// Time of the reservation.
    pub reserved_at: Timestamp,
    /// Time since which it is in doubt.
    pub doubted_since: Timestamp,
    /// The age of the doubt in seconds, by the database's clock.
    pub age_seconds: i64,
    /// Time from which on the provider's silence counts as "it was never sent".
    pub quiet_until: Timestamp,
    /// Whether that time has come, by the database's clock.
    pub is_quiet: bool,
    /// The event that left the item in doubt.
    pub reason: String,
    /// Whether the resolver has given up on it. Not serialized: a person also settles what a provider cannot be asked about, so the code
    /// that shows a doubt computes how it will be settled.
    #[serde(skip)]
    pub is_for_person: bool,
    /// Number of look-ups by the resolver.
    pub looks: i32,
    /// Result of the resolver's last look-up.
    pub note: Option<String>,
}

/// Filters for the list of items in doubt.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only of this run.
    pub run: Option<RunId>,
    /// Only of this campaign.
    pub campaign: Option<CampaignId>,
    /// Only of this vendor.
    pub provider: Option<String>,
    /// Only those that will be settled in one of these ways.
    pub settled: Option<Settled>,
    /// Only those whose quiet time is over, or only the others.
    pub is_quiet: Option<bool>,
}

/// Ways of settling, in terms of vendors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    /// Vendors whose items are settled in a wanted way, unless the resolver has given up on them.
    pub by_vendors: Vec<String>,
    /// Vendors whose items are settled without a person, in a wanted way or not. A person settles those of all others.
    pub without_person: Vec<String>,
    /// Whether the items that a person settles are wanted.
    pub by_person: bool,
}

/// Items in doubt of one tenant.
#[derive(Debug)]
pub struct Doubts {
    /// The longest reserved first.
    pub items: Vec<Doubt>,
    /// Their number, from the beginning of the list.
    pub total: i64,
}

/// Lists the items in doubt.
pub async fn list(connection: &mut PgConnection, tenant: TenantId, limit: i64) -> Result<Doubts, StoreError> {
    page(connection, tenant, &Filter::default(), None, limit).await
}

/// The items in doubt after a given item, by the time of their reservation, or from the beginning. The time since which an item is in
/// doubt may still change; the time of its reservation does not.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    filter: &Filter,
    after: Option<(Timestamp, OutboxId)>,
    limit: i64,
) -> Result<Doubts, StoreError> {
    let (at, id) = after.unzip();
    let settled = filter.settled.as_ref();
    let rows = sqlx::query_file!(
        "sql/campaigns/list_doubts.sql",
        tenant.0,
        limit,
        at.map(ToSqlx::to_sqlx) as _,
        id.map(|id| id.0),
        filter.run.map(|run| run.0),
        filter.campaign.map(|campaign| campaign.0),
        filter.provider.as_deref(),
        settled.map(|settled| settled.by_vendors.as_slice()) as _,
        settled.map(|settled| settled.without_person.as_slice()) as _,
        settled.is_some_and(|settled| settled.by_person),
        filter.is_quiet,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing what is in doubt"))?;
    let total = rows.first().map_or(0, |row| row.total);
    let items: Result<Vec<Doubt>, StoreError> = rows
        .into_iter()
        .map(|row| {
            Ok(Doubt {
                id: OutboxId(row.id),
                run_id: RunId(row.run_id),
                job_id: JobId(row.job_id),
                campaign_id: row.campaign_id.map(CampaignId),
                campaign: row.campaign,
                phase: row.phase,
                channel: word(&row.channel)?,
                provider: row.provider,
                recipient_id: row.recipient_id,
                recipient: row.recipient,
                idempotency_key: IdempotencyKey::from_row(row.idempotency_key),
                reserved_by: row.reserved_by,
                attempt: row.attempt,
                reserved_at: row.reserved_at.to_jiff(),
                doubted_since: row.doubted_since.to_jiff(),
                age_seconds: row.age_seconds,
                quiet_until: row.quiet_until.to_jiff(),
                is_quiet: row.is_quiet,
                reason: row.reason,
                is_for_person: row.is_for_person,
                looks: row.looks,
                note: row.note,
            })
        })
        .collect();
    Ok(Doubts { items: items?, total })
}

/// A person's finding about an item in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution<'a> {
    /// The provider acted. This counts at once.
    Sent {
        /// The provider's id of the message, where it is known.
        message_id: Option<&'a str>,
    },
    /// The provider did not act. This counts when the quiet time is over.
    Failed,
}

impl<'a> Resolution<'a> {
    pub(crate) fn words(self) -> (&'static str, Option<&'a str>) {
        match self {
            Self::Sent { message_id } => ("sent", message_id),
            Self::Failed => ("failed", None),
        }
    }
}

/// Settles an item of the tenant, and says what it has become. Its send job may be able to end now: wake
/// the workers with [`crate::campaigns::send_jobs::hint`] after the commit.
pub async fn resolve(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: OutboxId,
    resolution: Resolution<'_>,
    note: &str,
    actor: &str,
) -> Result<ItemStatus, StoreError> {
    let (resolved_as, message_id) = resolution.words();
    let status = sqlx::query_scalar!(
        r#"select execution.resolve_in_doubt($1, $2, $3, $4, $5, $6) as "status!""#,
        tenant.0,
        id.0,
        resolved_as,
        message_id,
        note,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("resolving the item"))?;
    word(&status)
}

/// A finding about one of many items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The item.
    pub id: OutboxId,
    /// The provider's id of the message. Only for an item that was sent, and where it is known.
    pub message_id: Option<String>,
}

/// Result of one of many items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The item.
    pub id: OutboxId,
    /// Its state; or the reason why it was refused and stays in doubt.
    pub settled: Result<ItemStatus, String>,
}

/// Most items that [`resolve_many`] settles at a time.
pub const RESOLVED_MAX: usize = 1000;

/// Settles up to [`RESOLVED_MAX`] items of the tenant as sent or as failed. The refusal of one item leaves the others settled. Their send
/// jobs may be able to end now: wake the workers with [`crate::campaigns::send_jobs::hint`] after the commit.
pub async fn resolve_many(
    connection: &mut PgConnection,
    tenant: TenantId,
    found: &[Found],
    resolved_as: Resolution<'_>,
    note: &str,
    actor: &str,
) -> Result<Vec<Settlement>, StoreError> {
    let ids: Vec<Uuid> = found.iter().map(|found| found.id.0).collect();
    let message_ids: Vec<Option<&str>> = found.iter().map(|found| found.message_id.as_deref()).collect();
    let (resolved_as, _) = resolved_as.words();
    let rows = sqlx::query!(
        r#"
        select outbox_id as "outbox_id!",
               status,
               refusal
          from execution.resolve_many_in_doubt($1, $2, $3, $4, $5, $6)
        "#,
        tenant.0,
        &ids,
        resolved_as,
        &message_ids as _,
        note,
        actor,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("resolving the items"))?;
    rows.into_iter()
        .map(|row| {
            let settled = match row.status {
                Some(status) => Ok(word(&status)?),
                None => Err(row.refusal.unwrap_or_default()),
            };
            Ok(Settlement { id: OutboxId(row.outbox_id), settled })
        })
        .collect()
}

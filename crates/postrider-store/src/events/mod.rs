//! Domain events.
//!
//! ```text
//! publish ──the publisher's commit──▶ pending ──claim──▶ claimed ──complete──▶ processed ──prune──▶ gone
//!                                        ▲                  └─ failed: `process_after` moves on ─┐
//!                                        └───────────────────────────────────────────────────────┘
//! ```
//!
//! The three functions of the contract do the work; the functions of schema `events` apply them to batches.

pub mod sinks;

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    Event, NewEvent,
    events::EventState,
    ids::{EventId, TenantId},
};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::{
    StoreError,
    postgres::{unprepared::unprepared, wakeups},
};

/// The channel for hints about new events, which a publisher may send after its commit.
pub const HINT_CHANNEL: &str = "postrider_events";

/// SQLSTATE of a claim under sinks that are not the registered ones.
const SINKS_REPLACED: &str = "PR004";

/// Publishes an event in the caller's transaction: rolled back, no event; committed, an event.
pub async fn publish(connection: &mut PgConnection, event: &NewEvent) -> Result<EventId, StoreError> {
    event.check().map_err(|invalid| StoreError::Refused { message: invalid.to_string(), hint: None })?;
    sqlx::query_scalar!(
        r#"select m10_recovery.publish_outbox($1, $2, $3, $4) as "id!""#,
        event.aggregate_type,
        event.aggregate_id,
        event.event_type,
        Json(&*event.payload) as _,
    )
    .fetch_one(unprepared(connection))
    .await
    .map(EventId)
    .map_err(StoreError::on("publishing the event"))
}

/// Wakes the relays. Call it after the commit, never inside a publisher's transaction: NOTIFY makes commits wait for
/// each other.
pub async fn hint(connection: &mut PgConnection) -> Result<(), StoreError> {
    wakeups::notify_on(connection, HINT_CHANNEL, "").await
}

/// An event that this processor holds, and the sinks that have it already.
#[derive(Debug)]
pub struct Claimed {
    /// Its tenant.
    pub tenant_id: TenantId,
    /// The event.
    pub event: Event,
    /// Sinks that took it in an earlier attempt.
    pub delivered_to: Vec<String>,
}

/// Claims up to `batch_size` ready events for five minutes, for a relay that delivers to the sinks of this generation. Returns `None`
/// when other sinks are registered by now.
pub async fn claim(
    connection: &mut PgConnection,
    generation: i64,
    processor: &str,
    batch_size: i32,
) -> Result<Option<Vec<Claimed>>, StoreError> {
    let claimed = sqlx::query!(
        r#"
        select tenant_id as "tenant_id!",
               id as "id!",
               aggregate_type as "aggregate_type!",
               aggregate_id as "aggregate_id!",
               event_type as "event_type!",
               payload as "payload!: Json<Box<RawValue>>",
               retry_count as "retry_count!",
               created_at as "created_at!: jiff_sqlx::Timestamp",
               delivered_to as "delivered_to!"
          from events.claim_events($1, $2, $3)
        "#,
        generation,
        processor,
        batch_size,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("claiming events"));
    let rows = match claimed {
        Ok(rows) => rows,
        Err(error) if error.sqlstate().as_deref() == Some(SINKS_REPLACED) => return Ok(None),
        Err(error) => return Err(error),
    };
    let claimed = rows.into_iter().map(|row| Claimed {
        tenant_id: TenantId(row.tenant_id),
        event: Event {
            id: EventId(row.id),
            aggregate_type: row.aggregate_type,
            aggregate_id: row.aggregate_id,
            event_type: row.event_type,
            payload: row.payload.0,
            retry_count: row.retry_count,
            created_at: row.created_at.to_jiff(),
        },
        delivered_to: row.delivered_to,
    });
    Ok(Some(claimed.collect()))
}

/// The result of a claimed event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Tenant of the claimed event.
    pub tenant_id: TenantId,
    /// Id of the claimed event.
    pub id: EventId,
    /// `None` when every sink took it; otherwise why it must be tried again.
    pub error: Option<String>,
    /// Sinks that took it in this attempt.
    pub delivered_to: Vec<String>,
    /// Set when nothing failed but a sink was busy: the event is released and becomes ready again after this delay.
    pub release_after: Option<Duration>,
}

/// The result of [`complete`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// Each event has the outcome that was reported for it.
    Completed,
    /// Other sinks are registered by now. The events were released, with the sinks that took them, and a relay with the
    /// registered sinks delivers them to the others.
    Released,
}

/// Records the results of claimed events, all in one statement. When one claim is not held any more the whole statement fails, and the
/// caller tries them one by one. An event is completed only while the sinks of this generation are registered.
pub async fn complete(
    connection: &mut PgConnection,
    generation: i64,
    processor: &str,
    completions: &[&Completion],
) -> Result<Recorded, StoreError> {
    // In the order of ids, so that two processors never deadlock.
    let mut sorted: Vec<&Completion> = completions.to_vec();
    sorted.sort_by_key(|completion| completion.id);
    let (incomplete, complete): (Vec<&Completion>, Vec<&Completion>) =
        sorted.iter().partition(|completion| completion.error.is_some());
    record_deliveries(connection, processor, &incomplete).await?;
    let (released, ended): (Vec<&Completion>, Vec<&Completion>) =
        sorted.into_iter().partition(|completion| completion.release_after.is_some());
    release(connection, processor, &released).await?;
    if ended.is_empty() {
        return Ok(Recorded::Completed);
    }
    let (tenants, ids) = keys(&ended);
    let errors: Vec<Option<String>> = ended.iter().map(|completion| completion.error.clone()).collect();
    let is_registered = sqlx::query_scalar!(
        r#"select events.complete_events($1, $2, $3, $4, $5) as "is_registered!""#,
        generation,
        processor,
        &tenants,
        &ids,
        &errors as _,
    )
    .fetch_one(unprepared(&mut *connection))
    .await
    .map_err(StoreError::on("completing events"))?;
    if is_registered {
        return Ok(Recorded::Completed);
    }
    record_deliveries(connection, processor, &complete).await?;
    release(connection, processor, &ended).await?;
    Ok(Recorded::Released)
}

/// Tenants and ids, as the functions take them.
fn keys(completions: &[&Completion]) -> (Vec<Uuid>, Vec<i64>) {
    completions.iter().map(|completion| (completion.tenant_id.0, completion.id.0)).unzip()
}

async fn release(
    connection: &mut PgConnection,
    processor: &str,
    released: &[&Completion],
) -> Result<(), StoreError> {
    if released.is_empty() {
        return Ok(());
    }
    let (tenants, ids) = keys(released);
    let delays: Vec<i64> = released
        .iter()
        .map(|completion| completion.release_after.map_or(0, |after| after.as_millis() as i64))
        .collect();
    sqlx::query!("select events.release_outbox_events($1, $2, $3, $4)", processor, &tenants, &ids, &delays)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("releasing events"))?;
    Ok(())
}

/// Records which sinks took events that other sinks still have to receive.
async fn record_deliveries(
    connection: &mut PgConnection,
    processor: &str,
    completions: &[&Completion],
) -> Result<(), StoreError> {
    let (of, sinks): (Vec<&Completion>, Vec<String>) = completions
        .iter()
        .flat_map(|completion| completion.delivered_to.iter().map(|sink| (*completion, sink.clone())))
        .unzip();
    if of.is_empty() {
        return Ok(());
    }
    let (tenants, ids) = keys(&of);
    sqlx::query!("select events.note_deliveries($1, $2, $3, $4)", processor, &tenants, &ids, &sinks)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("recording partial deliveries"))?;
    Ok(())
}

/// Measurements of the events that wait.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Backlog {
    /// Events that are not processed, counted up to 100,000.
    pub pending: i64,
    /// Those of them that failed more often than the limit.
    pub stuck: i64,
    /// How long the oldest ready one has been ready.
    pub oldest_ready_seconds: f64,
}

/// Measures the events that wait, over all tenants.
pub async fn backlog(connection: &mut PgConnection, stuck_after: i32) -> Result<Backlog, StoreError> {
    sqlx::query_as!(
        Backlog,
        r#"
        select pending as "pending!", stuck as "stuck!", oldest_ready_seconds as "oldest_ready_seconds!"
          from events.outbox_backlog($1)
        "#,
        stuck_after,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("measuring the backlog"))
}

/// Result of one small step of retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    /// Number of removed events.
    pub removed: i64,
    /// Where the next step begins.
    pub last_id: i64,
    /// Whether nothing old follows.
    pub done: bool,
}

/// Tenants that have events, the system tenant included.
pub async fn tenants(connection: &mut PgConnection) -> Result<Vec<TenantId>, StoreError> {
    let ids = sqlx::query_scalar!(r#"select id as "id!" from events.tenants_with_events() as tenant (id)"#)
        .fetch_all(unprepared(connection))
        .await
        .map_err(StoreError::on("reading the tenants with events"))?;
    Ok(ids.into_iter().map(TenantId).collect())
}

/// Removes processed events of a tenant that are older than the limit from one window of ids.
pub async fn prune(
    connection: &mut PgConnection,
    tenant: TenantId,
    processed_before: Timestamp,
    after_id: i64,
    window: i32,
) -> Result<Pruned, StoreError> {
    sqlx::query_as!(
        Pruned,
        r#"
        select removed as "removed!", last_id as "last_id!", done as "done!"
          from events.prune_outbox($1, $2, $3, $4)
        "#,
        tenant.0,
        processed_before.to_sqlx() as _,
        after_id,
        window,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("removing old events"))
}

/// An event for operators.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// Its id.
    pub id: EventId,
    /// The tenant that published it, or the system tenant.
    pub tenant_id: TenantId,
    /// Type of the aggregate that it is about.
    pub aggregate_type: String,
    /// Id of the aggregate.
    pub aggregate_id: String,
    /// Type of the event.
    pub event_type: String,
    /// The data.
    pub payload: Box<RawValue>,
    /// Its state.
    pub state: EventState,
    /// Number of failed deliveries.
    pub retry_count: i32,
    /// When it was published.
    pub created_at: Timestamp,
    /// Earliest time of the next delivery.
    pub process_after: Option<Timestamp>,
    /// When it was processed.
    pub processed_at: Option<Timestamp>,
    /// The process that holds it.
    pub claimed_by: Option<String>,
    /// The last error, or the actor that closed the event.
    pub last_error: Option<String>,
}

/// Filters for the list of events.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only in one of these states; in any, when there is none.
    pub states: Vec<EventState>,
    /// Also events that failed more often than this and still wait; only those, when no state is named.
    pub stuck_after: Option<i32>,
    /// Only this tenant's.
    pub tenant: Option<TenantId>,
    /// Only after this id.
    pub after: i64,
    /// Maximum number of events.
    pub limit: i64,
}

/// Lists events, oldest first.
pub async fn list(connection: &mut PgConnection, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
    let states: Vec<String> = filter
        .states
        .iter()
        .map(|state| match state {
            EventState::Pending => "pending".to_owned(),
            EventState::Claimed => "claimed".to_owned(),
            EventState::Processed => "processed".to_owned(),
        })
        .collect();
    let rows = sqlx::query_file!(
        "sql/events/list_events.sql",
        &states,
        filter.stuck_after,
        filter.tenant.map(|tenant| tenant.0),
        filter.after,
        filter.limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing events"))?;
    Ok(rows
        .into_iter()
        .map(|row| Listed {
            id: EventId(row.id),
            tenant_id: TenantId(row.tenant_id),
            aggregate_type: row.aggregate_type,
            aggregate_id: row.aggregate_id,
            event_type: row.event_type,
            payload: row.payload.0,
            state: match (&row.processed_at, &row.claimed_by) {
                (Some(_), _) => EventState::Processed,
                (None, Some(_)) => EventState::Claimed,
                (None, None) => EventState::Pending,
            },
            retry_count: row.retry_count,
            created_at: row.created_at.to_jiff(),
            process_after: row.process_after.map(jiff_sqlx::Timestamp::to_jiff),
            processed_at: row.processed_at.map(jiff_sqlx::Timestamp::to_jiff),
            claimed_by: row.claimed_by,
            last_error: row.last_error,
        })
        .collect())
}

/// Result of a person's request about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// The request was carried out.
    Done,
    /// There is no such event, or it belongs to another tenant.
    Unknown,
    /// It is processed already.
    Processed,
    /// A processor is delivering it at this moment.
    Claimed,
}

/// Makes a waiting event ready now.
pub async fn retry(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: EventId,
    actor: &str,
) -> Result<Handled, StoreError> {
    let answer = sqlx::query_scalar!(
        r#"select events.retry_outbox_event($1, $2, $3) as "answer!""#,
        tenant.0,
        id.0,
        actor
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("retrying the event"))?;
    handled(&answer)
}

/// Ends an event without delivering it.
pub async fn close(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: EventId,
    actor: &str,
    note: &str,
) -> Result<Handled, StoreError> {
    let answer = sqlx::query_scalar!(
        r#"select events.close_outbox_event($1, $2, $3, $4) as "answer!""#,
        tenant.0,
        id.0,
        actor,
        note
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("closing the event"))?;
    handled(&answer)
}

fn handled(answer: &str) -> Result<Handled, StoreError> {
    match answer {
        "done" => Ok(Handled::Done),
        "unknown" => Ok(Handled::Unknown),
        "processed" => Ok(Handled::Processed),
        "claimed" => Ok(Handled::Claimed),
        other => Err(StoreError::Unfit(format!(
            "the database answered `{other}`, which this version does not know"
        ))),
    }
}

//! Alerts, and the cards on which people decide about alerts.

use jiff::Timestamp;
use postrider_model::{
    ids::{AlertId, DecisionCardId, TenantId},
    jobs::{AlertRules, AlertStatus, CardStatus, DETECT_ALERTS},
};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;

use crate::{
    Pool, StoreError,
    postgres::{
        pool,
        unprepared::unprepared,
        values::{interval, word},
    },
};

/// An alert.
#[derive(Debug, Clone, Serialize)]
pub struct Alert {
    /// Its id.
    pub id: AlertId,
    /// The rule that raised it.
    pub alert_config_id: String,
    /// The subject; absent for the tenant as a whole.
    pub external_object_id: Option<String>,
    /// The title, in one line.
    pub title: String,
    /// Its severity.
    pub severity: String,
    /// Its state.
    pub status: AlertStatus,
    /// The evidence.
    pub evidence: Value,
    /// Its notifications: account, recipient, subject and result of each.
    pub notifications: Value,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// When it was resolved.
    pub resolved_at: Option<Timestamp>,
}

/// Up to so many alerts of a tenant, newest first, below this one; only open ones, or only the others, if `is_open` is set.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    is_open: Option<bool>,
    below: Option<AlertId>,
    limit: i64,
) -> Result<Vec<Alert>, StoreError> {
    let rows = sqlx::query_file!("sql/jobs/list_alerts.sql", tenant.0, is_open, below.map(|id| id.0), limit)
        .fetch_all(unprepared(connection))
        .await
        .map_err(StoreError::on("listing the alerts"))?;
    let time = jiff_sqlx::Timestamp::to_jiff;
    rows.into_iter()
        .map(|row| {
            Ok(Alert {
                id: AlertId(row.id),
                alert_config_id: row.alert_config_id,
                external_object_id: row.external_object_id,
                title: row.title,
                severity: row.severity,
                status: word(&row.status)?,
                evidence: row.evidence,
                notifications: row.notifications,
                created_at: time(row.created_at),
                updated_at: time(row.updated_at),
                resolved_at: row.resolved_at.map(time),
            })
        })
        .collect()
}

/// The rules about the jobs of a tenant, as its first schedule of `detect-alerts` sets them.
pub async fn rules(connection: &mut PgConnection, tenant: TenantId) -> Result<AlertRules, StoreError> {
    let input = sqlx::query_scalar!(
        "select input from jobs.schedules where tenant_id = $1 and function_name = $2 order by id limit 1",
        tenant.0,
        DETECT_ALERTS,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the rules of alerts"))?;
    // An input that cannot be read fails the schedule's own runs, which report it.
    Ok(input.flatten().and_then(|input| serde_json::from_value(input).ok()).unwrap_or_default())
}

/// Result of a detection.
#[derive(Debug, Clone, Serialize)]
pub struct Detected {
    /// New alerts.
    pub raised: i32,
    /// Alerts that were resolved.
    pub resolved: i32,
    /// Open alerts about jobs.
    pub open: i32,
}

/// Raises and resolves the alerts about the jobs of a tenant.
pub async fn detect(pool: &Pool, tenant: TenantId, rules: AlertRules) -> Result<Detected, StoreError> {
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let detected = sqlx::query_as!(
        Detected,
        r#"select raised as "raised!", resolved as "resolved!", open as "open!" from jobs.detect_alerts($1, $2, $3, $4)"#,
        tenant.0,
        i32::try_from(rules.failed_max).unwrap_or(i32::MAX),
        interval(rules.running_max()),
        rules.retry_rate_max,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("detecting alerts"))?;
    pool::commit(transaction).await?;
    Ok(detected)
}

/// Result of making cards.
#[derive(Debug, Clone, Serialize)]
pub struct Carded {
    /// New cards.
    pub opened: i32,
    /// Cards whose alert resolved itself.
    pub closed: i32,
}

/// Makes a card for each open alert of a tenant, and closes the cards of resolved alerts.
pub async fn generate_cards(pool: &Pool, tenant: TenantId) -> Result<Carded, StoreError> {
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let carded = sqlx::query_as!(
        Carded,
        r#"select opened as "opened!", closed as "closed!" from jobs.generate_decision_cards($1)"#,
        tenant.0,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("making decision cards"))?;
    pool::commit(transaction).await?;
    Ok(carded)
}

/// A card.
#[derive(Debug, Clone, Serialize)]
pub struct Card {
    /// Its id.
    pub id: DecisionCardId,
    /// The alert that it is about.
    pub alert_instance_id: AlertId,
    /// The rule of the alert.
    pub metric_code: String,
    /// The day it is about.
    pub period_start: String,
    /// Its state.
    pub status: CardStatus,
    /// The title, in one line.
    pub title: String,
    /// The recommended action.
    pub recommendation: String,
    /// The evidence.
    pub evidence: Value,
    /// Note about the decision.
    pub note: Option<String>,
    /// The actor that decided.
    pub decided_by: Option<String>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// Up to so many cards of a tenant, newest first, below this one.
pub async fn cards(
    connection: &mut PgConnection,
    tenant: TenantId,
    status: Option<CardStatus>,
    below: Option<DecisionCardId>,
    limit: i64,
) -> Result<Vec<Card>, StoreError> {
    select_cards(connection, tenant, None, status, below, limit).await
}

/// One card of a tenant.
pub async fn card(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: DecisionCardId,
) -> Result<Option<Card>, StoreError> {
    Ok(select_cards(connection, tenant, Some(id), None, None, 1).await?.pop())
}

async fn select_cards(
    connection: &mut PgConnection,
    tenant: TenantId,
    only: Option<DecisionCardId>,
    status: Option<CardStatus>,
    below: Option<DecisionCardId>,
    limit: i64,
) -> Result<Vec<Card>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id, alert_instance_id, metric_code, period_start::text as "period_start!", status, title, recommendation, evidence, note,
               decided_by,
               created_at as "created_at: jiff_sqlx::Timestamp",
               updated_at as "updated_at: jiff_sqlx::Timestamp"
          from jobs.decision_cards
         where tenant_id = $1
           and ($2::uuid is null or id = $2)
           and ($3::text is null or status = $3)
           and ($4::uuid is null or id < $4)
         order by id desc
         limit $5
        "#,
        tenant.0,
        only.map(|id| id.0),
        status.map(CardStatus::as_str),
        below.map(|id| id.0),
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the decision cards"))?;
    rows.into_iter()
        .map(|row| {
            Ok(Card {
                id: DecisionCardId(row.id),
                alert_instance_id: AlertId(row.alert_instance_id),
                metric_code: row.metric_code,
                period_start: row.period_start,
                status: word(&row.status)?,
                title: row.title,
                recommendation: row.recommendation,
                evidence: row.evidence,
                note: row.note,
                decided_by: row.decided_by,
                created_at: row.created_at.to_jiff(),
                updated_at: row.updated_at.to_jiff(),
            })
        })
        .collect()
}

/// Decides a card of a tenant. `None` when there is no such card; `Err` inside has the state of a card that was decided before.
pub async fn decide_card(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: DecisionCardId,
    status: CardStatus,
    note: Option<&str>,
    actor: &str,
) -> Result<Option<Result<(), CardStatus>>, StoreError> {
    let row = sqlx::query!(
        r#"select decided as "decided!", status as "status!" from jobs.decide_card($1, $2, $3, $4, $5)"#,
        tenant.0,
        id.0,
        status.as_str(),
        note,
        actor,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("deciding the card"))?;
    row.map(|row| Ok(if row.decided { Ok(()) } else { Err(word(&row.status)?) })).transpose()
}

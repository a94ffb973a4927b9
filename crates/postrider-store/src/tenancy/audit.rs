//! The audit logs: of administration, and of campaigns.

use jiff::Timestamp;
use postrider_model::ids::{CampaignId, RunId, TenantId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{StoreError, postgres::unprepared::unprepared};

/// One line of a log.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its place in its log.
    pub id: i64,
    /// Time of the action.
    pub at: Timestamp,
    /// The actor.
    pub actor: String,
    /// The action, such as `key.created`.
    pub action: String,
    /// The subject of the action, such as `key:…`.
    pub subject: String,
    /// Reason or details.
    pub note: Option<String>,
    /// The campaign that it concerns, if any.
    pub campaign_id: Option<Uuid>,
    /// The run.
    pub run_id: Option<Uuid>,
}

/// Up to so many lines about tenants, keys, accounts, leads and events, newest first, before this one.
pub async fn administration(
    connection: &mut PgConnection,
    tenant: TenantId,
    before: Option<i64>,
    limit: i64,
) -> Result<Vec<Entry>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id, at as "at: jiff_sqlx::Timestamp", actor, action, subject, note
          from tenancy.audit_log
         where tenant_id = $1
           and ($2::bigint is null or id < $2)
         order by id desc
         limit $3
        "#,
        tenant.0,
        before,
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the audit log"))?;
    Ok(rows
        .into_iter()
        .map(|row| entry(row.id, row.at, row.actor, row.action, row.subject, row.note))
        .collect())
}

/// The newest lines about one subject, such as `reply:…`, in the order of time.
pub async fn about(
    connection: &mut PgConnection,
    tenant: TenantId,
    subject: &str,
    limit: i64,
) -> Result<Vec<Entry>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id, at as "at: jiff_sqlx::Timestamp", actor, action, subject, note
          from tenancy.audit_log
         where subject = $2
           and tenant_id = $1
         order by id desc
         limit $3
        "#,
        tenant.0,
        subject,
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the audit log"))?;
    let lines = rows.into_iter().rev();
    Ok(lines.map(|row| entry(row.id, row.at, row.actor, row.action, row.subject, row.note)).collect())
}

/// Up to so many lines about campaigns, phases, runs, jobs and items, newest first, before this one.
pub async fn campaigns(
    connection: &mut PgConnection,
    tenant: TenantId,
    campaign: Option<CampaignId>,
    run: Option<RunId>,
    before: Option<i64>,
    limit: i64,
) -> Result<Vec<Entry>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id,
               at as "at: jiff_sqlx::Timestamp",
               actor,
               action,
               coalesce('item:' || outbox_id, 'job:' || job_id, 'run:' || run_id, 'phase:' || phase_id,
                        'campaign:' || campaign_id, '') as "subject!",
               note,
               campaign_id,
               run_id
          from execution.campaign_audit_log
         where tenant_id = $1
           and ($2::uuid is null or campaign_id = $2)
           and ($3::uuid is null or run_id = $3)
           and ($4::bigint is null or id < $4)
         order by id desc
         limit $5
        "#,
        tenant.0,
        campaign.map(|id| id.0),
        run.map(|id| id.0),
        before,
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the audit log of campaigns"))?;
    Ok(rows
        .into_iter()
        .map(|row| Entry {
            campaign_id: row.campaign_id,
            run_id: row.run_id,
            ..entry(row.id, row.at, row.actor, row.action, row.subject, row.note)
        })
        .collect())
}

/// A line that concerns no campaign.
fn entry(
    id: i64,
    at: jiff_sqlx::Timestamp,
    actor: String,
    action: String,
    subject: String,
    note: Option<String>,
) -> Entry {
    Entry { id, at: at.to_jiff(), actor, action, subject, note, campaign_id: None, run_id: None }
}

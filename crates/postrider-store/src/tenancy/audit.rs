//! The audit logs: of administration, and of campaigns.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
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

/// Filters for the lines of a log. Texts are compared letter for letter.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only of this actor.
    pub actor: Option<String>,
    /// Only about this action.
    pub action: Option<String>,
    /// Only about this subject.
    pub subject: Option<String>,
    /// Only those written at this time or later.
    pub after: Option<Timestamp>,
    /// Only those written before this time.
    pub before: Option<Timestamp>,
}

impl Filter {
    /// The id in the subject, if the subject is of this kind: the log has an index for it.
    fn subject_id(&self, kind: &str) -> Option<Uuid> {
        let id = self.subject.as_deref()?.strip_prefix(kind)?.strip_prefix(':')?;
        id.parse().ok()
    }
}

/// Up to so many lines about tenants, keys, accounts, leads and events, newest first, after the line with this id.
pub async fn administration(
    connection: &mut PgConnection,
    tenant: TenantId,
    filter: &Filter,
    cursor: Option<i64>,
    limit: i64,
) -> Result<Vec<Entry>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id, at as "at: jiff_sqlx::Timestamp", actor, action, subject, note
          from tenancy.audit_log
         where tenant_id = $1
           and ($2::bigint is null or id < $2)
           and ($4::text is null or actor = $4)
           and ($5::text is null or action = $5)
           and ($6::text is null or subject = $6)
           and ($7::timestamptz is null or at >= $7)
           and ($8::timestamptz is null or at < $8)
         order by id desc
         limit $3
        "#,
        tenant.0,
        cursor,
        limit,
        filter.actor.as_deref(),
        filter.action.as_deref(),
        filter.subject.as_deref(),
        filter.after.map(ToSqlx::to_sqlx) as _,
        filter.before.map(ToSqlx::to_sqlx) as _,
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

/// Up to so many lines about campaigns, phases, runs, jobs and items, newest first, after the line with this id.
pub async fn campaigns(
    connection: &mut PgConnection,
    tenant: TenantId,
    (campaign, run): (Option<CampaignId>, Option<RunId>),
    filter: &Filter,
    cursor: Option<i64>,
    limit: i64,
) -> Result<Vec<Entry>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select line.id,
               line.at as "at: jiff_sqlx::Timestamp",
               line.actor,
               line.action,
               about.subject as "subject!",
               line.note,
               line.campaign_id,
               line.run_id
          from execution.campaign_audit_log as line
               cross join lateral (
                   select coalesce('item:' || line.outbox_id, 'job:' || line.job_id, 'run:' || line.run_id,
                                   'phase:' || line.phase_id, 'campaign:' || line.campaign_id, '')) as about (subject)
         where line.tenant_id = $1
           and ($2::uuid is null or line.campaign_id = $2)
           and ($3::uuid is null or line.run_id = $3)
           and ($4::bigint is null or line.id < $4)
           and ($6::text is null or line.actor = $6)
           and ($7::text is null or line.action = $7)
           and ($8::text is null or about.subject = $8)
           and ($9::uuid is null or line.outbox_id = $9)
           and ($10::uuid is null or line.run_id = $10)
           and ($11::uuid is null or line.campaign_id = $11)
           and ($12::timestamptz is null or line.at >= $12)
           and ($13::timestamptz is null or line.at < $13)
         order by line.id desc
         limit $5
        "#,
        tenant.0,
        campaign.map(|id| id.0),
        run.map(|id| id.0),
        cursor,
        limit,
        filter.actor.as_deref(),
        filter.action.as_deref(),
        filter.subject.as_deref(),
        filter.subject_id("item"),
        filter.subject_id("run"),
        filter.subject_id("campaign"),
        filter.after.map(ToSqlx::to_sqlx) as _,
        filter.before.map(ToSqlx::to_sqlx) as _,
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

//! One item with everything that is known about it: its send job, run, accounts and doubt, the provider's callbacks, and the log.

use jiff::Timestamp;
use postrider_model::{
    Channel, IdempotencyKey,
    campaigns::{JobOutcome, JobStatus},
    ids::{AssetId, JobId, LeadId, OutboxId, ProviderAccountId, RunId, SingleMessageId, TenantId},
};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    StoreError,
    campaigns::{
        items::Item,
        leads::{self, Lead},
        runs::{self, Run},
        trace::AuditLine,
    },
    postgres::{unprepared::unprepared, values::word},
};

/// Most lines of the log that come with an item. Those about the item itself come before those about its send job and run.
const AUDIT_MAX: i64 = 200;

/// An item with everything that is known about it.
#[derive(Debug)]
pub struct Whole {
    /// The item itself.
    pub item: Item,
    /// How the person is reached.
    pub channel: Channel,
    /// Its run.
    pub run: Run,
    /// The list that its phase addresses.
    pub list: Option<String>,
    /// Its send job.
    pub job: Job,
    /// The account of its run, unless it was removed.
    pub account: Option<AccountName>,
    /// The failover account, if the item was moved to it.
    pub moved_to: Option<AccountName>,
    /// The lead. A post to the public has none.
    pub lead: Option<Lead>,
    /// The version of the asset that it sends. It never changes. A single message may have content of its own.
    pub asset: Option<AssetName>,
    /// The single message that it is.
    pub message: Option<SingleMessageId>,
    /// Its content.
    pub content: serde_json::Value,
    /// The variables that the template used for this recipient; `None` if no message was rendered, or the person was erased.
    pub payload: Option<serde_json::Value>,
    /// The beginning of the provider's last response.
    pub result: Option<serde_json::Value>,
    /// The fingerprint of the message that was reserved.
    pub message_hash: Option<Vec<u8>>,
    /// Its doubt, if it is in doubt.
    pub doubt: Option<ItemDoubt>,
    /// The provider's callbacks about it, oldest first.
    pub callbacks: Vec<Callback>,
    /// The log about it, its send job and its run, oldest line first.
    pub audit: Vec<AuditLine>,
}

/// An account, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountName {
    /// Its id.
    pub id: ProviderAccountId,
    /// Its name.
    pub name: String,
    /// The vendor.
    pub provider: String,
}

/// A version of an asset, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssetName {
    /// Its id.
    pub id: AssetId,
    /// Its name.
    pub name: String,
    /// Its version, from 1.
    pub version: i32,
}

/// The send job of an item.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Its place in the run, from 1.
    pub position: i32,
    /// Type of the send job.
    pub job_type: String,
    /// Its state.
    pub status: JobStatus,
    /// Its result.
    pub outcome: Option<JobOutcome>,
    /// Attempts that began.
    pub attempts: i32,
    /// Most attempts.
    pub max_attempts: i32,
    /// Earliest time at which a worker may claim it; `None` while its phase is paused.
    pub run_after: Option<Timestamp>,
    /// Worker that holds it.
    pub locked_by: Option<String>,
    /// Time of its worker's last heartbeat.
    pub locked_at: Option<Timestamp>,
    /// Reason why it was put off.
    pub last_error: Option<String>,
    /// When it was deployed.
    pub created_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// The doubt about an item.
#[derive(Debug, Clone)]
pub struct ItemDoubt {
    /// The vendor that was called.
    pub provider: String,
    /// Number of look-ups by the resolver.
    pub looks: i32,
    /// Time of the next look-up. `None` while its worker's silence is not recorded.
    pub next_look_at: Option<Timestamp>,
    /// Whether the resolver has given up on it.
    pub is_for_person: bool,
    /// Result of the resolver's last look-up.
    pub note: Option<String>,
    /// Time from which on the provider's silence counts as "it was never sent".
    pub quiet_until: Timestamp,
    /// Whether that time has come, by the database's clock.
    pub is_quiet: bool,
}

/// A report of the provider about the item's call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callback {
    /// The provider's id of the message, call or post.
    pub message_id: String,
    /// The status, in the provider's words.
    pub status: String,
    /// Whether it proves that the provider acted.
    pub proves_action: bool,
    /// When it came.
    pub received_at: Timestamp,
}

/// One item of the tenant. `None` when the tenant has no such item.
pub async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: OutboxId,
) -> Result<Option<Whole>, StoreError> {
    let row = sqlx::query_file!("sql/campaigns/item.sql", tenant.0, id.0)
        .fetch_optional(unprepared(&mut *connection))
        .await
        .map_err(StoreError::on("reading the item"))?;
    let Some(row) = row else { return Ok(None) };
    let (run_id, job_id) = (RunId(row.run_id), JobId(row.job_id));
    let Some(run) = runs::find(&mut *connection, tenant, run_id).await? else { return Ok(None) };
    let lead = match row.recipient_id {
        Some(lead) if row.message_id.is_none() => leads::find(&mut *connection, tenant, LeadId(lead)).await?,
        _ => None,
    };
    let account = row.moved_to_account_id.unwrap_or(row.provider_account_id);
    let callbacks = callbacks(&mut *connection, tenant, account, &row.idempotency_key).await?;
    let audit = audit(connection, tenant, run_id, job_id, id).await?;
    let named = |id: Uuid, name: Option<String>, provider: Option<String>| {
        Some(AccountName { id: ProviderAccountId(id), name: name?, provider: provider? })
    };
    let doubt = row.quiet_until.map(|quiet_until| ItemDoubt {
        provider: row.doubt_provider.unwrap_or_else(|| row.provider.clone()),
        looks: row.looks.unwrap_or_default(),
        next_look_at: row.next_look_at.map(jiff_sqlx::Timestamp::to_jiff),
        is_for_person: row.is_for_person.unwrap_or_default(),
        note: row.note,
        quiet_until: quiet_until.to_jiff(),
        is_quiet: row.is_quiet.unwrap_or_default(),
    });
    Ok(Some(Whole {
        channel: word(&row.channel)?,
        list: row.list,
        job: Job {
            id: job_id,
            position: row.position,
            job_type: row.job_type,
            status: word(&row.job_status)?,
            outcome: row.outcome.as_deref().map(word).transpose()?,
            attempts: row.attempts,
            max_attempts: row.max_attempts,
            run_after: row.run_after.map(jiff_sqlx::Timestamp::to_jiff),
            locked_by: row.locked_by,
            locked_at: row.locked_at.map(jiff_sqlx::Timestamp::to_jiff),
            last_error: row.last_error,
            created_at: row.job_created_at.to_jiff(),
            finished_at: row.job_finished_at.map(jiff_sqlx::Timestamp::to_jiff),
        },
        account: named(row.provider_account_id, row.account_name, row.account_provider),
        moved_to: row.moved_to_account_id.and_then(|id| named(id, row.other_name, row.other_provider)),
        asset: row
            .asset_id
            .zip(row.asset_name)
            .zip(row.asset_version)
            .map(|((id, name), version)| AssetName { id: AssetId(id), name, version }),
        message: row.message_id.map(SingleMessageId),
        content: row.content,
        payload: row.payload,
        result: row.result,
        message_hash: row.message_hash,
        item: Item {
            id: OutboxId(row.id),
            job_id,
            job_position: row.position,
            recipient_id: row.recipient_id,
            recipient: row.recipient,
            idempotency_key: IdempotencyKey::from_row(row.idempotency_key),
            status: word(&row.status)?,
            provider: row.provider,
            provider_message_id: row.provider_message_id,
            error: row.error,
            reserved_by: row.reserved_by,
            attempt: row.attempt,
            created_at: row.created_at.to_jiff(),
            finalized_at: row.finalized_at.map(jiff_sqlx::Timestamp::to_jiff),
            doubted_since: row.doubted_since.map(jiff_sqlx::Timestamp::to_jiff),
        },
        run,
        lead,
        doubt,
        callbacks,
        audit,
    }))
}

async fn callbacks(
    connection: &mut PgConnection,
    tenant: TenantId,
    account: Uuid,
    key: &str,
) -> Result<Vec<Callback>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select message_id,
               status,
               proves_action,
               received_at as "received_at: jiff_sqlx::Timestamp"
          from execution.provider_callbacks
         where tenant_id = $1
           and account_id = $2
           and idempotency_key = $3
         order by received_at, message_id, status
         limit 200
        "#,
        tenant.0,
        account,
        key,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the callbacks about the item"))?;
    let callback = |message_id, status, proves_action, received_at: jiff_sqlx::Timestamp| Callback {
        message_id,
        status,
        proves_action,
        received_at: received_at.to_jiff(),
    };
    Ok(rows
        .into_iter()
        .map(|row| callback(row.message_id, row.status, row.proves_action, row.received_at))
        .collect())
}

async fn audit(
    connection: &mut PgConnection,
    tenant: TenantId,
    run: RunId,
    job: JobId,
    item: OutboxId,
) -> Result<Vec<AuditLine>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id,
               at as "at: jiff_sqlx::Timestamp",
               actor,
               action,
               note,
               run_id,
               job_id,
               outbox_id
          from execution.campaign_audit_log
         where tenant_id = $1
           and run_id = $2
           and (job_id is null or job_id = $3)
           and (outbox_id is null or outbox_id = $4)
         order by outbox_id is null, id desc
         limit $5
        "#,
        tenant.0,
        run.0,
        job.0,
        item.0,
        AUDIT_MAX,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the log about the item"))?;
    let mut lines: Vec<AuditLine> = rows
        .into_iter()
        .map(|row| AuditLine {
            id: row.id,
            at: row.at.to_jiff(),
            actor: row.actor,
            action: row.action,
            note: row.note,
            run_id: row.run_id.map(RunId),
            job_id: row.job_id.map(JobId),
            outbox_id: row.outbox_id.map(OutboxId),
        })
        .collect();
    lines.sort_by_key(|line| line.id);
    Ok(lines)
}

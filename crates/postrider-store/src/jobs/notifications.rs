//! Notifications about alerts: one row, one key and at most one call each, unless the provider guarantees that a repeat is harmless.
//!
//! ```text
//! plan ──▶ queued ──reserve, commit──▶ NotificationCall ──the call──▶ settle ──▶ sent, failed, queued again (provably not sent)
//!                                            └─ no answer: in doubt; after the quiet time repeated or looked up, where that is possible
//! ```

use std::time::Duration;

use postrider_model::{
    Channel, IdempotencyKey,
    ids::{OutboxId, ProviderAccountId, TenantId},
};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    HeldDoubt, Pool, Reservation, StoreError,
    campaigns::{outbox::storable, reservation::Asked},
    postgres::{pool, unprepared::unprepared, values::interval},
};

/// A recipient of notifications.
#[derive(Debug, Clone)]
pub struct Recipient {
    /// The account that sends to it.
    pub account: ProviderAccountId,
    /// Its address.
    pub to: String,
}

/// The content of a notification.
#[derive(Debug, Clone)]
pub struct News {
    /// Id of the notification.
    pub id: OutboxId,
    /// The recipient.
    pub recipient: Recipient,
    /// The subject, in one line.
    pub subject: String,
    /// The whole text.
    pub body: String,
    claim: i32,
}

/// The right to make one call. Only the store makes one, from a committed row.
#[must_use = "a call that is not settled is in doubt"]
#[derive(Debug)]
pub struct NotificationCall {
    /// The content.
    pub news: News,
    reservation: Reservation,
}

impl NotificationCall {
    /// The argument of the adapter's call.
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }
}

/// A notification in doubt.
#[derive(Debug)]
pub struct DoubtfulNotification {
    /// The content.
    pub news: News,
    /// The evidence for the look-up at the provider.
    pub doubt: HeldDoubt,
    /// Time since the first call, by the database's clock.
    pub age: Duration,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The provider accepted it, under this id.
    Sent(String),
    /// The provider rejected it.
    Failed(String),
    /// Provably not sent: it may be called again.
    NotSent(String),
    /// In doubt.
    Unknown(String),
}

/// Plans a notification for each recipient and alert. Returns the number of new notifications.
pub async fn plan(pool: &Pool, tenant: TenantId, recipients: &[Recipient]) -> Result<i32, StoreError> {
    let (accounts, names): (Vec<Uuid>, Vec<String>) =
        recipients.iter().map(|recipient| (recipient.account.0, recipient.to.clone())).unzip();
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let planned = sqlx::query_scalar!(
        r#"select jobs.plan_notifications($1, $2, $3) as "planned!""#,
        tenant.0,
        &accounts,
        &names,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("planning notifications"))?;
    pool::commit(transaction).await?;
    Ok(planned)
}

/// Reserves up to so many queued notifications, and returns after the commit.
pub async fn reserve(
    pool: &Pool,
    tenant: TenantId,
    limit: i32,
    channel: impl Fn(&Recipient) -> Channel,
) -> Result<Vec<NotificationCall>, StoreError> {
    let asked = Asked::now();
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let rows = sqlx::query!(
        r#"
        select id as "id!", account_id as "account_id!", recipient as "recipient!", subject as "subject!", body as "body!",
               claims as "claims!"
          from jobs.reserve_notifications($1, $2)
        "#,
        tenant.0,
        limit,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("reserving notifications"))?;
    pool::commit(transaction).await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let id = OutboxId(row.id);
            let recipient = Recipient { account: ProviderAccountId(row.account_id), to: row.recipient };
            let (channel, key) = (channel(&recipient), IdempotencyKey::of_notification(id));
            let news = News { id, recipient, subject: row.subject, body: row.body, claim: row.claims };
            NotificationCall { news, reservation: Reservation::committed(id, tenant, channel, key, asked) }
        })
        .collect())
}

/// Claims up to so many notifications in doubt, once the quiet time has passed since their last call.
pub async fn claim_doubtful(
    pool: &Pool,
    tenant: TenantId,
    quiet: Duration,
    limit: i32,
    channel: impl Fn(&Recipient) -> Channel,
) -> Result<Vec<DoubtfulNotification>, StoreError> {
    let asked = Asked::now();
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let rows = sqlx::query!(
        r#"
        select id as "id!", account_id as "account_id!", recipient as "recipient!", subject as "subject!", body as "body!",
               claims as "claims!",
               first_called_at as "first_called_at!: jiff_sqlx::Timestamp",
               in_doubt_since as "in_doubt_since!: jiff_sqlx::Timestamp",
               age_seconds as "age_seconds!"
          from jobs.claim_doubtful_notifications($1, $2, $3)
        "#,
        tenant.0,
        interval(quiet),
        limit,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("claiming notifications in doubt"))?;
    pool::commit(transaction).await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let id = OutboxId(row.id);
            let recipient = Recipient { account: ProviderAccountId(row.account_id), to: row.recipient };
            let times = (row.first_called_at.to_jiff(), row.in_doubt_since.to_jiff());
            let key = IdempotencyKey::of_notification(id);
            let doubt = HeldDoubt::of_row(
                (id, tenant),
                (channel(&recipient), key),
                recipient.to.clone(),
                times,
                row.claims,
                asked,
            );
            let news = News { id, recipient, subject: row.subject, body: row.body, claim: row.claims };
            let age = Duration::try_from_secs_f64(row.age_seconds).unwrap_or(Duration::MAX);
            DoubtfulNotification { news, doubt, age }
        })
        .collect())
}

/// Records the result of a call. False when another process holds the notification by now, and nothing was changed.
pub async fn settle(
    pool: &Pool,
    tenant: TenantId,
    news: &News,
    verdict: &Verdict,
) -> Result<bool, StoreError> {
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let settled = settle_in(&mut transaction, tenant, news, verdict).await?;
    pool::commit(transaction).await?;
    Ok(settled)
}

async fn settle_in(
    connection: &mut PgConnection,
    tenant: TenantId,
    news: &News,
    verdict: &Verdict,
) -> Result<bool, StoreError> {
    let (word, message_id, error) = match verdict {
        Verdict::Sent(name) => ("sent", Some(storable(name)), None),
        Verdict::Failed(error) => ("failed", None, Some(storable(error))),
        Verdict::NotSent(error) => ("not_sent", None, Some(storable(error))),
        Verdict::Unknown(error) => ("unknown", None, Some(storable(error))),
    };
    sqlx::query_scalar!(
        r#"select jobs.settle_notification($1, $2, $3, $4, $5, $6) as "settled!""#,
        tenant.0,
        news.id.0,
        news.claim,
        word,
        message_id.as_deref(),
        error.as_deref(),
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("settling a notification"))
}

//! Replies on their way: a dispatcher chooses accounts in turns over all tenants, claims replies tenant by tenant, and settles them
//! under the claim.
//!
//! ```text
//! choose ──▶ claim ──commit──▶ ClaimedReply ──the call──▶ Outcome ──settle──▶ sent, pending again, or dead
//!                                   └─ dropped, or its dispatcher dies: reclaimed when its lock is too old, and tried again
//! ```

mod operating;

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use postrider_model::{
    Channel, IdempotencyKey, Message,
    channels::{Reply, ReplyStatus},
    ids::{ChannelMessageId, OutboxId, ProviderAccountId, TenantId},
    seal::{MasterKey, Place},
};
use secrecy::SecretString;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::{
    HeldDoubt, Pool, Reservation, StoreError,
    campaigns::{outbox::storable, reservation::Asked},
    crash_point,
    postgres::{
        pool,
        unprepared::unprepared,
        values::{interval, word},
    },
    tenancy::accounts,
};

pub use self::operating::{ReplyFilter, ReplyState, Requeue, page, requeue};

/// The channel for hints, sent after a commit, that there are replies.
pub const HINT_CHANNEL: &str = "postrider_replies";

/// A reply that a dispatcher holds: the right to one attempt. Only the store makes one, from a committed claim.
#[must_use = "a reply that is dropped waits until its lock is too old"]
#[derive(Debug)]
pub struct ClaimedReply {
    reservation: Reservation,
    doubt: Option<HeldDoubt>,
    claim: i32,
    /// The message it answers.
    pub message_id: ChannelMessageId,
    /// The account.
    pub account: AccountVersion,
    /// The vendor.
    pub provider: String,
    /// The message to send.
    pub message: Message,
    /// Whether a person has sent it again since the attempt whose outcome is unknown.
    pub is_requeued: bool,
    /// Whether its call finds out if the provider answers again: the circuit of the account is half open.
    pub is_probe: bool,
    /// Number of failed attempts.
    pub attempt_count: i32,
    /// Number of failed attempts after which it is dead.
    pub max_attempts: i32,
    /// The vendor's id of the reply, if the vendor has reported that it arrived: then there is nothing left to send.
    pub proven: Option<String>,
    /// Correlation id of its message in logs.
    pub correlation_id: Uuid,
    /// When it was made.
    pub created_at: Timestamp,
}

/// An account, and the time of its last change: an opened secret may be used as long as that stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccountVersion {
    /// The tenant.
    pub tenant: TenantId,
    /// Id of the account.
    pub id: ProviderAccountId,
    /// Time of its last change; `None` when it was removed.
    pub changed_at: Option<Timestamp>,
}

impl ClaimedReply {
    /// The argument of the adapter's call. The key is the same for each attempt.
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// The doubt about an earlier attempt that may have arrived, for the look-up at the vendor.
    #[must_use]
    pub fn doubt(&self) -> Option<&HeldDoubt> {
        self.doubt.as_ref()
    }

    /// Id of the reply.
    #[must_use]
    pub fn id(&self) -> OutboxId {
        self.reservation.outbox_id()
    }

    /// Time since the claim. A dispatcher that was delayed must not call any more: another one may hold the lock.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.reservation.age()
    }

    /// Adds the result, to be recorded.
    pub fn settle(self, verdict: Verdict) -> SettledReply {
        SettledReply { tenant: self.account.tenant, id: self.id(), claim: self.claim, verdict, about: None }
    }
}

/// Result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The provider accepted it.
    Sent {
        /// The provider's id of it.
        message_id: String,
    },
    /// It failed. It is retried after the pause, or dead if it has used up its attempts.
    Retry {
        /// The error.
        error: String,
        /// How long to wait.
        pause: Duration,
        /// Whether it may have arrived nevertheless.
        in_doubt: bool,
    },
    /// It failed, and a retry would fail again.
    Dead {
        /// The error.
        error: String,
    },
    /// It was not tried, or the provider asks to wait: retried after a pause, without counting the attempt.
    Release {
        /// How long to wait.
        pause: Duration,
        /// The reason, where there is one to record.
        reason: Option<String>,
    },
}

/// The finding of an attempt about the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountNote {
    /// The provider asks for no call during the pause of the released reply.
    Waits,
    /// The provider asks for no look-up during that pause.
    LookUpsWait,
    /// The provider refuses the account: its circuit opens.
    Refused,
    /// The provider refuses the login: its circuit is open until the secret is changed.
    LoginRefused,
    /// The provider answers again: the circuit closes.
    Answers,
}

impl AccountNote {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::LookUpsWait => "look_ups_wait",
            Self::Refused => "refused",
            Self::LoginRefused => "login_refused",
            Self::Answers => "answers",
        }
    }
}

/// A result, to be recorded. It is kept until the database has it.
#[must_use = "a result that is not recorded is lost"]
#[derive(Debug)]
pub struct SettledReply {
    tenant: TenantId,
    id: OutboxId,
    claim: i32,
    verdict: Verdict,
    about: Option<AccountNote>,
}

impl SettledReply {
    /// Adds what all processes must learn about the account.
    pub fn noting(self, about: Option<AccountNote>) -> Self {
        Self { about, ..self }
    }

    /// Id of the reply.
    #[must_use]
    pub fn id(&self) -> OutboxId {
        self.id
    }

    /// Result of the attempt.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }
}

/// The capacity of a dispatcher.
#[derive(Debug, Default)]
pub struct Capacity {
    /// Maximum number of replies in total.
    pub limit: usize,
    /// Maximum number for an account that is not in `accounts`.
    pub per_account: usize,
    /// Maximum numbers for the accounts in it; 0 means none.
    pub accounts: HashMap<(TenantId, ProviderAccountId), usize>,
    /// The account that was served last; the others come first.
    pub after: Option<(TenantId, ProviderAccountId)>,
}

impl Capacity {
    fn at(&self, account: (TenantId, ProviderAccountId)) -> usize {
        self.accounts.get(&account).copied().unwrap_or(self.per_account)
    }
}

/// Accounts of one tenant that have due replies, in the order of their turns, with the capacity for each.
#[derive(Debug)]
pub struct TenantShare {
    tenant: TenantId,
    accounts: Vec<Uuid>,
    capacities: Vec<i32>,
}

/// Chooses accounts that have due replies, in turns over all tenants. Nothing is locked. Claim the shares in their order, until the
/// capacity is used up.
pub async fn choose(pool: &Pool, capacity: &Capacity) -> Result<Vec<TenantShare>, StoreError> {
    let (full_tenants, full_accounts): (Vec<Uuid>, Vec<Uuid>) = capacity
        .accounts
        .iter()
        .filter(|(_, capacity)| **capacity == 0)
        .map(|((tenant, id), _)| (tenant.0, id.0))
        .unzip();
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"
        select tenant_id as "tenant_id!", account_id as "account_id!"
          from channels.accounts_with_due_replies($1, $2, $3, $4, $5)
        "#,
        number(capacity.limit),
        &full_tenants,
        &full_accounts,
        capacity.after.map(|(tenant, _)| tenant.0),
        capacity.after.map(|(_, account)| account.0),
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("choosing accounts with due replies"))?;
    pool::commit(transaction).await?;
    let mut shares: Vec<TenantShare> = Vec::new();
    for row in rows {
        let (tenant, account) = (TenantId(row.tenant_id), ProviderAccountId(row.account_id));
        let capacity = number(capacity.at((tenant, account)));
        match shares.last_mut().filter(|share| share.tenant == tenant) {
            Some(share) => {
                share.accounts.push(account.0);
                share.capacities.push(capacity);
            }
            None => {
                shares.push(TenantShare { tenant, accounts: vec![account.0], capacities: vec![capacity] });
            }
        }
    }
    Ok(shares)
}

/// Claims up to so many due replies of a tenant, and returns after the commit.
pub async fn claim(
    pool: &Pool,
    worker: &str,
    share: &TenantShare,
    limit: usize,
) -> Result<Vec<ClaimedReply>, StoreError> {
    crash_point!("reply.before_claim");
    let asked = Asked::now();
    let tenant_id = share.tenant;
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"
        select id as "id!",
               channel_message_id as "channel_message_id!",
               account_id as "account_id!",
               provider as "provider!",
               recipient_id as "recipient_id!",
               payload as "payload!: Json<Reply>",
               attempt_count as "attempt_count!",
               max_attempts as "max_attempts!",
               claims as "claims!",
               in_doubt_since as "in_doubt_since: jiff_sqlx::Timestamp",
               provider_message_id,
               correlation_id as "correlation_id!",
               created_at as "created_at!: jiff_sqlx::Timestamp",
               account_version as "account_version: jiff_sqlx::Timestamp",
               is_requeued as "is_requeued!",
               is_probe as "is_probe!"
          from channels.claim_replies($1, $2, $3, $4, $5)
        "#,
        tenant_id.0,
        worker,
        number(limit),
        &share.accounts,
        &share.capacities,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("claiming replies"))?;
    if !rows.is_empty() {
        crash_point!("reply.claimed");
    }
    pool::commit(transaction).await?;
    if !rows.is_empty() {
        crash_point!("reply.after_claim");
    }
    Ok(rows
        .into_iter()
        .map(|row| {
            let id = OutboxId(row.id);
            let created_at = row.created_at.to_jiff();
            let doubt = row.in_doubt_since.map(|since| {
                let times = (created_at, since.to_jiff());
                let called = (Channel::Chat, IdempotencyKey::of_reply(id));
                HeldDoubt::of_row((id, tenant_id), called, row.recipient_id.clone(), times, row.claims, asked)
            });
            let Reply { text, thread } = row.payload.0;
            let key = IdempotencyKey::of_reply(id);
            ClaimedReply {
                reservation: Reservation::committed(id, tenant_id, Channel::Chat, key, asked),
                doubt,
                claim: row.claims,
                message_id: ChannelMessageId(row.channel_message_id),
                account: AccountVersion {
                    tenant: tenant_id,
                    id: ProviderAccountId(row.account_id),
                    changed_at: row.account_version.map(jiff_sqlx::Timestamp::to_jiff),
                },
                provider: row.provider,
                message: Message::Chat { to: row.recipient_id, thread, text },
                is_requeued: row.is_requeued,
                is_probe: row.is_probe,
                attempt_count: row.attempt_count,
                max_attempts: row.max_attempts,
                proven: row.provider_message_id,
                correlation_id: row.correlation_id,
                created_at,
            }
        })
        .collect())
}

/// The account of a claimed reply, with its secret open. `None` when it was removed.
pub async fn account(
    pool: &Pool,
    key: &MasterKey,
    account: AccountVersion,
) -> Result<Option<(serde_json::Value, SecretString)>, StoreError> {
    let mut transaction = pool::begin_as(pool, account.tenant).await?;
    let row = sqlx::query!(
        "select settings, sealed_secret from tenancy.provider_accounts where tenant_id = $1 and id = $2",
        account.tenant.0,
        account.id.0,
    )
    .fetch_optional(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("reading the provider account"))?;
    pool::commit(transaction).await?;
    let place = Place { tenant: account.tenant, account: account.id };
    row.map(|row| Ok((row.settings, accounts::open(key, place, &row.sealed_secret)?))).transpose()
}

/// The answer to a request for a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookUpTurn {
    /// The time until the next look-up; `None` if it may be made now.
    pub wait: Option<Duration>,
    /// The time from one look-up of the account to the next.
    pub every: Duration,
}

/// Takes the right to one look-up at an account, which all processes share: one in `every`, unless the account's own limits say
/// otherwise.
pub async fn take_look_up(
    pool: &Pool,
    account: AccountVersion,
    every: Option<Duration>,
) -> Result<LookUpTurn, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let row = sqlx::query!(
        r#"
        select wait_seconds as "wait_seconds!", every_seconds as "every_seconds!"
          from channels.take_look_up($1, $2, $3)
        "#,
        account.tenant.0,
        account.id.0,
        every.map(interval) as _,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("taking the right to a look-up"))?;
    pool::commit(transaction).await?;
    let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let wait = (row.wait_seconds > 0.0).then(|| time(row.wait_seconds));
    Ok(LookUpTurn { wait, every: time(row.every_seconds) })
}

/// Records results of any tenants, each under its claim, and returns the new status of each reply. A reply that is not in the answer is
/// held under another claim and did not change.
pub async fn settle(
    pool: &Pool,
    worker: &str,
    settled: &[&SettledReply],
) -> Result<HashMap<OutboxId, ReplyStatus>, StoreError> {
    crash_point!("reply.before_settling");
    let mut columns = Columns::default();
    settled.iter().for_each(|reply| columns.push(reply));
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"
        select id as "id!", status as "status!"
          from channels.settle_replies($1, $2, $3, $4, $5, $6::text[], $7::text[], $8, $9, $10::text[])
        "#,
        &columns.tenant_ids,
        worker,
        &columns.ids,
        &columns.claims,
        &columns.verdicts,
        &columns.message_ids as _,
        &columns.errors as _,
        &columns.pauses as _,
        &columns.in_doubt,
        &columns.accounts as _,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("settling replies"))?;
    crash_point!("reply.settled");
    pool::commit(transaction).await?;
    crash_point!("reply.after_settling");
    rows.into_iter().map(|row| Ok((OutboxId(row.id), word(&row.status)?))).collect()
}

/// Results, column by column.
#[derive(Default)]
struct Columns {
    tenant_ids: Vec<Uuid>,
    ids: Vec<Uuid>,
    claims: Vec<i32>,
    verdicts: Vec<String>,
    message_ids: Vec<Option<String>>,
    errors: Vec<Option<String>>,
    pauses: Vec<sqlx::postgres::types::PgInterval>,
    in_doubt: Vec<bool>,
    accounts: Vec<Option<&'static str>>,
}

impl Columns {
    fn push(&mut self, reply: &SettledReply) {
        let (verdict, message_id, error, pause, in_doubt) = match &reply.verdict {
            Verdict::Sent { message_id } => ("sent", Some(message_id), None, Duration::ZERO, false),
            Verdict::Retry { error, pause, in_doubt } => ("retry", None, Some(error), *pause, *in_doubt),
            Verdict::Dead { error } => ("dead", None, Some(error), Duration::ZERO, false),
            Verdict::Release { pause, reason } => ("release", None, reason.as_ref(), *pause, false),
        };
        let storable = |text: &String| storable(text).into_owned();
        self.tenant_ids.push(reply.tenant.0);
        self.ids.push(reply.id.0);
        self.claims.push(reply.claim);
        self.verdicts.push(verdict.to_owned());
        self.message_ids.push(message_id.map(storable));
        self.errors.push(error.map(storable));
        self.pauses.push(interval(pause));
        self.in_doubt.push(in_doubt);
        self.accounts.push(reply.about.map(AccountNote::as_str));
    }
}

/// A reply whose dispatcher died.
#[derive(Debug)]
pub struct Reclaimed {
    /// Id of the reply.
    pub id: OutboxId,
    /// The message it answers.
    pub message_id: ChannelMessageId,
    /// Correlation id of its message in logs.
    pub correlation_id: Uuid,
    /// The dispatcher that held it.
    pub worker: Option<String>,
}

/// Chooses up to so many tenants with replies that were held for longer than this, the oldest lock first.
pub async fn tenants_with_stale(
    pool: &Pool,
    lock_timeout: Duration,
    limit: i32,
) -> Result<Vec<TenantId>, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let tenants = sqlx::query_scalar!(
        r#"select tenant_id as "tenant_id!" from channels.tenants_with_stale_replies($1, $2)"#,
        interval(lock_timeout),
        limit,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("choosing tenants with stale replies"))?;
    pool::commit(transaction).await?;
    Ok(tenants.into_iter().map(TenantId).collect())
}

/// Releases up to so many replies of a tenant that were held for longer than this.
pub async fn reclaim(
    pool: &Pool,
    tenant: TenantId,
    lock_timeout: Duration,
    limit: i32,
) -> Result<Vec<Reclaimed>, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"
        select id as "id!", channel_message_id as "message_id!", correlation_id as "correlation_id!", worker
          from channels.reclaim_replies($1, $2, $3)
        "#,
        tenant.0,
        interval(lock_timeout),
        limit,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("reclaiming replies"))?;
    pool::commit(transaction).await?;
    Ok(rows
        .into_iter()
        .map(|row| Reclaimed {
            id: OutboxId(row.id),
            message_id: ChannelMessageId(row.message_id),
            correlation_id: row.correlation_id,
            worker: row.worker,
        })
        .collect())
}

/// Numbers of replies by state, over all tenants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backlog {
    /// Waiting, due or not.
    pub pending: i64,
    /// Waiting and due.
    pub due: i64,
    /// On their way for more than a minute.
    pub over_a_minute: i64,
    /// For more than ten.
    pub over_ten_minutes: i64,
    /// For more than an hour.
    pub over_an_hour: i64,
    /// Age of the oldest that is on its way.
    pub oldest_seconds: f64,
    /// On their way, and failed before.
    pub tried_before: i64,
    /// On their way, and may have arrived.
    pub in_doubt: i64,
    /// Held by a dispatcher.
    pub sending: i64,
    /// Given up.
    pub dead: i64,
    /// Messages that are being executed, or whose reply could not be enqueued.
    pub unfinished_messages: i64,
}

/// Measures the replies.
pub async fn measure(connection: &mut PgConnection) -> Result<Backlog, StoreError> {
    sqlx::query_as!(
        Backlog,
        r#"
        select pending as "pending!",
               due as "due!",
               over_a_minute as "over_a_minute!",
               over_ten_minutes as "over_ten_minutes!",
               over_an_hour as "over_an_hour!",
               oldest_seconds as "oldest_seconds!",
               tried_before as "tried_before!",
               in_doubt as "in_doubt!",
               sending as "sending!",
               dead as "dead!",
               unfinished_messages as "unfinished_messages!"
          from channels.measure_replies()
        "#,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("measuring the replies"))
}

/// Chooses the tenants that have messages older than this.
pub async fn tenants_with_old(
    connection: &mut PgConnection,
    older_than: Duration,
) -> Result<Vec<TenantId>, StoreError> {
    let tenants = sqlx::query_scalar!(
        r#"select tenant_id as "tenant_id!" from channels.tenants_with_old_messages($1)"#,
        interval(older_than),
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("choosing tenants with old messages"))?;
    Ok(tenants.into_iter().map(TenantId).collect())
}

/// Removes up to so many ended messages of a tenant that are older than this, with their replies.
pub async fn prune(
    connection: &mut PgConnection,
    tenant: TenantId,
    older_than: Duration,
    limit: i32,
) -> Result<i64, StoreError> {
    sqlx::query_scalar!(
        r#"select channels.prune_messages($1, $2, $3) as "removed!""#,
        tenant.0,
        interval(older_than),
        limit,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("removing old messages"))
}

fn number(size: usize) -> i32 {
    i32::try_from(size).unwrap_or(i32::MAX)
}

//! Items in doubt that a resolver holds: claim, settle with evidence, or put off.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use postrider_model::{
    Channel, IdempotencyKey, Rate,
    campaigns::ItemStatus,
    ids::{LeadId, OutboxId, ProviderAccountId, RunId, TenantId},
    seal::{MasterKey, Place},
};
use secrecy::SecretString;
use serde::Deserialize;
use uuid::Uuid;

use crate::{
    Pool, StoreError,
    campaigns::{doubts::Resolution, outbox::storable, reservation::Asked, send_jobs::Lead},
    crash_point,
    postgres::{
        pool,
        unprepared::unprepared,
        values::{interval, word},
    },
    tenancy::accounts,
};

/// An item in doubt that a resolver holds: the right to ask its provider about it, and to repeat its call where the provider
/// guarantees that this is harmless. Only the store makes one, from a committed claim; settling consumes it.
#[must_use = "a doubt that is dropped waits until its lease is over"]
#[derive(Debug)]
pub struct HeldDoubt {
    outbox_id: OutboxId,
    tenant_id: TenantId,
    channel: Channel,
    key: IdempotencyKey,
    recipient: Option<String>,
    reserved_at: Timestamp,
    doubted_since: Timestamp,
    quiet_until: Timestamp,
    look: i32,
    asked: Asked,
}

impl HeldDoubt {
    /// A reply or a notification whose last attempt may have arrived, claimed again. The claim came after the necessary wait, so
    /// there is no quiet time left.
    pub(crate) fn of_row(
        (outbox_id, tenant_id): (OutboxId, TenantId),
        (channel, key): (Channel, IdempotencyKey),
        recipient: String,
        (made_at, doubted_since): (Timestamp, Timestamp),
        look: i32,
        asked: Asked,
    ) -> Self {
        Self {
            outbox_id,
            tenant_id,
            channel,
            key,
            recipient: Some(recipient),
            reserved_at: made_at,
            doubted_since,
            quiet_until: doubted_since,
            look,
            asked,
        }
    }

    /// How long ago it was asked for. A resolver that was delayed must not repeat anything: its lease may be over.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.asked.age()
    }

    /// Id of the item.
    #[must_use]
    pub fn outbox_id(&self) -> OutboxId {
        self.outbox_id
    }

    /// The tenant.
    #[must_use]
    pub fn tenant_id(&self) -> TenantId {
        self.tenant_id
    }

    /// How the person is reached.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// The key that its call carried.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// The address.
    #[must_use]
    pub fn recipient(&self) -> Option<&str> {
        self.recipient.as_deref()
    }

    /// When it was reserved, by the database's clock: its call began after that.
    #[must_use]
    pub fn reserved_at(&self) -> Timestamp {
        self.reserved_at
    }

    /// Time since which it is in doubt.
    #[must_use]
    pub fn doubted_since(&self) -> Timestamp {
        self.doubted_since
    }

    /// Time from which on the provider's silence counts.
    #[must_use]
    pub fn quiet_until(&self) -> Timestamp {
        self.quiet_until
    }

    /// Number of look-ups, this one included.
    #[must_use]
    pub fn look(&self) -> i32 {
        self.look
    }
}

/// A doubt with the data for the look-up.
#[derive(Debug)]
pub struct ClaimedDoubt {
    /// The right to look it up.
    pub doubt: HeldDoubt,
    /// Its run.
    pub run_id: RunId,
    /// The account that its call went through.
    pub account_id: ProviderAccountId,
    /// The vendor.
    pub provider: String,
    /// The fingerprint from its reservation.
    pub message_hash: Option<Vec<u8>>,
    /// The content of the asset.
    pub content: serde_json::Value,
    /// The settings of the account, and its secret; `None` when the account was removed. The error is that the secret does not open under
    /// this key.
    pub account: Option<(serde_json::Value, Result<SecretString, String>)>,
    /// Limits of the account.
    pub limits: serde_json::Value,
    /// Whether the account's secret was changed after the call: the answer may come from another account than the one that was called.
    pub secret_is_newer: bool,
    /// The lead, as it is now.
    pub lead: Option<Arc<Lead>>,
    /// Whether its address is suppressed.
    pub is_suppressed: bool,
    /// When its call was last repeated.
    pub repeated_at: Option<Timestamp>,
    /// The vendor's id of it, from a callback.
    pub echo: Option<String>,
    /// The database's clock at the moment of the claim.
    pub looked_at: Timestamp,
}

/// An account and its tenant. Ids of accounts are unique within a tenant.
pub type AccountRef = (TenantId, ProviderAccountId);

/// Claims doubts that are due, of these vendors and not of these accounts, for as long as the lease lasts: chooses tenants, and then
/// claims in one transaction per tenant. Every commit was seen. A tenant whose claim fails does not take the doubts of the others from
/// the resolver: the error is logged.
pub async fn claim(
    pool: &Pool,
    resolver: &str,
    key: &MasterKey,
    providers: &[&str],
    limit: usize,
    lease: Duration,
    except: &[AccountRef],
) -> Result<Vec<ClaimedDoubt>, StoreError> {
    let providers: Vec<String> = providers.iter().map(|&name| name.to_owned()).collect();
    let (tenants, accounts): (Vec<Uuid>, Vec<Uuid>) =
        except.iter().map(|(tenant, account)| (tenant.0, account.0)).unzip();
    let mut transaction = pool::begin(pool).await?;
    let due = sqlx::query!(
        r#"
        select tenant_id as "tenant_id!",
               doubts as "doubts!"
          from execution.tenants_with_due_doubts($1, $2, $3, $4)
        "#,
        &providers,
        i32::try_from(limit).unwrap_or(i32::MAX),
        &tenants,
        &accounts,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("choosing doubts"))?;
    pool::commit(transaction).await?;
    let mut claimed = Vec::new();
    for due in due {
        let tenant = TenantId(due.tenant_id);
        let busy: Vec<Uuid> =
            except.iter().filter(|(of, _)| *of == tenant).map(|(_, account)| account.0).collect();
        match claim_of_tenant(pool, resolver, key, tenant, &providers, due.doubts, lease, &busy).await {
            Ok(doubts) => claimed.extend(doubts),
            Err(error) if claimed.is_empty() => return Err(error),
            Err(error) => {
                tracing::error!(error = ?error, tenant.id = %tenant, "the doubts of a tenant were not claimed: {error}");
                break;
            }
        }
    }
    Ok(claimed)
}

#[expect(clippy::too_many_arguments, reason = "they are those of the function in the database")]
async fn claim_of_tenant(
    pool: &Pool,
    resolver: &str,
    key: &MasterKey,
    tenant: TenantId,
    providers: &[String],
    limit: i32,
    lease: Duration,
    except: &[Uuid],
) -> Result<Vec<ClaimedDoubt>, StoreError> {
    let asked = Asked::now();
    let mut transaction = pool::begin(pool).await?;
    let rows = sqlx::query!(
        r#"
        select outbox_id as "outbox_id!",
               tenant_id as "tenant_id!",
               run_id as "run_id!",
               channel as "channel!",
               account_id as "account_id!",
               provider as "provider!",
               idempotency_key as "idempotency_key!",
               recipient,
               message_hash,
               reserved_at as "reserved_at!: jiff_sqlx::Timestamp",
               doubted_since as "doubted_since!: jiff_sqlx::Timestamp",
               quiet_until as "quiet_until!: jiff_sqlx::Timestamp",
               look as "look!",
               looked_at as "looked_at!: jiff_sqlx::Timestamp",
               content as "content!",
               settings,
               sealed_secret,
               limits,
               secret_is_newer,
               lead,
               is_suppressed,
               repeated_at as "repeated_at: jiff_sqlx::Timestamp",
               echo
          from execution.claim_doubts($1, $2, $3, $4, $5, $6)
        "#,
        tenant.0,
        resolver,
        providers,
        limit,
        interval(lease),
        except,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("claiming doubts"))?;
    pool::commit(transaction).await?;
    if !rows.is_empty() {
        crash_point!("doubt.claimed");
    }
    let claimed = rows
        .into_iter()
        .map(|row| {
            let tenant_id = TenantId(row.tenant_id);
            let account_id = ProviderAccountId(row.account_id);
            let place = Place { tenant: tenant_id, account: account_id };
            let account = row.settings.zip(row.sealed_secret).map(|(settings, sealed)| {
                (settings, accounts::open(key, place, &sealed).map_err(|error| error.to_string()))
            });
            Ok(ClaimedDoubt {
                doubt: HeldDoubt {
                    outbox_id: OutboxId(row.outbox_id),
                    tenant_id,
                    channel: word(&row.channel)?,
                    key: IdempotencyKey::from_row(row.idempotency_key),
                    recipient: row.recipient,
                    reserved_at: row.reserved_at.to_jiff(),
                    doubted_since: row.doubted_since.to_jiff(),
                    quiet_until: row.quiet_until.to_jiff(),
                    look: row.look,
                    asked,
                },
                run_id: RunId(row.run_id),
                account_id,
                provider: row.provider,
                message_hash: row.message_hash,
                content: row.content,
                account,
                limits: row.limits.unwrap_or_default(),
                secret_is_newer: row.secret_is_newer.unwrap_or(false),
                lead: row.lead.map(lead).transpose()?.map(Arc::new),
                is_suppressed: row.is_suppressed.unwrap_or(false),
                repeated_at: row.repeated_at.map(jiff_sqlx::Timestamp::to_jiff),
                echo: row.echo,
                looked_at: row.looked_at.to_jiff(),
            })
        })
        .filter_map(|doubt: Result<ClaimedDoubt, StoreError>| {
            // A doubt that this version cannot read is claimed again when its lease has expired, by this resolver or another.
            doubt.map_err(|error| tracing::error!(error = ?error, "a doubt cannot be read: {error}")).ok()
        });
    Ok(claimed.collect())
}

fn lead(json: serde_json::Value) -> Result<Lead, StoreError> {
    #[derive(Deserialize)]
    struct Row {
        id: LeadId,
        external_id: Option<String>,
        email: Option<String>,
        phone: Option<String>,
        timezone: Option<String>,
        attributes: serde_json::Value,
    }
    let unfit = |error: serde_json::Error| StoreError::Unfit(error.to_string());
    let row: Row = serde_json::from_value(json).map_err(unfit)?;
    Ok(Lead {
        id: row.id,
        external_id: row.external_id,
        email: row.email,
        phone: row.phone,
        timezone: row.timezone,
        attributes: serde_json::value::to_raw_value(&row.attributes).map_err(unfit)?,
        suppression_reason: None,
    })
}

/// A call token of the account of a doubt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CallToken {
    /// The call token may be used after this time.
    In(Duration),
    /// There is no call token before this time.
    NotBefore(Duration),
}

/// Takes a call token for repeating a call. `rate` is the provider's where the account has none.
pub async fn take_call_token(
    pool: &Pool,
    resolver: &str,
    doubt: &HeldDoubt,
    rate: Option<f64>,
    quota: Option<Rate>,
) -> Result<CallToken, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let row = sqlx::query!(
        r#"
        select granted as "granted!",
               wait_seconds as "wait_seconds!"
          from execution.take_call_token_for_doubt($1, $2, $3, $4, $5, $6, $7)
        "#,
        doubt.tenant_id.0,
        resolver,
        doubt.outbox_id.0,
        doubt.look,
        rate,
        quota.map(|quota| i32::try_from(quota.calls).unwrap_or(i32::MAX)),
        quota.map(|quota| quota.per.as_secs_f64()),
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("taking a call token of the account"))?;
    pool::commit(transaction).await?;
    let wait = Duration::try_from_secs_f64(row.wait_seconds).unwrap_or_default();
    Ok(if row.granted { CallToken::In(wait) } else { CallToken::NotBefore(wait) })
}

/// Settles a doubt with its evidence, and returns the item's new state. Its send job may be able to end now: wake the workers with
/// [`crate::campaigns::send_jobs::hint`].
pub async fn settle(
    pool: &Pool,
    resolver: &str,
    doubt: &HeldDoubt,
    resolution: Resolution<'_>,
    evidence: &str,
) -> Result<ItemStatus, StoreError> {
    let (resolved_as, message_id) = resolution.words();
    let (message_id, evidence) = (message_id.map(storable), storable(evidence));
    crash_point!("resolve.before");
    let mut transaction = pool::begin(pool).await?;
    let status = sqlx::query_scalar!(
        r#"select execution.settle_doubt($1, $2, $3, $4, $5, $6, $7) as "status!""#,
        doubt.tenant_id.0,
        resolver,
        doubt.outbox_id.0,
        doubt.look,
        resolved_as,
        message_id.as_deref(),
        &*evidence,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("settling the doubt"))?;
    crash_point!("resolve.after_statement");
    pool::commit(transaction).await?;
    crash_point!("resolve.after_commit");
    word(&status)
}

/// The plan for a doubt that could not be settled now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOff {
    /// The next look-up is at this time.
    Until(Timestamp),
    /// Only a person can settle it.
    ToAPerson,
}

/// Releases a doubt.
pub async fn put_off(
    pool: &Pool,
    resolver: &str,
    doubt: &HeldDoubt,
    put_off: PutOff,
    note: &str,
) -> Result<(), StoreError> {
    let next = match put_off {
        PutOff::Until(at) => Some(jiff_sqlx::Timestamp::from(at)),
        PutOff::ToAPerson => None,
    };
    let note = storable(note);
    let mut transaction = pool::begin(pool).await?;
    sqlx::query!(
        "select execution.put_off_doubt($1, $2, $3, $4, $5, $6, $7)",
        doubt.tenant_id.0,
        resolver,
        doubt.outbox_id.0,
        doubt.look,
        next as _,
        put_off == PutOff::ToAPerson,
        &*note,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("putting the doubt off"))?;
    pool::commit(transaction).await
}

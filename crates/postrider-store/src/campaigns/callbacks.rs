//! Callbacks: reports that providers send about their calls.

use jiff_sqlx::ToSqlx;
use postrider_model::{
    campaigns::delivery::{Delivery, Suppression},
    ids::{ProviderAccountId, TenantId},
    seal::{MasterKey, Place},
};
use secrecy::SecretString;
use sqlx::PgConnection;

use crate::{StoreError, postgres::unprepared::unprepared, tenancy::accounts};

/// An account of a provider that sends callbacks.
#[derive(Debug)]
pub struct CallbackAccount {
    /// The vendor.
    pub provider: String,
    /// Settings that are not secret.
    pub settings: serde_json::Value,
    /// The secret that the vendor signs with.
    pub secret: SecretString,
}

/// Returns an account of a tenant: its current version, then earlier ones, because a provider signs a report about an earlier call with the
/// secret of that call. The URL of a webhook or callback names both; trust nothing of it before the vendor's signature was
/// checked.
pub async fn account(
    connection: &mut PgConnection,
    key: &MasterKey,
    place: Place,
) -> Result<Vec<CallbackAccount>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select provider as "provider!",
               settings as "settings!",
               sealed_secret as "sealed_secret!"
          from tenancy.account_of_callback($1, $2)
        "#,
        place.tenant.0,
        place.account.0,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the provider account"))?;
    rows.into_iter()
        .map(|row| {
            let secret = accounts::open(key, place, &row.sealed_secret)?;
            Ok(CallbackAccount { provider: row.provider, settings: row.settings, secret })
        })
        .collect()
}

/// Verdict about a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// An item was in doubt, and is settled now.
    Settled,
    /// The callback was recorded.
    Recorded,
    /// The item had been resolved as not sent, although the provider acted. The audit log has both now.
    Contradicted,
    /// No item of this account has this key.
    Unknown,
}

/// Result of a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The verdict.
    pub verdict: Verdict,
    /// Whether the item has another delivery status now.
    pub is_delivery_new: bool,
    /// Whether the lead is suppressed because of this callback.
    pub is_suppressed: bool,
}

/// A verified callback.
#[derive(Debug, Clone, Copy)]
pub struct NewCallback<'a> {
    /// The account it came to.
    pub account: ProviderAccountId,
    /// The item's key.
    pub key: &'a str,
    /// The vendor's id of the message or call.
    pub message_id: &'a str,
    /// State of the message or call, in the vendor's word.
    pub status: &'a str,
    /// Whether it proves that the vendor acted.
    pub proves_action: bool,
    /// The reported delivery status.
    pub delivery: Option<&'a Delivery>,
}

/// Records a callback about an item of the tenant.
pub async fn record(
    connection: &mut PgConnection,
    tenant: TenantId,
    callback: &NewCallback<'_>,
) -> Result<Recorded, StoreError> {
    let delivery = callback.delivery;
    let suppression = delivery.and_then(|delivery| delivery.suppresses);
    let row = sqlx::query!(
        r#"
        select verdict as "verdict!",
               is_delivery_new as "is_delivery_new!",
               is_suppressed as "is_suppressed!"
          from execution.record_callback($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        "#,
        tenant.0,
        callback.account.0,
        callback.key,
        callback.message_id,
        callback.status,
        callback.proves_action,
        delivery.map(|delivery| delivery.status.as_str()),
        delivery.and_then(|delivery| delivery.detail.as_deref()),
        delivery.and_then(|delivery| delivery.at).map(ToSqlx::to_sqlx) as _,
        suppression.map(Suppression::reason),
        suppression.is_some_and(Suppression::is_about_address),
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("recording the callback"))?;
    let verdict = match row.verdict.as_str() {
        "settled" => Verdict::Settled,
        "contradicted" => Verdict::Contradicted,
        "unknown" => Verdict::Unknown,
        _ => Verdict::Recorded,
    };
    Ok(Recorded { verdict, is_delivery_new: row.is_delivery_new, is_suppressed: row.is_suppressed })
}

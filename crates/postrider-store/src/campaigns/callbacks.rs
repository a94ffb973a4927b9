//! Callbacks: reports that providers send about their calls.

use postrider_model::{
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

/// Result of a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// An item was in doubt, and is settled now.
    Settled,
    /// The callback was recorded.
    Recorded,
    /// The item had been resolved as not sent, although the provider acted. The audit log has both now.
    Contradicted,
    /// No item of this account has this key.
    Unknown,
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
}

/// Writes down a callback about an item of the tenant.
pub async fn record(
    connection: &mut PgConnection,
    tenant: TenantId,
    callback: &NewCallback<'_>,
) -> Result<Recorded, StoreError> {
    let word = sqlx::query_scalar!(
        r#"select execution.record_callback($1, $2, $3, $4, $5, $6) as "word!""#,
        tenant.0,
        callback.account.0,
        callback.key,
        callback.message_id,
        callback.status,
        callback.proves_action,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("recording the callback"))?;
    Ok(match word.as_str() {
        "settled" => Recorded::Settled,
        "contradicted" => Recorded::Contradicted,
        "unknown" => Recorded::Unknown,
        _ => Recorded::Recorded,
    })
}

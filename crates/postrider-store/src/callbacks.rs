//! What providers tell about their calls without being asked.

use postrider_model::{
    ids::{ProviderAccountId, TenantId},
    seal::{MasterKey, Place},
};
use secrecy::SecretString;
use sqlx::PgConnection;

use crate::{StoreError, accounts, unnamed::unnamed};

/// An account that a provider calls back about.
#[derive(Debug)]
pub struct CallbackAccount {
    /// Which vendor.
    pub provider: String,
    /// What is not secret.
    pub settings: serde_json::Value,
    /// What the vendor signs with.
    pub secret: SecretString,
}

/// Returns an account of a tenant. The URL of a webhook or callback names both; trust nothing of it before the vendor's signature was
/// checked.
pub async fn account(
    connection: &mut PgConnection,
    key: &MasterKey,
    place: Place,
) -> Result<Option<CallbackAccount>, StoreError> {
    let row = sqlx::query!(
        r#"
        select provider as "provider!",
               settings as "settings!",
               sealed_secret as "sealed_secret!"
          from tenancy.account_of_callback($1, $2)
        "#,
        place.tenant.0,
        place.account.0,
    )
    .fetch_optional(unnamed(connection))
    .await
    .map_err(StoreError::on("reading the provider account"))?;
    let Some(row) = row else { return Ok(None) };
    let secret = accounts::open(key, place, &row.sealed_secret)?;
    Ok(Some(CallbackAccount { provider: row.provider, settings: row.settings, secret }))
}

/// What became of a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// An item was in doubt, and is settled now.
    Settled,
    /// It was written down.
    Recorded,
    /// Somebody had decided that the item was not done. It was, and that is in the audit log now.
    Contradicted,
    /// No item of this account has this key.
    Unknown,
}

/// What a verified callback says.
#[derive(Debug, Clone, Copy)]
pub struct NewCallback<'a> {
    /// The account it came to.
    pub account: ProviderAccountId,
    /// The item's key.
    pub key: &'a str,
    /// The vendor's own name for what it did.
    pub message_id: &'a str,
    /// How that goes, in the vendor's word.
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
    .fetch_one(unnamed(connection))
    .await
    .map_err(StoreError::on("recording the callback"))?;
    Ok(match word.as_str() {
        "settled" => Recorded::Settled,
        "contradicted" => Recorded::Contradicted,
        "unknown" => Recorded::Unknown,
        _ => Recorded::Recorded,
    })
}

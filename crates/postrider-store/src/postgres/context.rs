//! The signature that lets a login of `postrider_app` act for a tenant (decision 0021).
//!
//! Logins of `postrider_worker` and `postrider_owner` name the tenant of a transaction themselves. All others need a signature
//! under a key that only those can read.

use hmac::{Hmac, KeyInit, Mac};
use postrider_model::ids::TenantId;
use secrecy::{ExposeSecret, SecretBox};
use sha2::Sha256;
use sqlx::PgConnection;

use crate::{StoreError, postgres::unprepared::unprepared};

/// Length of the key in bytes, and of a block of SHA-256, to which HMAC pads it with zeros.
const KEY_BYTES: usize = 32;
const BLOCK_BYTES: usize = 64;

/// The key that signs tenants. It is never printed.
#[derive(Debug)]
pub struct ContextKey(SecretBox<[u8; BLOCK_BYTES]>);

impl ContextKey {
    /// Takes the bytes of a key. `None` when they are not 32.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; KEY_BYTES] = bytes.try_into().ok()?;
        let mut block = Box::new([0; BLOCK_BYTES]);
        block.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        Some(Self(SecretBox::new(block)))
    }

    /// The signature of a tenant, in hex: HMAC-SHA256 over the bytes of its id.
    #[must_use]
    pub fn sign(&self, tenant: TenantId) -> String {
        let mac = Hmac::<Sha256>::new(self.0.expose_secret().into());
        hex::encode(mac.chain_update(tenant.0.as_bytes()).finalize().into_bytes())
    }
}

/// Reads the newest key. The login must be a member of `postrider_worker` or of `postrider_owner`.
pub async fn key(connection: &mut PgConnection) -> Result<ContextKey, StoreError> {
    let bytes = sqlx::query_scalar!(r#"select tenancy.context_key() as "key!""#)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("reading the key that signs tenants"))?;
    ContextKey::from_bytes(&bytes)
        .ok_or_else(|| StoreError::Unfit("the key that signs tenants does not have 32 bytes".to_owned()))
}

/// Adds a key. Signatures under the key before stay valid until the next rotation.
pub async fn rotate(connection: &mut PgConnection, actor: &str) -> Result<(), StoreError> {
    sqlx::query!("select tenancy.rotate_context_key($1)", actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("rotating the key that signs tenants"))?;
    Ok(())
}

/// Whether the login needs a signature to act for a tenant.
pub async fn needs_signature(connection: &mut PgConnection) -> Result<bool, StoreError> {
    sqlx::query_scalar!(
        r#"
        select not (pg_has_role(session_user, 'postrider_worker', 'member')
                    or pg_has_role(session_user, 'postrider_owner', 'member')) as "needed!"
        "#
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the login's rights"))
}

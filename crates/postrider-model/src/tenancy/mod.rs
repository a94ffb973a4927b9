//! Roles and API keys.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::ids::TenantId;

/// The permissions of an API key. Each role includes the permissions of the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// May read.
    Viewer,
    /// May start, pause, retry and resolve.
    Operator,
    /// May manage keys and provider accounts.
    Admin,
}

impl Role {
    /// All roles, in ascending order.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// The word in the database, the API and the CLI.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| UnknownRole(text.to_owned()))
    }
}

/// A role that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a role; choose viewer, operator or admin")]
pub struct UnknownRole(String);

const KEY_PREFIX: &str = "pr_";
const TENANT_DIGITS: usize = 32;
const KEY_BYTES: usize = 32;
const HINT_CHARACTERS: usize = 6;

/// An API key: `pr_`, the tenant's id as 32 hexadecimal digits, `_`, and 256 random bits in base64url. The tenant is in it so that it
/// is known before the first query, and a proxy can route by it. The key is shown once, and stored only as a hash.
#[derive(Debug, Clone)]
pub struct ApiKeySecret {
    tenant: TenantId,
    text: SecretString,
}

/// A text that cannot be an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not an API key; keys start with `pr_` and are printed once, by `postrider keys create`")]
pub struct NotAnApiKey;

impl ApiKeySecret {
    /// A new key of the tenant, from the system's random source.
    pub fn generate(tenant: TenantId) -> Result<Self, getrandom::Error> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes)?;
        let text = format!("{KEY_PREFIX}{}_{}", tenant.0.simple(), URL_SAFE_NO_PAD.encode(bytes));
        Ok(Self { tenant, text: text.into() })
    }

    /// The tenant that the key names. It is not to be believed before the hash was found among the keys of that tenant.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// The stored hash. It needs no salt or work factor, because 256 random bits cannot be guessed.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.text.expose_secret()).into()
    }

    /// `pr_…` and the first characters of the random part, by which people recognise a key in a list.
    #[must_use]
    pub fn hint(&self) -> String {
        let random = self.text.expose_secret().chars().skip(KEY_PREFIX.len() + TENANT_DIGITS + 1);
        format!("{KEY_PREFIX}…{}", random.take(HINT_CHARACTERS).collect::<String>())
    }

    /// The secret in plain text. Show it once, when the key is created.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.text.expose_secret()
    }
}

impl FromStr for ApiKeySecret {
    type Err = NotAnApiKey;

    fn from_str(text: &str) -> Result<Self, NotAnApiKey> {
        let body = text.strip_prefix(KEY_PREFIX).ok_or(NotAnApiKey)?;
        let (tenant, random) = body.split_once('_').ok_or(NotAnApiKey)?;
        // One text for one key: other spellings of the same id have other hashes.
        let id = Uuid::try_parse(tenant).map_err(|_| NotAnApiKey)?;
        if id.simple().to_string() != tenant {
            return Err(NotAnApiKey);
        }
        let bytes = URL_SAFE_NO_PAD.decode(random).map_err(|_| NotAnApiKey)?;
        if bytes.len() != KEY_BYTES {
            return Err(NotAnApiKey);
        }
        Ok(Self { tenant: TenantId(id), text: text.to_owned().into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_and_keeps_its_tenant_and_its_hash() {
        let tenant = TenantId::new();
        let key = ApiKeySecret::generate(tenant).unwrap();
        let again: ApiKeySecret = key.expose().parse().unwrap();
        assert_eq!((again.tenant(), again.hash()), (tenant, key.hash()));
        assert!(key.expose().starts_with(&key.hint().replace('…', &format!("{}_", tenant.0.simple()))));
        assert_ne!(ApiKeySecret::generate(tenant).unwrap().hash(), key.hash());
    }

    #[test]
    fn a_text_that_is_not_a_key_is_refused() {
        let tenant = TenantId::new();
        let key = ApiKeySecret::generate(tenant).unwrap().expose().to_owned();
        let truncated = &key[..key.len() - 2];
        let id = tenant.0.simple().to_string();
        let (hyphens, upper) =
            (key.replace(&id, &tenant.0.to_string()), key.replace(&id, &id.to_uppercase()));
        let without_tenant = key.replace(&format!("{id}_"), "");
        let other_prefix = key.replace("pr_", "sk_");
        for text in ["", "pr_", "pr_short", truncated, &hyphens, &upper, &without_tenant, &other_prefix] {
            assert!(text.parse::<ApiKeySecret>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_does_not_show_itself() {
        let key = ApiKeySecret::generate(TenantId::new()).unwrap();
        assert!(!format!("{key:?}").contains(&key.hint()["pr_…".len()..]));
    }

    #[test]
    fn roles_are_in_ascending_order() {
        assert!(Role::Admin > Role::Operator && Role::Operator > Role::Viewer);
        assert!("owner".parse::<Role>().unwrap_err().to_string().contains("viewer, operator or admin"));
    }
}

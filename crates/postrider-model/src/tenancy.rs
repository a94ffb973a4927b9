//! Roles and API keys.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

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
const KEY_BYTES: usize = 32;

/// The secret of an API key: 256 random bits behind `pr_`. It is shown once, and stored only as a hash.
#[derive(Debug, Clone)]
pub struct ApiKeySecret(SecretString);

/// A text that cannot be an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not an API key; keys start with `pr_` and are printed once, by `postrider keys create`")]
pub struct NotAnApiKey;

impl ApiKeySecret {
    /// A new secret from the system's random source.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Self(format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)).into()))
    }

    /// The stored hash. It needs no salt or work factor, because 256 random bits cannot be guessed.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.expose_secret()).into()
    }

    /// The first characters, by which people recognise a key in a list.
    #[must_use]
    pub fn hint(&self) -> String {
        self.0.expose_secret().chars().take(KEY_PREFIX.len() + 6).collect()
    }

    /// The secret in plain text. Show it once, when the key is created.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl FromStr for ApiKeySecret {
    type Err = NotAnApiKey;

    fn from_str(text: &str) -> Result<Self, NotAnApiKey> {
        let body = text.strip_prefix(KEY_PREFIX).ok_or(NotAnApiKey)?;
        let bytes = URL_SAFE_NO_PAD.decode(body).map_err(|_| NotAnApiKey)?;
        if bytes.len() == KEY_BYTES { Ok(Self(text.to_owned().into())) } else { Err(NotAnApiKey) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_and_keeps_its_hash() {
        let key = ApiKeySecret::generate().unwrap();
        let again: ApiKeySecret = key.expose().parse().unwrap();
        assert_eq!(again.hash(), key.hash());
        assert_ne!(ApiKeySecret::generate().unwrap().hash(), key.hash());
    }

    #[test]
    fn a_text_that_is_not_a_key_is_refused() {
        let key = ApiKeySecret::generate().unwrap().expose().to_owned();
        let truncated = &key[..key.len() - 2];
        for text in ["", "pr_", "pr_short", truncated, &key.to_uppercase(), &key.replace("pr_", "sk_")] {
            assert!(text.parse::<ApiKeySecret>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_does_not_show_itself() {
        let key = ApiKeySecret::generate().unwrap();
        assert!(!format!("{key:?}").contains(&key.expose()[3..]));
    }

    #[test]
    fn roles_are_in_ascending_order() {
        assert!(Role::Admin > Role::Operator && Role::Operator > Role::Viewer);
        assert!("owner".parse::<Role>().unwrap_err().to_string().contains("viewer, operator or admin"));
    }
}

//! Secrets of 256 random bits that name their tenant: API keys, session tokens and login codes.
//!
//! Each is a prefix, the tenant's id as 32 hexadecimal digits, `_`, and the random bits in base64url. The tenant is in it so that it is
//! known before the first query, and a proxy can route by it. The database has only the SHA-256.

use std::str::FromStr;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::ids::TenantId;

const TENANT_DIGITS: usize = 32;
const RANDOM_BYTES: usize = 32;
const HINT_CHARACTERS: usize = 6;

/// A text that cannot be a secret of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not {kind}; {advice}")]
pub struct NotASecret {
    kind: &'static str,
    advice: &'static str,
}

macro_rules! secret {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $kind:literal, $advice:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name {
            tenant: TenantId,
            text: SecretString,
        }

        impl $name {
            /// A new secret of the tenant, from the system's random source.
            pub fn generate(tenant: TenantId) -> Result<Self, getrandom::Error> {
                let mut bytes = [0; RANDOM_BYTES];
                getrandom::fill(&mut bytes)?;
                let text = format!(concat!($prefix, "{}_{}"), tenant.0.simple(), URL_SAFE_NO_PAD.encode(bytes));
                Ok(Self { tenant, text: text.into() })
            }

            /// The tenant that the secret names. It is not to be believed before the hash was found among the rows of that tenant.
            #[must_use]
            pub fn tenant(&self) -> TenantId {
                self.tenant
            }

            /// The stored hash. It needs no salt or work factor, because 256 random bits cannot be guessed.
            #[must_use]
            pub fn hash(&self) -> [u8; 32] {
                Sha256::digest(self.text.expose_secret()).into()
            }

            /// The secret in plain text, for the one who may have it.
            #[must_use]
            pub fn expose(&self) -> &str {
                self.text.expose_secret()
            }
        }

        impl FromStr for $name {
            type Err = NotASecret;

            fn from_str(text: &str) -> Result<Self, NotASecret> {
                let tenant = tenant_of($prefix, text).ok_or(NotASecret { kind: $kind, advice: $advice })?;
                Ok(Self { tenant, text: text.to_owned().into() })
            }
        }
    };
}

secret!(
    /// An API key, `pr_…`. It is shown once.
    ApiKeySecret,
    "pr_",
    "an API key",
    "keys start with `pr_` and are printed once, by `postrider keys create`"
);
secret!(
    /// The token of a session of the dashboard, `prs_…`. Only the cookie has it.
    SessionToken,
    "prs_",
    "a session token",
    "sign in to get one"
);
secret!(
    /// A code that opens one session, `prc_…`. It is valid once, for a minute.
    LoginCode,
    "prc_",
    "a login code",
    "`postrider dashboard` prints one"
);

impl ApiKeySecret {
    /// `pr_…` and the first characters of the random part, by which people recognise a key in a list.
    #[must_use]
    pub fn hint(&self) -> String {
        let random = self.text.expose_secret().chars().skip("pr_".len() + TENANT_DIGITS + 1);
        format!("pr_…{}", random.take(HINT_CHARACTERS).collect::<String>())
    }
}

/// The tenant in a secret's text, if the text is one.
fn tenant_of(prefix: &str, text: &str) -> Option<TenantId> {
    let (tenant, random) = text.strip_prefix(prefix)?.split_once('_')?;
    // One text for one secret: other spellings of the same id have other hashes.
    let id = Uuid::try_parse(tenant).ok().filter(|id| id.simple().to_string() == tenant)?;
    let bytes = URL_SAFE_NO_PAD.decode(random).ok()?;
    (bytes.len() == RANDOM_BYTES).then_some(TenantId(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_reads_back_and_keeps_its_tenant_and_its_hash() {
        let tenant = TenantId::new();
        let key = ApiKeySecret::generate(tenant).unwrap();
        let again: ApiKeySecret = key.expose().parse().unwrap();
        assert_eq!((again.tenant(), again.hash()), (tenant, key.hash()));
        assert!(key.expose().starts_with(&key.hint().replace('…', &format!("{}_", tenant.0.simple()))));
        assert_ne!(ApiKeySecret::generate(tenant).unwrap().hash(), key.hash());
        let token = SessionToken::generate(tenant).unwrap();
        let again: SessionToken = token.expose().parse().unwrap();
        assert_eq!((again.tenant(), again.hash()), (tenant, token.hash()));
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
    fn no_kind_of_secret_is_read_as_another_kind() {
        let tenant = TenantId::new();
        let key = ApiKeySecret::generate(tenant).unwrap();
        let token = SessionToken::generate(tenant).unwrap();
        let code = LoginCode::generate(tenant).unwrap();
        for text in [token.expose(), code.expose()] {
            assert!(text.parse::<ApiKeySecret>().is_err());
        }
        assert!(
            key.expose().parse::<SessionToken>().is_err() && code.expose().parse::<SessionToken>().is_err()
        );
        assert!(key.expose().parse::<LoginCode>().is_err() && token.expose().parse::<LoginCode>().is_err());
    }

    #[test]
    fn a_secret_does_not_show_itself() {
        let key = ApiKeySecret::generate(TenantId::new()).unwrap();
        assert!(!format!("{key:?}").contains(&key.hint()["pr_…".len()..]));
        let token = SessionToken::generate(TenantId::new()).unwrap();
        assert!(!format!("{token:?}").contains(&token.expose()[40..]));
    }
}

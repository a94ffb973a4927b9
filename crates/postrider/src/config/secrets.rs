//! Values that are not to be printed.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use url::Url;

/// A secret from the configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub struct Hidden(pub SecretString);

impl From<String> for Hidden {
    fn from(secret: String) -> Self {
        Self(secret.into())
    }
}

impl From<&str> for Hidden {
    fn from(secret: &str) -> Self {
        Self(secret.into())
    }
}

impl Serialize for Hidden {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("(hidden)")
    }
}

/// A URL of the outside world. Its parts that may be secret are not shown.
#[derive(Clone)]
pub struct Address(pub Url);

impl Address {
    fn shown(&self) -> Url {
        let mut url = self.0.clone();
        if url.password().is_some() {
            let _ = url.set_password(Some("(hidden)"));
        }
        // A path can be a token, too.
        if url.path() != "/" && !url.path().is_empty() {
            url.set_path("/(hidden)");
        }
        url.set_query(None);
        url
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let not_one = |error| {
            D::Error::custom(format!(
                "a URL of this sink cannot be read: {error}; it looks like https://example.com/hooks"
            ))
        };
        Url::parse(&text).map(Self).map_err(not_one)
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.shown().as_str())
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.shown().as_str())
    }
}

/// A database URL. Its password is a secret.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub struct DatabaseUrl(SecretString);

impl DatabaseUrl {
    /// The whole URL, password and all.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl From<String> for DatabaseUrl {
    fn from(url: String) -> Self {
        Self(url.into())
    }
}

impl From<&str> for DatabaseUrl {
    fn from(url: &str) -> Self {
        Self(url.into())
    }
}

impl Serialize for DatabaseUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match Url::parse(self.expose()) {
            // A second `@` means that the password was not escaped and stands where it does not belong.
            Ok(url) if url.as_str().matches('@').count() > 1 || url.path().contains('@') => {
                serializer.serialize_str("(hidden)")
            }
            Ok(mut url) => {
                if url.password().is_some() {
                    let _ = url.set_password(Some("(hidden)"));
                }
                // A password may also stand among the parameters.
                if url.query_pairs().any(|(name, _)| name.contains("password")) {
                    url.set_query(Some("(hidden)"));
                }
                serializer.serialize_str(url.as_str())
            }
            Err(_) => serializer.serialize_str("(not a URL)"),
        }
    }
}

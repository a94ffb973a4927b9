//! Roles, API keys, and the sessions that are opened with them.

mod person;
mod secrets;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub use self::{
    person::{NotAName, PersonName},
    secrets::{ApiKeySecret, LoginCode, NotASecret, SessionToken},
};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_in_ascending_order() {
        assert!(Role::Admin > Role::Operator && Role::Operator > Role::Viewer);
        assert!("owner".parse::<Role>().unwrap_err().to_string().contains("viewer, operator or admin"));
    }
}

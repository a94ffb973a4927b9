//! The meaning of a column of a CSV file, or of a name in an NDJSON line.

use super::{ATTRIBUTE_NAME_BYTES_MAX, Problem, lead::problem, rules::shown};

/// The field of a lead that a column sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Column {
    ExternalId,
    Email,
    Phone,
    Timezone,
    Unsubscribed,
    Attribute(String),
}

/// The columns that identify a person. A line needs one of them.
pub(super) const IDENTIFYING: &str = "external_id, email or phone";

impl Column {
    /// The column with this name. Known ones are recognised in any case; others keep theirs.
    pub(super) fn named(name: &str) -> Result<Self, Problem> {
        let name = name.trim();
        Ok(match name.to_ascii_lowercase().as_str() {
            "external_id" => Self::ExternalId,
            "email" => Self::Email,
            "phone" => Self::Phone,
            "timezone" => Self::Timezone,
            "unsubscribed" => Self::Unsubscribed,
            "" => return Err(problem!("an attribute has no name")),
            _ if name.len() > ATTRIBUTE_NAME_BYTES_MAX => {
                return Err(problem!(
                    "the name `{}` has {} bytes; the limit is {ATTRIBUTE_NAME_BYTES_MAX}",
                    shown(name),
                    name.len()
                ));
            }
            _ if name.chars().any(char::is_control) => {
                return Err(problem!("the name `{}` contains a control character", shown(name)));
            }
            _ => Self::Attribute(name.to_owned()),
        })
    }

    /// Whether the column identifies a person.
    pub(super) fn identifies(&self) -> bool {
        matches!(self, Self::ExternalId | Self::Email | Self::Phone)
    }
}

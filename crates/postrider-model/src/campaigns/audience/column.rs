//! The meaning of a column of a CSV file, or of a name in an NDJSON line.

use serde::Serialize;

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

/// A column whose name cannot be a variable of a template, with the name of its attribute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Renamed {
    /// The name in the file.
    pub column: String,
    /// The name of the attribute.
    pub variable: String,
}

/// Words that mean something else in templates.
const TAKEN: [&str; 20] = [
    "true", "True", "false", "False", "none", "None", "not", "and", "or", "in", "is", "if", "elif", "else",
    "endif", "for", "endfor", "raw", "loop", "lead",
];

/// The name of an attribute: letters, digits and `_` of ASCII, and no digit first. Every other run of characters becomes one `_`.
fn variable(name: &str) -> String {
    let mut variable = String::with_capacity(name.len());
    for letter in name.chars() {
        if letter.is_ascii_alphanumeric() || letter == '_' {
            variable.push(letter);
        } else if !variable.is_empty() && !variable.ends_with('_') {
            variable.push('_');
        }
    }
    // A bracket at the end leaves no mark; an underscore of the name itself stays.
    if variable.ends_with('_') && !name.ends_with('_') {
        variable.pop();
    }
    if variable.is_empty() || variable.starts_with(|letter: char| letter.is_ascii_digit()) {
        variable.insert(0, '_');
    }
    if TAKEN.contains(&variable.as_str()) {
        variable.push('_');
    }
    variable
}

/// The columns that identify a person. A line needs one of them.
pub(super) const IDENTIFYING: &str = "external_id, email or phone";

impl Column {
    /// The column with this name. Known ones are recognised in any case; an attribute gets a name that templates can use.
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
            _ => Self::Attribute(variable(name)),
        })
    }

    /// The name that a header or a member of an object gets, if templates cannot use its own.
    pub(super) fn renamed(&self, name: &str) -> Option<Renamed> {
        match self {
            Self::Attribute(variable) if variable != name.trim() => {
                Some(Renamed { column: name.trim().to_owned(), variable: variable.clone() })
            }
            _ => None,
        }
    }

    /// Whether the column identifies a person.
    pub(super) fn identifies(&self) -> bool {
        matches!(self, Self::ExternalId | Self::Email | Self::Phone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_gets_a_name_that_templates_can_use() {
        let table = [
            ("first_name", "first_name"),
            ("FirstName", "FirstName"),
            ("_x", "_x"),
            ("x_", "x_"),
            ("First Name", "First_Name"),
            ("First  -  Name", "First_Name"),
            ("Price (EUR)", "Price_EUR"),
            ("(a) b", "a_b"),
            ("Größe", "Gr_e"),
            ("2nd", "_2nd"),
            ("%", "_"),
            ("order.id", "order_id"),
            ("lead", "lead_"),
            ("for", "for_"),
        ];
        for (name, expected) in table {
            let column = Column::named(name).unwrap();
            assert_eq!(column, Column::Attribute(expected.to_owned()), "{name}");
            let renamed = column.renamed(name).map(|renamed| renamed.variable);
            assert_eq!(renamed, (name != expected).then(|| expected.to_owned()), "{name}");
        }
        assert_eq!(Column::named(" E-Mail ").unwrap().renamed(" E-Mail ").unwrap().column, "E-Mail");
        assert_eq!(Column::named("EMAIL").unwrap().renamed("EMAIL"), None);
    }
}

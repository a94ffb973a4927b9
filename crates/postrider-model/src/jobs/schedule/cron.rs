//! Cron expressions: five fields, to the minute.

use std::{fmt, str::FromStr};

use jiff::civil::{DateTime, date};
use serde::{Deserialize, Serialize};

use super::fields;

/// A cron expression, such as `30 2 * * MON-FRI`, or a nickname, such as `@daily`.
///
/// As in every cron, an expression with a day and a weekday fires when either of them matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cron {
    text: String,
    pattern: croner::Cron,
}

/// A text that is not a cron expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{input}` is not a cron expression: {problem}; write minute, hour, day, month and weekday, as in `*/5 * * * *` or `30 9 * * MON-FRI`"
)]
pub struct InvalidCron {
    input: String,
    problem: String,
}

/// The nicknames and their expressions.
const NICKNAMES: &[(&str, &str)] = &[
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

impl Cron {
    /// Longest expression, in bytes.
    pub const BYTES_MAX: usize = 255;

    /// The expression or nickname as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The next civil time that it names, after this one.
    pub(super) fn after(&self, civil: DateTime) -> Option<DateTime> {
        // Civil times ignore changes of the clock; `timing.rs` handles them.
        self.pattern.find_next_occurrence(&civil, false).ok()
    }

    /// The last civil time that it names, up to this one.
    pub(super) fn until(&self, civil: DateTime) -> Option<DateTime> {
        self.pattern.find_previous_occurrence(&civil, true).ok()
    }

    /// The last civil time that it names, before this one.
    pub(super) fn before(&self, civil: DateTime) -> Option<DateTime> {
        self.pattern.find_previous_occurrence(&civil, false).ok()
    }
}

/// Rewrites names as numbers, or returns the problem of the expression.
fn normalize(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.len() > Cron::BYTES_MAX {
        return Err(format!("it has {} bytes, and at most {} are allowed", text.len(), Cron::BYTES_MAX));
    }
    if !text.starts_with('@') {
        return fields::normalize(text);
    }
    match NICKNAMES.iter().find(|(nickname, _)| text.eq_ignore_ascii_case(nickname)) {
        Some((_, expression)) => Ok((*expression).to_owned()),
        None => {
            let known: Vec<_> = NICKNAMES.iter().map(|(nickname, _)| *nickname).collect();
            Err(format!("there is no such nickname; known are {}", known.join(", ")))
        }
    }
}

impl FromStr for Cron {
    type Err = InvalidCron;

    fn from_str(input: &str) -> Result<Self, InvalidCron> {
        let text = input.trim();
        let refuse = |problem: String| InvalidCron { input: shortened(text), problem };

        let expression = normalize(text).map_err(refuse)?;
        let pattern: croner::Cron =
            expression.parse().map_err(|error: croner::errors::CronError| refuse(error.to_string()))?;
        // The calendar repeats every 400 years, so an expression that does not fire from here on never fires.
        if pattern.find_next_occurrence(&date(2000, 1, 1).at(0, 0, 0, 0), true).is_err() {
            return Err(refuse("there is no such day in any year, so it would never fire".to_owned()));
        }
        Ok(Self { text: text.to_owned(), pattern })
    }
}

/// Shortens a text for an error message and escapes line breaks.
pub(super) fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    let more = if text.chars().nth(CHARS_MAX).is_some() { "…" } else { "" };
    format!("{}{more}", text.chars().take(CHARS_MAX).collect::<String>().escape_debug())
}

impl TryFrom<String> for Cron {
    type Error = InvalidCron;

    fn try_from(text: String) -> Result<Self, InvalidCron> {
        text.parse()
    }
}

impl From<Cron> for String {
    fn from(cron: Cron) -> Self {
        cron.text
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

//! Scheduled jobs: functions, their runs, and what is tried again when.
//!
//! What is absent from a table of transitions cannot happen: the database refuses it too, and a test compares the two.

use std::{fmt, str::FromStr, time::Duration};

use base64::Engine;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::words::words;

words!(
    /// The state of a run.
    JobRunStatus, "run status" {
        /// It waits for a runner, or one is at it.
        Running => "running",
        /// It is done.
        Completed => "completed",
        /// It failed: it waits for its next try, or for a person.
        Failed => "failed",
        /// A person gave it up.
        Cancelled => "cancelled",
    }
);

/// Every legal change of a run.
pub const JOB_RUN_MACHINE: &[(JobRunStatus, JobRunStatus)] = &[
    (JobRunStatus::Running, JobRunStatus::Completed),
    (JobRunStatus::Running, JobRunStatus::Failed),
    (JobRunStatus::Running, JobRunStatus::Cancelled),
    (JobRunStatus::Failed, JobRunStatus::Running),
    (JobRunStatus::Failed, JobRunStatus::Cancelled),
];

words!(
    /// What became of a firing.
    FiringOutcome, "outcome of a firing" {
        /// A run was made.
        Started => "started",
        /// It waits for what it depends on.
        Waiting => "waiting",
        /// There is no run for it.
        Skipped => "skipped",
    }
);

words!(
    /// The state of a decision card.
    CardStatus, "card status" {
        /// Nobody has taken it.
        #[serde(rename = "OPEN")]
        Open => "OPEN",
        /// Somebody is at it.
        #[serde(rename = "IN_PROGRESS")]
        InProgress => "IN_PROGRESS",
        /// It is done.
        #[serde(rename = "RESOLVED")]
        Resolved => "RESOLVED",
        /// Nothing is to be done.
        #[serde(rename = "DISMISSED")]
        Dismissed => "DISMISSED",
    }
);

words!(
    /// The state of an alert.
    AlertStatus, "alert status" {
        /// It holds.
        Active => "active",
        /// It holds, in the words of others who raise alerts.
        Open => "open",
        /// The same.
        Triggered => "triggered",
        /// It is over.
        Resolved => "resolved",
    }
);

/// What a function is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// An endpoint behind a URL.
    Http(String),
    /// A function in the database.
    Sql(SqlName),
    /// Rust code: a function that comes with Postrider, or that a process of an application provides.
    Builtin(String),
}

impl Target {
    /// The kind and the rest, as the database keeps them.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Http(url) => ("http", url),
            Self::Sql(name) => ("sql", name.as_str()),
            Self::Builtin(name) => ("builtin", name),
        }
    }

    /// Reads what the database keeps. `None` where the kind is not known to this version.
    #[must_use]
    pub fn from_parts(kind: &str, target: String) -> Option<Self> {
        match kind {
            "http" => Some(Self::Http(target)),
            "sql" => target.parse().ok().map(Self::Sql),
            "builtin" => Some(Self::Builtin(target)),
            _ => None,
        }
    }
}

/// The name of a function in the database, with its schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SqlName(String);

/// A text that names no function of the database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a SQL function; write it with its schema, such as `public.rebuild`")]
pub struct NotASqlName(String);

impl SqlName {
    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The schema and the name.
    #[must_use]
    pub fn parts(&self) -> (&str, &str) {
        self.0.split_once('.').unwrap_or(("", &self.0))
    }
}

impl FromStr for SqlName {
    type Err = NotASqlName;

    fn from_str(given: &str) -> Result<Self, NotASqlName> {
        let plain = |part: &str| {
            part.len() <= 63
                && part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && part.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
        };
        match given.split_once('.') {
            Some((schema, name)) if plain(schema) && plain(name) => Ok(Self(given.to_owned())),
            _ => Err(NotASqlName(given.chars().take(200).collect())),
        }
    }
}

impl TryFrom<String> for SqlName {
    type Error = NotASqlName;

    fn try_from(given: String) -> Result<Self, NotASqlName> {
        given.parse()
    }
}

impl From<SqlName> for String {
    fn from(name: SqlName) -> Self {
        name.0
    }
}

impl fmt::Display for SqlName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// When a run that failed is tried again: 1 s, 5 s and 25 s later unless it is set otherwise. `jobs.note_failure` computes it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// How often.
    pub max_retries: u32,
    /// The pause before the first retry.
    pub initial_delay_ms: u32,
    /// How much longer each pause is than the one before.
    pub backoff_multiplier: f64,
    /// The longest pause.
    pub max_delay_ms: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_retries: 3, initial_delay_ms: 1000, backoff_multiplier: 5.0, max_delay_ms: 30_000 }
    }
}

impl RetryPolicy {
    /// What is wrong with it, by field.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        const DAY_MS: u32 = 24 * 60 * 60 * 1000;
        if self.max_retries > 100 {
            return Some(("max_retries", "must lie between 0 and 100"));
        }
        if self.initial_delay_ms > DAY_MS {
            return Some(("initial_delay_ms", "must lie between 0 and 86400000"));
        }
        if !(1.0..=100.0).contains(&self.backoff_multiplier) {
            return Some(("backoff_multiplier", "must lie between 1 and 100"));
        }
        (self.max_delay_ms > DAY_MS).then_some(("max_delay_ms", "must lie between 0 and 86400000"))
    }
}

/// The function that watches jobs.
pub const DETECT_ALERTS: &str = "detect-alerts";

/// When the jobs of a tenant are an alert: what `detect-alerts` takes as its input.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlertRules {
    /// More failed runs in 24 hours.
    pub failed_max: u32,
    /// A run that has been at it for longer.
    pub running_minutes_max: u32,
    /// A larger share of retried runs in 24 hours.
    pub retry_rate_max: f64,
}

impl Default for AlertRules {
    fn default() -> Self {
        Self { failed_max: 5, running_minutes_max: 30, retry_rate_max: 0.1 }
    }
}

impl AlertRules {
    /// How long a run may be at it.
    #[must_use]
    pub fn running_max(&self) -> Duration {
        Duration::from_secs(u64::from(self.running_minutes_max) * 60)
    }

    /// What is wrong with them.
    #[must_use]
    pub fn problem(&self) -> Option<&'static str> {
        (!(0.0..=1.0).contains(&self.retry_rate_max)).then_some("retry_rate_max must lie between 0 and 1")
    }
}

/// Shortest and longest time that a function may be given, in seconds.
pub const TIMEOUT_SECONDS: std::ops::RangeInclusive<u32> = 1..=900;

/// The time that a function has when nobody says, in seconds.
pub const TIMEOUT_SECONDS_DEFAULT: u32 = 60;

/// Longest input and longest result of a run, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Whether a function may be called so: a part of lock keys and of paths.
pub fn check_function_name(name: &str) -> Result<(), String> {
    let plain = name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= 100
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "._-".contains(char));
    if plain {
        return Ok(());
    }
    let given: String = name.chars().take(100).collect();
    Err(format!(
        "`{given}` cannot be the name of a function: it needs letters, digits, `-`, `_` and `.`, begins with a letter or a digit, and has at \
         most 100 of them"
    ))
}

/// Whether a run that failed with this SQLSTATE would fail again: what was asked for does not exist, is not allowed, or does not fit
/// its data. A function that gives up for good raises `PR400`.
#[must_use]
pub fn is_retryable_sqlstate(code: &str) -> bool {
    !(code == "PR400" || ["0A", "22", "42"].iter().any(|class| code.starts_with(class)))
}

/// A new secret to sign requests with, as the Standard Webhooks specification writes it.
pub fn new_signing_secret() -> Result<SecretString, getrandom::Error> {
    let mut bytes = zeroize::Zeroizing::new([0_u8; 32]);
    getrandom::fill(bytes.as_mut())?;
    Ok(format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode(bytes.as_ref())).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sql_function_is_named_with_its_schema_and_cannot_carry_sql() {
        for given in ["public.rebuild", "app._x1", "A.b"] {
            assert_eq!(given.parse::<SqlName>().map(|name| name.to_string()), Ok(given.to_owned()));
        }
        for given in
            ["rebuild", "a.b.c", "a.", ".b", "a.b; drop table x", "a.\"b\"", "a.b()", "1a.b", "ä.b", ""]
        {
            assert!(given.parse::<SqlName>().is_err(), "{given}");
        }
    }

    #[test]
    fn a_target_is_written_under_its_kind() {
        let target = serde_json::from_str::<Target>(r#"{"sql": "public.rebuild"}"#).unwrap();
        assert_eq!(target.parts(), ("sql", "public.rebuild"));
        assert!(serde_json::from_str::<Target>(r#"{"sql": "rebuild"}"#).is_err());
        assert!(serde_json::from_str::<Target>(r#"{"ftp": "x"}"#).is_err());
        assert_eq!(
            Target::from_parts("http", "https://a".to_owned()),
            Some(Target::Http("https://a".to_owned()))
        );
        assert_eq!(Target::from_parts("wasm", "x".to_owned()), None);
    }

    #[test]
    fn names_of_functions_are_plain() {
        for name in ["detect-alerts", "a", "Sync_2.v1"] {
            assert_eq!(check_function_name(name), Ok(()));
        }
        for name in ["", "-a", "a b", "a:b", "a/b", "ä", &"a".repeat(101)] {
            assert!(check_function_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn what_would_fail_again_is_not_retried() {
        for (code, retryable) in [
            ("40001", true),
            ("57014", true),
            ("P0001", true),
            ("23505", true),
            ("42883", false),
            ("22012", false),
            ("0A000", false),
            ("PR400", false),
        ] {
            assert_eq!(is_retryable_sqlstate(code), retryable, "{code}");
        }
    }

    #[test]
    fn the_policy_says_what_is_wrong_with_it() {
        assert_eq!(RetryPolicy::default().problem(), None);
        for wrong in [f64::NAN, 0.5, f64::INFINITY] {
            let policy = RetryPolicy { backoff_multiplier: wrong, ..RetryPolicy::default() };
            assert_eq!(policy.problem().map(|(field, _)| field), Some("backoff_multiplier"));
        }
    }
}

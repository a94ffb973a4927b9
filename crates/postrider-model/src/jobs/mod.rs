//! Scheduled jobs: functions, their job runs, and retries.
//!
//! A transition that is not in its table cannot happen: the database refuses it, too, and a test compares both.

pub mod lock_key;
pub mod schedule;

use std::{fmt, str::FromStr, time::Duration};

use base64::Engine;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::words::words;

words!(
    /// The state of a job run.
    JobRunStatus, "run status" {
        /// The run waits for a runner, or a runner claimed it.
        Running => "running",
        /// The run succeeded.
        Completed => "completed",
        /// The run failed: it waits for its retry, or is a dead letter.
        Failed => "failed",
        /// A person cancelled the run.
        Cancelled => "cancelled",
    }
);

/// Every legal transition of a job run.
pub const JOB_RUN_MACHINE: &[(JobRunStatus, JobRunStatus)] = &[
    (JobRunStatus::Running, JobRunStatus::Completed),
    (JobRunStatus::Running, JobRunStatus::Failed),
    (JobRunStatus::Running, JobRunStatus::Cancelled),
    (JobRunStatus::Failed, JobRunStatus::Running),
    (JobRunStatus::Failed, JobRunStatus::Cancelled),
];

words!(
    /// The outcome of a firing.
    FiringOutcome, "outcome of a firing" {
        /// The scheduler created a job run.
        Started => "started",
        /// The firing waits for the runs that it depends on.
        Waiting => "waiting",
        /// The scheduler created no job run.
        Skipped => "skipped",
    }
);

words!(
    /// The state of a decision card.
    CardStatus, "card status" {
        /// No person works on the card yet.
        #[serde(rename = "OPEN")]
        Open => "OPEN",
        /// A person works on the card.
        #[serde(rename = "IN_PROGRESS")]
        InProgress => "IN_PROGRESS",
        /// A person acted on the alert.
        #[serde(rename = "RESOLVED")]
        Resolved => "RESOLVED",
        /// A person decided not to act.
        #[serde(rename = "DISMISSED")]
        Dismissed => "DISMISSED",
    }
);

words!(
    /// The state of an alert.
    AlertStatus, "alert status" {
        /// The condition of the alert holds.
        Active => "active",
        /// The condition holds; other programs that raise alerts write this word.
        Open => "open",
        /// The condition holds; other programs that raise alerts write this word.
        Triggered => "triggered",
        /// The condition holds no longer.
        Resolved => "resolved",
    }
);

/// The target that a job run calls.
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
    /// The kind and the target, as the database stores them.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Http(url) => ("http", url),
            Self::Sql(name) => ("sql", name.as_str()),
            Self::Builtin(name) => ("builtin", name),
        }
    }

    /// Reads a stored target. `None` if this version does not know the kind.
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

/// A text that is not the name of a SQL function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a SQL function; write it with its schema, such as `public.rebuild`")]
pub struct NotASqlName(String);

impl SqlName {
    /// The name with its schema.
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

    fn from_str(input: &str) -> Result<Self, NotASqlName> {
        let plain = |part: &str| {
            part.len() <= 63
                && part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && part.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
        };
        match input.split_once('.') {
            Some((schema, name)) if plain(schema) && plain(name) => Ok(Self(input.to_owned())),
            _ => Err(NotASqlName(input.chars().take(200).collect())),
        }
    }
}

impl TryFrom<String> for SqlName {
    type Error = NotASqlName;

    fn try_from(input: String) -> Result<Self, NotASqlName> {
        input.parse()
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

/// Backoff of failed job runs: by default 1 s, 5 s and 25 s. `jobs.note_failure` computes it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// Maximum number of retries.
    pub max_retries: u32,
    /// The pause before the first retry.
    pub initial_delay_ms: u32,
    /// Factor from one pause to the next.
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
    /// The first invalid field and its problem, if there is one.
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

/// Name of the built-in function that raises alerts about job runs.
pub const DETECT_ALERTS: &str = "detect-alerts";

/// Thresholds of the alerts about a tenant's job runs: the input of `detect-alerts`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlertRules {
    /// Alert on more failed runs than this in 24 hours.
    pub failed_max: u32,
    /// Alert on a run that takes longer than this.
    pub running_minutes_max: u32,
    /// Alert on a larger share of retried runs than this in 24 hours.
    pub retry_rate_max: f64,
}

impl Default for AlertRules {
    fn default() -> Self {
        Self { failed_max: 5, running_minutes_max: 30, retry_rate_max: 0.1 }
    }
}

impl AlertRules {
    /// `running_minutes_max` as a duration.
    #[must_use]
    pub fn running_max(&self) -> Duration {
        Duration::from_secs(u64::from(self.running_minutes_max) * 60)
    }

    /// The first problem of these rules, if there is one.
    #[must_use]
    pub fn problem(&self) -> Option<&'static str> {
        (!(0.0..=1.0).contains(&self.retry_rate_max)).then_some("retry_rate_max must lie between 0 and 1")
    }
}

/// Shortest and longest timeout of a function, in seconds.
pub const TIMEOUT_SECONDS: std::ops::RangeInclusive<u32> = 1..=900;

/// Default timeout of a function, in seconds.
pub const TIMEOUT_SECONDS_DEFAULT: u32 = 60;

/// Longest input and longest result of a run, in bytes.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Checks the name of a function, which is a part of lock keys and of paths.
pub fn check_function_name(name: &str) -> Result<(), String> {
    let plain = name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= 100
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "._-".contains(char));
    if plain {
        return Ok(());
    }
    let input: String = name.chars().take(100).collect();
    Err(format!(
        "`{input}` cannot be the name of a function: it needs letters, digits, `-`, `_` and `.`, begins with a letter or a digit, and has at \
         most 100 of them"
    ))
}

/// Whether a retry may succeed after this SQLSTATE. It cannot when the statement names a missing object, is not supported or does not
/// fit its data. A function raises `PR400` to prevent retries.
#[must_use]
pub fn is_retryable_sqlstate(code: &str) -> bool {
    !(code == "PR400" || ["0A", "22", "42"].iter().any(|class| code.starts_with(class)))
}

/// A new secret for signing requests, in the format of the Standard Webhooks specification.
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
        for input in ["public.rebuild", "app._x1", "A.b"] {
            assert_eq!(input.parse::<SqlName>().map(|name| name.to_string()), Ok(input.to_owned()));
        }
        for input in
            ["rebuild", "a.b.c", "a.", ".b", "a.b; drop table x", "a.\"b\"", "a.b()", "1a.b", "ä.b", ""]
        {
            assert!(input.parse::<SqlName>().is_err(), "{input}");
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
    fn errors_that_a_retry_cannot_fix_are_not_retryable() {
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
    fn an_invalid_retry_policy_names_its_field() {
        assert_eq!(RetryPolicy::default().problem(), None);
        for wrong in [f64::NAN, 0.5, f64::INFINITY] {
            let policy = RetryPolicy { backoff_multiplier: wrong, ..RetryPolicy::default() };
            assert_eq!(policy.problem().map(|(field, _)| field), Some("backoff_multiplier"));
        }
    }
}

//! Rust functions: those that come with Postrider, and those of a program that uses it as a library.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{
    ids::{JobRunId, TenantId},
    jobs::lock_key::Grain,
};
use serde_json::Value;

/// A function that every tenant has without setup.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// Its name.
    pub name: &'static str,
    /// The grain in which it runs once.
    pub grain: Grain,
    /// Its purpose, in a sentence.
    pub help: &'static str,
}

/// The functions that every tenant has without setup.
pub const BUILTINS: &[Builtin] = &[
    builtin(
        super::builtin::DETECT_ALERTS,
        "Raises alerts about failed and long job runs and about the share of retries, and resolves them.",
    ),
    builtin(
        super::builtin::GENERATE_DECISION_CARDS,
        "Creates a decision card for each open alert, and closes the cards of resolved alerts.",
    ),
    builtin(
        super::builtin::PROCESS_ALERT_NOTIFICATIONS,
        "Notifies the recipients in its input about new and resolved alerts.",
    ),
    builtin(super::builtin::NOOP, "Returns its input, to try a schedule."),
];

const fn builtin(name: &'static str, help: &'static str) -> Builtin {
    Builtin { name, grain: Grain::FiveMinutes, help }
}

/// The error for a name that neither comes with Postrider nor is among `provided`, the names that running processes provide.
#[must_use]
pub fn unknown(name: &str, provided: &[String]) -> Option<String> {
    let known = || BUILTINS.iter().map(|known| known.name).chain(provided.iter().map(String::as_str));
    (!known().any(|known| known == name)).then(|| {
        format!(
            "no function `{name}` comes with Postrider, and no running process provides one; known are {}; start the process that \
             provides it, with the role `scheduler`",
            known().collect::<Vec<_>>().join(", ")
        )
    })
}

/// The arguments of a call.
#[derive(Debug, Clone, Copy)]
pub struct Invoked<'a> {
    /// The tenant of the run.
    pub tenant: TenantId,
    /// Id of the run; the same for each attempt.
    pub job_id: JobRunId,
    /// The tenant's name of the function.
    pub function_name: &'a str,
    /// The lock key. No two active runs share it.
    pub lock_key: &'a str,
    /// Number of the attempt, from 1.
    pub attempt: i32,
    /// The input of the run.
    pub input: &'a Value,
    /// Time of the firing, if a schedule started the run.
    pub scheduled_for: Option<Timestamp>,
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FunctionError {
    /// The reason, in one line.
    pub message: String,
    /// Whether another attempt may succeed.
    pub retryable: bool,
}

impl FunctionError {
    /// A failure after which another attempt may succeed.
    pub fn passing(message: impl Into<String>) -> Self {
        Self { message: message.into(), retryable: true }
    }

    /// A failure that every further attempt would repeat.
    pub fn lasting(message: impl Into<String>) -> Self {
        Self { message: message.into(), retryable: false }
    }
}

/// A function. The runner calls it again for the same run if it failed or its process died, so its effects should be idempotent.
#[async_trait]
pub trait Function: Send + Sync {
    /// Does the work. The runner drops the future at the timeout, and when the run is cancelled.
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError>;
}

/// The Rust functions that a process can run, by name.
#[derive(Clone, Default)]
pub struct Functions(BTreeMap<String, Arc<dyn Function>>);

impl Functions {
    /// Adds a function, or replaces the one of the same name.
    #[must_use]
    pub fn with(mut self, name: &str, function: Arc<dyn Function>) -> Self {
        self.0.insert(name.to_owned(), function);
        self
    }

    /// Adds all of these, each in place of one of the same name.
    #[must_use]
    pub fn with_all(mut self, others: &Self) -> Self {
        self.0.extend(others.0.iter().map(|(name, function)| (name.clone(), Arc::clone(function))));
        self
    }

    /// The function of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Function>> {
        self.0.get(name)
    }

    /// Names of the functions that do not come with Postrider.
    #[must_use]
    pub fn own_names(&self) -> Vec<String> {
        let own = self.0.keys().filter(|name| BUILTINS.iter().all(|known| known.name != **name));
        own.cloned().collect()
    }

    /// The names of all functions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused_with_those_that_are_known() {
        assert_eq!(unknown("noop", &[]), None);
        assert_eq!(unknown("close-month", &["close-month".to_owned()]), None);
        let refused = unknown("close-moth", &["close-month".to_owned()]).unwrap();
        assert!(refused.contains("`close-moth`") && refused.contains("noop, close-month"), "{refused}");
    }
}

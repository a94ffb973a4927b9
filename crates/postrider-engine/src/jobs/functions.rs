//! Functions that are Rust code: those that come with Postrider, and those of a program that uses it as a library.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{
    ids::{JobRunId, TenantId},
    lock_key::Grain,
};
use serde_json::Value;

/// What comes with Postrider, for every tenant, without being set up, and within what time each runs once.
pub const BUILTINS: &[(&str, Grain)] = &[
    (super::builtin::DETECT_ALERTS, Grain::FiveMinutes),
    (super::builtin::GENERATE_DECISION_CARDS, Grain::FiveMinutes),
    (super::builtin::PROCESS_ALERT_NOTIFICATIONS, Grain::FiveMinutes),
    (super::builtin::NOOP, Grain::FiveMinutes),
];

/// Why no function can be set to a name: neither comes a function of this name with Postrider, nor does a running process provide one.
/// `provided` are the names that running processes provide.
#[must_use]
pub fn unknown(name: &str, provided: &[String]) -> Option<String> {
    let known = || BUILTINS.iter().map(|(known, _)| *known).chain(provided.iter().map(String::as_str));
    (!known().any(|known| known == name)).then(|| {
        format!(
            "no function `{name}` comes with Postrider, and no running process provides one; known are {}; start the process that \
             provides it, with the role `scheduler`",
            known().collect::<Vec<_>>().join(", ")
        )
    })
}

/// What a function is called with.
#[derive(Debug, Clone, Copy)]
pub struct Invoked<'a> {
    /// Whose job it is.
    pub tenant: TenantId,
    /// The run. A function that sees it again sees another attempt.
    pub job_id: JobRunId,
    /// What the tenant calls the function.
    pub function_name: &'a str,
    /// What no two active runs share.
    pub lock_key: &'a str,
    /// From 1.
    pub attempt: i32,
    /// What it is to work on.
    pub input: &'a Value,
    /// The firing it runs for, if a schedule made it.
    pub scheduled_for: Option<Timestamp>,
}

/// A function did not do what it was called for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FunctionError {
    /// Why, in one line.
    pub message: String,
    /// Whether another attempt may end otherwise.
    pub retryable: bool,
}

impl FunctionError {
    /// Another attempt may do.
    pub fn passing(message: impl Into<String>) -> Self {
        Self { message: message.into(), retryable: true }
    }

    /// Another attempt would fail as well.
    pub fn lasting(message: impl Into<String>) -> Self {
        Self { message: message.into(), retryable: false }
    }
}

/// A function. It may be called again for the same run, when it failed or its process died; so what it does should bear a repeat.
#[async_trait]
pub trait Function: Send + Sync {
    /// Does the work. When its time is up, or the run is cancelled, the future is dropped.
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError>;
}

/// The Rust functions that a process can run, by name.
#[derive(Clone, Default)]
pub struct Functions(BTreeMap<String, Arc<dyn Function>>);

impl Functions {
    /// Adds a function, in place of one of the same name.
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
        let own = self.0.keys().filter(|name| BUILTINS.iter().all(|(known, _)| known != name));
        own.cloned().collect()
    }

    /// All names.
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

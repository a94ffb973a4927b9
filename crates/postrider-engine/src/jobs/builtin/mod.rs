//! Functions that come with Postrider: the chain that watches jobs, and one that does nothing.
//!
//! ```text
//! detect-alerts ──▶ generate-decision-cards ──▶ process-alert-notifications
//! ```

mod detect_alerts;
mod notifications;

use std::sync::Arc;

use async_trait::async_trait;
use postrider_model::seal::MasterKey;
use postrider_providers::Adapters;
use postrider_store::{Pool, StoreError, alerts};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use postrider_model::job::DETECT_ALERTS;

use self::{detect_alerts::DetectAlerts, notifications::ProcessAlertNotifications};
use super::{Function, FunctionError, Functions, Invoked};

/// Raises and resolves the alerts about jobs.
/// Makes a card for each open alert.
pub const GENERATE_DECISION_CARDS: &str = "generate-decision-cards";
/// Tells people about alerts.
pub const PROCESS_ALERT_NOTIFICATIONS: &str = "process-alert-notifications";
/// Does nothing.
pub const NOOP: &str = "noop";

/// What comes with Postrider. Without a master key nobody can be told about alerts, so that is left to other processes.
#[must_use]
pub fn standard(pool: &Pool, providers: Option<(Adapters, MasterKey)>) -> Functions {
    let functions = Functions::default()
        .with(NOOP, Arc::new(Noop))
        .with(DETECT_ALERTS, Arc::new(DetectAlerts { pool: pool.clone() }))
        .with(GENERATE_DECISION_CARDS, Arc::new(GenerateDecisionCards { pool: pool.clone() }));
    match providers {
        None => functions,
        Some((adapters, master_key)) => functions.with(
            PROCESS_ALERT_NOTIFICATIONS,
            Arc::new(ProcessAlertNotifications { pool: pool.clone(), adapters, master_key }),
        ),
    }
}

/// Does nothing, and gives back what it was given: for trying schedules out, and for measuring.
struct Noop;

#[async_trait]
impl Function for Noop {
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError> {
        Ok(invoked.input.clone())
    }
}

/// Makes a card for each open alert, and closes those of alerts that are over.
struct GenerateDecisionCards {
    pool: Pool,
}

#[async_trait]
impl Function for GenerateDecisionCards {
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError> {
        let carded =
            alerts::generate_cards(&self.pool, invoked.tenant).await.map_err(|error| passing(&error))?;
        to_value(&carded)
    }
}

/// Reads an input that may be absent.
fn read<T: DeserializeOwned + Default>(input: &Value) -> Result<T, FunctionError> {
    if input.is_null() {
        return Ok(T::default());
    }
    T::deserialize(input).map_err(|error| {
        FunctionError::lasting(format!("the input is not what this function takes: {error}"))
    })
}

fn to_value(result: &impl serde::Serialize) -> Result<Value, FunctionError> {
    serde_json::to_value(result).map_err(|error| FunctionError::lasting(error.to_string()))
}

fn passing(error: &StoreError) -> FunctionError {
    // With its reason, which the error keeps apart: whoever reads the dead letter needs it.
    let reason = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    FunctionError {
        message: format!("{error}{reason}"),
        retryable: !matches!(error, StoreError::Refused { .. }),
    }
}

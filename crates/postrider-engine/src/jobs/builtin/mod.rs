//! Functions that come with Postrider: the chain that monitors jobs, and one without an effect.
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
use postrider_store::{Pool, StoreError, jobs::alerts};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use postrider_model::jobs::DETECT_ALERTS;

use self::{detect_alerts::DetectAlerts, notifications::ProcessAlertNotifications};
use super::{Function, FunctionError, Functions, Invoked};

/// Creates a card for each open alert.
pub const GENERATE_DECISION_CARDS: &str = "generate-decision-cards";
/// Sends notifications of alerts.
pub const PROCESS_ALERT_NOTIFICATIONS: &str = "process-alert-notifications";
/// Returns its input.
pub const NOOP: &str = "noop";

/// The functions that come with Postrider. A process without a master key cannot send notifications and leaves them to other processes.
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

/// Returns its input. For trials of schedules, and for measurements.
struct Noop;

#[async_trait]
impl Function for Noop {
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError> {
        Ok(invoked.input.clone())
    }
}

/// Creates a card for each open alert, and closes the cards of resolved alerts.
struct GenerateDecisionCards {
    pool: Pool,
}

#[async_trait]
impl Function for GenerateDecisionCards {
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError> {
        let cards =
            alerts::generate_cards(&self.pool, invoked.tenant).await.map_err(|error| passing(&error))?;
        to_value(&cards)
    }
}

/// Reads an input that may be absent.
fn read<T: DeserializeOwned + Default>(input: &Value) -> Result<T, FunctionError> {
    if input.is_null() {
        return Ok(T::default());
    }
    T::deserialize(input)
        .map_err(|error| FunctionError::lasting(format!("the input is not valid for this function: {error}")))
}

fn to_value(result: &impl serde::Serialize) -> Result<Value, FunctionError> {
    serde_json::to_value(result).map_err(|error| FunctionError::lasting(error.to_string()))
}

fn passing(error: &StoreError) -> FunctionError {
    // With the error's source, because a person reads the message in a dead letter.
    let reason = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    FunctionError {
        message: format!("{error}{reason}"),
        retryable: !matches!(error, StoreError::Refused { .. }),
    }
}

//! `detect-alerts`: the three rules about jobs.
//!
//! | rule | condition | limit in the input, and its default |
//! |---|---|---|
//! | `failed-jobs` | more runs of the last 24 hours have failed | `failed_max`: 5 |
//! | `long-running-jobs` | a run has been running for longer | `running_minutes_max`: 30 |
//! | `retry-rate` | a larger share of the runs of the last 24 hours was retried | `retry_rate_max`: 0.1 |

use async_trait::async_trait;
use postrider_model::jobs::AlertRules;
use postrider_store::{Pool, jobs::alerts};
use serde_json::Value;

use super::{Function, FunctionError, Invoked, passing, read, to_value};

pub(super) struct DetectAlerts {
    pub(super) pool: Pool,
}

#[async_trait]
impl Function for DetectAlerts {
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError> {
        let rules: AlertRules = read(invoked.input)?;
        if let Some(problem) = rules.problem() {
            return Err(FunctionError::lasting(problem));
        }
        let detected = alerts::detect(&self.pool, invoked.tenant, rules).await;
        to_value(&detected.map_err(|error| passing(&error))?)
    }
}

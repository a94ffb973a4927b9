//! `detect-alerts`: the three rules about jobs.
//!
//! | rule | alert | unless the input says otherwise |
//! |---|---|---|
//! | `failed-jobs` | more runs of the last 24 hours are failed than | `failed_max`: 5 |
//! | `long-running-jobs` | a run has been at it for longer than | `running_minutes_max`: 30 |
//! | `retry-rate` | a larger share of the runs of the last 24 hours was retried than | `retry_rate_max`: 0.1 |

use std::time::Duration;

use async_trait::async_trait;
use postrider_store::{
    Pool,
    alerts::{self, Thresholds},
};
use serde::Deserialize;
use serde_json::Value;

use super::{Function, FunctionError, Invoked, passing, read, to_value};

pub(super) struct DetectAlerts {
    pub(super) pool: Pool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Input {
    failed_max: u32,
    running_minutes_max: u32,
    retry_rate_max: f64,
}

impl Default for Input {
    fn default() -> Self {
        Self { failed_max: 5, running_minutes_max: 30, retry_rate_max: 0.1 }
    }
}

#[async_trait]
impl Function for DetectAlerts {
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError> {
        let input: Input = read(invoked.input)?;
        if !(0.0..=1.0).contains(&input.retry_rate_max) {
            return Err(FunctionError::lasting("retry_rate_max must lie between 0 and 1"));
        }
        let thresholds = Thresholds {
            failed_max: i32::try_from(input.failed_max).unwrap_or(i32::MAX),
            running_max: Duration::from_secs(u64::from(input.running_minutes_max) * 60),
            retry_rate_max: input.retry_rate_max,
        };
        let detected = alerts::detect(&self.pool, invoked.tenant, thresholds).await;
        to_value(&detected.map_err(|error| passing(&error))?)
    }
}

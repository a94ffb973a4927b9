//! Schedules and firings, as they are written and shown.

use jiff::Timestamp;
use postrider_model::jobs::{
    FiringOutcome,
    lock_key::Grain,
    schedule::{Misfire, Timing},
};
use postrider_store::jobs::schedules::{FiringState, ScheduleState};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::common::error::{ApiError, ApiResult};
use {
    super::{
        super::{check_input, hash},
        timing::{NextFiring, read},
    },
    crate::common::words,
};

/// Most functions that a schedule depends on.
const DEPENDS_ON_MAX: usize = 20;

/// A schedule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Schedule)]
pub(crate) struct ScheduleBody {
    id: Uuid,
    function_name: String,
    #[schema(example = "*/5 * * * *")]
    cron: String,
    #[schema(example = "Europe/Berlin")]
    timezone: String,
    /// Grain within which it runs once; the function's own grain if it is null.
    #[schema(value_type = Option<words::Grain>)]
    grain: Option<Grain>,
    /// Input of the function.
    input: Option<Value>,
    /// Entities that its runs are about.
    entities: Option<Value>,
    /// Functions that must have completed before, in the same grain.
    depends_on: Vec<String>,
    #[schema(value_type = words::Misfire)]
    misfire: Misfire,
    enabled: bool,
    next_fire_at: Option<Timestamp>,
    last_fire_at: Option<Timestamp>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<ScheduleState> for ScheduleBody {
    fn from(schedule: ScheduleState) -> Self {
        Self {
            id: schedule.id.0,
            function_name: schedule.function_name,
            cron: schedule.cron,
            timezone: schedule.timezone,
            grain: schedule.grain,
            input: schedule.input,
            entities: schedule.entities,
            depends_on: schedule.depends_on,
            misfire: schedule.misfire,
            enabled: schedule.enabled,
            next_fire_at: schedule.next_fire_at,
            last_fire_at: schedule.last_fire_at,
            created_at: schedule.created_at,
            updated_at: schedule.updated_at,
        }
    }
}

/// A schedule with its next firings and warnings about them.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduleDetails {
    #[serde(flatten)]
    pub(super) schedule: ScheduleBody,
    /// The next five; none while it is disabled.
    pub(super) next_firings: Vec<NextFiring>,
    pub(super) warnings: Vec<String>,
}

/// The definition of a schedule.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSchedule)]
pub(crate) struct NewScheduleBody {
    #[schema(example = "detect-alerts")]
    pub(super) function_name: String,
    /// Minute, hour, day, month and weekday.
    #[schema(example = "*/5 * * * *", max_length = 255)]
    pub(super) cron: String,
    /// An IANA name; `UTC` when left out.
    #[serde(default)]
    #[schema(example = "Europe/Berlin", max_length = 255)]
    pub(super) timezone: Option<String>,
    /// Grain within which it runs once; that of the function when left out.
    #[serde(default)]
    #[schema(value_type = Option<words::Grain>)]
    pub(super) grain: Option<Grain>,
    /// Input of the function: any JSON, up to 64 KiB.
    #[serde(default)]
    pub(super) input: Option<Value>,
    /// Entities that it is about: it runs once per grain and entities.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) entities: Option<Box<RawValue>>,
    /// Functions that must have completed before, in the same grain.
    #[serde(default)]
    #[schema(max_items = 20, required = false)]
    pub(super) depends_on: Vec<String>,
    /// `once` when left out.
    #[serde(default)]
    #[schema(value_type = Option<words::Misfire>)]
    pub(super) misfire: Option<Misfire>,
    /// Whether it fires; yes, when left out.
    #[serde(default)]
    pub(super) enabled: Option<bool>,
}

/// Filters for the list of schedules.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SchedulesQuery {
    /// Only of this function.
    #[param(example = "detect-alerts")]
    pub(super) function: Option<String>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    pub(super) limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    pub(super) cursor: Option<String>,
}

/// A firing and its result.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Firing)]
pub(crate) struct FiringBody {
    /// The time it is for.
    fire_at: Timestamp,
    #[schema(value_type = words::FiringOutcome)]
    outcome: FiringOutcome,
    /// The run that was created, or that had the lock key.
    job_run_id: Option<Uuid>,
    /// The dependencies that it waits for, or the reason why there is no run.
    reason: Option<String>,
    decided_at: Option<Timestamp>,
}

impl From<FiringState> for FiringBody {
    fn from(firing: FiringState) -> Self {
        Self {
            fire_at: firing.fire_at,
            outcome: firing.outcome,
            job_run_id: firing.job_run_id.map(|run| run.0),
            reason: firing.reason,
            decided_at: firing.decided_at,
        }
    }
}

impl NewScheduleBody {
    /// Checks the values, without a query.
    pub(super) fn check(&self) -> ApiResult<Timing> {
        let wrong = |error| ApiError::Unprocessable(vec![error]);
        let timing = read(&self.cron, self.timezone.as_deref()).map_err(wrong)?;
        check_input(self.input.as_ref()).map_err(wrong)?;
        hash(self.entities.as_deref()).map_err(wrong)?;
        if self.depends_on.len() > DEPENDS_ON_MAX {
            let problem = format!("has at most {DEPENDS_ON_MAX} functions");
            return Err(ApiError::unprocessable("depends_on", problem));
        }
        Ok(timing)
    }
}

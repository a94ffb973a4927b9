//! Times of a schedule's firings, as responses show them.

use jiff::{SignedDuration, Timestamp};
use postrider_model::jobs::{
    lock_key::Grain,
    schedule::{Cron, Timing, Zone, shared_grains},
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::common::error::FieldError;

/// How far to look for firings that share a grain: every change of the clocks of a year.
const HORIZON: SignedDuration = SignedDuration::from_hours(366 * 24);

/// A firing to come.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NextFiring {
    at: Timestamp,
    /// The same moment on the clocks of the schedule's zone.
    #[schema(example = "2026-03-29T03:00:00+02:00")]
    local: String,
}

impl NextFiring {
    /// The first firings after a moment.
    pub(super) fn after(timing: &Timing, moment: Timestamp, count: usize) -> Vec<Self> {
        let zone = timing.zone.time_zone();
        let local = |at: Timestamp| at.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
        timing.firings_after(moment).take(count).map(|at| Self { at, local: local(at) }).collect()
    }
}

/// Reads the times of a schedule.
pub(super) fn read(cron: &str, timezone: Option<&str>) -> Result<Timing, FieldError> {
    let cron: Cron = cron
        .parse()
        .map_err(|problem: <Cron as std::str::FromStr>::Err| FieldError::new("cron", problem.to_string()))?;
    let zone: Zone =
        timezone.unwrap_or("UTC").parse().map_err(|problem: <Zone as std::str::FromStr>::Err| {
            FieldError::new("timezone", problem.to_string())
        })?;
    Ok(Timing { cron, zone })
}

/// Warnings about the times of a schedule.
pub(super) fn warnings(timing: &Timing, grain: Option<Grain>, from: Timestamp) -> Vec<String> {
    let shared =
        grain.and_then(|grain| shared_grains(timing, grain, from, HORIZON).map(|pair| (grain, pair)));
    let warning = shared.map(|(grain, (first, second))| {
        format!(
            "{first} and {second} fall into one grain ({grain} {}), and only the first of such firings runs; choose a finer grain, or times \
             that are further apart",
            grain.label(first)
        )
    });
    warning.into_iter().collect()
}

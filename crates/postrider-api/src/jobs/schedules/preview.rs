//! A dry run: the next firings of a schedule.

use axum::{Json, extract::State};
use jiff::Timestamp;
use postrider_model::jobs::lock_key::Grain;
use postrider_store::{jobs::schedules, postgres::pool};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    App,
    common::{
        auth::Viewer,
        body::Body,
        error::{ApiError, ApiResult},
    },
};
use {
    super::timing::{NextFiring, read, warnings},
    crate::common::words,
};

/// Default number of firings.
const COUNT: u32 = 10;
/// Maximum number of firings.
const COUNT_MAX: u32 = 100;

/// The schedule to try.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SchedulePreview)]
pub(crate) struct PreviewBody {
    /// Minute, hour, day, month and weekday.
    #[schema(example = "30 2 * * *", max_length = 255)]
    cron: String,
    /// An IANA name; `UTC` when left out.
    #[serde(default)]
    #[schema(example = "Europe/Berlin", max_length = 255)]
    timezone: Option<String>,
    /// Grain for the warnings about firings that share one.
    #[serde(default)]
    #[schema(value_type = Option<words::Grain>)]
    grain: Option<Grain>,
    /// How many firings to show; 10 when left out.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 100)]
    count: Option<u32>,
    /// Time after which the firings are computed; now, when left out.
    #[serde(default)]
    from: Option<Timestamp>,
}

/// The next firings of a schedule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ScheduleFirings)]
pub(crate) struct Previewed {
    firings: Vec<NextFiring>,
    warnings: Vec<String>,
}

/// Computes the next firings of a schedule, and stores nothing.
#[utoipa::path(
    post,
    path = "/schedules/preview",
    operation_id = "preview_schedule",
    tag = "jobs",
    request_body = PreviewBody,
    responses((status = 200, description = "The next firings of the schedule", body = Previewed)),
)]
pub(crate) async fn preview(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Body { value: wanted, .. }: Body<PreviewBody>,
) -> ApiResult<Json<Previewed>> {
    let timing = read(&wanted.cron, wanted.timezone.as_deref())
        .map_err(|error| ApiError::Unprocessable(vec![error]))?;
    let count = wanted.count.unwrap_or(COUNT);
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(ApiError::unprocessable("count", format!("must lie between 1 and {COUNT_MAX}")));
    }
    let from = match wanted.from {
        Some(from) if from < Timestamp::UNIX_EPOCH => {
            return Err(ApiError::unprocessable("from", "is before 1970; nothing fired then"));
        }
        Some(from) => from,
        None => {
            let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
            let now = schedules::now(&mut transaction).await?;
            pool::commit(transaction).await?;
            now
        }
    };
    let firings = NextFiring::after(&timing, from, usize::try_from(count).unwrap_or_default());
    Ok(Json(Previewed { firings, warnings: warnings(&timing, wanted.grain, from) }))
}

//! Schedules, by which functions run by themselves.

mod bodies;
mod preview;
mod timing;

use axum::{Json, extract::State, http::StatusCode, response::Response};
use postrider_model::{
    ids::ScheduleId,
    jobs::schedule::{Misfire, Timing},
};
use postrider_store::{
    PgConnection, StoreError,
    jobs::{
        functions,
        schedules::{self, NewSchedule},
    },
    postgres::pool,
    tenancy::keys::Caller,
};

pub(crate) use self::preview::{__path_preview, preview};
use self::{
    bodies::{FiringBody, NewScheduleBody, ScheduleBody, ScheduleDetails, SchedulesQuery},
    timing::{NextFiring, read, warnings},
};
use super::{function, hash};
use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Body, Fingerprint, Named, Path, Query},
        error::{ApiError, ApiResult},
        paging::{self, Page, PageQuery},
        requests::{Reading, Repeatable, Writing},
    },
};

const UNKNOWN: ApiError = ApiError::NotFound(ScheduleId::NAME);
/// How many of the next firings are shown.
const NEXT: usize = 5;

/// The tenant's schedules, oldest first.
#[utoipa::path(
    get,
    path = "/schedules",
    operation_id = "list_schedules",
    tag = "jobs",
    params(SchedulesQuery),
    responses((status = 200, description = "A page of schedules", body = Page<ScheduleBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<SchedulesQuery>,
) -> ApiResult<Json<Page<ScheduleBody>>> {
    let size = paging::size(query.limit)?;
    let after: Option<ScheduleId> = paging::decode(query.cursor.as_deref())?;
    let (tenant, function) = (caller.tenant_id, query.function.as_deref());
    let mut reading = Reading::begin(&app, tenant).await?;
    let rows = schedules::page(reading.connection(), tenant, function, after, size + 1).await?;
    reading.page(rows, size, |schedule| schedule.id, ScheduleBody::from).await
}

/// One schedule.
#[utoipa::path(
    get,
    path = "/schedules/{id}",
    operation_id = "get_schedule",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The schedule's id")),
    responses((status = 200, description = "The schedule, and when it fires next", body = ScheduleDetails)),
)]
pub(crate) async fn show(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<ScheduleId>,
) -> ApiResult<Json<ScheduleDetails>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let shown = details(reading.connection(), caller, id).await?;
    reading.end().await?;
    Ok(Json(shown))
}

/// Creates a schedule.
#[utoipa::path(
    post,
    path = "/schedules",
    operation_id = "create_schedule",
    tag = "jobs",
    params(Repeatable),
    request_body = NewScheduleBody,
    responses((status = 201, description = "The new schedule; `Location` has its address", body = ScheduleDetails)),
)]
pub(crate) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    Body { value: new, fingerprint }: Body<NewScheduleBody>,
) -> ApiResult<Response> {
    let timing = new.check()?;
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let id = ScheduleId::new();
    set(writing.connection(), caller, id, &new, &timing).await?;
    let made = details(writing.connection(), caller, id).await?;
    writing.answer_made(format!("/api/v2/schedules/{}", id.0), &made).await
}

/// Replaces a schedule. While its times stay the same, so does its next firing.
#[utoipa::path(
    put,
    path = "/schedules/{id}",
    operation_id = "put_schedule",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The schedule's id")),
    request_body = NewScheduleBody,
    responses((status = 200, description = "The new state of the schedule", body = ScheduleDetails)),
)]
pub(crate) async fn put(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<ScheduleId>,
    Body { value: new, .. }: Body<NewScheduleBody>,
) -> ApiResult<Json<ScheduleDetails>> {
    let timing = new.check()?;
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    schedules::find(&mut transaction, caller.tenant_id, id).await?.ok_or(UNKNOWN)?;
    set(&mut transaction, caller, id, &new, &timing).await?;
    let shown = details(&mut transaction, caller, id).await?;
    pool::commit(transaction).await?;
    Ok(Json(shown))
}

/// Removes a schedule and the record of its firings. Its runs stay.
#[utoipa::path(
    delete,
    path = "/schedules/{id}",
    operation_id = "remove_schedule",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The schedule's id")),
    responses((status = 204, description = "The schedule was removed")),
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<ScheduleId>,
) -> ApiResult<StatusCode> {
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    if !schedules::remove(&mut transaction, caller.tenant_id, id, &caller.actor()).await? {
        return Err(UNKNOWN);
    }
    pool::commit(transaction).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Enables a schedule from its next time on: missed firings are not made up for. Enabling it again changes nothing.
#[utoipa::path(
    post,
    path = "/schedules/{id}/enable",
    operation_id = "enable_schedule",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The schedule's id"), Repeatable),
    responses((status = 200, description = "The enabled schedule", body = ScheduleDetails)),
)]
pub(crate) async fn enable(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<ScheduleId>,
    fingerprint: Fingerprint,
) -> ApiResult<Response> {
    switch(&app, caller, id, &fingerprint, true).await
}

/// Disables a schedule. Firings that wait for their dependencies are given up. Disabling it again changes nothing.
#[utoipa::path(
    post,
    path = "/schedules/{id}/disable",
    operation_id = "disable_schedule",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The schedule's id"), Repeatable),
    responses((status = 200, description = "The disabled schedule", body = ScheduleDetails)),
)]
pub(crate) async fn disable(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<ScheduleId>,
    fingerprint: Fingerprint,
) -> ApiResult<Response> {
    switch(&app, caller, id, &fingerprint, false).await
}

/// Lists the firings of a schedule with their results, newest first.
#[utoipa::path(
    get,
    path = "/schedules/{id}/firings",
    operation_id = "list_schedule_firings",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The schedule's id"), PageQuery),
    responses((status = 200, description = "A page of firings", body = Page<FiringBody>)),
)]
pub(crate) async fn firings(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<ScheduleId>,
    Query(query): Query<PageQuery>,
) -> ApiResult<Json<Page<FiringBody>>> {
    let size = paging::size(query.limit)?;
    let before = crate::common::paging::by_age::<()>(query.cursor.as_deref())?.map(|(at, ())| at);
    let tenant = caller.tenant_id;
    let mut reading = Reading::begin(&app, tenant).await?;
    schedules::find(reading.connection(), tenant, id).await?.ok_or(UNKNOWN)?;
    let rows = schedules::firings(reading.connection(), tenant, id, before, size + 1).await?;
    reading.page(rows, size, |firing| (firing.fire_at, ()), FiringBody::from).await
}

/// Sets a schedule, and creates the functions that it needs of those that come with the program.
async fn set(
    connection: &mut PgConnection,
    caller: Caller,
    id: ScheduleId,
    new: &NewScheduleBody,
    timing: &Timing,
) -> ApiResult<()> {
    let named = new.depends_on.iter().enumerate().map(|(at, name)| (format!("depends_on[{at}]"), name));
    for (field, name) in [("function_name".to_owned(), &new.function_name)].into_iter().chain(named) {
        if function(connection, caller.tenant_id, name).await?.is_none() {
            let name: String = name.chars().take(100).collect();
            return Err(ApiError::unprocessable(field, format!("there is no function `{name}`")));
        }
    }
    let hash = hash(new.entities.as_deref()).map_err(|error| ApiError::Unprocessable(vec![error]))?;
    let schedule = NewSchedule {
        function: &new.function_name,
        timing,
        grain: new.grain,
        input: new.input.as_ref(),
        entities: new.entities.as_deref().zip(hash.as_ref()),
        depends_on: &new.depends_on,
        misfire: new.misfire.unwrap_or(Misfire::Once),
        enabled: new.enabled.unwrap_or(true),
    };
    schedules::put(connection, caller.tenant_id, id, &schedule, &caller.actor()).await.map_err(|error| {
        match error {
            StoreError::Refused { message, .. } if message == schedules::INPUT_TOO_LARGE => {
                ApiError::Unprocessable(vec![super::input_too_large()])
            }
            // All other mistakes were checked before; only a cycle is left.
            StoreError::Refused { message, .. } => ApiError::unprocessable("depends_on", message),
            error => error.into(),
        }
    })
}

async fn switch(
    app: &App,
    caller: Caller,
    id: ScheduleId,
    fingerprint: &Fingerprint,
    enabled: bool,
) -> ApiResult<Response> {
    let mut writing = Writing::begin(app, caller, fingerprint).await?;
    let connection = writing.connection();
    let schedule = schedules::find(connection, caller.tenant_id, id).await?.ok_or(UNKNOWN)?;
    let timing = read(&schedule.cron, Some(&schedule.timezone)).map_err(|error| {
        ApiError::conflict(format!("its {} cannot be read any more: {}", error.field, error.detail))
    })?;
    if !schedules::switch(connection, caller.tenant_id, id, &timing, enabled, &caller.actor()).await? {
        return Err(UNKNOWN);
    }
    let shown = details(connection, caller, id).await?;
    writing.answer(StatusCode::OK, &shown).await
}

/// A schedule with its next firings and warnings.
async fn details(
    connection: &mut PgConnection,
    caller: Caller,
    id: ScheduleId,
) -> ApiResult<ScheduleDetails> {
    let schedule = schedules::find(connection, caller.tenant_id, id).await?.ok_or(UNKNOWN)?;
    let known = functions::find(connection, caller.tenant_id, &schedule.function_name).await?;
    let now = schedules::now(connection).await?;
    let (next_firings, warnings) = match read(&schedule.cron, Some(&schedule.timezone)) {
        Ok(timing) => {
            let next = NextFiring::after(&timing, now, if schedule.enabled { NEXT } else { 0 });
            let grain = schedule.grain.or(known.map(|function| function.grain));
            (next, warnings(&timing, grain, now))
        }
        Err(error) => {
            (Vec::new(), vec![format!("its {} cannot be read any more: {}", error.field, error.detail)])
        }
    };
    Ok(ScheduleDetails { schedule: schedule.into(), next_firings, warnings })
}

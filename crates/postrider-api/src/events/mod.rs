//! Domain events of a tenant: publish, list, retry.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_model::{
    NewEvent,
    events::{EventState, InvalidEvent},
    ids::EventId,
};
use postrider_store::{
    StoreError,
    events::{self, Filter, Handled, Listed},
    postgres::pool,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Body, Path, Query},
        error::{ApiError, ApiResult},
        paging::{self, Page},
        requests::{Reading, Repeatable, Writing},
    },
};

/// An event to publish.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewEvent)]
pub(crate) struct NewEventBody {
    /// Type of the aggregate that the event is about.
    #[schema(example = "order", min_length = 1, max_length = 255)]
    aggregate_type: String,
    /// Id of the aggregate.
    #[schema(example = "42", min_length = 1, max_length = 255)]
    aggregate_id: String,
    /// Type of the event.
    #[schema(example = "order.placed", min_length = 1, max_length = 255)]
    event_type: String,
    /// The data: any JSON, up to 256 KiB. Numbers keep all their digits.
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
}

/// The published event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PublishedEvent {
    /// Id of the event, by which consumers recognise repeats.
    id: i64,
}

/// An event and its state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub(crate) struct EventBody {
    id: i64,
    tenant_id: Uuid,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
    #[schema(value_type = ShownState)]
    state: EventState,
    /// Number of failed deliveries.
    retry_count: i32,
    created_at: Timestamp,
    /// Earliest time of the next delivery.
    process_after: Option<Timestamp>,
    processed_at: Option<Timestamp>,
    /// The last error, or the actor that closed the event.
    last_error: Option<String>,
}

/// The state of an event.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EventState)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum ShownState {
    /// The event waits for its delivery.
    Pending,
    /// A relay is delivering it.
    Claimed,
    /// The event was processed.
    Processed,
}

impl From<Listed> for EventBody {
    fn from(event: Listed) -> Self {
        Self {
            id: event.id.0,
            tenant_id: event.tenant_id.0,
            aggregate_type: event.aggregate_type,
            aggregate_id: event.aggregate_id,
            event_type: event.event_type,
            payload: event.payload,
            state: event.state,
            retry_count: event.retry_count,
            created_at: event.created_at,
            process_after: event.process_after,
            processed_at: event.processed_at,
            last_error: event.last_error,
        }
    }
}

/// Filters for the list of events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// One or more of `pending`, `claimed`, `processed` and `stuck`, with commas between them. All, when left out.
    #[param(
        example = "pending,stuck",
        pattern = "^(pending|claimed|processed|stuck)(,(pending|claimed|processed|stuck))*$"
    )]
    state: Option<String>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The tenant's events, oldest first.
#[utoipa::path(
    get,
    path = "/events",
    operation_id = "list_events",
    tag = "events",
    params(EventsQuery),
    responses((status = 200, description = "A page of events", body = Page<EventBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<EventsQuery>,
) -> ApiResult<Json<Page<EventBody>>> {
    let size = paging::size(query.limit)?;
    let after: Option<i64> = paging::decode(query.cursor.as_deref())?;
    let mut filter = Filter {
        tenant: Some(caller.tenant_id),
        after: after.unwrap_or_default(),
        limit: size + 1,
        ..Filter::default()
    };
    for state in query.state.iter().flat_map(|states| states.split(',')) {
        match state {
            "pending" => filter.states.push(EventState::Pending),
            "claimed" => filter.states.push(EventState::Claimed),
            "processed" => filter.states.push(EventState::Processed),
            "stuck" => filter.stuck_after = Some(app.stuck_after),
            _ => {
                let known = "takes pending, claimed, processed and stuck, with commas between them";
                return Err(ApiError::invalid("state", known));
            }
        }
    }
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = events::list(reading.connection(), &filter).await?;
    reading.page(rows, size, |event| event.id.0, EventBody::from).await
}

/// Publishes an event.
#[utoipa::path(
    post,
    path = "/events",
    operation_id = "publish_event",
    tag = "events",
    params(Repeatable),
    request_body = NewEventBody,
    responses((status = 201, description = "The event is durable, and will be delivered", body = PublishedEvent)),
)]
pub(crate) async fn publish(
    State(app): State<App>,
    Operator(caller): Operator,
    Body { value: new, fingerprint }: Body<NewEventBody>,
) -> ApiResult<Response> {
    let new = NewEvent {
        aggregate_type: new.aggregate_type,
        aggregate_id: new.aggregate_id,
        event_type: new.event_type,
        payload: new.payload,
    };
    new.check().map_err(|invalid| {
        let field = match invalid {
            InvalidEvent::Empty { field, .. }
            | InvalidEvent::TooLong { field, .. }
            | InvalidEvent::ControlCharacter { field } => field,
            InvalidEvent::NulInPayload => "payload",
        };
        ApiError::unprocessable(field, invalid.to_string())
    })?;
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let id = events::publish(writing.connection(), &new).await?;
    let response = writing.answer(StatusCode::CREATED, &PublishedEvent { id: id.0 }).await?;
    hint(&app).await;
    Ok(response)
}

/// Delivers a waiting event now instead of at its next time.
#[utoipa::path(
    post,
    path = "/events/{id}/retry",
    operation_id = "retry_event",
    tag = "events",
    params(("id" = i64, Path, description = "The event's id")),
    responses(
        (status = 204, description = "The event is ready to be delivered"),
        (status = 409, description = "The event is processed, or being delivered; `current_state` says which"),
    ),
)]
pub(crate) async fn retry(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<EventId>,
) -> ApiResult<StatusCode> {
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    match events::retry(&mut transaction, caller.tenant_id, id, &caller.actor()).await? {
        Handled::Done => {}
        Handled::Unknown => return Err(ApiError::NotFound("event")),
        Handled::Processed => {
            return Err(ApiError::conflict("the event is processed already")
                .with("current_state", EventState::Processed));
        }
        Handled::Claimed => {
            return Err(ApiError::conflict(
                "the event is being delivered at this moment; look again in a minute",
            )
            .with("current_state", EventState::Claimed));
        }
    }
    pool::commit(transaction).await?;
    hint(&app).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Wakes the relays. The change is committed, so a hint that fails is not an error.
async fn hint(app: &App) {
    let hinted = async {
        let mut transaction = pool::begin(&app.pool).await?;
        events::hint(&mut transaction).await?;
        pool::commit(transaction).await?;
        Ok::<(), StoreError>(())
    };
    if let Err(error) = hinted.await {
        tracing::warn!(?error, "no hint was sent; the next poll finds the event: {error}");
    }
}

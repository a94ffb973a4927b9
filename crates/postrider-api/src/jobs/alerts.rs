//! Alerts, and the cards on which people decide about them.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use postrider_model::{
    ids::{AlertId, DecisionCardId},
    jobs::{AlertStatus, CardStatus},
};
use postrider_store::jobs::alerts::{self, Alert, Card};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    App,
    common::{
        auth::{Operator, Viewer},
        body::{Body, Named, Path, Query},
        error::{ApiError, ApiResult},
        paging::{self, Page},
        requests::{Reading, Repeatable, Writing},
    },
};
use {super::check_note, crate::common::words};

const UNKNOWN: ApiError = ApiError::NotFound(DecisionCardId::NAME);

/// An alert.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Alert)]
pub(crate) struct AlertBody {
    id: Uuid,
    /// The rule that raised it.
    #[schema(example = "failed-jobs")]
    alert_config_id: String,
    /// The subject; null for the tenant as a whole.
    external_object_id: Option<String>,
    title: String,
    /// `info`, `warning` or `critical`.
    severity: String,
    #[schema(value_type = words::AlertStatus)]
    status: AlertStatus,
    /// The evidence.
    #[schema(value_type = Object)]
    evidence: Value,
    /// Recipients of its notifications, with their results.
    notifications: Value,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// When it was resolved.
    resolved_at: Option<Timestamp>,
}

impl From<Alert> for AlertBody {
    fn from(alert: Alert) -> Self {
        Self {
            id: alert.id.0,
            alert_config_id: alert.alert_config_id,
            external_object_id: alert.external_object_id,
            title: alert.title,
            severity: alert.severity,
            status: alert.status,
            evidence: alert.evidence,
            notifications: alert.notifications,
            created_at: alert.created_at,
            updated_at: alert.updated_at,
            resolved_at: alert.resolved_at,
        }
    }
}

/// A card on which a person decides about an alert.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DecisionCard)]
pub(crate) struct CardBody {
    id: Uuid,
    /// The alert.
    alert_instance_id: Uuid,
    metric_code: String,
    /// The day it is about.
    #[schema(example = "2026-02-06")]
    period_start: String,
    #[schema(value_type = words::CardStatus)]
    status: CardStatus,
    title: String,
    /// The recommended action.
    recommendation: String,
    /// The evidence.
    #[schema(value_type = Object)]
    evidence: Value,
    note: Option<String>,
    decided_by: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<Card> for CardBody {
    fn from(card: Card) -> Self {
        Self {
            id: card.id.0,
            alert_instance_id: card.alert_instance_id.0,
            metric_code: card.metric_code,
            period_start: card.period_start,
            status: card.status,
            title: card.title,
            recommendation: card.recommendation,
            evidence: card.evidence,
            note: card.note,
            decided_by: card.decided_by,
            created_at: card.created_at,
            updated_at: card.updated_at,
        }
    }
}

/// Filters for the list of alerts.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AlertsQuery {
    /// Only open alerts, or only the others.
    open: Option<bool>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// Filters for the list of cards.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CardsQuery {
    /// Only those in this state.
    #[param(value_type = Option<words::CardStatus>)]
    status: Option<CardStatus>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// A decision about a card.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Decision)]
pub(crate) struct DecisionBody {
    /// `RESOLVED` and `DISMISSED` are final.
    #[schema(value_type = words::CardStatus)]
    status: CardStatus,
    /// Reason of the decision.
    #[serde(default)]
    #[schema(max_length = 2000)]
    note: Option<String>,
}

/// The tenant's alerts, newest first.
#[utoipa::path(
    get,
    path = "/alerts",
    operation_id = "list_alerts",
    tag = "jobs",
    params(AlertsQuery),
    responses((status = 200, description = "A page of alerts", body = Page<AlertBody>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<AlertsQuery>,
) -> ApiResult<Json<Page<AlertBody>>> {
    let size = paging::size(query.limit)?;
    let below: Option<AlertId> = paging::decode(query.cursor.as_deref())?;
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = alerts::page(reading.connection(), caller.tenant_id, query.open, below, size + 1).await?;
    reading.page(rows, size, |alert| alert.id, AlertBody::from).await
}

/// The tenant's decision cards, newest first.
#[utoipa::path(
    get,
    path = "/decision-cards",
    operation_id = "list_decision_cards",
    tag = "jobs",
    params(CardsQuery),
    responses((status = 200, description = "A page of cards", body = Page<CardBody>)),
)]
pub(crate) async fn list_cards(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(query): Query<CardsQuery>,
) -> ApiResult<Json<Page<CardBody>>> {
    let size = paging::size(query.limit)?;
    let below: Option<DecisionCardId> = paging::decode(query.cursor.as_deref())?;
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let rows = alerts::cards(reading.connection(), caller.tenant_id, query.status, below, size + 1).await?;
    reading.page(rows, size, |card| card.id, CardBody::from).await
}

/// One decision card.
#[utoipa::path(
    get,
    path = "/decision-cards/{id}",
    operation_id = "get_decision_card",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The card's id")),
    responses((status = 200, description = "The card", body = CardBody)),
)]
pub(crate) async fn show_card(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<DecisionCardId>,
) -> ApiResult<Json<CardBody>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let card = alerts::card(reading.connection(), caller.tenant_id, id).await?;
    reading.found(card.map(CardBody::from), UNKNOWN).await
}

/// Decides a card.
#[utoipa::path(
    post,
    path = "/decision-cards/{id}/decide",
    operation_id = "decide_decision_card",
    tag = "jobs",
    params(("id" = Uuid, Path, description = "The card's id"), Repeatable),
    request_body = DecisionBody,
    responses(
        (status = 200, description = "The card with the decision", body = CardBody),
        (status = 409, description = "The card was decided before, as `current_state` says"),
    ),
)]
pub(crate) async fn decide(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<DecisionCardId>,
    Body { value: DecisionBody { status, note }, fingerprint }: Body<DecisionBody>,
) -> ApiResult<Response> {
    check_note(note.as_deref()).map_err(|error| ApiError::Unprocessable(vec![error]))?;
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let connection = writing.connection();
    let decided =
        alerts::decide_card(connection, caller.tenant_id, id, status, note.as_deref(), &caller.actor())
            .await?;
    if let Err(stands) = decided.ok_or(UNKNOWN)? {
        return Err(ApiError::conflict(format!("the card is {stands} already, and stays so"))
            .with("current_state", stands));
    }
    let card = alerts::card(connection, caller.tenant_id, id).await?.ok_or(UNKNOWN)?;
    writing.answer(StatusCode::OK, &CardBody::from(card)).await
}

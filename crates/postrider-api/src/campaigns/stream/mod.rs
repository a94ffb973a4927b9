//! `GET /campaigns/{id}/events` streams the events of a campaign, and `GET /stream` the overview of a tenant with the events of
//! several campaigns.
//!
//! | file | what |
//! |---|---|
//! | `hub.rs` | one loop per process that reads each event once, and the limits of readers |
//! | `feed.rs` | the newest events of one campaign, shared by its readers |
//! | `follower.rs` | the position of one reader in one feed |
//! | `reader.rs` | the next message of the reader of one campaign |
//! | `news.rs` | the overview of one tenant, shared by its readers |
//! | `tenant.rs` | the stream of a tenant, and the next message of its reader |
//! | `frame.rs` | messages as they are on the wire |

mod feed;
mod follower;
pub(crate) mod frame;
mod hub;
pub(crate) mod news;
mod reader;
pub(crate) mod tenant;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use postrider_model::ids::CampaignId;
use postrider_store::{
    campaigns::history::{self, Extent},
    postgres::pool,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub use hub::{Hub, StreamSettings};

use self::{follower::Follower, frame::Reason, reader::Reader};
use crate::{
    App,
    common::{
        auth::Viewer,
        body::{Path, Query},
        error::{ApiError, ApiResult},
        words,
    },
};

/// The start of the stream.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Begin {
    /// The sequence of the last event that is known.
    #[param(value_type = Option<i64>, minimum = 0)]
    after: Option<String>,
}

/// For the document: the start of the stream, as a header.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only its parameters are used")]
pub(crate) struct ComeBack {
    /// The same, as an `EventSource` sends it when it reconnects.
    #[param(rename = "Last-Event-ID", minimum = 0, required = false)]
    last_event_id: i64,
}

/// For the document: one message of the stream, by its fields.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct StreamMessage {
    /// The sequence of the event; a message that is not an event has none.
    #[schema(pattern = "^[0-9]+$", nullable = false)]
    id: Option<String>,
    /// Events of the history have none.
    #[schema(nullable = false)]
    event: Option<StreamNotice>,
    /// JSON in one line.
    data: String,
    /// Milliseconds to wait before the reader reconnects when the connection ends.
    #[schema(minimum = 0, nullable = false)]
    retry: Option<u32>,
}

/// A message about the stream itself.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum StreamNotice {
    /// Take `GET …/status` and read on after its `sequence`.
    SnapshotRequired,
    /// The server closes the stream; reconnect after the time in `retry`.
    Bye,
}

/// For the document: an event of a campaign's history, as the data of a message.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CampaignEvent {
    #[schema(value_type = words::EventType)]
    r#type: postrider_model::campaigns::EventType,
    campaign_id: uuid::Uuid,
    /// Name of the phase.
    phase: String,
    /// Its place in the history of the campaign, which has no gaps.
    sequence: i64,
    timestamp: jiff::Timestamp,
    /// Further data, which depends on the type.
    #[schema(value_type = Object)]
    payload: serde_json::Value,
}

const LAST_EVENT_ID: &str = "last-event-id";

/// Streams the events of a campaign as server-sent events.
///
/// Each message is an event of the campaign's history: `id` is its sequence, `data` the event as JSON in one line. The stream begins after
/// `Last-Event-ID` or `after`, of which the first one counts; without either it begins with the next event. `after=0` is the whole
/// history, as far as it is kept.
///
/// Two messages are not events and have a name and no id. `snapshot_required`: take `GET …/status` and read on after its `sequence`; the
/// requested events were removed, or the reader is too slow. `bye`: the server closes the stream; reconnect after the time in `retry`.
/// Comments keep the connection alive.
#[utoipa::path(
    get,
    path = "/campaigns/{id}/events",
    operation_id = "stream_campaign_events",
    tag = "campaigns",
    params(
        ("id" = uuid::Uuid, Path, description = "The campaign's id"),
        Begin,
        ComeBack,
    ),
    responses(
        (status = 200, description = "The campaign's events, as a stream that does not end by itself", body = StreamMessage, content_type = "text/event-stream"),
        (status = 429, description = "Too many requests with this key, or too many readers of this tenant; `Retry-After` says how long to wait"),
        (status = 503, description = "The process has reached its limit of readers, shuts down, or has no database; try again later"),
    ),
)]
pub(crate) async fn events(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(campaign): Path<CampaignId>,
    Query(begin): Query<Begin>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let after = position(&headers, begin.after.as_deref())?;
    if app.draining.is_cancelled() {
        return Err(ApiError::NotReady("the process is shutting down; try again in a moment".to_owned()));
    }
    let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
    let extents = history::extents(&mut transaction, caller.tenant_id, &[campaign]).await?;
    pool::commit(transaction).await?;
    let extent = extents.first().copied().ok_or(ApiError::NotFound("campaign"))?;
    Ok(match start(after, extent) {
        Ok(at) => {
            let (slot, feeds) = app.stream.register(&caller, &[extent], false)?;
            let feed = feeds.into_iter().next().ok_or(ApiError::NotFound("campaign"))?;
            let reader = Reader::new(slot, Follower::new(campaign, feed, at, at == extent.newest));
            answer(Body::from_stream(reader.frames()))
        }
        Err(reason) => answer(Body::from(frame::snapshot_required(campaign, reason))),
    })
}

/// The last event that the reader has, if the history goes on from there.
fn start(after: Option<i64>, extent: Extent) -> Result<i64, Reason> {
    match after {
        None => Ok(extent.newest),
        Some(after) if after > extent.newest => Err(Reason::Ahead),
        Some(after) if after < extent.pruned_through => Err(Reason::Pruned),
        Some(after) => Ok(after),
    }
}

/// From the header, or else from the query.
fn position(headers: &HeaderMap, after: Option<&str>) -> ApiResult<Option<i64>> {
    let mut values = headers.get_all(LAST_EVENT_ID).iter();
    let header = values.next().map(|value| value.to_str().unwrap_or_default());
    if values.next().is_some() {
        return Err(ApiError::invalid("Last-Event-ID", "must be given once"));
    }
    // The query is read even where the header counts, so that a mistake in it does not wait for the first break.
    let after = after.map(|after| number("after", after)).transpose()?;
    let header = header.map(|header| number("Last-Event-ID", header)).transpose()?;
    Ok(header.or(after))
}

fn number(field: &str, text: &str) -> ApiResult<i64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| {
        ApiError::invalid(
            field,
            "must be the sequence of an event, a whole number such as 42; 0 for everything that is kept",
        )
    })
}

fn answer(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform")),
        // A stream has its connection for itself, and both end together.
        (header::CONNECTION, HeaderValue::from_static("close")),
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(LAST_EVENT_ID, value.parse().unwrap_or(HeaderValue::from_static("?")));
        }
        headers
    }

    #[test]
    fn the_header_counts_before_the_query() {
        assert_eq!(position(&headers(&[]), None).ok(), Some(None));
        assert_eq!(position(&headers(&[]), Some("7")).ok(), Some(Some(7)));
        assert_eq!(position(&headers(&["9"]), Some("7")).ok(), Some(Some(9)));
    }

    #[test]
    fn a_text_that_is_not_a_sequence_is_refused() {
        for wrong in ["", " 1", "-1", "+1", "1.0", "1e3", "x", "9223372036854775808", "٣"] {
            assert!(position(&headers(&[]), Some(wrong)).is_err(), "after={wrong}");
            assert!(position(&headers(&["1"]), Some(wrong)).is_err(), "after={wrong} beside a header");
            assert!(position(&headers(&[wrong]), None).is_err(), "Last-Event-ID: {wrong}");
        }
        assert!(position(&headers(&["1", "1"]), None).is_err());
        assert_eq!(position(&headers(&[]), Some("9223372036854775807")).ok(), Some(Some(i64::MAX)));
    }

    #[test]
    fn reading_begins_where_the_history_goes_on() {
        let extent = Extent { campaign: CampaignId(uuid::Uuid::nil()), newest: 10, pruned_through: 4 };
        assert_eq!(start(None, extent), Ok(10));
        for after in 4..=10 {
            assert_eq!(start(Some(after), extent), Ok(after));
        }
        assert_eq!(start(Some(3), extent), Err(Reason::Pruned));
        assert_eq!(start(Some(0), extent), Err(Reason::Pruned));
        assert_eq!(start(Some(11), extent), Err(Reason::Ahead));
        assert_eq!(start(Some(i64::MAX), extent), Err(Reason::Ahead));
    }
}

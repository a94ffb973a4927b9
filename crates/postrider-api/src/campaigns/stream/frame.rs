//! Messages of the stream as they are on the wire.
//!
//! Events of the history have no `event:` field, so that `onmessage` of an `EventSource` gets them all; only messages about the
//! stream itself have a name. A message without `id:` leaves the reader's position as it is.

use std::time::Duration;

use axum::body::Bytes;
use postrider_model::ids::CampaignId;
use postrider_store::campaigns::history::CampaignEvent;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::tenant::{StreamChanged, StreamHello};
use crate::common::error::ApiError;

/// For the document: a campaign is no longer in this stream. Take `GET …/status` and read on after its `sequence`.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StreamSnapshotRequired {
    campaign_id: uuid::Uuid,
    reason: Reason,
}

/// For the document: the last message of a stream that the server ends.
#[derive(Serialize, ToSchema)]
pub(crate) struct StreamBye {
    reason: EndReason,
}

/// A comment, so that no proxy closes an idle connection.
pub(crate) const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

/// Why a reader must begin again with a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SnapshotReason)]
pub(crate) enum Reason {
    /// The requested events were removed.
    Pruned,
    /// The reader is ahead of the history: this is another database, or an older copy.
    Ahead,
    /// The reader does not keep up.
    TooSlow,
}

/// Why the server ends a stream without a mistake of its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EndReason)]
pub(crate) enum EndReason {
    /// The process ends.
    Shutdown,
    /// The key was revoked, or has expired.
    Key,
}

/// One event of the history. It is written once, however many readers there are.
pub(crate) fn event(event: &CampaignEvent) -> Result<Bytes, ApiError> {
    let data = serde_json::to_string(event)
        .map_err(|error| ApiError::Internal(format!("an event cannot be written: {error}")))?;
    Ok(Bytes::from(format!("id: {}\ndata: {data}\n\n", event.sequence)))
}

/// The first message of every stream, which sets the reader's delay before it reconnects.
pub(crate) fn hello(retry: Duration) -> Bytes {
    Bytes::from(format!("retry: {}\n\n", retry.as_millis()))
}

/// Asks the reader to take a snapshot and to go on from its sequence.
pub(crate) fn snapshot_required(campaign: CampaignId, reason: Reason) -> Bytes {
    named("snapshot_required", &json!({ "campaignId": campaign, "reason": reason }))
}

/// The first message of a tenant's stream.
pub(crate) fn hello_tenant(hello: &StreamHello, retry: Duration) -> Result<Bytes, ApiError> {
    let data = serde_json::to_value(hello)
        .map_err(|error| ApiError::Internal(format!("a greeting cannot be written: {error}")))?;
    Ok(reconnecting_after(retry, &named("hello", &data)))
}

/// Names lists that have changed.
pub(crate) fn changed(changed: &StreamChanged) -> Bytes {
    named("changed", &json!(changed))
}

/// An [`event`] of the history as a message of a tenant's stream: it has a name and no id, because the stream has several histories.
pub(crate) fn campaign(event: &Bytes) -> [Bytes; 2] {
    let data = event.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    [Bytes::from_static(b"event: campaign\n"), event.slice(data..)]
}

/// Announces the end of the stream, and the delay before the reader reconnects.
pub(crate) fn bye(reason: EndReason, retry: Duration) -> Bytes {
    reconnecting_after(retry, &named("bye", &json!({ "reason": reason })))
}

/// A message that also sets the delay before the reader reconnects.
fn reconnecting_after(retry: Duration, message: &[u8]) -> Bytes {
    let mut frame = format!("retry: {}\n", retry.as_millis()).into_bytes();
    frame.extend(message);
    frame.into()
}

pub(super) fn named(name: &str, data: &serde_json::Value) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

#[cfg(test)]
mod tests {
    use postrider_model::campaigns::EventType;

    use super::*;

    #[test]
    fn an_event_is_an_id_and_one_line_of_data() {
        let campaign_id = CampaignId(uuid::Uuid::nil());
        let happened = CampaignEvent {
            r#type: EventType::PhaseFailed,
            campaign_id,
            phase: "two\nlines".to_owned(),
            sequence: 42,
            timestamp: "2026-03-01T10:00:00Z".parse().unwrap_or_default(),
            payload: json!({ "reason": "a\r\nb" }),
        };
        let frame = event(&happened).map(|frame| frame.to_vec()).unwrap_or_default();
        let frame = String::from_utf8(frame).unwrap_or_default();
        let lines: Vec<&str> = frame.split(['\n', '\r']).collect();
        assert_eq!(lines.len(), 4, "{frame}");
        assert_eq!((lines[0], lines[2], lines[3]), ("id: 42", "", ""));
        let data: serde_json::Value =
            serde_json::from_str(lines[1].trim_start_matches("data: ")).unwrap_or_default();
        assert_eq!(data["payload"]["reason"], "a\r\nb");
        assert_eq!((&data["type"], &data["sequence"]), (&json!("phase_failed"), &json!(42)));

        let parts = campaign(&event(&happened).unwrap_or_default());
        let message = String::from_utf8(parts.concat()).unwrap_or_default();
        assert_eq!(message, format!("event: campaign\n{}\n\n", lines[1]));
    }

    #[test]
    fn messages_about_the_stream_have_a_name_and_no_id() {
        let second = Duration::from_secs(1);
        let frames = [
            bye(EndReason::Shutdown, second),
            snapshot_required(CampaignId(uuid::Uuid::nil()), Reason::Pruned),
        ];
        for frame in frames {
            let frame = String::from_utf8_lossy(&frame).into_owned();
            assert!(
                frame.contains("event: ") && frame.contains("data: {") && !frame.contains("id: "),
                "{frame}"
            );
            assert!(frame.ends_with("\n\n"), "{frame}");
        }
        assert_eq!(hello(second), "retry: 1000\n\n");
    }
}

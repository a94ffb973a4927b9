//! Messages of the stream as they are on the wire.
//!
//! Events of the history have no `event:` field, so that `onmessage` of an `EventSource` gets them all; only messages about the
//! stream itself have a name. A message without `id:` leaves the reader's position as it is.

use std::time::Duration;

use axum::body::Bytes;
use postrider_model::ids::CampaignId;
use postrider_store::campaigns::history::CampaignEvent;
use serde_json::json;

use crate::common::error::ApiError;

/// A comment, so that no proxy closes an idle connection.
pub(crate) const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

/// Why a reader must begin again with a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The requested events were removed.
    Pruned,
    /// The reader is ahead of the history: this is another database, or an older copy.
    Ahead,
    /// The reader does not keep up.
    TooSlow,
}

/// Why the server ends a stream without a mistake of its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    let reason = match reason {
        Reason::Pruned => "pruned",
        Reason::Ahead => "ahead",
        Reason::TooSlow => "too_slow",
    };
    named("snapshot_required", &json!({ "campaignId": campaign, "reason": reason }))
}

/// Announces the end of the stream, and the delay before the reader reconnects.
pub(crate) fn bye(reason: EndReason, retry: Duration) -> Bytes {
    let reason = match reason {
        EndReason::Shutdown => "shutdown",
        EndReason::Key => "key",
    };
    let mut frame = format!("retry: {}\n", retry.as_millis()).into_bytes();
    frame.extend(named("bye", &json!({ "reason": reason })));
    frame.into()
}

fn named(name: &str, data: &serde_json::Value) -> Bytes {
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

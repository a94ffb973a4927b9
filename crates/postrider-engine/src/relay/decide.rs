//! What to write down about an event, from what its sinks said. A pure function; its test is a table.

use postrider_model::{Event, SinkError};
use postrider_store::events::Completion;

/// An event is done when every sink that was tried took it. Otherwise it comes again, for those that did not.
pub(super) fn decide(event: &Event, attempts: Vec<(String, Result<(), SinkError>)>) -> Completion {
    let mut errors = Vec::new();
    let mut delivered_to = Vec::new();
    for (sink, result) in attempts {
        match result {
            Ok(()) => delivered_to.push(sink),
            Err(error) => errors.push(format!("{sink}: {error}")),
        }
    }
    if errors.is_empty() {
        return Completion { id: event.id, error: None, delivered_to: Vec::new() };
    }
    Completion { id: event.id, error: Some(errors.join("; ")), delivered_to }
}

#[cfg(test)]
mod tests {
    use postrider_model::ids::EventId;

    use super::*;

    #[test]
    fn an_event_is_done_when_every_sink_took_it() {
        let refused = || Err(SinkError::Refused { reason: "500".to_owned() });
        let dead = || Err(SinkError::Unreachable { reason: "connection refused".to_owned() });
        type Row =
            (Vec<(&'static str, Result<(), SinkError>)>, Option<&'static str>, &'static [&'static str]);
        let table: Vec<Row> = vec![
            (vec![], None, &[]),
            (vec![("a", Ok(()))], None, &[]),
            (vec![("a", Ok(())), ("b", Ok(()))], None, &[]),
            (vec![("a", refused())], Some("a: refused: 500"), &[]),
            (vec![("a", Ok(())), ("b", refused())], Some("b: refused: 500"), &["a"]),
            (
                vec![("a", refused()), ("b", dead())],
                Some("a: refused: 500; b: unreachable: connection refused"),
                &[],
            ),
        ];
        for (attempts, error, delivered_to) in table {
            let event = Event {
                id: EventId(7),
                aggregate_type: "order".to_owned(),
                aggregate_id: "1".to_owned(),
                event_type: "order.placed".to_owned(),
                payload: Default::default(),
                retry_count: 0,
                created_at: jiff::Timestamp::UNIX_EPOCH,
            };
            let attempts = attempts.into_iter().map(|(sink, result)| (sink.to_owned(), result)).collect();
            let completion = decide(&event, attempts);
            assert_eq!(completion.id, EventId(7));
            assert_eq!(completion.error.as_deref(), error);
            assert_eq!(completion.delivered_to, delivered_to);
        }
    }
}

//! Decides the completion of an event from the results of its deliveries. A pure function; its test is a table.

use std::time::Duration;

use postrider_model::{Event, SinkError, ids::TenantId};
use postrider_store::events::Completion;

/// An event is complete when every attempted sink accepted it. Otherwise the relay retries it for the other sinks
/// (docs/decisions/0002-partial-deliveries.md): with the event's backoff after a failure, and after `retry_after` without counting a
/// failure when the sinks were only busy (docs/decisions/0003-a-share-of-the-relay-for-each-sink.md).
pub(super) fn decide(
    tenant_id: TenantId,
    event: &Event,
    attempts: Vec<(String, Result<(), SinkError>)>,
) -> Completion {
    let mut errors = Vec::new();
    let mut delivered_to = Vec::new();
    let mut release_after = Some(Duration::ZERO);
    for (sink, result) in attempts {
        match result {
            Ok(()) => delivered_to.push(sink),
            Err(error) => {
                release_after = match &error {
                    SinkError::Busy { retry_after, .. } => release_after.map(|after| after.max(*retry_after)),
                    _ => None,
                };
                // A handler's message may contain any character, but Postgres cannot store NUL.
                errors.push(format!("{sink}: {error}").replace('\0', ""));
            }
        }
    }
    if errors.is_empty() {
        return Completion { tenant_id, id: event.id, error: None, delivered_to, release_after: None };
    }
    Completion { tenant_id, id: event.id, error: Some(errors.join("; ")), delivered_to, release_after }
}

#[cfg(test)]
mod tests {
    use postrider_model::ids::EventId;

    use super::*;

    #[test]
    fn an_event_is_complete_when_every_attempted_sink_accepted_it() {
        let refused = || Err(SinkError::Refused { reason: "500".to_owned() });
        let dead = || Err(SinkError::Unreachable { reason: "connection refused".to_owned() });
        let busy = |seconds| {
            Err(SinkError::Busy { reason: "full".to_owned(), retry_after: Duration::from_secs(seconds) })
        };
        type Row = (
            Vec<(&'static str, Result<(), SinkError>)>,
            Option<&'static str>,
            &'static [&'static str],
            Option<u64>,
        );
        let table: Vec<Row> = vec![
            (vec![], None, &[], None),
            (vec![("a", Ok(()))], None, &["a"], None),
            (vec![("a", Ok(())), ("b", Ok(()))], None, &["a", "b"], None),
            (vec![("a", refused())], Some("a: refused: 500"), &[], None),
            (vec![("a", Ok(())), ("b", refused())], Some("b: refused: 500"), &["a"], None),
            (
                vec![("a", refused()), ("b", dead())],
                Some("a: refused: 500; b: unreachable: connection refused"),
                &[],
                None,
            ),
            (vec![("a", busy(1))], Some("a: busy: full"), &[], Some(1)),
            (
                vec![("a", Ok(())), ("b", busy(1)), ("c", busy(3))],
                Some("b: busy: full; c: busy: full"),
                &["a"],
                Some(3),
            ),
            (vec![("a", busy(1)), ("b", refused())], Some("a: busy: full; b: refused: 500"), &[], None),
            (vec![("a", refused()), ("b", busy(1))], Some("a: refused: 500; b: busy: full"), &[], None),
        ];
        let tenant = TenantId::new();
        for (attempts, error, delivered_to, release_after) in table {
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
            let completion = decide(tenant, &event, attempts);
            assert_eq!((completion.tenant_id, completion.id), (tenant, EventId(7)));
            assert_eq!(completion.error.as_deref(), error);
            assert_eq!(completion.delivered_to, delivered_to);
            assert_eq!(completion.release_after, release_after.map(Duration::from_secs));
        }
    }
}

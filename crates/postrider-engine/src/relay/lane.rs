//! One lane per sink: how many events wait for it, how many are under way, how long one may take.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use postrider_model::{Event, EventSink, Pattern, SinkError};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Route;

/// A claim lasts five minutes. Whoever has waited this long in a lane would be delivered under a claim that may
/// have gone stale, so it goes back instead.
const WAIT_MAX: Duration = Duration::from_secs(180);

pub(super) struct Lane {
    pub(super) name: String,
    events: Vec<Pattern>,
    sink: Arc<dyn EventSink>,
    turns: Semaphore,
    /// Events that are in this lane, waiting or under way.
    inside: AtomicUsize,
    /// Most events that may be; the slots are divided among the lanes.
    share: usize,
    timeout: Duration,
}

impl Lane {
    pub(super) fn new(route: Route, share: usize, timeout: Duration) -> Self {
        let Route { name, events, concurrency, sink } = route;
        Self {
            name,
            events,
            sink,
            turns: Semaphore::new(concurrency.max(1)),
            inside: AtomicUsize::new(0),
            share,
            timeout,
        }
    }

    pub(super) fn wants(&self, event: &Event) -> bool {
        self.events.iter().any(|pattern| pattern.matches(&event.event_type))
    }

    /// Delivers one event. Timeout and panic become errors here.
    pub(super) async fn deliver(
        &self,
        event: &Event,
        stopping: &CancellationToken,
        hurry: &CancellationToken,
    ) -> Result<(), SinkError> {
        let result = self.try_deliver(event, stopping, hurry).await;
        match &result {
            Ok(()) => {
                metrics::counter!("postrider_events_delivered_total", "sink" => self.name.clone())
                    .increment(1);
                tracing::debug!(event.id = %event.id, sink = %self.name, "event {} was delivered", event.id);
            }
            Err(error) => {
                metrics::counter!("postrider_events_failed_total", "sink" => self.name.clone(), "kind" => error.kind())
                    .increment(1);
                tracing::warn!(
                    event.id = %event.id,
                    event.r#type = %event.event_type,
                    event.retry_count = event.retry_count,
                    sink = %self.name,
                    "event {} was not delivered to {}: {error}",
                    event.id,
                    self.name,
                );
            }
        }
        result
    }

    async fn try_deliver(
        &self,
        event: &Event,
        stopping: &CancellationToken,
        hurry: &CancellationToken,
    ) -> Result<(), SinkError> {
        let _place = self.enter()?;
        let _turn = tokio::select! {
            biased;
            turn = tokio::time::timeout(WAIT_MAX, self.turns.acquire()) => match turn {
                Ok(Ok(turn)) => turn,
                _ => return Err(self.busy()),
            },
            () = stopping.cancelled() => return Err(SinkError::Busy { reason: "the relay is stopping".to_owned() }),
        };
        let delivery = AssertUnwindSafe(self.sink.deliver(event)).catch_unwind();
        tokio::select! {
            delivered = tokio::time::timeout(self.timeout, delivery) => match delivered {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(SinkError::Unanswered { reason: "the handler panicked".to_owned() }),
                Err(_) => Err(SinkError::Unanswered { reason: format!("nothing within {:?}", self.timeout) }),
            },
            () = hurry.cancelled() => Err(SinkError::Unanswered { reason: "the relay stopped before the answer".to_owned() }),
        }
    }

    /// Takes a place in the lane, if its share is not used up.
    fn enter(&self) -> Result<Place<'_>, SinkError> {
        let place = Place(&self.inside);
        if self.inside.fetch_add(1, Ordering::Relaxed) >= self.share {
            return Err(self.busy());
        }
        Ok(place)
    }

    fn busy(&self) -> SinkError {
        SinkError::Busy { reason: format!("{} events wait for this sink already", self.share) }
    }
}

struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

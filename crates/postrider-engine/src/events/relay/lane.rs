//! One lane per sink. It limits the events that wait, the deliveries that run, and the duration of a delivery.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::FutureExt;
use postrider_model::{Event, EventSink, Pattern, SinkError, ids::EventId};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Route;

/// Maximum wait of an event in a lane. A claim lasts five minutes, so after a longer wait the claim might become stale during the
/// delivery; the lane releases the event instead.
const WAIT_MAX: Duration = Duration::from_secs(180);

pub(super) struct Lane {
    pub(super) name: String,
    events: Vec<Pattern>,
    sink: Arc<dyn EventSink>,
    permits: Semaphore,
    /// Events in this lane: those that wait and those that are being delivered.
    event_count: AtomicUsize,
    /// Maximum of `event_count`; the slots are divided among the lanes (docs/decisions/0003-a-share-of-the-relay-for-each-sink.md).
    share: usize,
    /// Backoff of events that the lane has no capacity for.
    backoff: Mutex<Backoff>,
    timeout: Duration,
}

impl Lane {
    pub(super) fn new(route: Route, share: usize, timeout: Duration) -> Self {
        let Route { name, events, concurrency, sink } = route;
        Self {
            name,
            events,
            sink,
            permits: Semaphore::new(concurrency.max(1)),
            event_count: AtomicUsize::new(0),
            share,
            backoff: Mutex::default(),
            timeout,
        }
    }

    pub(super) fn wants(&self, event: &Event) -> bool {
        self.events.iter().any(|pattern| pattern.matches(&event.event_type))
    }

    /// Delivers one event. A timeout or a panic becomes an error.
    pub(super) async fn deliver(
        &self,
        event: &Event,
        stopping: &CancellationToken,
        abort: &CancellationToken,
    ) -> Result<(), SinkError> {
        let result = self.try_deliver(event, stopping, abort).await;
        match &result {
            Ok(()) => {
                metrics::counter!("postrider_events_delivered_total", "sink" => self.name.clone())
                    .increment(1);
                // `created_at` comes from the database's clock, which may be ahead of ours.
                let age = jiff::Timestamp::now().duration_since(event.created_at).as_secs_f64();
                metrics::histogram!("postrider_event_commit_to_delivery_seconds", "sink" => self.name.clone())
                    .record(age.max(0.0));
                tracing::debug!(event.id = %event.id, sink = %self.name, "event {} was delivered", event.id);
            }
            Err(error) => {
                metrics::counter!("postrider_events_failed_total", "sink" => self.name.clone(), "kind" => error.kind())
                    .increment(1);
                if let SinkError::Busy { .. } = error {
                    // No delivery was attempted. The counter shows how often this happens.
                    tracing::debug!(event.id = %event.id, sink = %self.name, "the relay releases event {}: {error}", event.id);
                    return result;
                }
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
        abort: &CancellationToken,
    ) -> Result<(), SinkError> {
        let _entered = self.enter(event.id)?;
        let _permit = tokio::select! {
            biased;
            permit = tokio::time::timeout(WAIT_MAX, self.permits.acquire()) => match permit {
                Ok(Ok(permit)) => permit,
                _ => return Err(self.busy(event.id)),
            },
            () = stopping.cancelled() => return Err(SinkError::Busy {
                reason: "the relay is stopping".to_owned(),
                retry_after: Duration::ZERO,
            }),
        };
        let delivery = AssertUnwindSafe(self.sink.deliver(event)).catch_unwind();
        tokio::select! {
            delivered = tokio::time::timeout(self.timeout, delivery) => match delivered {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(SinkError::Unanswered { reason: "the handler panicked".to_owned() }),
                Err(_) => Err(SinkError::Unanswered { reason: format!("timeout after {:?}", self.timeout) }),
            },
            () = abort.cancelled() => Err(SinkError::Unanswered { reason: "the relay stopped before the answer".to_owned() }),
        }
    }

    /// Counts an event into the lane, unless the share is used up.
    fn enter(&self, id: EventId) -> Result<Entered<'_>, SinkError> {
        let entered = Entered(&self.event_count);
        let before = self.event_count.fetch_add(1, Ordering::Relaxed);
        if before >= self.share {
            return Err(self.busy(id));
        }
        if before < self.share / 2 {
            *self.backoff.lock().unwrap_or_else(PoisonError::into_inner) = Backoff::default();
        }
        Ok(entered)
    }

    fn busy(&self, id: EventId) -> SinkError {
        let mut backoff = self.backoff.lock().unwrap_or_else(PoisonError::into_inner);
        SinkError::Busy {
            reason: format!("{} events already wait for this sink", self.share),
            retry_after: backoff.next(id),
        }
    }
}

/// Backoff of events that the lane has no capacity for. It grows while the lane stays full, so that the relay does not claim and release
/// a long queue repeatedly. Jitter keeps the events from returning all at once.
#[derive(Debug)]
struct Backoff {
    delay: Duration,
    since: Instant,
}

const DELAY_MIN: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_secs(60);

impl Default for Backoff {
    fn default() -> Self {
        Self { delay: DELAY_MIN, since: Instant::now() }
    }
}

impl Backoff {
    fn next(&mut self, id: EventId) -> Duration {
        if self.since.elapsed() >= self.delay {
            *self = Self { delay: (self.delay * 2).min(DELAY_MAX), since: Instant::now() };
        }
        // Between 0.5 and 1.5 times the delay, by a hash that spreads consecutive ids.
        let spread = (id.0 as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
        self.delay / 2 + self.delay.mul_f64(spread as f64 / 1024.0)
    }
}

/// Counts an event out of the lane when it is dropped.
struct Entered<'a>(&'a AtomicUsize);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_of_a_full_lane_has_jitter_and_is_at_most_ninety_seconds() {
        let mut backoff = Backoff::default();
        let delays: Vec<Duration> = (1..=1000).map(|id| backoff.next(EventId(id))).collect();
        assert!(delays.iter().all(|delay| (DELAY_MIN / 2..DELAY_MIN * 2).contains(delay)), "{delays:?}");
        let early = delays.iter().filter(|delay| **delay < DELAY_MIN).count();
        assert!((400..600).contains(&early), "{early} of 1000 in the first half");
        for _ in 0..20 {
            backoff.since = Instant::now() - DELAY_MAX;
            assert!(backoff.next(EventId(7)) <= DELAY_MAX * 3 / 2);
        }
        assert_eq!(backoff.delay, DELAY_MAX);
    }
}

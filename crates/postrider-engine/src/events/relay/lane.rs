//! One lane per sink: how many events wait for it, how many are under way, how long one may take.

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
    /// How long what does not fit stays away.
    patience: Mutex<Patience>,
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
            patience: Mutex::default(),
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
                // The publisher's time is the database's, and clocks may differ a little.
                let age = jiff::Timestamp::now().duration_since(event.created_at).as_secs_f64();
                metrics::histogram!("postrider_event_commit_to_delivery_seconds", "sink" => self.name.clone())
                    .record(age.max(0.0));
                tracing::debug!(event.id = %event.id, sink = %self.name, "event {} was delivered", event.id);
            }
            Err(error) => {
                metrics::counter!("postrider_events_failed_total", "sink" => self.name.clone(), "kind" => error.kind())
                    .increment(1);
                if let SinkError::Busy { .. } = error {
                    // Nothing was tried; the counter tells how often.
                    tracing::debug!(event.id = %event.id, sink = %self.name, "event {} comes back later: {error}", event.id);
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
        hurry: &CancellationToken,
    ) -> Result<(), SinkError> {
        let _place = self.enter(event.id)?;
        let _turn = tokio::select! {
            biased;
            turn = tokio::time::timeout(WAIT_MAX, self.turns.acquire()) => match turn {
                Ok(Ok(turn)) => turn,
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
                Err(_) => Err(SinkError::Unanswered { reason: format!("nothing within {:?}", self.timeout) }),
            },
            () = hurry.cancelled() => Err(SinkError::Unanswered { reason: "the relay stopped before the answer".to_owned() }),
        }
    }

    /// Takes a place in the lane, if its share is not used up.
    fn enter(&self, id: EventId) -> Result<Place<'_>, SinkError> {
        let place = Place(&self.inside);
        let before = self.inside.fetch_add(1, Ordering::Relaxed);
        if before >= self.share {
            return Err(self.busy(id));
        }
        if before < self.share / 2 {
            *self.patience.lock().unwrap_or_else(PoisonError::into_inner) = Patience::default();
        }
        Ok(place)
    }

    fn busy(&self, id: EventId) -> SinkError {
        let mut patience = self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        SinkError::Busy {
            reason: format!("{} events wait for this sink already", self.share),
            retry_after: patience.next(id),
        }
    }
}

/// How long what does not fit stays away. Longer while the lane stays full, so that a long queue is not claimed and
/// given back over and over; and spread out, so that it does not come back in one wave.
#[derive(Debug)]
struct Patience {
    delay: Duration,
    since: Instant,
}

const DELAY_MIN: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_secs(60);

impl Default for Patience {
    fn default() -> Self {
        Self { delay: DELAY_MIN, since: Instant::now() }
    }
}

impl Patience {
    fn next(&mut self, id: EventId) -> Duration {
        if self.since.elapsed() >= self.delay {
            *self = Self { delay: (self.delay * 2).min(DELAY_MAX), since: Instant::now() };
        }
        // Half to one and a half times the delay, by a number that neighbours do not share.
        let spread = (id.0 as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
        self.delay / 2 + self.delay.mul_f64(spread as f64 / 1024.0)
    }
}

struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_comes_back_spread_out_and_never_later_than_ninety_seconds() {
        let mut patience = Patience::default();
        let delays: Vec<Duration> = (1..=1000).map(|id| patience.next(EventId(id))).collect();
        assert!(delays.iter().all(|delay| (DELAY_MIN / 2..DELAY_MIN * 2).contains(delay)), "{delays:?}");
        let early = delays.iter().filter(|delay| **delay < DELAY_MIN).count();
        assert!((400..600).contains(&early), "{early} of 1000 in the first half");
        for _ in 0..20 {
            patience.since = Instant::now() - DELAY_MAX;
            assert!(patience.next(EventId(7)) <= DELAY_MAX * 3 / 2);
        }
        assert_eq!(patience.delay, DELAY_MAX);
    }
}

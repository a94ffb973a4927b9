//! The relay delivers the events of the outbox to its sinks, at least once.
//!
//! ```text
//! claim ──▶ deliver to every matching sink at once ──▶ decide ──▶ complete, many events in one statement
//!   ▲                                                               │
//!   └───────────── the slot is released ◀───────────────────────────┘
//! ```
//!
//! Every relay of an installation delivers to the same sinks, which the database registers (`registration.rs`). A relay with other
//! sinks does not start. A relay whose sinks were replaced completes no further event.
//!
//! Slots bound the number of claimed events, so a million waiting events cost no memory. Each sink has its own lane with
//! a share of the slots, so a slow or dead sink does not delay the events of the others.

mod complete;
mod decide;
mod lane;
mod registration;

use std::{sync::Arc, time::Duration};

use postrider_model::{EventSink, Pattern};
use postrider_store::{
    Pool, StoreError,
    events::{self, Claimed},
    postgres::{pool, wakeups::Wakeups},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::registration::{RelayError, sinks_of};
use self::{
    complete::{Completed, Completer},
    decide::decide,
    lane::Lane,
    registration::Registration,
};
use crate::common::{
    health::Health,
    periodic::{at_interval, work_or_poll},
    recorder::record_all,
    supervised::supervised,
};

/// Settings of the relay.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// Maximum events per claim.
    pub batch_size: usize,
    /// Maximum events in memory.
    pub in_flight_max: usize,
    /// Time between claims without a hint.
    pub poll_interval: Duration,
    /// Maximum duration of one delivery.
    pub delivery_timeout: Duration,
    /// An event with more failures counts as stuck.
    pub stuck_after: i32,
}

impl Default for RelaySettings {
    fn default() -> Self {
        Self {
            batch_size: 256,
            in_flight_max: 1024,
            poll_interval: Duration::from_millis(500),
            delivery_timeout: Duration::from_secs(20),
            stuck_after: 10,
        }
    }
}

/// A sink, and the events that it receives.
pub struct Route {
    /// Name of the sink in logs, metrics and errors.
    pub name: String,
    /// Patterns of event types. The sink receives an event that matches any of them.
    pub events: Vec<Pattern>,
    /// Maximum concurrent deliveries to the sink.
    pub concurrency: usize,
    /// Destination of the events.
    pub sink: Arc<dyn EventSink>,
}

impl Route {
    /// Every event to this sink, up to 64 at a time. The name is what the database registers the sink under.
    pub fn new(name: impl Into<String>, sink: impl EventSink + 'static) -> Self {
        Self { name: name.into(), events: vec![Pattern::everything()], concurrency: 64, sink: Arc::new(sink) }
    }
}

/// One consumer of the event outbox.
pub struct Relay {
    pool: Pool,
    wakeups: Wakeups,
    settings: RelaySettings,
    processor: Arc<str>,
    lanes: Arc<[Lane]>,
    registration: Arc<Registration>,
    slots: Arc<Semaphore>,
    health: Health,
}

/// Interval of the backlog metrics.
const MEASURE_EVERY: Duration = Duration::from_secs(15);

impl Relay {
    /// Creates a relay whose processor name is unique to this process. The first relay of an installation registers its sinks; later
    /// relays with different sinks are refused.
    pub async fn new(
        pool: Pool,
        wakeups: Wakeups,
        routes: Vec<Route>,
        settings: RelaySettings,
    ) -> Result<Self, RelayError> {
        let processor: Arc<str> = format!("relay-{}", uuid::Uuid::now_v7()).into();
        let registration = Registration::new(&pool, &routes, &processor).await?;
        let share = settings.in_flight_max / routes.len().max(1);
        let lanes = routes
            .into_iter()
            .map(|route| Lane::new(route, share.max(1), settings.delivery_timeout))
            .collect();
        Ok(Self {
            pool,
            wakeups,
            processor,
            slots: Arc::new(Semaphore::new(settings.in_flight_max)),
            lanes,
            registration: Arc::new(registration),
            settings,
            health: Health::new("relay"),
        })
    }

    /// The health of the relay while it runs.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Claims and delivers events until shutdown; then finishes the claimed events.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tracing::info!(processor = %self.processor, sinks = self.lanes.len(), "the relay is running");
        // Register the counters, so that they are exported before their first event.
        metrics::counter!("postrider_events_claimed_total").increment(0);
        metrics::counter!("postrider_events_completed_total").increment(0);
        metrics::counter!("postrider_events_unmatched_total").increment(0);
        let (completions, receiver) = mpsc::channel(self.settings.in_flight_max);
        let completer =
            Completer::new(self.pool.clone(), Arc::clone(&self.processor), Arc::clone(&self.registration));
        let completing = tokio::spawn(supervised("event completer", record_all(completer, receiver)));
        let (pool, stuck_after) = (self.pool.clone(), self.settings.stuck_after);
        let measuring = tokio::spawn(supervised(
            "event meter",
            at_interval(MEASURE_EVERY, shutdown.clone(), move || measure(pool.clone(), stuck_after)),
        ));
        let deliveries = TaskTracker::new();
        let abort = CancellationToken::new();

        while !shutdown.is_cancelled() {
            // Marked before the claim, so that a hint during the claim is not lost.
            self.wakeups.mark_unchanged();
            match self.claim(&shutdown).await {
                Ok(batch) if !batch.is_empty() => {
                    self.health.passed();
                    for (claimed, slot) in batch {
                        let lanes = Arc::clone(&self.lanes);
                        let (completions, stopping, abort) =
                            (completions.clone(), shutdown.clone(), abort.clone());
                        deliveries.spawn(async move {
                            let completion = deliver(&lanes, claimed, &stopping, &abort).await;
                            // The completer outlives every delivery.
                            let _ = completions.send(Completed { completion, slot }).await;
                        });
                    }
                    continue;
                }
                Ok(_) => self.health.passed(),
                Err(error) => {
                    self.health.failed(&error);
                    tracing::error!(error = ?error, "the relay failed to claim events: {error}");
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = work_or_poll(&mut self.wakeups, self.settings.poll_interval) => {}
            }
        }

        tracing::info!(in_flight = deliveries.len(), "the relay finishes its deliveries");
        deliveries.close();
        if tokio::time::timeout(self.settings.delivery_timeout, deliveries.wait()).await.is_err() {
            abort.cancel();
            deliveries.wait().await;
        }
        drop(completions);
        let _ = completing.await;
        let _ = measuring.await;
        tracing::info!(processor = %self.processor, "the relay has stopped");
    }

    /// Claims as many events as there are free slots, and waits for a slot when there is none.
    async fn claim(
        &self,
        shutdown: &CancellationToken,
    ) -> Result<Vec<(Claimed, OwnedSemaphorePermit)>, StoreError> {
        let first = tokio::select! {
            () = shutdown.cancelled() => return Ok(Vec::new()),
            first = Arc::clone(&self.slots).acquire_owned() => first,
        };
        let Ok(mut slots) = first else { return Ok(Vec::new()) };
        while slots.num_permits() < self.settings.batch_size {
            match Arc::clone(&self.slots).try_acquire_owned() {
                Ok(slot) => slots.merge(slot),
                Err(_) => break,
            }
        }

        if !self.registration.is_registered(&self.pool).await? {
            return Ok(Vec::new());
        }
        self.health.unblock();
        let mut transaction = pool::begin(&self.pool).await?;
        let wanted = i32::try_from(slots.num_permits()).unwrap_or(i32::MAX);
        let generation = self.registration.generation();
        let Some(batch) = events::claim(&mut transaction, generation, &self.processor, wanted).await? else {
            self.registration.mark_replaced();
            self.health.block("other sinks are registered than those of this relay".to_owned());
            return Ok(Vec::new());
        };
        pool::commit(transaction).await?;
        metrics::counter!("postrider_events_claimed_total").increment(batch.len() as u64);
        Ok(batch.into_iter().filter_map(|claimed| Some((claimed, slots.split(1)?))).collect())
    }
}

/// Delivers an event to every matching sink that has not accepted it yet.
async fn deliver(
    lanes: &[Lane],
    claimed: Claimed,
    stopping: &CancellationToken,
    abort: &CancellationToken,
) -> events::Completion {
    let Claimed { tenant_id, event, delivered_to } = claimed;
    let matching: Vec<&Lane> = lanes.iter().filter(|lane| lane.wants(&event)).collect();
    if matching.is_empty() {
        // No sink matches the event type, so the event is completed without a delivery.
        metrics::counter!("postrider_events_unmatched_total").increment(1);
    }
    let missing = matching.into_iter().filter(|lane| !delivered_to.contains(&lane.name));
    let attempts = futures::future::join_all(missing.map(|lane| {
        let event = &event;
        async move { (lane.name.clone(), lane.deliver(event, stopping, abort).await) }
    }))
    .await;
    decide(tenant_id, &event, attempts)
}

async fn measure(pool: Pool, stuck_after: i32) {
    let measured = async {
        let mut transaction = pool::begin(&pool).await?;
        events::backlog(&mut transaction, stuck_after).await
    };
    match measured.await {
        Ok(backlog) => {
            metrics::gauge!("postrider_events_pending").set(backlog.pending as f64);
            metrics::gauge!("postrider_events_stuck").set(backlog.stuck as f64);
            metrics::gauge!("postrider_events_oldest_ready_seconds").set(backlog.oldest_ready_seconds);
        }
        Err(error) => tracing::debug!(?error, "failed to measure the event backlog"),
    }
}

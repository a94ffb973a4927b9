//! The relay: empties the event outbox into its sinks, at least once.
//!
//! ```text
//! claim ──▶ deliver to every matching sink at once ──▶ decide ──▶ complete, many events in one statement
//!   ▲                                                               │
//!   └───────────── a slot is free again ◀───────────────────────────┘
//! ```
//!
//! Every relay of an installation delivers to the same sinks, which the database registers (`joined.rs`). A relay with other sinks
//! does not start, and one whose sinks were replaced completes nothing more.
//!
//! What is claimed is bounded by slots, so a million waiting events cost no memory. Each sink has its own lane with
//! a share of the slots, so a slow or dead one cannot hold up the events of the others.

mod complete;
mod decide;
mod joined;
mod lane;

use std::{sync::Arc, time::Duration};

use postrider_model::{EventSink, Pattern};
use postrider_store::{
    Pool, StoreError,
    events::{self, Claimed},
    pool,
    wakeups::Wakeups,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::joined::{RelayError, sinks_of};
use self::{complete::Completer, decide::decide, joined::Joined, lane::Lane};
use crate::{Health, vital::vital};

/// How the relay behaves.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// Most events per claim.
    pub batch_size: usize,
    /// Most events in memory at a time.
    pub in_flight_max: usize,
    /// How often to look without a hint.
    pub poll_interval: Duration,
    /// How long one delivery may take.
    pub delivery_timeout: Duration,
    /// An event that failed more often counts as stuck.
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

/// Which events go where.
pub struct Route {
    /// What the sink is called in logs, metrics and errors.
    pub name: String,
    /// Event types it wants; any match will do.
    pub events: Vec<Pattern>,
    /// Most deliveries to it at a time.
    pub concurrency: usize,
    /// Where they go.
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
    joined: Arc<Joined>,
    slots: Arc<Semaphore>,
    health: Health,
}

/// How often the backlog is measured for the metrics.
const MEASURE_EVERY: Duration = Duration::from_secs(15);

impl Relay {
    /// A relay under a name that no other process has, nor had. The first relay of an installation registers its sinks; one with
    /// other sinks than the registered ones is refused.
    pub async fn new(
        pool: Pool,
        wakeups: Wakeups,
        routes: Vec<Route>,
        settings: RelaySettings,
    ) -> Result<Self, RelayError> {
        let processor: Arc<str> = format!("relay-{}", uuid::Uuid::now_v7()).into();
        let joined = Joined::new(&pool, &routes, &processor).await?;
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
            joined: Arc::new(joined),
            settings,
            health: Health::new("relay"),
        })
    }

    /// Whether it can work, once it runs.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Claims and delivers until shutdown; then finishes what it holds.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tracing::info!(processor = %self.processor, sinks = self.lanes.len(), "the relay is running");
        // Shown from the start, not from their first event on.
        metrics::counter!("postrider_events_claimed_total").increment(0);
        metrics::counter!("postrider_events_completed_total").increment(0);
        metrics::counter!("postrider_events_unmatched_total").increment(0);
        let (completions, receiver) = mpsc::channel(self.settings.in_flight_max);
        let completer = tokio::spawn(vital(
            "the completer of events",
            Completer::new(self.pool.clone(), Arc::clone(&self.processor), Arc::clone(&self.joined))
                .run(receiver),
        ));
        let measuring = tokio::spawn(vital(
            "what measures events",
            measure(self.pool.clone(), self.settings.stuck_after, shutdown.clone()),
        ));
        let deliveries = TaskTracker::new();
        let hurry = CancellationToken::new();

        while !shutdown.is_cancelled() {
            // Before the claim, so that a hint during the claim is not lost.
            self.wakeups.mark_unchanged();
            match self.claim(&shutdown).await {
                Ok(batch) if !batch.is_empty() => {
                    self.health.passed();
                    for (claimed, slot) in batch {
                        let lanes = Arc::clone(&self.lanes);
                        let (completions, stopping, hurry) =
                            (completions.clone(), shutdown.clone(), hurry.clone());
                        deliveries.spawn(async move {
                            let completion = deliver(&lanes, claimed, &stopping, &hurry).await;
                            // The completer outlives every delivery.
                            let _ = completions.send((completion, slot)).await;
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
            // A notification is a hint; the poll is the guarantee.
            tokio::select! {
                () = shutdown.cancelled() => {}
                changed = self.wakeups.changed() => if changed.is_err() {
                    tokio::time::sleep(self.settings.poll_interval).await;
                },
                () = tokio::time::sleep(self.settings.poll_interval) => {}
            }
        }

        tracing::info!(in_flight = deliveries.len(), "the relay finishes what it holds");
        deliveries.close();
        if tokio::time::timeout(self.settings.delivery_timeout, deliveries.wait()).await.is_err() {
            hurry.cancel();
            deliveries.wait().await;
        }
        drop(completions);
        let _ = completer.await;
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

        if !self.joined.is_registered(&self.pool).await? {
            return Ok(Vec::new());
        }
        self.health.unblock();
        let mut transaction = pool::begin(&self.pool).await?;
        let wanted = i32::try_from(slots.num_permits()).unwrap_or(i32::MAX);
        let generation = self.joined.generation();
        let Some(batch) = events::claim(&mut transaction, generation, &self.processor, wanted).await? else {
            self.joined.were_replaced();
            self.health.block("other sinks are registered than those it was started with".to_owned());
            return Ok(Vec::new());
        };
        pool::commit(transaction).await?;
        metrics::counter!("postrider_events_claimed_total").increment(batch.len() as u64);
        Ok(batch.into_iter().filter_map(|claimed| Some((claimed, slots.split(1)?))).collect())
    }
}

/// One event to every sink that wants it and does not have it.
async fn deliver(
    lanes: &[Lane],
    claimed: Claimed,
    stopping: &CancellationToken,
    hurry: &CancellationToken,
) -> events::Completion {
    let Claimed { event, delivered_to } = claimed;
    let matching: Vec<&Lane> = lanes.iter().filter(|lane| lane.wants(&event)).collect();
    if matching.is_empty() {
        // Nobody asked for it: there is nothing to deliver, and waiting would not change that.
        metrics::counter!("postrider_events_unmatched_total").increment(1);
    }
    let missing = matching.into_iter().filter(|lane| !delivered_to.contains(&lane.name));
    let attempts = futures::future::join_all(missing.map(|lane| {
        let event = &event;
        async move { (lane.name.clone(), lane.deliver(event, stopping, hurry).await) }
    }))
    .await;
    decide(&event, attempts)
}

async fn measure(pool: Pool, stuck_after: i32, shutdown: CancellationToken) {
    loop {
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
            Err(error) => tracing::debug!(?error, "the backlog could not be measured"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(MEASURE_EVERY) => {}
        }
    }
}

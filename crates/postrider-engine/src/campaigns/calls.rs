//! The provider calls of a send job that are in flight.
//!
//! A window for the failover account is moved there first, all at once; then each of its items is called.

use std::collections::HashMap;

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use postrider_model::{Message, Outcome};
use postrider_store::{
    Reservation, Settlement,
    campaigns::{failover::MovedOver, outbox::Reserved, send_jobs::ClaimedJob},
};
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use super::{Shared, admission::Target, call::call, failover, prepare::Prepared, submission::ReservedWindow};

/// A reserved item that is about to be called.
pub(super) struct Call {
    pub(super) item: Uuid,
    pub(super) reservation: Reservation,
    pub(super) message: Message,
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// The calls in flight, and the settlements of those that have ended.
pub(super) struct Calls<'a> {
    shared: &'a Shared,
    job: &'a ClaimedJob,
    prepared: &'a Prepared,
    running: FuturesUnordered<BoxFuture<'a, Progress>>,
    in_flight: usize,
    settled: Vec<Settlement>,
    have_put_back: bool,
}

enum Progress {
    Ended(Settlement),
    Moved(Moved),
}

/// A window after its move to the failover account. The reservations that were kept are called nowhere.
struct Moved {
    calls: Vec<Call>,
    kept: Vec<Reservation>,
}

impl<'a> Calls<'a> {
    pub(super) fn new(shared: &'a Shared, job: &'a ClaimedJob, prepared: &'a Prepared) -> Self {
        let running = FuturesUnordered::new();
        Self { shared, job, prepared, running, in_flight: 0, settled: Vec::new(), have_put_back: false }
    }

    /// How many items are reserved and not settled.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether an item was put back, because its account must wait.
    pub(super) fn have_put_back(&self) -> bool {
        self.have_put_back
    }

    /// Begins the calls of a reserved window. An item that has a row already is never called.
    pub(super) fn begin(&mut self, window: ReservedWindow) {
        let ReservedWindow { target, answers, messages, mut permits } = window;
        let mut calls = Vec::with_capacity(answers.len());
        for (answer, (item, message)) in answers.into_iter().zip(messages) {
            let permit = permits.as_mut().and_then(|permits| permits.split(1));
            match (answer, message) {
                (Reserved::Yours(reservation), Some(message)) => {
                    calls.push(Call { item, reservation, message, permit });
                }
                // The database reserves only items that were planned as calls, and those have messages.
                (Reserved::Yours(reservation), None) => {
                    self.settle_unsent(reservation, "there was no message to send");
                }
                (Reserved::Already(status), _) => {
                    metrics::counter!("postrider_items_passed_over_total", "status" => status.as_str())
                        .increment(1);
                }
            }
        }
        self.in_flight += calls.len();
        match target {
            Target::Account => self.call_all(Target::Account, calls),
            Target::Failover if calls.is_empty() => {}
            Target::Failover => {
                let moving = move_window(self.shared, calls);
                self.running.push(async move { Progress::Moved(moving.await) }.boxed());
            }
        }
    }

    /// Waits until a call has ended, or a window has moved. Nothing is lost when this is dropped.
    pub(super) async fn next(&mut self) {
        if let Some(progress) = self.running.next().await {
            self.advance(progress);
        }
    }

    /// The settlements of all calls that have ended.
    pub(super) fn take_settled(&mut self) -> Vec<Settlement> {
        while let Some(Some(progress)) = self.running.next().now_or_never() {
            self.advance(progress);
        }
        std::mem::take(&mut self.settled)
    }

    fn settle_unsent(&mut self, reservation: Reservation, reason: &str) {
        let outcome = Outcome::NotSent { reason: reason.to_owned(), retry_after: None };
        self.settled.push(reservation.settle(outcome));
    }

    fn advance(&mut self, progress: Progress) {
        match progress {
            Progress::Ended(settlement) => {
                self.in_flight -= 1;
                self.have_put_back |= settlement.outcome().waits_for_account();
                self.settled.push(settlement);
            }
            Progress::Moved(Moved { calls, kept }) => {
                self.in_flight -= kept.len();
                for reservation in kept {
                    self.settle_unsent(
                        reservation,
                        "it could not be moved to the failover account, and was called nowhere",
                    );
                }
                self.call_all(Target::Failover, calls);
            }
        }
    }

    fn call_all(&mut self, target: Target, calls: Vec<Call>) {
        let (shared, prepared, job) = (self.shared, self.prepared, self.job);
        for item in calls {
            let calling = call(shared, prepared, job, target, item);
            self.running.push(async move { Progress::Ended(calling.await) }.boxed());
        }
    }
}

/// Moves a window to the failover account, all at once.
async fn move_window(shared: &Shared, calls: Vec<Call>) -> Moved {
    let mut held = HashMap::new();
    let mut reservations = Vec::with_capacity(calls.len());
    for Call { item, reservation, message, permit } in calls {
        held.insert(reservation.outbox_id(), (item, message, permit));
        reservations.push(reservation);
    }
    let MovedOver { moved, mut kept } = failover::move_over(shared, reservations).await;
    let mut calls = Vec::with_capacity(moved.len());
    for reservation in moved {
        match held.remove(&reservation.outbox_id()) {
            Some((item, message, permit)) => calls.push(Call { item, reservation, message, permit }),
            None => kept.push(reservation),
        }
    }
    Moved { calls, kept }
}

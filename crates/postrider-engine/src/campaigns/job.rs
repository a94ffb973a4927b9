//! One job, from its items to its end.
//!
//! ```text
//!            ┌──────────── a call has ended: settle it, and reserve as many again ◀───────────┐
//!            ▼                                                                                │
//! plan ─▶ reserve (committed) ─▶ call, at most a window of items at once ─▶ decide ─▶ settle ─┘─▶ complete
//! ```

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use metrics::Counter;
use postrider_model::{Channel, Message, Outcome, ids::OutboxId};
use postrider_providers::{Account, Provider};
use postrider_store::{
    Reservation, Settlement, StoreError, crash_point,
    jobs::{self, ClaimedJob, Lead},
    outbox::{Plan, PlannedItem, Reserved, Window, WindowAnswer},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Shared,
    committer::Submission,
    decide::{Verdict, decide, job_pause},
};
use crate::render::Template;

/// A job that this worker cannot do stays away as long as after so many attempts: another one shall find it first.
const NOT_OURS_PAUSE: i32 = 4;

/// How an attempt ended.
enum Ended {
    /// Every item was tried.
    Done,
    /// The worker is stopping; some items were not begun.
    Interrupted,
    /// Somebody else holds the job now.
    Lost,
    /// This worker cannot do it: it does not have the vendor, or the key to the account. Another may.
    NotOurs(String),
    /// It cannot be done as it is set up.
    Failed(String),
}

/// The whole life of a job. `lost` is cancelled when the lock is gone.
pub(super) async fn work(shared: &Shared, job: ClaimedJob, lost: CancellationToken) {
    let hold = job.hold;
    let pause = job_pause(shared.settings.retry_pause, hold.attempt);
    let ended = match Prepared::new(shared, &job).await {
        Ok(prepared) => Execution::new(shared, &job, &prepared, lost).run().await,
        Err(ended) => ended,
    };
    let id = hold.job_id;
    let recorded = match ended {
        Ended::Done => shared.while_away(|pool, worker| jobs::complete(pool, worker, hold, pause)).await,
        Ended::Failed(error) => {
            tracing::error!(job.id = %id, run.id = %job.run_id, correlation_id = %job.correlation_id, "{id} cannot be done: {error}");
            shared.while_away(|pool, worker| jobs::fail(pool, worker, hold, &error, pause)).await
        }
        Ended::Interrupted => shared
            .while_away(|pool, worker| jobs::release(pool, worker, hold, Duration::ZERO))
            .await
            .map(|()| {
                tracing::info!(job.id = %id, "{id} was handed back");
                postrider_model::campaign::JobStatus::Queued
            }),
        Ended::NotOurs(reason) => {
            tracing::error!(job.id = %id, "{id} must be done by another worker: {reason}");
            let pause = job_pause(shared.settings.retry_pause, NOT_OURS_PAUSE);
            shared
                .while_away(|pool, worker| jobs::release(pool, worker, hold, pause))
                .await
                .map(|()| postrider_model::campaign::JobStatus::Queued)
        }
        Ended::Lost => {
            tracing::warn!(job.id = %id, "{id} is held by somebody else now");
            return;
        }
    };
    match recorded {
        Ok(status) => {
            metrics::counter!("postrider_jobs_ended_total", "status" => status.as_str()).increment(1);
            tracing::info!(
                job.id = %id, run.id = %job.run_id, correlation_id = %job.correlation_id, attempt = hold.attempt,
                "{id} is now {status}"
            );
        }
        Err(StoreError::ClaimNotHeld { .. }) => {
            // Or it had ended, and only the answer was lost.
            tracing::warn!(job.id = %id, "{id} is not held any more");
        }
        Err(error) => {
            tracing::error!(error = ?error, job.id = %id, "the end of {id} was not recorded: {error}");
        }
    }
}

/// What a job needs before its first item.
struct Prepared {
    template: Template,
    provider: Arc<dyn Provider>,
    leads: HashMap<Uuid, Arc<Lead>>,
    turns: Arc<Semaphore>,
    calls: Calls,
}

/// The counters of a vendor's calls, by outcome. Looking one up takes longer than counting.
struct Calls([(&'static str, Counter); 4]);

impl Calls {
    fn of(provider: &str) -> Self {
        Self(Outcome::KINDS.map(|kind| {
            let counter = metrics::counter!("postrider_calls_total", "provider" => provider.to_owned(), "outcome" => kind);
            (kind, counter)
        }))
    }

    fn count(&self, outcome: &Outcome) {
        for (_, counter) in self.0.iter().filter(|(kind, _)| *kind == outcome.kind()) {
            counter.increment(1);
        }
    }
}

impl Prepared {
    async fn new(shared: &Shared, job: &ClaimedJob) -> Result<Self, Ended> {
        let Some(adapter) = shared.adapters.get(&job.provider) else {
            return Err(Ended::NotOurs(format!("this one has no provider `{}`", job.provider)));
        };
        let material = shared
            .while_away(|pool, worker| jobs::material(pool, worker, &shared.master_key, job))
            .await
            .map_err(|error| match error {
                // The secret does not open: this worker was started with another master key.
                StoreError::Unfit(why) => Ended::NotOurs(why),
                error => Ended::Failed(describe(&error)),
            })?
            .ok_or(Ended::Lost)?;
        let template = Template::compile(job.hold.channel, &material.content)
            .map_err(|error| Ended::Failed(error.to_string()))?;
        let Some((settings, secret)) = &material.account else {
            return Err(Ended::Failed(format!("the provider account {} was removed", job.account_id)));
        };
        let provider = adapter
            .open(&Account { id: job.account_id, settings, secret })
            .map_err(|error| Ended::Failed(format!("the provider account {}: {error}", job.account_id)))?;
        let leads = material.leads.into_iter().map(|lead| (lead.id.0, Arc::new(lead))).collect();
        let turns = shared.turns_of(job.account_id);
        Ok(Self { template, provider, leads, turns, calls: Calls::of(&job.provider) })
    }

    /// What is going to happen to one item, and the message if it is a call.
    fn plan(&self, channel: Channel, item: Uuid) -> (PlannedItem, Option<Message>) {
        let lead = self.leads.get(&item);
        let address = lead.and_then(|lead| match channel {
            Channel::Email => lead.email.as_deref(),
            Channel::Voice => lead.phone.as_deref(),
            Channel::Social => None,
        });
        let skip = |reason: &str| (Plan::Skip { reason: reason.to_owned() }, None);
        let (plan, message) = match (channel, lead.map(|lead| &**lead)) {
            (_, Some(Lead { suppression_reason: Some(reason), .. })) => {
                skip(&format!("suppressed: {reason}"))
            }
            (Channel::Email, _) if address.is_none() => skip("the lead has no e-mail address"),
            (Channel::Voice, _) if address.is_none() => skip("the lead has no phone number"),
            _ => match std::panic::catch_unwind(AssertUnwindSafe(|| self.template.render(lead, address))) {
                Ok(Ok(message)) => (Plan::Call { message_hash: message.hash() }, Some(message)),
                Ok(Err(error)) => (Plan::Fail { reason: error.to_string() }, None),
                // A template can ask for more than there is. That is the end of its item, and of no other.
                Err(_) => (Plan::Fail { reason: "the template could not be filled in".to_owned() }, None),
            },
        };
        let recipient = address.map(str::to_owned);
        (PlannedItem { item_id: item, outbox_id: OutboxId::new(), recipient, plan }, message)
    }
}

/// An attempt at a job.
struct Execution<'a> {
    shared: &'a Shared,
    job: &'a ClaimedJob,
    prepared: &'a Prepared,
    lost: CancellationToken,
    /// The place of the first item that was not reserved yet.
    next: usize,
    calls: FuturesUnordered<BoxFuture<'a, Settlement>>,
    settled: Vec<Settlement>,
    /// The window that is being reserved: messages and turns of its items, in order.
    reserving: Option<Reserving>,
    /// A turn that was waited for, until it is used.
    turn: Option<OwnedSemaphorePermit>,
    /// The database does not take this job's items.
    refused: bool,
}

struct Reserving {
    messages: Vec<Option<Message>>,
    turns: OwnedSemaphorePermit,
    answer: oneshot::Receiver<WindowAnswer>,
}

impl<'a> Execution<'a> {
    fn new(shared: &'a Shared, job: &'a ClaimedJob, prepared: &'a Prepared, lost: CancellationToken) -> Self {
        Self {
            shared,
            job,
            prepared,
            lost,
            next: 0,
            calls: FuturesUnordered::new(),
            settled: Vec::new(),
            reserving: None,
            turn: None,
            refused: false,
        }
    }

    async fn run(mut self) -> Ended {
        loop {
            while let Some(Some(settlement)) = self.calls.next().now_or_never() {
                self.settled.push(settlement);
            }
            if self.reserving.is_none() {
                let room = self.room();
                let turns = if room > 0 { self.take_turns(room) } else { None };
                if turns.is_some() || !self.settled.is_empty() {
                    self.submit(turns).await;
                } else if room == 0 && self.calls.is_empty() {
                    return self.ended();
                }
            }

            let waiting_for_a_turn = self.reserving.is_none() && self.room() > 0;
            tokio::select! {
                biased;
                answer = async { Some(self.reserving.as_mut().map(|reserving| &mut reserving.answer)?.await) },
                    if self.reserving.is_some() => match answer {
                        Some(Ok(answer)) => self.reserved(answer),
                        _ => self.reserving_was_refused(),
                    },
                Some(settlement) = self.calls.next(), if !self.calls.is_empty() => self.settled.push(settlement),
                // Used at the top of the loop, with as many others as there are.
                turn = Arc::clone(&self.prepared.turns).acquire_owned(), if waiting_for_a_turn => self.turn = turn.ok(),
                () = self.shared.stopping.cancelled(), if waiting_for_a_turn => {}
                () = self.lost.cancelled(), if waiting_for_a_turn => {}
                // The worker began to stop a moment ago: there is nothing left to wait for.
                else => {}
            }
        }
    }

    /// How many more items may be reserved now.
    fn room(&self) -> usize {
        if self.shared.stopping.is_cancelled() || self.lost.is_cancelled() || self.refused {
            return 0;
        }
        let left = self.job.item_ids.len() - self.next;
        left.min(self.shared.settings.window.saturating_sub(self.calls.len()))
    }

    /// Turns at the account for up to `room` calls, or none. A turn is taken before the reservation: what is reserved is
    /// about to be called.
    fn take_turns(&mut self, room: usize) -> Option<OwnedSemaphorePermit> {
        let turns = &self.prepared.turns;
        let mut taken = self.turn.take();
        let room = room - usize::from(taken.is_some());
        let more = u32::try_from(room.min(turns.available_permits())).unwrap_or(u32::MAX);
        if more > 0
            && let Ok(more) = Arc::clone(turns).try_acquire_many_owned(more)
        {
            match &mut taken {
                Some(taken) => taken.merge(more),
                None => taken = Some(more),
            }
        }
        taken
    }

    /// Hands over what is settled, and the next window if there are turns for it.
    async fn submit(&mut self, turns: Option<OwnedSemaphorePermit>) {
        let (reply, answer) = oneshot::channel();
        let mut messages = Vec::new();
        let window = turns.as_ref().map(|turns| {
            let first = self.next;
            let stretch = &self.job.item_ids[first..first + turns.num_permits()];
            let (items, rendered) =
                stretch.iter().map(|item| self.prepared.plan(self.job.hold.channel, *item)).unzip();
            messages = rendered;
            self.next += stretch.len();
            Window::new(self.job.hold, first, items)
        });
        let submission = Submission { settlements: std::mem::take(&mut self.settled), window, reply };
        // The committer outlives every job.
        let _ = self.shared.submissions.send(submission).await;
        // Even without a window the answer is waited for: the job ends when everything it knows is written down.
        let turns = turns.unwrap_or_else(|| nothing(&self.prepared.turns));
        self.reserving = Some(Reserving { messages, turns, answer });
    }

    /// Begins the calls of a window that was reserved.
    fn reserved(&mut self, answer: WindowAnswer) {
        let Some(Reserving { messages, mut turns, .. }) = self.reserving.take() else { return };
        let Some(answers) = answer else {
            self.lost.cancel();
            return;
        };
        for (reserved, message) in answers.into_iter().zip(messages) {
            let turn = turns.split(1);
            match (reserved, message) {
                (Reserved::Yours(reservation), Some(message)) => {
                    self.calls
                        .push(call(self.shared, self.prepared, self.job, reservation, message, turn).boxed());
                }
                (Reserved::Yours(reservation), None) => {
                    // The database reserves only what was planned as a call, and those have messages.
                    self.settled.push(reservation.settle(Outcome::NotSent {
                        reason: "there was no message to send".to_owned(),
                        retry_after: None,
                    }));
                }
                (Reserved::Already(status), _) => {
                    metrics::counter!("postrider_items_passed_over_total", "status" => status.as_str())
                        .increment(1);
                }
            }
        }
    }

    fn reserving_was_refused(&mut self) {
        self.reserving = None;
        self.refused = true;
    }

    fn ended(&self) -> Ended {
        if self.refused {
            Ended::Failed("the database does not take its items; the log says why".to_owned())
        } else if self.lost.is_cancelled() {
            Ended::Lost
        } else if self.next < self.job.item_ids.len() {
            Ended::Interrupted
        } else {
            Ended::Done
        }
    }
}

/// A permit for nothing, where a submission carries no window.
fn nothing(turns: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    #[expect(
        clippy::expect_used,
        reason = "zero permits are always there, and the semaphore is never closed"
    )]
    Arc::clone(turns).try_acquire_many_owned(0).expect("zero permits")
}

/// One item's call, tried again in place only where provably nothing was sent. Time and panics become outcomes here.
async fn call(
    shared: &Shared,
    prepared: &Prepared,
    job: &ClaimedJob,
    reservation: Reservation,
    message: Message,
    turn: Option<OwnedSemaphorePermit>,
) -> Settlement {
    let settings = &shared.settings;
    let (mut tries, mut waited) = (0, Duration::ZERO);
    let outcome = loop {
        if reservation.age() > settings.call_within {
            // Somebody may have concluded by now that it was never sent; so it must not be.
            break Outcome::NotSent {
                reason: "the worker was held up before the call".to_owned(),
                retry_after: None,
            };
        }
        crash_point!("call.before");
        tries += 1;
        let called = AssertUnwindSafe(prepared.provider.call(&reservation, &message)).catch_unwind();
        let outcome = match tokio::time::timeout(settings.call_timeout, called).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Outcome::Unknown { reason: "the adapter panicked".to_owned() },
            Err(_) => Outcome::Unknown { reason: format!("no answer within {:?}", settings.call_timeout) },
        };
        crash_point!("call.after");
        prepared.calls.count(&outcome);
        match decide(outcome, tries, waited, spread(reservation.outbox_id()), &settings.retry) {
            Verdict::Settle(outcome) => break outcome,
            Verdict::CallAgainIn(pause) => {
                waited += pause;
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = shared.hurry.cancelled() => break Outcome::NotSent {
                        reason: "the worker stopped while the provider asked to wait".to_owned(),
                        retry_after: None,
                    },
                }
            }
        }
    };
    drop(turn);
    log(job, &reservation, &outcome);
    reservation.settle(outcome)
}

fn log(job: &ClaimedJob, reservation: &Reservation, outcome: &Outcome) {
    let id = reservation.outbox_id();
    match outcome {
        Outcome::Delivered { message_id } => {
            tracing::debug!(item.id = %id, correlation_id = %job.correlation_id, message_id, "{id} was delivered");
        }
        Outcome::Rejected { reason } | Outcome::NotSent { reason, .. } => {
            tracing::warn!(item.id = %id, correlation_id = %job.correlation_id, "{id} failed: {reason}");
        }
        Outcome::Unknown { reason } => {
            tracing::warn!(item.id = %id, correlation_id = %job.correlation_id, "{id} is in doubt: {reason}");
        }
    }
}

/// A number from 0 to 1 that neighbours do not share.
fn spread(id: OutboxId) -> f64 {
    (id.0.as_u128() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as f64 / u64::MAX as f64
}

fn describe(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

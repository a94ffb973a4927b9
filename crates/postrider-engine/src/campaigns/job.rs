//! One job, from its items to its end.
//!
//! ```text
//!            ┌──────────── a call has ended: settle it, and reserve as many again ◀───────────┐
//!            ▼                                                                                │
//! plan ─▶ reserve (committed) ─▶ call, at most a window of items at once ─▶ decide ─▶ settle ─┘─▶ complete
//!   ▲                    └─ the account must wait: move (committed) ─▶ call at the other one
//!   └── turns at the account, where it is limited; or the job is handed back until there are some
//! ```

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use postrider_model::{Outcome, Span, Why, campaign::JobStatus};
use postrider_store::{
    Reservation, Settlement, StoreError,
    jobs::{self, ClaimedJob},
    limits::{self, PutOff},
    outbox::{Reserved, Window, WindowAnswer},
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    call::call,
    committer::{Submission, Written},
    decide::job_pause,
    gate::Look,
    hours::Openings,
    prepare::Prepared,
    route::{Taken, until},
    turns::{Choice, Way, choose},
    window::{Errand, Moved, Ready, Reserving, move_window},
};

/// A job that this worker cannot do stays away as long as after so many attempts: another one shall find it first.
const NOT_OURS_PAUSE: i32 = 4;
/// Turns and plans that were not used by then are given up: the rate, the hour or the gate may have changed.
const FRESH: Duration = Duration::from_secs(1);
/// How long a job waits while somebody else finds out whether a provider answers again.
const PROBE_PAUSE: Duration = Duration::from_millis(500);
/// How long a job stays away while nothing may be sent: the witness looks once a second.
const CLOSED_PAUSE: Duration = Duration::from_secs(1);

/// How an attempt ended.
pub(super) enum Ended {
    /// Every item was tried.
    Done,
    /// The worker is stopping; some items were not begun.
    Interrupted,
    /// Its account has more jobs here than it has turns for.
    Crowded,
    /// Its phase is paused; what was under way is over.
    Paused,
    /// The worker gets no database connection to write with; some items were not begun.
    Starved,
    /// Nothing may be sent from the database at the moment; what was under way is over.
    Closed,
    /// Its account must wait, under these limits.
    PutOff(PutOff, serde_json::Value),
    /// Somebody else holds the job now.
    Lost,
    /// This worker cannot do it: it does not have the vendor, or the key to the account. Another may.
    NotOurs(String),
    /// It cannot be done as it is set up.
    Failed(String),
}

/// The whole life of a job. `lost` is cancelled when the lock is gone.
pub(super) async fn work(shared: &Shared, job: ClaimedJob, lost: CancellationToken) {
    let ended = match Prepared::new(shared, &job).await {
        Ok(prepared) => Execution::new(shared, &job, &prepared, lost).run().await,
        Err(ended) => ended,
    };
    let id = job.hold.job_id;
    match record(shared, &job, ended).await {
        Ok(Some(status)) => {
            metrics::counter!("postrider_send_jobs_ended_total", "status" => status.as_str()).increment(1);
            tracing::info!(
                job.id = %id, run.id = %job.run_id, correlation_id = %job.correlation_id, attempt = job.hold.attempt,
                "{id} is now {status}"
            );
        }
        Ok(None) => {}
        Err(StoreError::ClaimNotHeld { .. }) => {
            // Or it had ended, and only the answer was lost.
            tracing::warn!(job.id = %id, "{id} is not held any more");
        }
        Err(error) => {
            tracing::error!(error = ?error, job.id = %id, "the end of {id} was not recorded: {error}");
        }
    }
}

/// Writes down how an attempt ended, and says what the job has become.
async fn record(shared: &Shared, job: &ClaimedJob, ended: Ended) -> Result<Option<JobStatus>, StoreError> {
    let hold = job.hold;
    let id = hold.job_id;
    let pause = job_pause(shared.settings.retry_pause, hold.attempt);
    let release = |pause| shared.while_away(move |pool, worker| jobs::release(pool, worker, hold, pause));
    match ended {
        Ended::Done => {
            shared.while_away(|pool, worker| jobs::complete(pool, worker, hold, pause)).await.map(Some)
        }
        Ended::Failed(error) => {
            tracing::error!(job.id = %id, run.id = %job.run_id, correlation_id = %job.correlation_id, "{id} cannot be done: {error}");
            shared.while_away(|pool, worker| jobs::fail(pool, worker, hold, &error, pause)).await.map(Some)
        }
        Ended::Interrupted => {
            release(Duration::ZERO).await?;
            tracing::info!(job.id = %id, "{id} was handed back");
            Ok(Some(JobStatus::Queued))
        }
        Ended::Crowded => {
            release(Duration::ZERO).await?;
            tracing::debug!(job.id = %id, "{id} was handed back: its account has no turns to spare");
            Ok(Some(JobStatus::Queued))
        }
        Ended::Paused => {
            release(Duration::ZERO).await?;
            tracing::info!(job.id = %id, run.id = %job.run_id, "{id} waits: its phase is paused");
            Ok(Some(JobStatus::Queued))
        }
        Ended::Starved => {
            release(Duration::ZERO).await?;
            tracing::warn!(job.id = %id, run.id = %job.run_id, "{id} was released: this worker cannot write");
            Ok(Some(JobStatus::Queued))
        }
        Ended::Closed => {
            release(CLOSED_PAUSE).await?;
            tracing::info!(job.id = %id, run.id = %job.run_id, "{id} waits: nothing may be sent from this database before it was looked at");
            Ok(Some(JobStatus::Queued))
        }
        Ended::PutOff(put_off, under) => {
            let jobs = shared
                .while_away(|pool, worker| limits::put_off(pool, worker, hold, put_off, &under))
                .await?;
            metrics::counter!("postrider_send_jobs_put_off_total", "why" => put_off.why.as_str())
                .increment(1);
            tracing::info!(
                job.id = %id, run.id = %job.run_id, correlation_id = %job.correlation_id, jobs,
                "{id} waits {}: {}", Span(put_off.wait), put_off.why.sentence()
            );
            Ok(Some(JobStatus::Queued))
        }
        Ended::NotOurs(reason) => {
            tracing::error!(job.id = %id, "{id} must be done by another worker: {reason}");
            release(job_pause(shared.settings.retry_pause, NOT_OURS_PAUSE)).await?;
            Ok(Some(JobStatus::Queued))
        }
        Ended::Lost => {
            tracing::warn!(job.id = %id, "{id} is held by somebody else now");
            Ok(None)
        }
    }
}

/// An attempt at a job.
struct Execution<'a> {
    shared: &'a Shared,
    job: &'a ClaimedJob,
    prepared: &'a Prepared,
    lost: CancellationToken,
    /// The places of the items that were not begun yet.
    todo: VecDeque<usize>,
    /// When the first of the items opens that were left out, because it is not their time.
    opens_at: Option<Timestamp>,
    calls: FuturesUnordered<BoxFuture<'a, Settlement>>,
    settled: Vec<Settlement>,
    /// Items that are planned and wait for turns.
    ready: Option<Ready>,
    /// Turns that were granted and not used.
    turns: Option<Purse>,
    asking: Option<BoxFuture<'a, (Way, Taken)>>,
    reserving: Option<Reserving>,
    /// Windows that are moving to the other account.
    moving: FuturesUnordered<BoxFuture<'a, Moved>>,
    moving_items: usize,
    /// A permit that was waited for, until it is used.
    permit: Option<(Way, OwnedSemaphorePermit)>,
    /// Until when the job waits in its place.
    paused_until: Option<Instant>,
    stop: Option<Stop>,
}

/// Why nothing more is begun.
enum Stop {
    /// The database does not take this job's items.
    Refused,
    /// The account must wait.
    PutOff(Instant, Why),
    /// The account has enough jobs.
    Crowded,
    /// The phase is paused.
    Paused,
    /// The worker gets no database connection to write with.
    Starved,
    /// Nothing may be sent from the database.
    Closed,
}

/// Turns at an account.
struct Purse {
    way: Way,
    left: usize,
    since: Instant,
}

/// What a job does next.
enum Step {
    /// It reserves these.
    Begin(Ready),
    /// It waits for a permit.
    Permit(Way),
    /// It waits for time to pass.
    Pause(Duration),
    /// It waits for what is under way, or has ended.
    Nothing,
}

impl<'a> Execution<'a> {
    fn new(shared: &'a Shared, job: &'a ClaimedJob, prepared: &'a Prepared, lost: CancellationToken) -> Self {
        let is_new = |place: &usize| !prepared.begun.contains(&job.item_ids[*place]);
        Self {
            shared,
            job,
            prepared,
            lost,
            todo: (0..job.item_ids.len()).filter(is_new).collect(),
            opens_at: None,
            calls: FuturesUnordered::new(),
            settled: Vec::new(),
            ready: None,
            turns: None,
            asking: None,
            reserving: None,
            moving: FuturesUnordered::new(),
            moving_items: 0,
            permit: None,
            paused_until: None,
            stop: None,
        }
    }

    async fn run(mut self) -> Ended {
        loop {
            while let Some(Some(settlement)) = self.calls.next().now_or_never() {
                self.settled.push(settlement);
            }
            let (mut pause, mut permit_at) = (None, None);
            if self.reserving.is_none() {
                match self.next_step() {
                    Step::Begin(window) => self.submit(Some(window)).await,
                    _ if !self.settled.is_empty() => self.submit(None).await,
                    Step::Pause(wait) => pause = Some(wait),
                    Step::Permit(way) => permit_at = Some(way),
                    Step::Nothing if self.is_at_rest() => return self.ended(),
                    Step::Nothing => {}
                }
            }

            let waits = pause.is_some() || permit_at.is_some() || self.asking.is_some();
            let permits = &self.prepared.route(permit_at.unwrap_or(Way::First)).gate.permits;
            tokio::select! {
                biased;
                answer = async { Some(self.reserving.as_mut().map(|reserving| &mut reserving.answer)?.await) },
                    if self.reserving.is_some() => match answer {
                        Some(Ok(Written::Window(answer))) => self.reserved(answer),
                        Some(Ok(Written::Withdrawn)) => self.reserving_was_withdrawn(),
                        _ => self.reserving_was_refused(),
                    },
                Some(settlement) = self.calls.next(), if !self.calls.is_empty() => self.settled.push(settlement),
                Some(moved) = self.moving.next(), if !self.moving.is_empty() => self.moved(moved),
                Some((way, taken)) = async { Some(self.asking.as_mut()?.await) }, if self.asking.is_some() => {
                    self.taken(way, taken);
                }
                // Used at the top of the loop, with as many others as there are.
                permit = Arc::clone(permits).acquire_owned(), if permit_at.is_some() => {
                    self.permit = permit_at.zip(permit.ok());
                }
                () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
                () = self.shared.stopping.cancelled(), if waits && !self.shared.stopping.is_cancelled() => {}
                () = self.lost.cancelled(), if waits && !self.lost.is_cancelled() => {}
                () = self.shared.writing.until_starved(), if waits && !self.shared.writing.is_starved() => {}
                // The worker began to stop a moment ago: there is nothing left to wait for.
                else => {}
            }
        }
    }

    /// Whether nothing is under way, and nothing more will be.
    fn is_at_rest(&self) -> bool {
        self.calls.is_empty()
            && self.moving.is_empty()
            && self.asking.is_none()
            && (self.todo.is_empty() || self.has_stopped())
    }

    fn has_stopped(&self) -> bool {
        self.shared.stopping.is_cancelled()
            || self.lost.is_cancelled()
            || self.stop.is_some()
            || self.shared.writing.is_starved()
    }

    /// What to do about the items that were not begun.
    fn next_step(&mut self) -> Step {
        if self.has_stopped() {
            (self.ready, self.asking, self.permit) = (None, None, None);
            return Step::Nothing;
        }
        let under_way = self.calls.len() + self.moving_items;
        let room = self.shared.settings.window.saturating_sub(under_way);
        if room == 0 || self.asking.is_some() {
            return Step::Nothing;
        }
        let now = Instant::now();
        if let Some(wait) = self.paused_until.and_then(|until| until.checked_duration_since(now))
            && !wait.is_zero()
        {
            return Step::Pause(wait);
        }
        let way = match choose(
            self.look(Way::First),
            self.prepared.second.as_ref().map(|_| self.look(Way::Second)),
        ) {
            Choice::Go(way) => way,
            Choice::Pause(wait) => {
                self.ready = None;
                return Step::Pause(wait);
            }
            Choice::PutOff(wait, why) => {
                self.ready = None;
                if !self.todo.is_empty() {
                    self.stop = Some(Stop::PutOff(now + wait, why));
                }
                return Step::Nothing;
            }
        };
        // Turns that it has are used: others would only wait for them again.
        if self.turns_left(way) == 0 && self.shared.is_crowded(&self.prepared.route(way).gate, self.job.hold)
        {
            self.ready = None;
            self.stop = Some(Stop::Crowded);
            return Step::Nothing;
        }
        if !self.ready.as_ref().is_some_and(|ready| ready.way == way && now - ready.made_at < FRESH) {
            self.ready = None;
            match self.plan(way, room) {
                Ok(ready) => self.ready = ready,
                Err(step) => return step,
            }
        }
        self.begin_what_has_turns(way)
    }

    /// How an account stands, for this job. While its circuit is half open, a job waits for what it has under way.
    fn look(&self, way: Way) -> Look {
        match self.prepared.route(way).look() {
            Look::HalfOpen if !self.calls.is_empty() || !self.moving.is_empty() => {
                Look::Wait { wait: PROBE_PAUSE, why: Why::Circuit }
            }
            // The last turns of the day are this job's, whatever others were told after that.
            Look::Wait { why: Why::Daily, .. } if self.turns_left(way) > 0 => Look::Clear,
            look => look,
        }
    }

    /// Turns that were granted and may still be used. Those of a day are counted, and are not given up; those of a rate would come
    /// in a burst.
    fn turns_left(&self, way: Way) -> usize {
        let keeps = self.prepared.route(way).limits.daily.is_some();
        let purse =
            self.turns.as_ref().filter(|purse| purse.way == way && (keeps || purse.since.elapsed() < FRESH));
        purse.map_or(0, |purse| purse.left)
    }

    /// Whether turns at this account come from the database.
    fn needs_turns(&self, way: Way) -> bool {
        let route = self.prepared.route(way);
        route.is_counted() || route.look() == Look::HalfOpen
    }

    /// Plans the next items that may be sent at this hour, as many as there are permits for.
    fn plan(&mut self, way: Way, room: usize) -> Result<Option<Ready>, Step> {
        let route = self.prepared.route(way);
        let most = if route.look() == Look::HalfOpen { 1 } else { room.min(route.batch()) };
        let stretch = self.open_stretch(way, most);
        let Some(first) = self.todo.front().copied().filter(|_| stretch > 0) else {
            return Ok(None);
        };
        let permits = self.take_permits(way, stretch).ok_or(Step::Permit(way))?;
        let places = first..first + permits.num_permits();
        let items = self.job.item_ids[places]
            .iter()
            .map(|item| self.prepared.plan(self.job.hold.channel, *item))
            .collect();
        Ok(Some(Ready { way, first, items, permits, made_at: Instant::now() }))
    }

    /// How many items from the first one on stand together and may be sent now. Those in front whose hour it is not are left out.
    fn open_stretch(&mut self, way: Way, most: usize) -> usize {
        let mut openings = Openings::new(self.prepared, way);
        let mut opening =
            |place: usize| openings.opens_at(self.prepared.leads.get(&self.job.item_ids[place]));
        while let Some(place) = self.todo.front().copied()
            && let Some(opens) = opening(place)
        {
            self.todo.pop_front();
            self.opens_at = Some(self.opens_at.map_or(opens, |earliest| earliest.min(opens)));
        }
        let Some(first) = self.todo.front().copied() else { return 0 };
        let mut together =
            |(offset, place): (usize, usize)| place == first + offset && opening(place).is_none();
        self.todo
            .iter()
            .copied()
            .take(most)
            .enumerate()
            .map_while(|next| together(next).then_some(()))
            .count()
    }

    /// Permits for up to `most` calls, or none. A permit is taken before the reservation: what is reserved is about to be
    /// called.
    fn take_permits(&mut self, way: Way, most: usize) -> Option<OwnedSemaphorePermit> {
        let permits = &self.prepared.route(way).gate.permits;
        let mut taken = self.permit.take().filter(|(at, _)| *at == way).map(|(_, permit)| permit);
        let most = most - usize::from(taken.is_some());
        let more = u32::try_from(most.min(permits.available_permits())).unwrap_or(u32::MAX);
        if more > 0
            && let Ok(more) = Arc::clone(permits).try_acquire_many_owned(more)
        {
            match &mut taken {
                Some(taken) => taken.merge(more),
                None => taken = Some(more),
            }
        }
        taken
    }

    /// The part of what is ready that has turns; or asks for some.
    fn begin_what_has_turns(&mut self, way: Way) -> Step {
        let Some(mut ready) = self.ready.take() else { return Step::Nothing };
        let is_free = !self.needs_turns(way);
        let left = if is_free { usize::MAX } else { self.turns_left(way) };
        let part = ready.cut(left);
        if !ready.items.is_empty() {
            self.ready = Some(ready);
        }
        if let Some(part) = part {
            if !is_free && let Some(purse) = &mut self.turns {
                purse.left = purse.left.saturating_sub(part.calls());
            }
            self.todo.drain(..part.items.len());
            return Step::Begin(part);
        }
        let route = self.prepared.route(way);
        let calls = self.ready.as_ref().map_or(1, Ready::calls).max(1);
        // A day's calls are counted exactly; of a rate, the next windows may use the rest.
        let wanted = match route.limits.daily {
            Some(_) => calls.min(route.batch()),
            None => self.todo.len().max(1).min(route.batch()),
        };
        let shared = self.shared;
        self.asking = Some(async move { (way, route.take(shared, wanted).await) }.boxed());
        Step::Nothing
    }

    fn taken(&mut self, way: Way, taken: Taken) {
        self.asking = None;
        match taken {
            Taken::Turns(turns) => self.turns = Some(Purse { way, left: turns, since: Instant::now() }),
            // What stands in the way is at the gate; until then others come first.
            Taken::AskIn(wait) => self.paused_until = Some(Instant::now() + wait),
        }
    }

    /// Hands over what is settled, and the next window if there is one.
    async fn submit(&mut self, ready: Option<Ready>) {
        let (reply, answer) = oneshot::channel();
        let mut reserving = Reserving { way: Way::First, messages: Vec::new(), permits: None, answer };
        let window = ready.map(|ready| {
            reserving.way = ready.way;
            let items = ready.items.into_iter().map(|(item, message)| {
                reserving.messages.push((item.item_id, message));
                item
            });
            let items = items.collect();
            reserving.permits = Some(ready.permits);
            Window::new(self.job.hold, ready.first, items)
        });
        let settlements = std::mem::take(&mut self.settled);
        let submission = Submission { settlements, window, is_withdrawn: false, reply };
        // The committer outlives every job.
        let _ = self.shared.submissions.send(submission).await;
        // Even without a window the answer is waited for: the job ends when everything it knows is written down.
        self.reserving = Some(reserving);
    }

    /// Begins the calls of a window that was reserved.
    fn reserved(&mut self, answer: WindowAnswer) {
        let Some(Reserving { way, messages, mut permits, .. }) = self.reserving.take() else { return };
        let answers = match answer {
            WindowAnswer::Items(answers) => answers,
            WindowAnswer::Paused => {
                self.stop = Some(Stop::Paused);
                return;
            }
            WindowAnswer::Closed => {
                self.stop = Some(Stop::Closed);
                return;
            }
            WindowAnswer::Lost => {
                self.lost.cancel();
                return;
            }
        };
        let mut ours = Vec::new();
        for (reserved, (item, message)) in answers.into_iter().zip(messages) {
            let permit = permits.as_mut().and_then(|permits| permits.split(1));
            match (reserved, message) {
                (Reserved::Yours(reservation), Some(message)) => {
                    ours.push((reservation, Errand { item, message, permit }));
                }
                (Reserved::Yours(reservation), None) => {
                    // The database reserves only what was planned as a call, and those have messages.
                    self.settle_unsent(reservation, "there was no message to send");
                }
                (Reserved::Already(status), _) => {
                    metrics::counter!("postrider_items_passed_over_total", "status" => status.as_str())
                        .increment(1);
                }
            }
        }
        match way {
            Way::First => self.call_all(Way::First, ours),
            Way::Second if ours.is_empty() => {}
            Way::Second => {
                self.moving_items += ours.len();
                self.moving.push(move_window(self.shared, ours).boxed());
            }
        }
    }

    /// Begins the calls of a window that was moved.
    fn moved(&mut self, Moved { items, kept }: Moved) {
        self.moving_items -= items.len() + kept.len();
        for reservation in kept {
            self.settle_unsent(
                reservation,
                "it could not be moved to the other account, and was called nowhere",
            );
        }
        self.call_all(Way::Second, items);
    }

    fn call_all(&mut self, way: Way, items: Vec<(Reservation, Errand)>) {
        for (reservation, errand) in items {
            self.calls.push(call(self.shared, self.prepared, self.job, way, reservation, errand).boxed());
        }
    }

    fn settle_unsent(&mut self, reservation: Reservation, reason: &str) {
        self.settled
            .push(reservation.settle(Outcome::NotSent { reason: reason.to_owned(), retry_after: None }));
    }

    /// Its items were not reserved, and are not called.
    fn reserving_was_withdrawn(&mut self) {
        self.reserving = None;
        self.stop = Some(Stop::Starved);
    }

    fn reserving_was_refused(&mut self) {
        self.reserving = None;
        self.stop = Some(Stop::Refused);
    }

    fn ended(&self) -> Ended {
        let put_off = |wait, why, whole_run| {
            Ended::PutOff(PutOff { wait, why, whole_run }, self.prepared.limits.clone())
        };
        match &self.stop {
            Some(Stop::Refused) => {
                Ended::Failed("the database does not take its items; the log says why".to_owned())
            }
            _ if self.lost.is_cancelled() => Ended::Lost,
            Some(Stop::PutOff(until, why)) => {
                put_off(until.saturating_duration_since(Instant::now()), *why, true)
            }
            Some(Stop::Crowded) => Ended::Crowded,
            Some(Stop::Paused) => Ended::Paused,
            Some(Stop::Starved) => Ended::Starved,
            None if !self.todo.is_empty() && self.shared.writing.is_starved() => Ended::Starved,
            Some(Stop::Closed) => Ended::Closed,
            None if !self.todo.is_empty() => Ended::Interrupted,
            None => match self.opens_at {
                // Other jobs of the run may hold people for whom it is time.
                Some(opens) => put_off(until(opens, Timestamp::now()), Why::Hours, false),
                None => Ended::Done,
            },
        }
    }
}

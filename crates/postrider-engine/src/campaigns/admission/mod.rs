//! Admission: which items of a send job may be reserved now, and at which account.
//!
//! An item is admitted when the window has capacity, an account is available (no open circuit, no requested wait), its sending hours
//! are open, the account has a permit for one more call, and, where the account has a rate or a daily limit, a call token. The
//! failover account is asked where the account itself must wait.

mod account;
mod choice;
mod hours;
mod route;
mod slow;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use postrider_model::{Message, Why};
use postrider_store::campaigns::{limits::PutOff, outbox::PlannedItem, send_jobs::ClaimedJob};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

pub(super) use self::{
    account::AccountState,
    choice::Target,
    hours::Openings,
    route::{NoRoute, Route},
    slow::Bounds,
};
use self::{
    account::Availability,
    choice::{Choice, choose},
    route::{Taken, until},
};
use super::{
    Shared,
    prepare::Prepared,
    send_job::{Ended, Released},
};

/// Call tokens and plans that were not used within this time are given up: the rate, the hour or the account may have changed.
const FRESH: Duration = Duration::from_secs(1);
/// How long a send job waits while another send job makes the probing call of a half-open circuit.
const PROBE_PAUSE: Duration = Duration::from_millis(500);

/// Shortest pause of a send job whose items were put back, so that a provider that names no time is not called in a circle.
const PUT_BACK_PAUSE: Duration = Duration::from_secs(1);

/// The next step of a send job.
pub(super) enum Admitted {
    /// Reserve these items and call them.
    Window(Planned),
    /// Ask again after a call has ended, or after [`Admission::changed`].
    Later,
    /// No further item of this attempt begins.
    Nothing,
}

/// Consecutive items of a send job that have permits.
pub(super) struct Planned {
    pub(super) target: Target,
    /// Place of the first item in the send job.
    pub(super) first: usize,
    pub(super) items: VecDeque<(PlannedItem, Option<Message>)>,
    pub(super) permits: OwnedSemaphorePermit,
    planned_at: Instant,
}

/// Why no further item begins.
pub(super) enum Stop {
    /// The database refuses the items of this send job.
    Refused,
    /// The account must wait until then.
    PutOff(Instant, Why),
    /// The send job is released for others.
    Released(Released),
    /// Another worker holds the send job.
    Lost,
}

/// Admission of one attempt at a send job.
pub(super) struct Admission<'a> {
    shared: &'a Shared,
    job: &'a ClaimedJob,
    prepared: &'a Prepared,
    /// Cancelled when the lock of the send job is lost.
    lost: CancellationToken,
    /// Places of the items that were not begun.
    todo: VecDeque<usize>,
    /// When the first of the items opens that were left out because of sending hours.
    opens_at: Option<Timestamp>,
    /// Items that have permits and wait for call tokens.
    planned: Option<Planned>,
    tokens: Option<Tokens>,
    /// A permit that was waited for, until it is used.
    permit: Option<(Target, OwnedSemaphorePermit)>,
    wait: Wait<'a>,
    stop: Option<Stop>,
}

/// Call tokens that were granted and not used.
struct Tokens {
    target: Target,
    left: usize,
    granted_at: Instant,
}

/// The event that the next admission waits for.
enum Wait<'a> {
    /// For a call in flight.
    Call,
    /// For time to pass; an ended call is a reason to look again.
    Time(Instant),
    /// For time to pass, whatever ends meanwhile: the account has no call tokens.
    Refill(Instant),
    Permit(Target),
    Tokens(BoxFuture<'a, (Target, Taken)>),
}

/// Every permit of the account is in use.
struct NoPermit;

impl<'a> Admission<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        job: &'a ClaimedJob,
        prepared: &'a Prepared,
        lost: CancellationToken,
    ) -> Self {
        let is_new = |place: &usize| !prepared.begun.contains(&job.item_ids[*place]);
        let todo = (0..job.item_ids.len()).filter(is_new).collect();
        Self {
            shared,
            job,
            prepared,
            lost,
            todo,
            opens_at: None,
            planned: None,
            tokens: None,
            permit: None,
            wait: Wait::Call,
            stop: None,
        }
    }

    /// The next step of the send job, which has so many items in flight.
    pub(super) fn next(&mut self, in_flight: usize) -> Admitted {
        if self.todo.is_empty() || self.has_stopped() {
            (self.planned, self.permit, self.wait) = (None, None, Wait::Call);
            return Admitted::Nothing;
        }
        let capacity = self.shared.settings.window.saturating_sub(in_flight);
        let now = Instant::now();
        match self.wait {
            Wait::Tokens(_) => return Admitted::Later,
            Wait::Refill(until) if now < until => return Admitted::Later,
            _ => self.wait = Wait::Call,
        }
        if capacity == 0 {
            return Admitted::Later;
        }
        let failover = self.prepared.failover.is_some();
        let target = match choose(
            self.availability(Target::Account, in_flight),
            failover.then(|| self.availability(Target::Failover, in_flight)),
        ) {
            Choice::Go(target) => target,
            Choice::Pause(wait) => return self.wait_for(Wait::Time(now + wait)),
            Choice::PutOff(wait, why) => return self.stop_with(Stop::PutOff(now + wait, why)),
        };
        // Tokens that the send job has are used: other send jobs would only wait for them again.
        let account = &self.prepared.route(target).state;
        if self.tokens_left(target) == 0 && self.shared.is_crowded(account, self.job.hold) {
            return self.stop_with(Stop::Released(Released::Crowded));
        }
        let is_fresh = |planned: &Planned| planned.target == target && now - planned.planned_at < FRESH;
        if !self.planned.as_ref().is_some_and(is_fresh) {
            self.planned = None;
            let Ok(planned) = self.plan(target, capacity) else {
                return self.wait_for(Wait::Permit(target));
            };
            self.planned = planned;
        }
        self.admit_what_has_tokens(target)
    }

    /// Whether [`Self::changed`] has something to wait for.
    pub(super) fn waits(&self) -> bool {
        !matches!(self.wait, Wait::Call)
    }

    /// Waits for what the last [`Self::next`] named: time, a permit or call tokens; or until the send job must stop. Nothing is lost when
    /// this is dropped.
    pub(super) async fn changed(&mut self) {
        enum Got {
            Time,
            Permit(Target, Option<OwnedSemaphorePermit>),
            Tokens(Target, Taken),
        }
        let Self { shared, prepared, lost, wait, .. } = self;
        let waited_for = async {
            match wait {
                Wait::Call => std::future::pending().await,
                Wait::Time(until) | Wait::Refill(until) => {
                    tokio::time::sleep_until((*until).into()).await;
                    Got::Time
                }
                Wait::Permit(target) => {
                    let permits = Arc::clone(&prepared.route(*target).state.permits);
                    Got::Permit(*target, permits.acquire_owned().await.ok())
                }
                Wait::Tokens(asking) => {
                    let (target, taken) = asking.await;
                    Got::Tokens(target, taken)
                }
            }
        };
        let got = tokio::select! {
            got = waited_for => got,
            () = shared.stopping.cancelled() => return,
            () = lost.cancelled() => return,
            () = shared.writing.until_starved() => return,
        };
        self.wait = Wait::Call;
        match got {
            Got::Time => {}
            // Used by the next plan, with as many others as there are.
            Got::Permit(target, permit) => self.permit = permit.map(|permit| (target, permit)),
            Got::Tokens(target, Taken::Granted(left)) => {
                self.tokens = Some(Tokens { target, left, granted_at: Instant::now() });
            }
            // The account's state has the reason.
            Got::Tokens(_, Taken::AskIn(wait)) => self.wait = Wait::Refill(Instant::now() + wait),
        }
    }

    /// Begins no further item, for this reason.
    pub(super) fn stop(&mut self, stop: Stop) {
        match stop {
            Stop::Lost => self.lost.cancel(),
            stop => self.stop = Some(stop),
        }
    }

    /// How the attempt ended, once nothing is in flight. `has_put_back`: some of its items wait for their account.
    pub(super) fn ended(self, has_put_back: bool) -> Ended {
        let limits = &self.prepared.limits;
        let put_off = |wait, why, whole_run| Ended::PutOff(PutOff { wait, why, whole_run }, limits.clone());
        let is_unfinished = !self.todo.is_empty();
        let availability = self.availability(Target::Account, 0);
        match self.stop {
            Some(Stop::Refused) => {
                Ended::Failed("the database refused its items; the log says why".to_owned())
            }
            _ if self.lost.is_cancelled() => Ended::Lost,
            Some(Stop::Lost) => Ended::Lost,
            Some(Stop::PutOff(until, why)) => {
                put_off(until.saturating_duration_since(Instant::now()), why, true)
            }
            Some(Stop::Released(released)) => Ended::Released(released),
            None if is_unfinished && self.shared.writing.is_starved() => Ended::Released(Released::Starved),
            None if is_unfinished => Ended::Released(Released::Interrupted),
            None if has_put_back => match availability {
                Availability::Wait { wait, why } => put_off(wait.max(PUT_BACK_PAUSE), why, true),
                // The wait is over by now.
                Availability::Clear | Availability::HalfOpen => {
                    put_off(PUT_BACK_PAUSE, Why::RetryAfter, false)
                }
            },
            None => match self.opens_at {
                // Other send jobs of the run may hold people whose hours are open.
                Some(opens) => put_off(until(opens, Timestamp::now()), Why::Hours, false),
                None => Ended::Done,
            },
        }
    }

    fn has_stopped(&self) -> bool {
        self.shared.stopping.is_cancelled()
            || self.lost.is_cancelled()
            || self.stop.is_some()
            || self.shared.writing.is_starved()
    }

    fn wait_for(&mut self, wait: Wait<'a>) -> Admitted {
        if !matches!(wait, Wait::Permit(_)) {
            self.planned = None;
        }
        self.wait = wait;
        Admitted::Later
    }

    fn stop_with(&mut self, stop: Stop) -> Admitted {
        self.planned = None;
        self.stop = Some(stop);
        Admitted::Nothing
    }

    /// The availability of an account for this send job. While its circuit is half open, a send job waits for what it has in flight.
    fn availability(&self, target: Target, in_flight: usize) -> Availability {
        match self.prepared.route(target).availability() {
            Availability::HalfOpen if in_flight > 0 => {
                Availability::Wait { wait: PROBE_PAUSE, why: Why::Circuit }
            }
            // The last tokens of the day belong to this send job, even if other send jobs have learned since that none are left.
            Availability::Wait { why: Why::Daily, .. } if self.tokens_left(target) > 0 => Availability::Clear,
            availability => availability,
        }
    }

    /// Call tokens that were granted and may still be used. Tokens of a daily limit are counted, so they are kept; old tokens of a
    /// rate would come in a burst.
    fn tokens_left(&self, target: Target) -> usize {
        let keeps = self.prepared.route(target).is_exact();
        let is_usable =
            |tokens: &&Tokens| tokens.target == target && (keeps || tokens.granted_at.elapsed() < FRESH);
        self.tokens.as_ref().filter(is_usable).map_or(0, |tokens| tokens.left)
    }

    /// Whether this account grants call tokens.
    fn needs_tokens(&self, target: Target) -> bool {
        let route = self.prepared.route(target);
        route.is_counted() || route.availability() == Availability::HalfOpen
    }

    /// Plans the next items whose hours are open, as many as there are permits for. An error if there is no permit.
    fn plan(&mut self, target: Target, capacity: usize) -> Result<Option<Planned>, NoPermit> {
        let route = self.prepared.route(target);
        let most = match route.availability() {
            Availability::HalfOpen => 1,
            _ => capacity.min(route.batch()),
        };
        let stretch = self.open_stretch(target, most);
        let Some(first) = self.todo.front().copied().filter(|_| stretch > 0) else {
            return Ok(None);
        };
        let permits = self.take_permits(target, stretch).ok_or(NoPermit)?;
        let places = first..first + permits.num_permits();
        let items = self.job.item_ids[places]
            .iter()
            .map(|item| self.prepared.plan(self.job.hold.channel, *item))
            .collect();
        Ok(Some(Planned { target, first, items, permits, planned_at: Instant::now() }))
    }

    /// How many consecutive items from the first one on may be sent now. Items before them whose hours are closed are left out.
    fn open_stretch(&mut self, target: Target, most: usize) -> usize {
        let mut openings = Openings::new(self.prepared, target);
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

    /// Permits for up to `most` calls, or none. A permit is taken before the reservation, so that a reserved item is called at once.
    fn take_permits(&mut self, target: Target, most: usize) -> Option<OwnedSemaphorePermit> {
        let permits = &self.prepared.route(target).state.permits;
        let mut taken = self.permit.take().filter(|(at, _)| *at == target).map(|(_, permit)| permit);
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

    /// Admits the planned items that have call tokens; asks for tokens if none has.
    fn admit_what_has_tokens(&mut self, target: Target) -> Admitted {
        let Some(mut planned) = self.planned.take() else {
            // Every item that is left has closed hours.
            return if self.todo.is_empty() { Admitted::Nothing } else { Admitted::Later };
        };
        let is_free = !self.needs_tokens(target);
        let left = if is_free { usize::MAX } else { self.tokens_left(target) };
        let admitted = planned.take_calls(left);
        let rest = (!planned.items.is_empty()).then_some(planned);
        if let Some(window) = admitted {
            if !is_free && let Some(tokens) = &mut self.tokens {
                tokens.left = tokens.left.saturating_sub(window.calls());
            }
            self.todo.drain(..window.items.len());
            self.planned = rest;
            return Admitted::Window(window);
        }
        let route = self.prepared.route(target);
        let calls = rest.as_ref().map_or(1, Planned::calls).max(1);
        self.planned = rest;
        // Calls of a daily limit are counted exactly; tokens of a rate that are left over are for the next windows.
        let most = if route.is_exact() { calls } else { self.todo.len().max(1) };
        let wanted = most.min(route.batch());
        let shared = self.shared;
        self.wait = Wait::Tokens(async move { (target, route.take_tokens(shared, wanted).await) }.boxed());
        Admitted::Later
    }
}

impl Planned {
    pub(super) fn calls(&self) -> usize {
        self.items.iter().filter(|(_, message)| message.is_some()).count()
    }

    /// Takes the first items that need at most so many call tokens; nothing if there are none.
    fn take_calls(&mut self, tokens: usize) -> Option<Self> {
        let mut calls = 0;
        let fits = |(_, message): &&(PlannedItem, Option<Message>)| {
            calls += usize::from(message.is_some());
            calls <= tokens
        };
        let count = self.items.iter().take_while(fits).count();
        let permits = self.permits.split(count).filter(|_| count > 0)?;
        let rest = self.items.split_off(count);
        let items = std::mem::replace(&mut self.items, rest);
        let part =
            Self { target: self.target, first: self.first, items, permits, planned_at: self.planned_at };
        self.first += count;
        Some(part)
    }
}

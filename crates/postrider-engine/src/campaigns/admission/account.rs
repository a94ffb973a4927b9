//! The state of an account in this process: the send jobs that use it, and why it must wait. The database passes on what other processes
//! have found.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use postrider_model::{
    Outcome, Why,
    ids::{RunId, TenantId},
};
use postrider_store::campaigns::{limits::Known, outbox::JobHold};
use tokio::sync::Semaphore;

use super::slow::Slot;

/// How long an account counts as slow after a send job had to wait for its rate.
const SLOW_FOR: Duration = Duration::from_secs(5);
/// How long an account counts as slow after one of its send jobs was released; and how long a send job keeps its slot while others wait.
const SLOT_SHARE: Duration = Duration::from_secs(30);
/// Longest wait that a provider can ask for.
pub(in crate::campaigns) const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a circuit counts as open that only a new secret closes, until the database names the time.
const OPEN_UNTIL_SECRET: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How long a circuit counts as open until the database names the time.
const OPEN_FOR: Duration = Duration::from_secs(30);

/// The state of an account.
pub(in crate::campaigns) struct AccountState {
    /// Calls that may be made at a time.
    pub(in crate::campaigns) permits: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    hold: Option<Hold>,
    /// The circuit is open until its time, and half open after that; `None` if it is closed.
    circuit: Option<Circuit>,
    /// Failed calls since the last answered one.
    failures: u32,
    slow_until: Option<Instant>,
    /// The send jobs that use it, and since when.
    jobs: Vec<(JobHold, Instant)>,
    runs: HashSet<RunId>,
    tenant: Option<TenantId>,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    until: Instant,
    why: Why,
}

#[derive(Debug, Clone, Copy)]
struct Circuit {
    until: Instant,
    /// When this process learned of it or opened it.
    known_since: Instant,
}

/// Whether calls may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::campaigns) enum Availability {
    /// Calls may be made.
    Clear,
    /// The circuit is half open: the database chooses the send job that makes the probing call.
    HalfOpen,
    /// No call may be made for so long.
    Wait {
        /// How long.
        wait: Duration,
        /// Why.
        why: Why,
    },
}

/// A finding about the account that other processes must learn.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::campaigns) enum AccountSignal {
    /// Too many calls in a row failed, or the probing call did.
    Failing(String),
    /// The provider refuses the account, and perhaps its login.
    Refused {
        /// The provider's reason.
        reason: String,
        /// Whether only a new secret ends this.
        is_login: bool,
    },
    /// The provider answers again.
    Answering,
    /// The provider asks for no calls for so long.
    Waiting(Duration, String),
}

impl AccountState {
    pub(in crate::campaigns) fn new(concurrency: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(concurrency.max(1))), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A send job begins to use the account. It asks the database itself whether calls are left today, because the limits may have changed.
    pub(in crate::campaigns) fn join(&self, hold: JobHold, run: RunId) {
        let mut state = self.state();
        state.hold = state.hold.filter(|hold| !matches!(hold.why, Why::Daily | Why::Rate));
        state.jobs.push((hold, Instant::now()));
        state.tenant = Some(hold.tenant_id);
        state.runs.insert(run);
    }

    /// A send job has ended its use of the account.
    pub(in crate::campaigns) fn leave(&self, hold: JobHold) {
        self.state().jobs.retain(|(joined, _)| *joined != hold);
    }

    /// Whether the state must be kept: a send job uses the account, or it was slow a moment ago.
    pub(in crate::campaigns) fn is_needed(&self, now: Instant) -> bool {
        let state = self.state();
        !state.jobs.is_empty() || state.is_slow(now)
    }

    /// Whether send jobs wait for the rate.
    pub(in crate::campaigns) fn is_slow(&self, now: Instant) -> bool {
        self.state().is_slow(now)
    }

    /// Whether this send job is the one that has used the account longest.
    pub(in crate::campaigns) fn is_first(&self, hold: JobHold) -> bool {
        self.state().jobs.first().is_some_and(|(first, _)| *first == hold)
    }

    /// The send jobs that use it, if it is slow.
    pub(in crate::campaigns) fn slow_slots(&self, now: Instant) -> Vec<Slot> {
        let state = self.state();
        if !state.is_slow(now) {
            return Vec::new();
        }
        let slot = |(rank, (hold, since)): (usize, &(JobHold, Instant))| Slot {
            tenant: hold.tenant_id,
            hold: Some(*hold),
            rank,
            has_had_its_share: now.saturating_duration_since(*since) >= SLOT_SHARE,
            since: *since,
        };
        state.jobs.iter().enumerate().map(slot).collect()
    }

    /// For a slow account: its runs with their tenant, and the slot that another send job would have.
    pub(in crate::campaigns) fn slow_runs(&self, now: Instant) -> Option<(Vec<(TenantId, RunId)>, Slot)> {
        let state = self.state();
        let tenant = state.tenant.filter(|_| state.is_slow(now))?;
        let next = Slot { tenant, hold: None, rank: state.jobs.len(), has_had_its_share: false, since: now };
        Some((state.runs.iter().map(|run| (tenant, *run)).collect(), next))
    }

    /// A send job waits for the rate.
    pub(in crate::campaigns) fn note_slow(&self, now: Instant) {
        self.state().slow_for(now, SLOW_FOR);
    }

    /// A send job is released because slow accounts use all the slots that they may use.
    pub(in crate::campaigns) fn note_release(&self, now: Instant) {
        self.state().slow_for(now, SLOT_SHARE);
    }

    /// No call is made for so long.
    pub(in crate::campaigns) fn hold(&self, now: Instant, wait: Duration, why: Why) {
        let mut state = self.state();
        let until = now + wait;
        if state.hold.is_none_or(|hold| hold.until < until) {
            state.hold = Some(Hold { until, why });
        }
    }

    /// The circuit is open for so long; zero means half open.
    pub(in crate::campaigns) fn open_for(&self, now: Instant, open: Duration) {
        self.state().circuit = Some(Circuit { until: now + open, known_since: now });
    }

    pub(in crate::campaigns) fn availability(&self, now: Instant) -> Availability {
        let state = self.state();
        let mut wait: Option<(Instant, Why)> =
            state.hold.filter(|hold| hold.until > now).map(|hold| (hold.until, hold.why));
        if let Some(circuit) = state.circuit.filter(|circuit| circuit.until > now)
            && wait.is_none_or(|(until, _)| until < circuit.until)
        {
            wait = Some((circuit.until, Why::Circuit));
        }
        match wait {
            Some((until, why)) => Availability::Wait { wait: until - now, why },
            None if state.circuit.is_some() => Availability::HalfOpen,
            None => Availability::Clear,
        }
    }

    /// Takes over what the database knows from all processes.
    pub(in crate::campaigns) fn learn(&self, now: Instant, known: Known) {
        if let Some(wait) = known.wait {
            self.hold(now, wait.min(RETRY_AFTER_MAX), Why::RetryAfter);
        }
        let mut state = self.state();
        match known.circuit {
            Some(open) => {
                let known_since = state.circuit.map_or(now, |circuit| circuit.known_since);
                state.circuit = Some(Circuit { until: now + open, known_since });
            }
            // The database may not have the circuit that this process opened a moment ago.
            None => {
                let is_new = |circuit: &Circuit| now - circuit.known_since < Duration::from_secs(2);
                state.circuit = state.circuit.filter(is_new);
            }
        }
    }

    /// Records the outcome of a call. `circuit_after` failures in a row open the circuit. Returns what other processes must learn.
    pub(in crate::campaigns) fn note(
        &self,
        now: Instant,
        outcome: &Outcome,
        circuit_after: u32,
    ) -> Option<AccountSignal> {
        let mut state = self.state();
        match outcome {
            Outcome::Delivered { .. } | Outcome::Rejected { .. } => {
                state.answered().then_some(AccountSignal::Answering)
            }
            Outcome::NotSent { retry_after: Some(wait), reason } => {
                let wait = (*wait).min(RETRY_AFTER_MAX);
                let until = now + wait;
                let is_new = state.hold.is_none_or(|hold| hold.until + Duration::from_secs(1) < until);
                if is_new {
                    state.hold = Some(Hold { until, why: Why::RetryAfter });
                }
                // A provider that asks to wait has answered.
                let answers = state.answered().then_some(AccountSignal::Answering);
                is_new.then(|| AccountSignal::Waiting(wait, reason.clone())).or(answers)
            }
            Outcome::AccountRefused { reason, is_login } => {
                let open = if *is_login { OPEN_UNTIL_SECRET } else { OPEN_FOR };
                let is_new = state.circuit.is_none_or(|circuit| {
                    circuit.until <= now || *is_login && circuit.until < now + OPEN_UNTIL_SECRET / 2
                });
                is_new.then(|| {
                    state.circuit = Some(Circuit { until: now + open, known_since: now });
                    AccountSignal::Refused { reason: reason.clone(), is_login: *is_login }
                })
            }
            Outcome::NotSent { retry_after: None, reason } | Outcome::Unknown { reason } => {
                state.failures = state.failures.saturating_add(1);
                let is_new = match state.circuit {
                    None => state.failures >= circuit_after.max(1),
                    // The probing call, or an older call that took long.
                    Some(circuit) => circuit.until <= now,
                };
                is_new.then(|| {
                    state.circuit = Some(Circuit { until: now + OPEN_FOR, known_since: now });
                    AccountSignal::Failing(reason.clone())
                })
            }
        }
    }
}

impl State {
    fn is_slow(&self, now: Instant) -> bool {
        self.slow_until.is_some_and(|until| now < until)
    }

    fn slow_for(&mut self, now: Instant, long: Duration) {
        self.slow_until = self.slow_until.max(Some(now + long));
    }

    /// Closes the circuit. Returns whether it was open or half open.
    fn answered(&mut self) -> bool {
        self.failures = 0;
        self.circuit.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered() -> Outcome {
        Outcome::Delivered { message_id: "m".to_owned() }
    }

    fn rejected() -> Outcome {
        Outcome::Rejected { reason: "no".to_owned() }
    }

    fn unknown() -> Outcome {
        Outcome::Unknown { reason: "silence".to_owned() }
    }

    fn not_sent(retry_after: Option<u64>) -> Outcome {
        Outcome::NotSent { reason: "away".to_owned(), retry_after: retry_after.map(Duration::from_secs) }
    }

    #[test]
    fn the_circuit_opens_after_failures_in_a_row_that_are_the_providers() {
        #[rustfmt::skip]
        let table: [(&str, Vec<Outcome>, bool); 7] = [
            ("too few",                        vec![unknown(), unknown()], false),
            ("enough",                         vec![unknown(), unknown(), unknown()], true),
            ("of both kinds",                  vec![unknown(), not_sent(None), unknown()], true),
            ("an answer in between",           vec![unknown(), unknown(), delivered(), unknown()], false),
            ("a refusal is an answer",         vec![unknown(), unknown(), rejected(), unknown()], false),
            ("refusals alone",                 vec![rejected(), rejected(), rejected(), rejected()], false),
            ("asked to wait",                  vec![not_sent(Some(1)), not_sent(Some(1)), not_sent(Some(1))], false),
        ];
        for (case, outcomes, opens) in table {
            let (account, now) = (AccountState::new(1), Instant::now());
            let fails = outcomes
                .iter()
                .any(|outcome| matches!(account.note(now, outcome, 3), Some(AccountSignal::Failing(_))));
            assert_eq!(fails, opens, "{case}");
        }
    }

    #[test]
    fn an_open_circuit_is_reported_once_is_half_open_after_its_time_and_closes_with_an_answer() {
        let (account, now) = (AccountState::new(1), Instant::now());
        assert_eq!(account.note(now, &unknown(), 1), Some(AccountSignal::Failing("silence".to_owned())));
        assert_eq!(account.note(now, &unknown(), 1), None, "it is open already");
        assert_eq!(account.availability(now), Availability::Wait { wait: OPEN_FOR, why: Why::Circuit });
        let later = now + OPEN_FOR;
        assert_eq!(account.availability(later), Availability::HalfOpen);
        assert_eq!(
            account.note(later, &unknown(), 99),
            Some(AccountSignal::Failing("silence".to_owned())),
            "the probe failed"
        );
        let later = later + OPEN_FOR;
        assert_eq!(account.note(later, &delivered(), 1), Some(AccountSignal::Answering));
        assert_eq!(account.availability(later), Availability::Clear);
        assert_eq!(account.note(later, &delivered(), 1), None);
    }

    #[test]
    fn a_refused_account_opens_the_circuit_at_once_and_a_refused_login_until_there_is_another_secret() {
        let refused = |is_login| Outcome::AccountRefused { reason: "who?".to_owned(), is_login };
        let signal = |is_login| Some(AccountSignal::Refused { reason: "who?".to_owned(), is_login });
        let (account, now) = (AccountState::new(1), Instant::now());
        assert_eq!(account.note(now, &refused(false), 99), signal(false));
        assert_eq!(account.note(now, &refused(false), 99), None, "it is open already");
        assert_eq!(account.availability(now), Availability::Wait { wait: OPEN_FOR, why: Why::Circuit });
        assert_eq!(account.note(now, &refused(true), 99), signal(true), "which is worse");
        assert_eq!(account.note(now, &refused(true), 99), None);
        let day = Duration::from_secs(24 * 60 * 60);
        assert!(matches!(account.availability(now + day), Availability::Wait { why: Why::Circuit, .. }));
    }

    #[test]
    fn a_requested_wait_is_followed_for_up_to_a_day_and_reported_once() {
        let (account, now) = (AccountState::new(1), Instant::now());
        assert!(
            matches!(account.note(now, &not_sent(Some(30)), 1), Some(AccountSignal::Waiting(wait, _)) if wait.as_secs() == 30)
        );
        assert_eq!(account.note(now, &not_sent(Some(30)), 1), None);
        assert_eq!(
            account.availability(now),
            Availability::Wait { wait: Duration::from_secs(30), why: Why::RetryAfter }
        );
        assert_eq!(account.availability(now + Duration::from_secs(30)), Availability::Clear);
        account.note(now, &not_sent(Some(100_000)), 1);
        assert_eq!(
            account.availability(now),
            Availability::Wait { wait: RETRY_AFTER_MAX, why: Why::RetryAfter }
        );
    }

    #[test]
    fn the_state_of_other_processes_counts_but_does_not_undo_a_newer_finding() {
        let (account, now) = (AccountState::new(1), Instant::now());
        let ten = Some(Duration::from_secs(10));
        account.learn(now, Known { wait: None, circuit: ten });
        assert_eq!(
            account.availability(now),
            Availability::Wait { wait: Duration::from_secs(10), why: Why::Circuit }
        );
        account.learn(now, Known { wait: None, circuit: Some(Duration::ZERO) });
        assert_eq!(account.availability(now), Availability::HalfOpen);
        account.learn(now, Known::default());
        assert_eq!(account.availability(now), Availability::HalfOpen);
        account.learn(now + Duration::from_secs(3), Known { wait: ten, circuit: None });
        let wait = account.availability(now + Duration::from_secs(3));
        assert_eq!(wait, Availability::Wait { wait: Duration::from_secs(10), why: Why::RetryAfter });
    }
}

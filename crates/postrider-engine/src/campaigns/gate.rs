//! What this process knows about an account: which jobs use it, and what holds it back. What others have found out comes through
//! the database.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use postrider_model::{
    Outcome, Why,
    ids::{RunId, TenantId},
};
use postrider_store::{limits::Known, outbox::JobHold};
use tokio::sync::Semaphore;

use super::slow::Place;

/// How long an account counts as slow after somebody had to wait for its rate.
const SLOW_FOR: Duration = Duration::from_secs(5);
/// How long a slow account stays away after one of its jobs was handed back; and how long a job has its place, if others wait.
const TURN_AWAY_FOR: Duration = Duration::from_secs(30);
/// Longest time that a provider's wish to be left alone is followed.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);
/// How long a circuit is open until the database says so.
const OPEN_FOR: Duration = Duration::from_secs(30);

/// The gate of an account.
pub(super) struct Gate {
    /// Calls that may be made at a time.
    pub(super) permits: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: Option<Hold>,
    /// Until then the circuit is open, and half open after that. `None`: it is closed.
    circuit: Option<Circuit>,
    /// Failures since the last answer.
    failures: u32,
    slow_until: Option<Instant>,
    /// Who uses it, and since when.
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
    /// When this process heard of it or opened it.
    known_since: Instant,
}

/// What is to be seen at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing holds the account back.
    Clear,
    /// The circuit is half open: the database knows who may find out.
    HalfOpen,
    /// Not before so long.
    Wait {
        /// How long.
        wait: Duration,
        /// Why.
        why: Why,
    },
}

/// What others must hear about a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Too many calls in a row failed, or the one that was to find out.
    Fails(String),
    /// The provider answers again.
    Answers,
    /// The provider asks to be left alone.
    Holds(Duration, String),
}

impl Gate {
    pub(super) fn new(concurrency: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(concurrency.max(1))), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job begins to use the account. It asks for itself whether there are calls left for today: the limits may have changed.
    pub(super) fn join(&self, hold: JobHold, run: RunId) {
        let mut state = self.state();
        state.held = state.held.filter(|held| held.why != Why::Daily);
        state.jobs.push((hold, Instant::now()));
        state.tenant = Some(hold.tenant_id);
        state.runs.insert(run);
    }

    /// A job does not use it any more.
    pub(super) fn leave(&self, hold: JobHold) {
        self.state().jobs.retain(|(joined, _)| *joined != hold);
    }

    /// Whether it must be remembered: somebody uses it, or it was slow a moment ago.
    pub(super) fn is_needed(&self, now: Instant) -> bool {
        let state = self.state();
        !state.jobs.is_empty() || state.is_slow(now)
    }

    /// Whether somebody waits for the rate.
    pub(super) fn is_slow(&self, now: Instant) -> bool {
        self.state().is_slow(now)
    }

    /// Whether no other job came before this one.
    pub(super) fn is_first(&self, hold: JobHold) -> bool {
        self.state().jobs.first().is_some_and(|(first, _)| *first == hold)
    }

    /// The jobs that use it, if it is slow.
    pub(super) fn slow_places(&self, now: Instant) -> Vec<Place> {
        let state = self.state();
        if !state.is_slow(now) {
            return Vec::new();
        }
        let place = |(rank, (hold, since)): (usize, &(JobHold, Instant))| Place {
            tenant: hold.tenant_id,
            hold: Some(*hold),
            rank,
            has_had_its_time: now.saturating_duration_since(*since) >= TURN_AWAY_FOR,
            since: *since,
        };
        state.jobs.iter().enumerate().map(place).collect()
    }

    /// If it is slow, its runs with their tenant, and the place that another job would have.
    pub(super) fn slow_runs(&self, now: Instant) -> Option<(Vec<(TenantId, RunId)>, Place)> {
        let state = self.state();
        let tenant = state.tenant.filter(|_| state.is_slow(now))?;
        let next = Place { tenant, hold: None, rank: state.jobs.len(), has_had_its_time: false, since: now };
        Some((state.runs.iter().map(|run| (tenant, *run)).collect(), next))
    }

    /// Somebody waits for the rate.
    pub(super) fn note_slow(&self, now: Instant) {
        self.state().slow_for(now, SLOW_FOR);
    }

    /// A job is handed back because slow accounts have all the places that they may have.
    pub(super) fn turn_away(&self, now: Instant) {
        self.state().slow_for(now, TURN_AWAY_FOR);
    }

    /// The account is left alone for so long.
    pub(super) fn hold(&self, now: Instant, wait: Duration, why: Why) {
        let mut state = self.state();
        let until = now + wait;
        if state.held.is_none_or(|held| held.until < until) {
            state.held = Some(Hold { until, why });
        }
    }

    /// The circuit is open for so long; zero is half open.
    pub(super) fn open_for(&self, now: Instant, open: Duration) {
        self.state().circuit = Some(Circuit { until: now + open, known_since: now });
    }

    pub(super) fn look(&self, now: Instant) -> Look {
        let state = self.state();
        let mut wait: Option<(Instant, Why)> =
            state.held.filter(|held| held.until > now).map(|held| (held.until, held.why));
        if let Some(circuit) = state.circuit.filter(|circuit| circuit.until > now)
            && wait.is_none_or(|(until, _)| until < circuit.until)
        {
            wait = Some((circuit.until, Why::Circuit));
        }
        match wait {
            Some((until, why)) => Look::Wait { wait: until - now, why },
            None if state.circuit.is_some() => Look::HalfOpen,
            None => Look::Clear,
        }
    }

    /// Takes over what all processes know.
    pub(super) fn learn(&self, now: Instant, known: Known) {
        if let Some(wait) = known.wait {
            self.hold(now, wait.min(RETRY_AFTER_MAX), Why::RetryAfter);
        }
        let mut state = self.state();
        match known.circuit {
            Some(open) => {
                let known_since = state.circuit.map_or(now, |circuit| circuit.known_since);
                state.circuit = Some(Circuit { until: now + open, known_since });
            }
            // What this process has found out just now, the others may not have been told yet.
            None => {
                let is_new = |circuit: &Circuit| now - circuit.known_since < Duration::from_secs(2);
                state.circuit = state.circuit.filter(is_new);
            }
        }
    }

    /// What follows from a call for the account. `circuit_after` failures in a row open the circuit.
    pub(super) fn note(&self, now: Instant, outcome: &Outcome, circuit_after: u32) -> Option<News> {
        let mut state = self.state();
        match outcome {
            Outcome::Delivered { .. } | Outcome::Rejected { .. } => state.answered().then_some(News::Answers),
            Outcome::NotSent { retry_after: Some(wait), reason } => {
                let wait = (*wait).min(RETRY_AFTER_MAX);
                let until = now + wait;
                let is_news = state.held.is_none_or(|held| held.until + Duration::from_secs(1) < until);
                if is_news {
                    state.held = Some(Hold { until, why: Why::RetryAfter });
                }
                // Who asks for patience is there.
                let answers = state.answered().then_some(News::Answers);
                is_news.then(|| News::Holds(wait, reason.clone())).or(answers)
            }
            Outcome::NotSent { retry_after: None, reason } | Outcome::Unknown { reason } => {
                state.failures = state.failures.saturating_add(1);
                let is_news = match state.circuit {
                    None => state.failures >= circuit_after.max(1),
                    // The one that was to find out, or one of before that took its time.
                    Some(circuit) => circuit.until <= now,
                };
                is_news.then(|| {
                    state.circuit = Some(Circuit { until: now + OPEN_FOR, known_since: now });
                    News::Fails(reason.clone())
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

    /// Whether the circuit was not closed before.
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
    fn the_circuit_opens_on_failures_in_a_row_that_say_something_about_the_provider() {
        #[rustfmt::skip]
        let table: [(&str, Vec<Outcome>, bool); 7] = [
            ("too few",                        vec![unknown(), unknown()], false),
            ("enough",                         vec![unknown(), unknown(), unknown()], true),
            ("of both kinds",                  vec![unknown(), not_sent(None), unknown()], true),
            ("an answer in between",           vec![unknown(), unknown(), delivered(), unknown()], false),
            ("a refusal is an answer",         vec![unknown(), unknown(), rejected(), unknown()], false),
            ("refusals alone",                 vec![rejected(), rejected(), rejected(), rejected()], false),
            ("asked for patience",             vec![not_sent(Some(1)), not_sent(Some(1)), not_sent(Some(1))], false),
        ];
        for (case, outcomes, opens) in table {
            let (gate, now) = (Gate::new(1), Instant::now());
            let fails =
                outcomes.iter().any(|outcome| matches!(gate.note(now, outcome, 3), Some(News::Fails(_))));
            assert_eq!(fails, opens, "{case}");
        }
    }

    #[test]
    fn an_open_circuit_is_told_of_once_is_half_open_after_its_time_and_closes_with_an_answer() {
        let (gate, now) = (Gate::new(1), Instant::now());
        assert_eq!(gate.note(now, &unknown(), 1), Some(News::Fails("silence".to_owned())));
        assert_eq!(gate.note(now, &unknown(), 1), None, "it is open already");
        assert_eq!(gate.look(now), Look::Wait { wait: OPEN_FOR, why: Why::Circuit });
        let later = now + OPEN_FOR;
        assert_eq!(gate.look(later), Look::HalfOpen);
        assert_eq!(
            gate.note(later, &unknown(), 99),
            Some(News::Fails("silence".to_owned())),
            "the probe failed"
        );
        let later = later + OPEN_FOR;
        assert_eq!(gate.note(later, &delivered(), 1), Some(News::Answers));
        assert_eq!(gate.look(later), Look::Clear);
        assert_eq!(gate.note(later, &delivered(), 1), None);
    }

    #[test]
    fn a_provider_that_asks_for_patience_gets_it_up_to_an_hour_and_everybody_is_told_once() {
        let (gate, now) = (Gate::new(1), Instant::now());
        assert!(
            matches!(gate.note(now, &not_sent(Some(30)), 1), Some(News::Holds(wait, _)) if wait.as_secs() == 30)
        );
        assert_eq!(gate.note(now, &not_sent(Some(30)), 1), None);
        assert_eq!(gate.look(now), Look::Wait { wait: Duration::from_secs(30), why: Why::RetryAfter });
        assert_eq!(gate.look(now + Duration::from_secs(30)), Look::Clear);
        gate.note(now, &not_sent(Some(100_000)), 1);
        assert_eq!(gate.look(now), Look::Wait { wait: RETRY_AFTER_MAX, why: Why::RetryAfter });
    }

    #[test]
    fn what_others_know_counts_here_too_but_does_not_undo_what_was_found_a_moment_ago() {
        let (gate, now) = (Gate::new(1), Instant::now());
        let ten = Some(Duration::from_secs(10));
        gate.learn(now, Known { wait: None, circuit: ten });
        assert_eq!(gate.look(now), Look::Wait { wait: Duration::from_secs(10), why: Why::Circuit });
        gate.learn(now, Known { wait: None, circuit: Some(Duration::ZERO) });
        assert_eq!(gate.look(now), Look::HalfOpen);
        gate.learn(now, Known::default());
        assert_eq!(gate.look(now), Look::HalfOpen);
        gate.learn(now + Duration::from_secs(3), Known { wait: ten, circuit: None });
        let wait = gate.look(now + Duration::from_secs(3));
        assert_eq!(wait, Look::Wait { wait: Duration::from_secs(10), why: Why::RetryAfter });
    }
}

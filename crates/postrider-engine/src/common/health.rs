//! The health of the loops of a process, for `/readyz`.
//!
//! Each loop reports its passes. A role cannot work when one of its loops is blocked, when the passes of the loop have failed for some
//! seconds, or when the loop has made no pass for minutes.

use std::{
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Failing passes are reported as a problem after this time, so that a single failure is not.
const FAILING_AFTER: Duration = Duration::from_secs(5);
/// A loop without a pass is reported as a problem after this time. Longer than any poll interval, delivery or statement.
const STALLED_AFTER: Duration = Duration::from_secs(300);

/// The health of one loop. Clones share the state.
#[derive(Debug, Clone)]
pub struct Health {
    role: &'static str,
    /// Whether the loop makes passes even when there is no work.
    polls: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    passed_at: Instant,
    failing: Option<(Instant, String)>,
    blocked: Option<String>,
}

impl Health {
    /// The health of a loop of this role that has just started.
    #[must_use]
    pub fn new(role: &'static str) -> Self {
        let state = State { passed_at: Instant::now(), failing: None, blocked: None };
        Self { role, polls: true, state: Arc::new(Mutex::new(state)) }
    }

    /// The health of a loop that makes passes only when there is work.
    #[must_use]
    pub fn of_events(role: &'static str) -> Self {
        Self { polls: false, ..Self::new(role) }
    }

    /// Reports that the loop made a pass: it queried for work and did the work that it found.
    pub fn passed(&self) {
        let mut state = self.state();
        state.passed_at = Instant::now();
        state.failing = None;
    }

    /// Reports that a pass failed.
    pub fn failed(&self, why: &dyn Display) {
        let mut state = self.state();
        let since = state.failing.take().map_or_else(Instant::now, |(since, _)| since);
        state.failing = Some((since, why.to_string()));
    }

    /// Reports that the loop cannot work, and why.
    pub fn block(&self, why: String) {
        self.state().blocked = Some(why);
    }

    /// Reports that the loop can work again.
    pub fn unblock(&self) {
        self.state().blocked = None;
    }

    /// The reason why the role cannot work, in one sentence that begins with the role's name. `None` when it can.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let state = self.state();
        let why = match (&state.blocked, &state.failing) {
            (Some(why), _) => why.clone(),
            (None, Some((since, why))) if since.elapsed() >= FAILING_AFTER => {
                format!("every pass has failed for {} s: {why}", since.elapsed().as_secs())
            }
            (None, None) if self.polls && state.passed_at.elapsed() >= STALLED_AFTER => {
                format!("no pass for {} s", state.passed_at.elapsed().as_secs())
            }
            _ => return None,
        };
        Some(format!("{} cannot work: {why}", self.role))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(health: &Health, by: Duration) {
        let mut state = health.state();
        state.passed_at -= by;
        if let Some((since, _)) = &mut state.failing {
            *since -= by;
        }
    }

    #[test]
    fn a_role_cannot_work_while_it_is_blocked_fails_for_seconds_or_makes_no_pass() {
        let health = Health::new("relay");
        assert_eq!(health.problem(), None);
        health.block("other sinks are registered".to_owned());
        assert_eq!(health.problem().unwrap(), "relay cannot work: other sinks are registered");
        health.unblock();

        health.failed(&"no connection");
        assert_eq!(health.problem(), None, "one failure is no problem");
        later(&health, FAILING_AFTER);
        health.failed(&"still none");
        assert_eq!(health.problem().unwrap(), "relay cannot work: every pass has failed for 5 s: still none");
        health.passed();
        assert_eq!(health.problem(), None);

        later(&health, STALLED_AFTER);
        assert_eq!(health.problem().unwrap(), "relay cannot work: no pass for 300 s");
        health.passed();
        assert_eq!(health.problem(), None);
    }
}

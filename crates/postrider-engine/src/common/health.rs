//! The health of the loops of a process, for `/readyz`.
//!
//! Each loop reports its passes. A role cannot work when a loop reports that it is blocked, when its passes have failed for some seconds,
//! or when it has made none for minutes.

use std::{
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Failing passes count as a problem after this long: one failure is soon repeated.
const FAILING_AFTER: Duration = Duration::from_secs(5);
/// A loop without a pass counts as a problem after this long. Longer than any poll interval, delivery or statement of ours.
const STALLED_AFTER: Duration = Duration::from_secs(300);

/// The health of one loop. Its clones are the same.
#[derive(Debug, Clone)]
pub struct Health {
    role: &'static str,
    /// Whether the loop makes passes even when there is nothing to do.
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
    /// A loop of this role, which has just started.
    #[must_use]
    pub fn new(role: &'static str) -> Self {
        let state = State { passed_at: Instant::now(), failing: None, blocked: None };
        Self { role, polls: true, state: Arc::new(Mutex::new(state)) }
    }

    /// The same for a loop that does nothing while it has nothing to do.
    #[must_use]
    pub fn of_events(role: &'static str) -> Self {
        Self { polls: false, ..Self::new(role) }
    }

    /// Reports that the loop made a pass: it asked for work, and did what it found.
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

    /// Why the role cannot work, in one sentence that begins with its name. `None` when it can.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let state = self.state();
        let why = match (&state.blocked, &state.failing) {
            (Some(why), _) => why.clone(),
            (None, Some((since, why))) if since.elapsed() >= FAILING_AFTER => {
                format!("it has failed for {} s: {why}", since.elapsed().as_secs())
            }
            (None, None) if self.polls && state.passed_at.elapsed() >= STALLED_AFTER => {
                format!("it has done nothing for {} s", state.passed_at.elapsed().as_secs())
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
    fn a_role_cannot_work_while_it_is_blocked_fails_for_seconds_or_stands_still() {
        let health = Health::new("relay");
        assert_eq!(health.problem(), None);
        health.block("other sinks are registered".to_owned());
        assert_eq!(health.problem().unwrap(), "relay cannot work: other sinks are registered");
        health.unblock();

        health.failed(&"no connection");
        assert_eq!(health.problem(), None, "one failure is no problem");
        later(&health, FAILING_AFTER);
        health.failed(&"still none");
        assert_eq!(health.problem().unwrap(), "relay cannot work: it has failed for 5 s: still none");
        health.passed();
        assert_eq!(health.problem(), None);

        later(&health, STALLED_AFTER);
        assert_eq!(health.problem().unwrap(), "relay cannot work: it has done nothing for 300 s");
        health.passed();
        assert_eq!(health.problem(), None);
    }
}

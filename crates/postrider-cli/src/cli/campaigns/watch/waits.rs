//! Reasons why a phase makes no progress, and until when.

use jiff::Timestamp;
use postrider_model::campaigns::PhaseStatus;
use postrider_store::campaigns::RunState;

use crate::cli::output;

/// A clause, such as `3 send jobs wait until 2026-03-01 08:00:00Z: the current time is outside the sending hours`. `None` when the run does not wait.
pub fn of_run(state: &RunState) -> Option<String> {
    if state.run.status.is_terminal() {
        return None;
    }
    match &state.waiting {
        Some(waiting) => Some(for_account(waiting.jobs, waiting.why.sentence(), waiting.until)),
        None => for_schedule(state.run.scheduled_for),
    }
}

/// The clause for send jobs that wait for a limit of their account.
pub fn for_account(jobs: i64, why: &str, until: Timestamp) -> String {
    let jobs = if jobs == 1 { "1 send job waits".to_owned() } else { format!("{jobs} send jobs wait") };
    format!("{jobs} until {}: {why}", output::time(until))
}

/// The clause for a scheduled time in the future.
pub fn for_schedule(scheduled_for: Option<Timestamp>) -> Option<String> {
    let at = scheduled_for.filter(|at| *at > Timestamp::now())?;
    Some(format!("the phase begins at {}, as scheduled", output::time(at)))
}

/// The clause for a phase: a paused phase waits for a person, also when its run waits for something else.
pub fn of_phase(status: PhaseStatus, of_run: Option<String>) -> Option<String> {
    match status {
        PhaseStatus::Paused => Some("`postrider campaign resume` continues it".to_owned()),
        PhaseStatus::InProgress => of_run,
        _ => None,
    }
}

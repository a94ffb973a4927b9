//! Properties that must hold in every state, and states that must be reachable.

use stateright::{Model, Property};

use crate::protocol::Protocol;
use crate::state::{Evidence, JobStatus, Outcome, Row, RowStatus, State, Step};

pub const ONE_ACT: &str = "the provider acts at most once for a key";
pub const SENT_HAS_AN_ACT: &str = "a sent row has an act";
pub const FAILED_HAS_NONE: &str = "a failed row has no act";
pub const TERMINAL_STAYS: &str = "a terminal row never changes";
pub const NOTHING_LOST: &str =
    "every item has a row that a worker or the resolver will settle, or a job that will make one";
pub const DEAD_HAS_A_REASON: &str = "the job is dead only if an item failed or was in doubt";
pub const ALL_SETTLED: &str = "when no step is possible, the job has ended and its rows are terminal";

pub fn all() -> Vec<Property<Protocol>> {
    let mut all = vec![
        Property::always(ONE_ACT, |_, s: &State| s.acts.iter().all(|&acts| acts <= 1)),
        Property::always(SENT_HAS_AN_ACT, |_, s: &State| {
            rows_and_acts(s).all(|(row, acts)| row.status != RowStatus::Sent || acts > 0)
        }),
        Property::always(FAILED_HAS_NONE, |_, s: &State| {
            rows_and_acts(s).all(|(row, acts)| row.status != RowStatus::Failed || acts == 0)
        }),
        Property::always(TERMINAL_STAYS, |_, s: &State| !s.terminal_row_changed),
        Property::always(NOTHING_LOST, |_, s: &State| {
            (0..s.rows.len()).all(|item| is_accounted_for(s, item))
        }),
        Property::always(DEAD_HAS_A_REASON, |_, s: &State| {
            s.job.status != JobStatus::Dead
                || s.rows
                    .iter()
                    .any(|row| row.as_ref().is_none_or(|row| row.status == RowStatus::Failed || row.in_doubt))
        }),
        Property::always(ALL_SETTLED, |protocol: &Protocol, s: &State| {
            let is_terminal = |row: &Option<Row>| row.as_ref().is_some_and(|row| row.status.is_terminal());
            (!is_open(s) && s.rows.iter().all(is_terminal)) || can_go_on(protocol, s)
        }),
    ];
    all.extend(reachable_states());
    all
}

/// Without these, a protocol without any step would pass.
fn reachable_states() -> Vec<Property<Protocol>> {
    vec![
        Property::sometimes("the provider's answer settles a row as sent", |_, s: &State| {
            has_row(s, |row| row.evidence == Some(Evidence::Call(Outcome::Delivered)) && !row.in_doubt)
        }),
        Property::sometimes("the provider's refusal settles a row as failed", |_, s: &State| {
            has_row(s, |row| row.evidence == Some(Evidence::Call(Outcome::Rejected)))
        }),
        Property::sometimes("a row fails because the provider was never reached", |_, s: &State| {
            has_row(s, |row| row.evidence == Some(Evidence::Call(Outcome::NotSent)) && !row.quiet)
        }),
        Property::sometimes("a row is in doubt and the provider has acted", |_, s: &State| {
            rows_and_acts(s).any(|(row, acts)| row.status == RowStatus::Queued && row.in_doubt && acts > 0)
        }),
        Property::sometimes("a row is in doubt and the provider has not acted", |_, s: &State| {
            rows_and_acts(s).any(|(row, acts)| row.status == RowStatus::Queued && row.in_doubt && acts == 0)
        }),
        // A call that ended without an answer gets none later, so these were in doubt because of a takeover.
        Property::sometimes("a late answer settles a row that was taken over as sent", |_, s: &State| {
            has_row(s, |row| row.evidence == Some(Evidence::Call(Outcome::Delivered)) && row.in_doubt)
        }),
        Property::sometimes("a late refusal settles a row that was taken over as failed", |_, s: &State| {
            has_row(s, |row| row.evidence == Some(Evidence::Call(Outcome::Rejected)) && row.in_doubt)
        }),
        Property::sometimes("a receipt resolves a row as sent", |_, s: &State| {
            has_row(s, |row| row.evidence == Some(Evidence::Receipt) && row.in_doubt)
        }),
        Property::sometimes("a lookup that finds nothing resolves a row as failed", |_, s: &State| {
            has_row(s, |row| row.evidence == Some(Evidence::NotFound))
        }),
        Property::sometimes("a second worker completes the job that a first one began", |_, s: &State| {
            s.job.status == JobStatus::Completed
                && has_row(s, |row| {
                    row.reserved_by.is_some_and(|first| Some(first.worker) != s.job.lease.map(|l| l.worker))
                })
        }),
        Property::sometimes("a second worker does all of the job", |_, s: &State| {
            s.job.status == JobStatus::Completed
                && s.job.attempts > 1
                && s.rows.iter().flatten().all(|row| row.reserved_by == s.job.lease)
        }),
        Property::sometimes("a job dies before its item was reserved", |_, s: &State| {
            has_row(s, |row| row.evidence == Some(Evidence::NeverReserved))
        }),
    ]
}

/// A `queued` row will be settled if its job is open, if a worker holds its reservation, or if it is in doubt. An item
/// without a row depends on its job.
fn is_accounted_for(s: &State, item: usize) -> bool {
    let Some(row) = &s.rows[item] else { return is_open(s) };
    let is_held = s.workers.iter().filter_map(|worker| worker.task.as_ref()).any(|task| {
        Some(task.lease) == row.reserved_by
            && matches!(task.steps[item], Step::Reserved { .. } | Step::Calling { .. } | Step::Answered(_))
    });
    row.status.is_terminal() || row.in_doubt || is_held || is_open(s)
}

fn is_open(s: &State) -> bool {
    matches!(s.job.status, JobStatus::Queued | JobStatus::Locked)
}

fn can_go_on(protocol: &Protocol, s: &State) -> bool {
    let mut actions = vec![];
    protocol.actions(s, &mut actions);
    actions.into_iter().any(|action| protocol.next_state(s, action).is_some())
}

fn rows_and_acts(s: &State) -> impl Iterator<Item = (&Row, u8)> {
    s.rows.iter().zip(&s.acts).filter_map(|(row, &acts)| Some((row.as_ref()?, acts)))
}

fn has_row(s: &State, is: impl Fn(&Row) -> bool) -> bool {
    s.rows.iter().flatten().any(is)
}

//! Allows a process to reserve only where it has found nothing missing.
//!
//! A process that sends compares the database with what it knows to be committed (`postrider-engine`'s witness). The result is here:
//! while the fence is closed, nothing is reserved; while it is open, every reservation names the epoch and the timeline that were
//! compared, and the database refuses it under any other. So a replica that was promoted a moment ago gets no reservation before the
//! process has compared again, through whatever connection or pooler.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use postrider_model::ids::{OutboxId, TenantId};
use uuid::Uuid;

/// A comparison is valid for this time. A process that cannot reach the database to write its next mark reserves nothing afterwards, far
/// below the two minutes after which `tenancy.read_installation` takes a silent process for ended.
const COUNTS_FOR: Duration = Duration::from_secs(10);

/// Called with every committed reservation before the provider is: the number of its writer, its tenant and its id.
pub type Note = Box<dyn Fn(usize, TenantId, OutboxId) + Send + Sync>;

/// Shared by the witness of a process, which opens and closes it, and the writers, which reserve. The default is no fence.
#[derive(Clone, Default)]
pub struct Fence(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Whether a witness opens and closes the fence.
    is_used: bool,
    open: Option<Open>,
    /// The last reservation of each writer. A writer commits in order, so its last one stands for all before it.
    last: Vec<Option<(TenantId, OutboxId)>>,
    note: Option<Note>,
}

struct Open {
    epoch: Uuid,
    timeline: Option<i32>,
    since: Instant,
}

/// Whether a reservation may be tried, and the epoch and timeline that it must name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pass {
    /// It need not name them.
    Unfenced,
    /// It must name these.
    Naming(String),
    /// It must not be tried.
    Closed,
}

impl std::fmt::Debug for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Fence").field(&self.pass()).finish()
    }
}

impl Fence {
    /// A closed fence. It calls `note` with every committed reservation before the provider is called.
    #[must_use]
    pub fn closed(note: Option<Note>) -> Self {
        Self(Arc::new(Mutex::new(State { is_used: true, open: None, last: Vec::new(), note })))
    }

    /// Opens the fence: nothing is missing in this epoch, on this timeline.
    pub fn open(&self, epoch: Uuid, timeline: Option<i32>) {
        self.state().open = Some(Open { epoch, timeline, since: Instant::now() });
    }

    /// Closes the fence: nothing is reserved from now on.
    pub fn close(&self) {
        self.state().open = None;
    }

    /// Whether a reservation may be tried.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.pass() != Pass::Closed
    }

    /// Forgets the last reservations, because another epoch begins: its adoption settles earlier reservations.
    pub fn forget(&self) {
        self.state().last.fill(None);
    }

    /// The last reservations that this process saw committed, one of each writer.
    #[must_use]
    pub fn last_reservations(&self) -> Vec<(TenantId, OutboxId)> {
        self.state().last.iter().flatten().copied().collect()
    }

    /// The number of another writer.
    pub(crate) fn writer(&self) -> usize {
        let last = &mut self.state().last;
        last.push(None);
        last.len() - 1
    }

    /// Records that a writer saw a reservation committed.
    pub(crate) fn committed(&self, writer: usize, tenant: TenantId, id: OutboxId) {
        let mut state = self.state();
        if let Some(last) = state.last.get_mut(writer) {
            *last = Some((tenant, id));
        }
        if let Some(note) = &state.note {
            note(writer, tenant, id);
        }
    }

    pub(crate) fn pass(&self) -> Pass {
        let state = self.state();
        if !state.is_used {
            return Pass::Unfenced;
        }
        match state.open.as_ref().filter(|open| open.since.elapsed() < COUNTS_FOR) {
            None => Pass::Closed,
            Some(Open { timeline: None, .. }) => Pass::Unfenced,
            Some(Open { epoch, timeline: Some(timeline), .. }) => {
                Pass::Naming(format!("{epoch}/{timeline:08X}"))
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_fence_passes_reservations_of_its_timeline_and_a_closed_one_none() {
        assert_eq!(Fence::default().pass(), Pass::Unfenced);
        let fence = Fence::closed(None);
        assert!(fence.pass() == Pass::Closed && !fence.is_open());
        fence.open(Uuid::nil(), Some(26));
        assert_eq!(fence.pass(), Pass::Naming(format!("{}/0000001A", Uuid::nil())));
        assert!(fence.is_open());
        fence.close();
        assert_eq!(fence.pass(), Pass::Closed);
    }
}

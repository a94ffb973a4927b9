//! A submission: settlements of ended calls, and the next window.

use postrider_model::Message;
use postrider_store::{
    Settlement,
    campaigns::{
        outbox::{Reserved, Window, WindowAnswer},
        send_jobs::ClaimedJob,
    },
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use uuid::Uuid;

use super::{
    Shared,
    admission::{Planned, Stop, Target},
    committer::{Submission, Written},
    send_job::Released,
};

/// The submissions of one send job, one at a time.
pub(super) struct Submitter<'a> {
    shared: &'a Shared,
    job: &'a ClaimedJob,
    /// The submission that is being committed.
    pending: Option<Pending>,
}

/// A window whose reservations are committed.
pub(super) struct ReservedWindow {
    pub(super) target: Target,
    /// The database's answer to each item, in order.
    pub(super) answers: Vec<Reserved>,
    pub(super) messages: Vec<(Uuid, Option<Message>)>,
    pub(super) permits: Option<OwnedSemaphorePermit>,
}

struct Pending {
    target: Target,
    /// Items and messages of the window, in order.
    messages: Vec<(Uuid, Option<Message>)>,
    permits: Option<OwnedSemaphorePermit>,
    written: oneshot::Receiver<Written>,
}

impl<'a> Submitter<'a> {
    pub(super) fn new(shared: &'a Shared, job: &'a ClaimedJob) -> Self {
        Self { shared, job, pending: None }
    }

    /// Whether no submission is being committed.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_none()
    }

    /// Hands over settlements, and the next window if there is one. The send job waits for the commit even without a window: it ends when
    /// everything that it knows is recorded.
    pub(super) async fn submit(&mut self, settlements: Vec<Settlement>, planned: Option<Planned>) {
        let (reply, written) = oneshot::channel();
        let mut pending = Pending { target: Target::Account, messages: Vec::new(), permits: None, written };
        let window = planned.map(|planned| {
            pending.target = planned.target;
            let items = planned.items.into_iter().map(|(item, message)| {
                pending.messages.push((item.item_id, message));
                item
            });
            let items = items.collect();
            pending.permits = Some(planned.permits);
            Window::new(self.job.hold, planned.first, items)
        });
        // The committer outlives every send job.
        let _ = self.shared.submissions.send(Submission::new(settlements, window, reply)).await;
        self.pending = Some(pending);
    }

    /// Waits for the commit. Returns the window, or why nothing was reserved. Nothing is lost when this is dropped.
    pub(super) async fn committed(&mut self) -> Result<ReservedWindow, Stop> {
        let Some(pending) = &mut self.pending else { return std::future::pending().await };
        let written = (&mut pending.written).await;
        let Some(Pending { target, messages, permits, .. }) = self.pending.take() else {
            return std::future::pending().await;
        };
        match written {
            Ok(Written::Window(WindowAnswer::Items(answers))) => {
                Ok(ReservedWindow { target, answers, messages, permits })
            }
            Ok(Written::Window(WindowAnswer::Paused)) => Err(Stop::Released(Released::Paused)),
            Ok(Written::Window(WindowAnswer::Closed)) => Err(Stop::Released(Released::Closed)),
            Ok(Written::Window(WindowAnswer::Lost)) => Err(Stop::Lost),
            // The items were not reserved, and are not called.
            Ok(Written::Withdrawn) => Err(Stop::Released(Released::Starved)),
            Err(_) => Err(Stop::Refused),
        }
    }
}

//! Whether the committers of a worker have connections to write with.
//!
//! A worker whose committers get no connection while its other connections work is starved: it could claim send jobs and renew their locks
//! for ever without a call. It releases its send jobs and claims none until it can write again. When no connection works
//! the database is away, and nothing can be released; then everything waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use postrider_store::{Pool, postgres::pool};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::common::health::Health;

/// How often a starved worker tries to get a connection.
const TRY_EVERY: Duration = Duration::from_secs(1);
/// How long the other connections may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

pub(super) struct Writing {
    /// Connections for the committers alone.
    pub(super) writes: Pool,
    /// Connections for all other statements of the worker.
    pub(super) others: Pool,
    connected: AtomicUsize,
    starved: watch::Sender<bool>,
    pub(super) health: Health,
}

/// One committer that has a connection.
pub(super) struct Connected(Arc<Writing>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Writing {
    pub(super) fn new(writes: Pool, others: Pool) -> Self {
        Self {
            writes,
            others,
            connected: AtomicUsize::new(0),
            starved: watch::Sender::new(false),
            health: Health::of_events("campaigns"),
        }
    }

    /// Counts a committer that has a connection, for as long as the value lives.
    pub(super) fn connected(self: &Arc<Self>) -> Connected {
        self.connected.fetch_add(1, Ordering::AcqRel);
        self.recover();
        Connected(Arc::clone(self))
    }

    pub(super) fn any_is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire) > 0
    }

    pub(super) fn is_starved(&self) -> bool {
        *self.starved.borrow()
    }

    /// Waits until the worker is starved.
    pub(super) async fn until_starved(&self) {
        // The sender lives as long as this.
        let _ = self.starved.subscribe().wait_for(|starved| *starved).await;
    }

    /// Whether the worker's other connections work: then send jobs can be released, and outcomes written.
    pub(super) async fn others_work(&self) -> bool {
        matches!(tokio::time::timeout(ANSWER_WITHIN, pool::ping(&self.others)).await, Ok(Ok(())))
    }

    /// Reports that a committer got no connection. Returns whether the worker is starved: no other committer has one.
    pub(super) fn starve(&self) -> bool {
        if self.any_is_connected() {
            return false;
        }
        if !self.starved.send_replace(true) {
            tracing::error!(
                "the campaign worker gets no database connection to write with; it releases its send jobs and claims none until \
                 it does: raise max_connections or the connection limit of its role"
            );
            self.health.block("it gets no database connection to write with".to_owned());
        }
        true
    }

    fn recover(&self) {
        if self.starved.send_replace(false) {
            tracing::info!("the campaign worker has a database connection to write with again");
        }
        self.health.unblock();
    }

    /// Tries to get a connection while the worker is starved, because no submission would find out.
    pub(super) async fn watch(&self, ended: CancellationToken) {
        loop {
            tokio::select! {
                () = ended.cancelled() => return,
                () = self.until_starved() => {}
            }
            tokio::select! {
                () = ended.cancelled() => return,
                () = tokio::time::sleep(TRY_EVERY) => {}
            }
            if pool::ping(&self.writes).await.is_ok() {
                self.recover();
            }
        }
    }
}

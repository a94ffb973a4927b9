//! Says that there may be work, without keeping anybody waiting for it.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    Pool,
    wakeups::{self, Waker},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How far apart two hints are at least: a notification takes a lock that every commit needs.
const APART: Duration = Duration::from_millis(10);

/// Tells everybody who listens on a channel that there may be work. What is sent while a hint is under way goes into the next one.
#[derive(Debug, Clone)]
pub struct Hints {
    channel: &'static str,
    wanted: Arc<Notify>,
    near: Option<Waker>,
}

impl Hints {
    /// Hints on this channel, once they [run](Self::run).
    #[must_use]
    pub fn new(channel: &'static str) -> Self {
        Self { channel, wanted: Arc::default(), near: None }
    }

    /// Also wakes those who listen in this process, at once.
    #[must_use]
    pub fn near(self, waker: Waker) -> Self {
        Self { near: Some(waker), ..self }
    }

    /// To be called after the commit. It is a hint: nobody hears whether it arrived.
    pub fn send(&self) {
        if let Some(near) = &self.near {
            near.send_replace(());
        }
        self.wanted.notify_one();
    }

    /// Passes hints on until shutdown.
    pub async fn run(self, pool: Pool, shutdown: CancellationToken) {
        let Self { channel, wanted, near: _ } = self;
        while shutdown.run_until_cancelled(wanted.notified()).await.is_some() {
            if let Err(error) = wakeups::notify(&pool, channel).await {
                tracing::debug!(channel, ?error, "a hint was lost; the poll finds the work: {error}");
            }
            tokio::time::sleep(APART).await;
        }
    }
}

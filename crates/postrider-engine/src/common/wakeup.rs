//! Hints that there may be work, to the loops of this process and of other processes. A sender never waits.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    Pool, StoreError,
    postgres::wakeups::{self, Waker, Wakeups},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Minimum time between two notifications: a notification takes a lock that every commit needs
/// (docs/decisions/0006-hints-come-after-the-commit.md).
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Sends hints on a channel of the database. Hints that are sent during one notification become one notification.
#[derive(Debug, Clone)]
pub struct Hints {
    channel: &'static str,
    pending: Arc<Notify>,
    local: Option<Waker>,
}

impl Hints {
    /// Creates hints on this channel. [`run`](Self::run) sends them to other processes.
    #[must_use]
    pub fn new(channel: &'static str) -> Self {
        Self { channel, pending: Arc::default(), local: None }
    }

    /// Also wakes the loops of this process, without the database.
    fn with_local(self, waker: Waker) -> Self {
        Self { local: Some(waker), ..self }
    }

    /// Sends a hint. Call it after the commit. A hint may be lost; the poll of the loops guarantees pickup.
    pub fn send(&self) {
        if let Some(local) = &self.local {
            local.wake();
        }
        self.pending.notify_one();
    }

    /// Sends hints as notifications until shutdown.
    pub async fn run(self, pool: Pool, shutdown: CancellationToken) {
        let Self { channel, pending, local } = self;
        while shutdown.run_until_cancelled(pending.notified()).await.is_some() {
            let sent = match &local {
                Some(local) => local.wake_others(&pool, channel).await,
                None => wakeups::notify(&pool, channel).await,
            };
            if let Err(error) = sent {
                tracing::debug!(channel, ?error, "a hint was lost; the poll finds the work: {error}");
            }
            tokio::time::sleep(INTERVAL_MIN).await;
        }
    }
}

/// A channel that wakes loops: those of this process at once, those of other processes through the database.
#[derive(Debug)]
pub struct WakeupChannel {
    /// Sends hints on this channel.
    pub hints: Hints,
    waker: Waker,
}

impl WakeupChannel {
    /// Creates a channel of this name.
    #[must_use]
    pub fn new(channel: &'static str) -> Self {
        let waker = Waker::default();
        Self { hints: Hints::new(channel).with_local(waker.clone()), waker }
    }

    /// Subscribes a loop.
    #[must_use]
    pub fn wakeups(&self) -> Wakeups {
        self.waker.subscribe()
    }

    /// Receives the hints of other processes. Spawn the future. `url` must name the server itself, not a pooler in
    /// transaction mode.
    pub fn listen(
        &self,
        url: &str,
        shutdown: &CancellationToken,
    ) -> Result<impl Future<Output = ()> + Send + use<>, StoreError> {
        wakeups::listen_for(url, self.hints.channel, self.waker.clone(), shutdown.clone())
    }
}

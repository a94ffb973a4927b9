//! Hints that there may be work, to the loops of this process and of other processes. A sender never waits.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    Pool, StoreError,
    wakeups::{self, Waker, Wakeups},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The least time between two notifications: a notification takes a lock that every commit needs.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Sends hints on a channel of the database. Hints that are sent during one notification become one notification.
#[derive(Debug, Clone)]
pub struct Hints {
    channel: &'static str,
    wanted: Arc<Notify>,
    local: Option<Waker>,
}

impl Hints {
    /// Hints on this channel. [`run`](Self::run) sends them.
    #[must_use]
    pub fn new(channel: &'static str) -> Self {
        Self { channel, wanted: Arc::default(), local: None }
    }

    /// Also wakes the listeners of this process, at once.
    fn with_local(self, waker: Waker) -> Self {
        Self { local: Some(waker), ..self }
    }

    /// Sends a hint. Call it after the commit. A hint may be lost; the poll of the loops guarantees pickup.
    pub fn send(&self) {
        if let Some(local) = &self.local {
            local.wake();
        }
        self.wanted.notify_one();
    }

    /// Notifies the database of hints until shutdown.
    pub async fn run(self, pool: Pool, shutdown: CancellationToken) {
        let Self { channel, wanted, local } = self;
        while shutdown.run_until_cancelled(wanted.notified()).await.is_some() {
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
    /// A channel of this name.
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

    /// Receives the hints of other processes. Spawn the future. `url` must lead to the server itself, not to a pooler in transaction mode.
    pub fn listen(
        &self,
        url: &str,
        shutdown: &CancellationToken,
    ) -> Result<impl Future<Output = ()> + Send + use<>, StoreError> {
        wakeups::listen_for(url, self.hints.channel, self.waker.clone(), shutdown.clone())
    }
}

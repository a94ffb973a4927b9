//! Says that there may be work, without keeping anybody waiting for it.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    Pool, StoreError,
    wakeups::{self, Waker, Wakeups},
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
    fn near(self, waker: Waker) -> Self {
        Self { near: Some(waker), ..self }
    }

    /// To be called after the commit. It is a hint: nobody hears whether it arrived.
    pub fn send(&self) {
        if let Some(near) = &self.near {
            near.wake();
        }
        self.wanted.notify_one();
    }

    /// Passes hints on until shutdown.
    pub async fn run(self, pool: Pool, shutdown: CancellationToken) {
        let Self { channel, wanted, near } = self;
        while shutdown.run_until_cancelled(wanted.notified()).await.is_some() {
            let sent = match &near {
                Some(near) => near.wake_others(&pool, channel).await,
                None => wakeups::notify(&pool, channel).await,
            };
            if let Err(error) = sent {
                tracing::debug!(channel, ?error, "a hint was lost; the poll finds the work: {error}");
            }
            tokio::time::sleep(APART).await;
        }
    }
}

/// What wakes loops: rung in this process it is heard here at once, and in other processes by way of the database.
#[derive(Debug)]
pub struct Bell {
    /// Rings it, once they run.
    pub hints: Hints,
    waker: Waker,
}

impl Bell {
    /// A bell on this channel.
    #[must_use]
    pub fn new(channel: &'static str) -> Self {
        let waker = Waker::default();
        Self { hints: Hints::new(channel).near(waker.clone()), waker }
    }

    /// Hears it.
    #[must_use]
    pub fn wakeups(&self) -> Wakeups {
        self.waker.subscribe()
    }

    /// Brings what is rung in other processes. To be spawned. `url` must lead to the server itself, not to a pooler in transaction mode.
    pub fn listen(
        &self,
        url: &str,
        shutdown: &CancellationToken,
    ) -> Result<impl Future<Output = ()> + Send + use<>, StoreError> {
        wakeups::listen_for(url, self.hints.channel, self.waker.clone(), shutdown.clone())
    }
}

//! What wakes loops: rung in this process it is heard here at once, and in other processes by way of the database.

use postrider_engine::Hints;
use postrider_store::{
    StoreError,
    wakeups::{self, Waker, Wakeups},
};
use tokio_util::sync::CancellationToken;

/// A bell on one channel.
pub struct Bell {
    /// Rings it, once they run.
    pub hints: Hints,
    channel: &'static str,
    waker: Waker,
}

impl Bell {
    pub fn new(channel: &'static str) -> Self {
        let waker = Waker::new(());
        Self { hints: Hints::new(channel).near(waker.clone()), channel, waker }
    }

    /// Hears it.
    pub fn wakeups(&self) -> Wakeups {
        self.waker.subscribe()
    }

    /// Brings what is rung in other processes. To be spawned.
    pub fn listen(
        &self,
        url: &str,
        shutdown: &CancellationToken,
    ) -> Result<impl Future<Output = ()> + Send + use<>, StoreError> {
        wakeups::listen_for(url, self.channel, self.waker.clone(), shutdown.clone())
    }
}

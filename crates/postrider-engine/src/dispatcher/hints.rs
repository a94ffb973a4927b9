//! Says that there are replies, without keeping anybody waiting for it.

use std::{sync::Arc, time::Duration};

use postrider_store::{Pool, replies};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How far apart two hints are at least: a notification takes a lock that every commit needs.
const APART: Duration = Duration::from_millis(10);

/// Tells every dispatcher that there may be replies. What is sent while a hint is under way goes into the next one.
#[derive(Debug, Clone, Default)]
pub struct ReplyHints {
    wanted: Arc<Notify>,
}

impl ReplyHints {
    /// To be called after the commit. It is a hint: nobody hears whether it arrived.
    pub fn send(&self) {
        self.wanted.notify_one();
    }

    /// Passes hints on until shutdown.
    pub async fn run(self, pool: Pool, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(self.wanted.notified()).await.is_some() {
            if let Err(error) = replies::hint(&pool).await {
                tracing::debug!(?error, "a hint was lost; the poll finds the replies: {error}");
            }
            tokio::time::sleep(APART).await;
        }
    }
}

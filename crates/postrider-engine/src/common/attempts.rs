//! The running attempts of a loop.

use tokio::task::JoinSet;

/// Tasks that return a value when they end. A task should catch its own panics; a task that panics ends without a value.
pub(crate) struct Attempts<T>(JoinSet<T>);

impl<T> Default for Attempts<T> {
    fn default() -> Self {
        Self(JoinSet::new())
    }
}

impl<T: Send + 'static> Attempts<T> {
    pub(crate) fn spawn(&mut self, attempt: impl Future<Output = T> + Send + 'static) {
        self.0.spawn(attempt);
    }

    /// Number of attempts that are running, or have ended and were not taken.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Waits for the end of an attempt; never returns if there is none. Cancel safe.
    pub(crate) async fn next_end(&mut self) -> Option<T> {
        match self.0.join_next().await {
            Some(ended) => ended.ok(),
            None => std::future::pending().await,
        }
    }

    /// The values of all attempts that have ended.
    pub(crate) fn take_ended(&mut self) -> Vec<T> {
        std::iter::from_fn(|| self.0.try_join_next()).filter_map(Result::ok).collect()
    }

    /// Waits for the end of every attempt.
    pub(crate) async fn finish(mut self) {
        while self.0.join_next().await.is_some() {}
    }
}

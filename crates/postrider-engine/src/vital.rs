//! Tasks that a process must not live without.
//!
//! A panic ends one of them quietly, and what is left says that it is healthy and does half of its work. So the process hears of
//! it, finishes what it can and ends, and whoever watches it starts it again. What was in the hands of that task is found as after a
//! crash.

use std::{panic::AssertUnwindSafe, sync::LazyLock};

use futures::FutureExt;
use tokio::sync::watch;

static BROKEN: LazyLock<watch::Sender<Option<&'static str>>> = LazyLock::new(|| watch::Sender::new(None));

/// A task that the process is told about, should it panic.
pub async fn vital(what: &'static str, task: impl Future<Output = ()>) {
    if AssertUnwindSafe(task).catch_unwind().await.is_err() {
        tracing::error!("{what} panicked");
        BROKEN.send_replace(Some(what));
    }
}

/// Waits until a vital task has panicked, and says which.
pub async fn broken() -> &'static str {
    let mut broken = BROKEN.subscribe();
    let what = broken.wait_for(Option::is_some).await.ok().and_then(|what| *what);
    match what {
        Some(what) => what,
        // It lives as long as the process.
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::{broken, vital};

    #[tokio::test]
    async fn a_panic_is_told_and_an_end_is_not() {
        vital("one that ends", async {}).await;
        assert_eq!(broken().now_or_never(), None);
        let loops = tokio::spawn(vital("one that breaks", async { std::panic::panic_any("for a test") }));
        assert_eq!(broken().await, "one that breaks");
        // Whoever waits for it is not torn along.
        assert!(loops.await.is_ok());
    }
}

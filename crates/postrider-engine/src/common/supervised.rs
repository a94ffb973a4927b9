//! Tasks whose panic ends the process.
//!
//! Otherwise a panic would end such a task silently, and a process that does half of its work would look healthy. So the process shuts
//! down and exits, and its service manager starts it again. The work of the panicked task is recovered as after a crash.

use std::{panic::AssertUnwindSafe, sync::LazyLock};

use futures::FutureExt;
use tokio::sync::watch;

static PANICKED: LazyLock<watch::Sender<Option<&'static str>>> = LazyLock::new(|| watch::Sender::new(None));

/// Runs a task. A panic is logged under this name and reported to [`panicked`].
pub async fn supervised(name: &'static str, task: impl Future<Output = ()>) {
    if AssertUnwindSafe(task).catch_unwind().await.is_err() {
        tracing::error!(task = name, "{name} panicked");
        PANICKED.send_replace(Some(name));
    }
}

/// Waits until a supervised task has panicked, and returns its name.
pub async fn panicked() -> &'static str {
    let mut panicked = PANICKED.subscribe();
    let name = panicked.wait_for(Option::is_some).await.ok().and_then(|name| *name);
    match name {
        Some(name) => name,
        // The sender lives as long as the process.
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::{panicked, supervised};

    #[tokio::test]
    async fn a_panic_is_reported_and_a_normal_end_is_not() {
        supervised("a task that ends", async {}).await;
        assert_eq!(panicked().now_or_never(), None);
        let task =
            tokio::spawn(supervised("a task that panics", async { std::panic::panic_any("for a test") }));
        assert_eq!(panicked().await, "a task that panics");
        assert!(task.await.is_ok(), "the panic does not propagate to the caller");
    }
}

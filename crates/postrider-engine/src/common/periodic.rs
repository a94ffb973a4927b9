//! Tasks that run at an interval, and the wait of a loop for its next work.

use std::time::Duration;

use postrider_store::postgres::wakeups::Wakeups;
use tokio_util::sync::CancellationToken;

/// Runs a task now and after every interval, until `ended`.
pub(crate) async fn at_interval<T, F>(interval: Duration, ended: CancellationToken, mut task: T)
where
    T: FnMut() -> F,
    F: Future<Output = ()>,
{
    loop {
        task().await;
        if ended.run_until_cancelled(tokio::time::sleep(interval)).await.is_none() {
            return;
        }
    }
}

/// Waits for a hint that there is work, at most for the poll interval. A notification is only a hint; the poll guarantees pickup.
pub(crate) async fn work_or_poll(wakeups: &mut Wakeups, poll_interval: Duration) {
    tokio::select! {
        changed = wakeups.changed() => if changed.is_err() {
            // The listener has ended, so only the poll is left.
            tokio::time::sleep(poll_interval).await;
        },
        () = tokio::time::sleep(poll_interval) => {}
    }
}

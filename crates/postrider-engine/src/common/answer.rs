//! Calls of adapters. A timeout or a panic of one is a missing answer, and does not end the loop.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;

/// The answer of an adapter, or the reason why there is none. The provider may have acted in either case.
pub(crate) async fn within<T>(limit: Duration, call: impl Future<Output = T>) -> Result<T, String> {
    match tokio::time::timeout(limit, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err("the adapter panicked".to_owned()),
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timeout_and_a_panic_are_missing_answers() {
        let limit = Duration::from_secs(30);
        assert_eq!(within(limit, async { 7 }).await, Ok(7));
        let panics = async { assert!(limit.is_zero(), "as a test") };
        assert_eq!(within(limit, panics).await, Err("the adapter panicked".to_owned()));
        let hangs = std::future::pending::<()>();
        assert_eq!(within(limit, hangs).await, Err("no answer within 30s".to_owned()));
    }
}

//! One step of a loop: its deadline, and the order in which tenants are served.

use std::time::Duration;

use postrider_store::StoreError;

/// Timeout of one database step. A dead connection must not stop a loop.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a database step with a timeout. A step that timed out may have been committed; then a sweep or a recovery finds its work.
pub(crate) async fn within<T>(step: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let timed_out = || StoreError::Unfit(format!("the database did not answer within {STEP_TIMEOUT:?}"));
    tokio::time::timeout(STEP_TIMEOUT, step).await.unwrap_or_else(|_| Err(timed_out()))
}

/// The last key that a claim served. The claim began after the key `began`, and continued at the first key after it reached the last one.
pub(crate) fn served_last<T: Ord + Copy>(began: Option<T>, served: impl Iterator<Item = T>) -> Option<T> {
    served.max_by_key(|key| (Some(*key) <= began, *key)).or(began)
}

#[cfg(test)]
mod tests {
    use super::served_last;

    #[test]
    fn the_last_key_after_the_beginning_was_served_last() {
        for (began, served, last) in [
            (None, vec![1, 3, 2], Some(3)),
            (Some(2), vec![3, 4], Some(4)),
            // The order begins after 2, and continues with 1 after the last key.
            (Some(2), vec![3, 4, 1], Some(1)),
            (Some(2), vec![1, 2], Some(2)),
            // No key was served: the next claim begins at the same place.
            (Some(2), vec![], Some(2)),
            (None, vec![], None),
        ] {
            assert_eq!(served_last(began, served.iter().copied()), last, "{began:?} {served:?}");
        }
    }
}

//! What the loops that claim, perform and settle have in common.

use std::time::Duration;

use postrider_store::StoreError;

/// How long the database may take for one step: a connection that died silently must not stop everything.
const WITHIN: Duration = Duration::from_secs(30);

/// Gives up what takes too long. It may have been done all the same; then it is found by a sweep, or recovered.
pub(crate) async fn within<T>(step: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let took_too_long = || StoreError::Unfit(format!("the database has not answered within {WITHIN:?}"));
    tokio::time::timeout(WITHIN, step).await.unwrap_or_else(|_| Err(took_too_long()))
}

/// Who was served last by a claim that began behind `began`: the one that is farthest on the way around.
pub(crate) fn served_last<T: Ord + Copy>(began: Option<T>, served: impl Iterator<Item = T>) -> Option<T> {
    served.max_by_key(|who| (Some(*who) <= began, *who)).or(began)
}

#[cfg(test)]
mod tests {
    use super::served_last;

    #[test]
    fn the_farthest_on_the_way_around_was_served_last() {
        for (began, served, last) in [
            (None, vec![1, 3, 2], Some(3)),
            (Some(2), vec![3, 4], Some(4)),
            // The way around begins behind 2, and 1 comes after the end.
            (Some(2), vec![3, 4, 1], Some(1)),
            (Some(2), vec![1, 2], Some(2)),
            // Nobody was served: the next claim begins where this one did.
            (Some(2), vec![], Some(2)),
            (None, vec![], None),
        ] {
            assert_eq!(served_last(began, served.iter().copied()), last, "{began:?} {served:?}");
        }
    }
}

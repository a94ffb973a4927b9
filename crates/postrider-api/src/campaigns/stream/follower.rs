//! The position of one reader in the history of one campaign.
//!
//! The next event is the one with the number after the last: from the feed, or from the database where the feed does not have it any
//! more. It makes no difference which, so there is no moment at which a follower changes from one to the other, and nothing that could
//! be lost or repeated in it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use axum::body::Bytes;
use postrider_model::ids::CampaignId;
use tokio::sync::watch;

use super::{
    feed::{Feed, Lookup},
    frame::Reason,
    hub::ReaderSlot,
};

/// A reader that the feed has overtaken reads the missed events from the database if it was up to date within this time: then many
/// events came at once. Otherwise it is too slow.
const LAG_MAX: Duration = Duration::from_secs(10);

pub(super) struct Follower {
    pub(super) campaign: CampaignId,
    feed: watch::Receiver<Feed>,
    /// The number of the last event that was sent.
    at: i64,
    /// The events after it, from the database.
    page: VecDeque<Bytes>,
    /// When the reader was last up to date; `None` while it reads the events from before it came.
    up_to_date_at: Option<Instant>,
    /// Whether the last look found no further event.
    waits: bool,
}

/// The result of a look.
pub(super) enum Next {
    /// The next event.
    Event(Bytes),
    /// There is no further event.
    UpToDate,
    /// The reader must begin again with a snapshot.
    Over(Reason),
    /// The database did not answer.
    Later,
}

impl Follower {
    /// A follower that has all events up to a number. `is_up_to_date` says whether there are no more.
    pub(super) fn new(
        campaign: CampaignId,
        feed: watch::Receiver<Feed>,
        at: i64,
        is_up_to_date: bool,
    ) -> Self {
        let up_to_date_at = is_up_to_date.then(Instant::now);
        Self { campaign, feed, at, page: VecDeque::new(), up_to_date_at, waits: false }
    }

    /// The next event, or the reason why there is none.
    pub(super) async fn next(&mut self, slot: &ReaderSlot) -> Next {
        loop {
            if let Some(frame) = self.page.pop_front() {
                return self.give(slot, frame);
            }
            let found = self.feed.borrow_and_update().get(self.at + 1);
            match found {
                Lookup::Frame(frame) => return self.give(slot, frame),
                Lookup::NotYet => {
                    self.waits = true;
                    return Next::UpToDate;
                }
                Lookup::Gone if self.is_too_slow() => {
                    slot.hub().meters().too_slow.increment(1);
                    return Next::Over(Reason::TooSlow);
                }
                Lookup::Gone => {
                    // In a box, because most readers never need it and all of them would have to hold it.
                    match Box::pin(slot.page_after(self.campaign, self.at)).await {
                        Ok(page) if follows(&page, self.at) => {
                            self.page = page.into_iter().map(|(_, frame)| frame).collect();
                        }
                        Ok(_) => return Next::Over(Reason::Pruned),
                        Err(error) => {
                            tracing::debug!("failed to read the history of a campaign; retrying: {error}");
                            return Next::Later;
                        }
                    }
                }
                Lookup::Broken => return Next::Over(Reason::Ahead),
            }
        }
    }

    /// Waits for a change of the feed. An error says that the hub is gone.
    pub(super) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.feed.changed().await
    }

    /// Notes that the reader waited until now: up to here it has missed nothing.
    pub(super) fn woke(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.up_to_date_at = Some(Instant::now());
        }
    }

    fn give(&mut self, slot: &ReaderSlot, frame: Bytes) -> Next {
        self.at += 1;
        slot.hub().meters().sent.increment(1);
        Next::Event(frame)
    }

    fn is_too_slow(&self) -> bool {
        self.up_to_date_at.is_some_and(|at| at.elapsed() > LAG_MAX)
    }
}

/// Whether a page goes on right after this number, and has no holes.
fn follows(page: &[(i64, Bytes)], at: i64) -> bool {
    !page.is_empty() && page.iter().zip(at + 1..).all(|((sequence, _), expected)| *sequence == expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_follows_only_without_a_hole() {
        let page = |numbers: &[i64]| numbers.iter().map(|n| (*n, Bytes::new())).collect::<Vec<_>>();
        assert!(follows(&page(&[5, 6, 7]), 4));
        assert!(!follows(&page(&[]), 4));
        assert!(!follows(&page(&[6, 7]), 4));
        assert!(!follows(&page(&[5, 7]), 4));
        assert!(!follows(&page(&[4, 5]), 4));
    }
}

//! One reader, and its next message.
//!
//! A reader knows one number, that of the last event that it was sent, and its next message is the event with the number
//! after it: from the feed, or from the database where the feed does not have it any more. It makes no difference which, so
//! there is no moment at which it changes from one to the other, and nothing that could be lost or repeated in it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use axum::body::Bytes;
use futures::{Stream, stream};

use super::{
    feed::Lookup,
    frame::{self, EndReason, Reason},
    hub::ReaderSlot,
};

/// A reader that the feed has overtaken reads the missed events from the database if it was up to date within this time: then many
/// events came at once. Otherwise it is too slow.
const LAG_MAX: Duration = Duration::from_secs(10);
/// How long to wait for a database that does not answer.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Delay before a reader reconnects when its stream breaks.
const RETRY: Duration = Duration::from_secs(1);
/// Each reader adds this to the time over which readers reconnect after the server has ended their streams.
const RETRY_SPREAD: Duration = Duration::from_millis(20);

pub(super) struct Reader {
    slot: ReaderSlot,
    /// The number of the last event that was sent.
    at: i64,
    /// The events after it, from the database.
    page: VecDeque<Bytes>,
    /// When the reader was last up to date; `None` while it reads the events from before it came.
    up_to_date_at: Option<Instant>,
    is_over: bool,
}

impl Reader {
    /// A reader that has all events up to a number. `is_up_to_date` says whether there are no more.
    pub(super) fn new(slot: ReaderSlot, at: i64, is_up_to_date: bool) -> Self {
        let up_to_date_at = is_up_to_date.then(Instant::now);
        Self { slot, at, page: VecDeque::new(), up_to_date_at, is_over: false }
    }

    /// All messages of the reader, until its stream ends.
    pub(super) fn frames(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
        let hello = stream::once(std::future::ready(Ok(frame::hello(RETRY + jitter(RETRY * 2)))));
        let rest = stream::unfold(self, async |mut reader| {
            let frame = reader.next().await?;
            Some((Ok(frame), reader))
        });
        stream::StreamExt::chain(hello, rest)
    }

    /// The next message; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        loop {
            if self.slot.hub().is_draining() {
                return Some(self.bye(EndReason::Shutdown));
            }
            if self.slot.is_out() {
                return Some(self.bye(EndReason::Key));
            }
            if let Some(frame) = self.page.pop_front() {
                return Some(self.give(frame));
            }
            let found = self.slot.feed.borrow_and_update().get(self.at + 1);
            match found {
                Lookup::Frame(frame) => return Some(self.give(frame)),
                Lookup::NotYet => {
                    let keep_alive = self.slot.hub().settings().keep_alive;
                    let news = tokio::time::timeout(keep_alive, self.slot.feed.changed()).await;
                    self.up_to_date_at = Some(Instant::now());
                    match news {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => return Some(self.bye(EndReason::Shutdown)),
                        Err(_) => return Some(frame::KEEP_ALIVE),
                    }
                }
                Lookup::Gone if self.is_too_slow() => {
                    self.slot.hub().meters().too_slow.increment(1);
                    return Some(self.snapshot_required(Reason::TooSlow));
                }
                Lookup::Gone => {
                    // In a box, because most readers never need it and all of them would have to hold it.
                    match Box::pin(self.slot.page_after(self.at)).await {
                        Ok(page) if follows(&page, self.at) => {
                            self.page = page.into_iter().map(|(_, frame)| frame).collect();
                        }
                        Ok(_) => return Some(self.snapshot_required(Reason::Pruned)),
                        Err(error) => {
                            tracing::debug!("failed to read the history of a campaign; retrying: {error}");
                            tokio::time::sleep(AGAIN_AFTER).await;
                            return Some(frame::KEEP_ALIVE);
                        }
                    }
                }
                Lookup::Broken => return Some(self.snapshot_required(Reason::Ahead)),
            }
        }
    }

    fn give(&mut self, frame: Bytes) -> Bytes {
        self.at += 1;
        self.slot.hub().meters().sent.increment(1);
        frame
    }

    fn is_too_slow(&self) -> bool {
        self.up_to_date_at.is_some_and(|at| at.elapsed() > LAG_MAX)
    }

    fn snapshot_required(&mut self, reason: Reason) -> Bytes {
        self.is_over = true;
        frame::snapshot_required(self.slot.campaign, reason)
    }

    fn bye(&mut self, reason: EndReason) -> Bytes {
        self.is_over = true;
        let readers = u32::try_from(self.slot.hub().count()).unwrap_or(u32::MAX);
        frame::bye(reason, RETRY + jitter(RETRY_SPREAD.saturating_mul(readers).max(RETRY * 2)))
    }
}

/// Whether a page goes on right after this number, and has no holes.
fn follows(page: &[(i64, Bytes)], at: i64) -> bool {
    !page.is_empty() && page.iter().zip(at + 1..).all(|((sequence, _), expected)| *sequence == expected)
}

/// A random time up to this one, so that readers do not reconnect all at once.
pub(super) fn jitter(max: Duration) -> Duration {
    // The second half of a UUIDv7 is random.
    let (_, random) = uuid::Uuid::now_v7().as_u64_pair();
    max.mul_f64(f64::from(random as u32) / f64::from(u32::MAX))
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

    #[test]
    fn jitter_is_spread_and_bounded() {
        let second = Duration::from_secs(1);
        let times: Vec<Duration> = (0..1000).map(|_| jitter(second)).collect();
        assert!(times.iter().all(|time| *time <= second));
        let late = times.iter().filter(|time| **time > second / 2).count();
        assert!((300..700).contains(&late), "{late} of 1000 are late");
    }
}

//! One reader: what it gets next.
//!
//! A reader knows one number, that of the last event it was given, and the next thing it gets is the event with the number
//! after it: from the feed, or from the database where the feed does not have it any more. It makes no difference which, so
//! there is no moment at which it changes from one to the other, and nothing that could be lost or repeated in it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use axum::body::Bytes;
use futures::{Stream, stream};

use super::{
    feed::Held,
    frame::{self, Parting, Reason},
    hub::Seat,
};

/// A reader that the feed has overtaken may fetch what it missed by itself if it was up to date so short a time ago: then
/// much has happened at once. Otherwise it is too slow.
const LAG_MAX: Duration = Duration::from_secs(10);
/// How long to wait for a database that does not answer.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How soon to come back when a stream breaks.
const RETRY: Duration = Duration::from_secs(1);
/// Readers that are sent away come back over a time in which each has so long for itself.
const RETRY_SPREAD: Duration = Duration::from_millis(20);

pub(super) struct Reader {
    seat: Seat,
    /// The last event that was given out.
    at: i64,
    /// What follows it, from the database.
    page: VecDeque<Bytes>,
    /// When there was last nothing more to give; never, while it reads what happened before it came.
    up_to_date_at: Option<Instant>,
    is_over: bool,
}

impl Reader {
    /// A reader that has everything up to a number, which may be all there is.
    pub(super) fn new(seat: Seat, at: i64, is_up_to_date: bool) -> Self {
        let up_to_date_at = is_up_to_date.then(Instant::now);
        Self { seat, at, page: VecDeque::new(), up_to_date_at, is_over: false }
    }

    /// Everything that it gets, until it is sent away.
    pub(super) fn frames(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
        let hello = stream::once(std::future::ready(Ok(frame::hello(RETRY + jitter(RETRY * 2)))));
        let rest = stream::unfold(self, async |mut reader| {
            let frame = reader.next().await?;
            Some((Ok(frame), reader))
        });
        stream::StreamExt::chain(hello, rest)
    }

    /// The next piece; nothing after the last.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        loop {
            if self.seat.hub().is_draining() {
                return Some(self.bye(Parting::Shutdown));
            }
            if self.seat.is_out() {
                return Some(self.bye(Parting::Key));
            }
            if let Some(frame) = self.page.pop_front() {
                return Some(self.give(frame));
            }
            let held = self.seat.feed.borrow_and_update().get(self.at + 1);
            match held {
                Held::Frame(frame) => return Some(self.give(frame)),
                Held::NotYet => {
                    let keep_alive = self.seat.hub().settings().keep_alive;
                    let news = tokio::time::timeout(keep_alive, self.seat.feed.changed()).await;
                    self.up_to_date_at = Some(Instant::now());
                    match news {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => return Some(self.bye(Parting::Shutdown)),
                        Err(_) => return Some(frame::KEEP_ALIVE),
                    }
                }
                Held::Gone if self.is_too_slow() => {
                    self.seat.hub().meters().too_slow.increment(1);
                    return Some(self.snapshot_required(Reason::TooSlow));
                }
                Held::Gone => {
                    // In a box, because most readers never need it and all of them would have to hold it.
                    match Box::pin(self.seat.page_after(self.at)).await {
                        Ok(page) if follows(&page, self.at) => {
                            self.page = page.into_iter().map(|(_, frame)| frame).collect();
                        }
                        Ok(_) => return Some(self.snapshot_required(Reason::Pruned)),
                        Err(error) => {
                            tracing::debug!("a reader waits for the history: {error}");
                            tokio::time::sleep(AGAIN_AFTER).await;
                            return Some(frame::KEEP_ALIVE);
                        }
                    }
                }
                Held::Broken => return Some(self.snapshot_required(Reason::Ahead)),
            }
        }
    }

    fn give(&mut self, frame: Bytes) -> Bytes {
        self.at += 1;
        self.seat.hub().meters().sent.increment(1);
        frame
    }

    fn is_too_slow(&self) -> bool {
        self.up_to_date_at.is_some_and(|at| at.elapsed() > LAG_MAX)
    }

    fn snapshot_required(&mut self, reason: Reason) -> Bytes {
        self.is_over = true;
        frame::snapshot_required(self.seat.campaign, reason)
    }

    fn bye(&mut self, parting: Parting) -> Bytes {
        self.is_over = true;
        let readers = u32::try_from(self.seat.hub().count()).unwrap_or(u32::MAX);
        frame::bye(parting, RETRY + jitter(RETRY_SPREAD.saturating_mul(readers).max(RETRY * 2)))
    }
}

/// Whether a page goes on right after this number, and has no holes.
fn follows(page: &[(i64, Bytes)], at: i64) -> bool {
    !page.is_empty() && page.iter().zip(at + 1..).all(|((sequence, _), expected)| *sequence == expected)
}

/// A time up to this one, so that not everybody comes back at once.
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

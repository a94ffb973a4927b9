//! The reader of one campaign, and its next message.

use std::time::Duration;

use axum::body::Bytes;
use futures::{Stream, stream};

use super::{
    follower::{Follower, Next},
    frame::{self, EndReason},
    hub::{Hub, ReaderSlot},
};

/// How long to wait for a database that does not answer.
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Delay before a reader reconnects when its stream breaks.
const RETRY: Duration = Duration::from_secs(1);
/// Each reader adds this to the time over which readers reconnect after the server has ended their streams.
const RETRY_SPREAD: Duration = Duration::from_millis(20);

pub(super) struct Reader {
    slot: ReaderSlot,
    follower: Follower,
    is_over: bool,
}

impl Reader {
    pub(super) fn new(slot: ReaderSlot, follower: Follower) -> Self {
        Self { slot, follower, is_over: false }
    }

    /// All messages of the reader, until its stream ends.
    pub(super) fn frames(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
        let hello = stream::once(std::future::ready(Ok(frame::hello(first_retry()))));
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
            if let Some(reason) = self.slot.end() {
                return Some(self.bye(reason));
            }
            match self.follower.next(&self.slot).await {
                Next::Event(frame) => return Some(frame),
                Next::UpToDate => {
                    let keep_alive = self.slot.hub().settings().keep_alive;
                    let news = tokio::time::timeout(keep_alive, self.follower.changed()).await;
                    self.follower.woke();
                    match news {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => return Some(self.bye(EndReason::Shutdown)),
                        Err(_) => return Some(frame::KEEP_ALIVE),
                    }
                }
                Next::Over(reason) => {
                    self.is_over = true;
                    return Some(frame::snapshot_required(self.follower.campaign, reason));
                }
                Next::Later => {
                    tokio::time::sleep(AGAIN_AFTER).await;
                    return Some(frame::KEEP_ALIVE);
                }
            }
        }
    }

    fn bye(&mut self, reason: EndReason) -> Bytes {
        self.is_over = true;
        bye(self.slot.hub(), reason)
    }
}

/// The delay before a reader reconnects, as its first message says.
pub(super) fn first_retry() -> Duration {
    RETRY + jitter(RETRY * 2)
}

/// The last message of a stream that the server ends. All its readers reconnect, so the delay grows with their number.
pub(super) fn bye(hub: &Hub, reason: EndReason) -> Bytes {
    let readers = u32::try_from(hub.count()).unwrap_or(u32::MAX);
    frame::bye(reason, RETRY + jitter(RETRY_SPREAD.saturating_mul(readers).max(RETRY * 2)))
}

/// A random time up to this one, so that readers do not reconnect all at once.
fn jitter(max: Duration) -> Duration {
    // The second half of a UUIDv7 is random.
    let (_, random) = uuid::Uuid::now_v7().as_u64_pair();
    max.mul_f64(f64::from(random as u32) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_spread_and_bounded() {
        let second = Duration::from_secs(1);
        let times: Vec<Duration> = (0..1000).map(|_| jitter(second)).collect();
        assert!(times.iter().all(|time| *time <= second));
        let late = times.iter().filter(|time| **time > second / 2).count();
        assert!((300..700).contains(&late), "{late} of 1000 are late");
    }
}

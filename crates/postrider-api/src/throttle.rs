//! How fast one key may ask: a bucket of tokens per key, in memory.
//!
//! A bucket is found by the hash of the key's secret and made only for keys that let somebody in, so strangers cannot
//! fill the memory, and a key that is too fast is told so before the database is asked. All other keys share one bucket: whoever
//! guesses empties it and is refused unasked, while the keys that are known go on. Each process counts for itself.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::error::ApiError;

/// Most keys that are remembered. Those that have not asked for long enough to have their whole burst again go first.
const KEYS_MAX: usize = 10_000;
/// How many keys that let nobody in are looked up, a second and at once.
const STRANGERS: Pace = Pace { rate: 20.0, burst: 100.0 };

/// Buckets by the hash of a key.
#[derive(Debug, Clone)]
pub struct Throttle {
    pace: Pace,
    buckets: Arc<Mutex<Buckets>>,
}

#[derive(Debug)]
struct Buckets {
    known: HashMap<[u8; 32], Bucket>,
    strangers: Bucket,
}

/// So many a second, and so many at once.
#[derive(Debug, Clone, Copy)]
struct Pace {
    rate: f64,
    burst: f64,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(pace: Pace) -> Self {
        Self { tokens: pace.burst, at: Instant::now() }
    }

    fn tokens(&self, pace: Pace, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        (self.tokens + since * pace.rate).min(pace.burst)
    }

    /// Takes a token, or says in how many seconds there is one.
    fn spend(&mut self, pace: Pace, now: Instant) -> Result<(), u64> {
        self.tokens = self.tokens(pace, now);
        self.at = now;
        if self.tokens < 1.0 {
            return Err(((1.0 - self.tokens) / pace.rate).ceil().max(1.0) as u64);
        }
        self.tokens -= 1.0;
        Ok(())
    }
}

impl Throttle {
    /// So many requests a second, and so many at once. A rate of 0 is no limit.
    #[must_use]
    pub fn new(rate_per_second: u32, burst: u32) -> Self {
        let pace = Pace { rate: rate_per_second.into(), burst: burst.max(1).into() };
        let buckets = Buckets { known: HashMap::new(), strangers: Bucket::full(STRANGERS) };
        Self { pace, buckets: Arc::new(Mutex::new(buckets)) }
    }

    /// Takes a token of a key that was let in before, or one of those that all others share.
    pub(crate) fn spend(&self, key: &[u8; 32]) -> Result<(), ApiError> {
        self.spend_at(key, Instant::now())
    }

    /// Remembers a key that was let in. It was no stranger, so what it took from them is given back.
    pub(crate) fn know(&self, key: [u8; 32]) {
        self.know_at(key, Instant::now());
    }

    /// A key that was not let in is a stranger from now on.
    pub(crate) fn forget(&self, key: &[u8; 32]) {
        self.lock().known.remove(key);
    }

    fn spend_at(&self, key: &[u8; 32], now: Instant) -> Result<(), ApiError> {
        let mut buckets = self.lock();
        let spent = match buckets.known.get_mut(key) {
            Some(_) if self.pace.rate == 0.0 => Ok(()),
            Some(bucket) => bucket.spend(self.pace, now).map_err(ApiError::TooFast),
            None => buckets.strangers.spend(STRANGERS, now).map_err(ApiError::TooManyStrangers),
        };
        if spent.is_err() {
            metrics::counter!("postrider_requests_throttled_total").increment(1);
        }
        spent
    }

    fn know_at(&self, key: [u8; 32], now: Instant) {
        let mut buckets = self.lock();
        if buckets.known.contains_key(&key) {
            return;
        }
        buckets.strangers.tokens = (buckets.strangers.tokens + 1.0).min(STRANGERS.burst);
        if buckets.known.len() >= KEYS_MAX {
            buckets.known.retain(|_, bucket| bucket.tokens(self.pace, now) < self.pace.burst);
        }
        if buckets.known.len() >= KEYS_MAX {
            // All of them are busy. Forgetting them is kinder than to refuse a key that did nothing wrong.
            buckets.known.clear();
        }
        buckets.known.insert(key, Bucket { tokens: self.pace.burst - 1.0, at: now });
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(n: usize) -> [u8; 32] {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&n.to_le_bytes());
        key
    }

    #[test]
    fn a_key_gets_its_burst_then_its_rate_and_others_theirs() {
        let (throttle, start) = (Throttle::new(2, 3), Instant::now());
        throttle.know_at(key(1), start);
        assert!(throttle.spend_at(&key(1), start).is_ok() && throttle.spend_at(&key(1), start).is_ok());
        assert!(matches!(throttle.spend_at(&key(1), start), Err(ApiError::TooFast(1))));
        assert!(
            throttle.spend_at(&key(2), start).is_ok(),
            "a key that is not known has no bucket of its own"
        );
        let later = start + Duration::from_millis(500);
        assert!(throttle.spend_at(&key(1), later).is_ok());
        assert!(throttle.spend_at(&key(1), later).is_err());
        let much_later = start + Duration::from_secs(3600);
        for _ in 0..3 {
            assert!(throttle.spend_at(&key(1), much_later).is_ok());
        }
        assert!(throttle.spend_at(&key(1), much_later).is_err(), "a burst does not grow");
    }

    #[test]
    fn guesses_at_keys_are_bounded_and_known_keys_do_not_notice() {
        for throttle in [Throttle::new(1000, 1000), Throttle::new(0, 1)] {
            let start = Instant::now();
            throttle.know_at(key(0), start);
            // Keys that are let in take nothing from the strangers.
            for n in 1..500 {
                assert!(throttle.spend_at(&key(n), start).is_ok());
                throttle.know_at(key(n), start);
            }
            let guesses = (1000..2000).filter(|n| throttle.spend_at(&key(*n), start).is_ok()).count();
            assert!((100..=101).contains(&guesses), "{guesses}");
            assert!(matches!(throttle.spend_at(&key(3000), start), Err(ApiError::TooManyStrangers(1))));
            assert!(throttle.spend_at(&key(0), start).is_ok());
            let later = start + Duration::from_secs(1);
            let guesses = (1000..2000).filter(|n| throttle.spend_at(&key(*n), later).is_ok()).count();
            assert!((19..=21).contains(&guesses), "{guesses}");
            throttle.forget(&key(0));
            assert!(throttle.spend_at(&key(0), later).is_err(), "a key that was revoked is a stranger");
        }
    }

    #[test]
    fn no_rate_is_no_limit_and_the_memory_is_bounded() {
        let (free, start) = (Throttle::new(0, 0), Instant::now());
        free.know_at(key(1), start);
        for _ in 0..1000 {
            assert!(free.spend_at(&key(1), start).is_ok());
        }
        let throttle = Throttle::new(1, 1);
        for n in 0..=KEYS_MAX {
            throttle.know_at(key(n), start);
        }
        assert!(throttle.lock().known.len() <= KEYS_MAX);
    }
}

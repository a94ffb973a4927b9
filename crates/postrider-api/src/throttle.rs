//! How fast one key may ask: a bucket of tokens per key, in memory.
//!
//! A bucket is found by the hash of the key's secret and made only for keys that let somebody in, so strangers cannot
//! fill the memory, and a key that is too fast is told so before the database is asked. Each process counts for itself.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use crate::error::ApiError;

/// Most keys that are remembered. Those that have not asked for long enough to have their whole burst again go first.
const KEYS_MAX: usize = 10_000;

/// Buckets by the hash of a key.
#[derive(Debug, Clone)]
pub struct Throttle {
    rate: f64,
    burst: f64,
    buckets: Arc<Mutex<HashMap<[u8; 32], Bucket>>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Throttle {
    /// So many requests a second, and so many at once. A rate of 0 is no limit.
    #[must_use]
    pub fn new(rate_per_second: u32, burst: u32) -> Self {
        Self { rate: rate_per_second.into(), burst: burst.max(1).into(), buckets: Arc::default() }
    }

    /// Takes a token of a key that was let in before.
    pub(crate) fn spend_if_known(&self, key: &[u8; 32]) -> Result<(), ApiError> {
        self.spend_at(key, Instant::now())
    }

    /// Remembers a key that was let in.
    pub(crate) fn know(&self, key: [u8; 32]) {
        self.know_at(key, Instant::now());
    }

    fn spend_at(&self, key: &[u8; 32], now: Instant) -> Result<(), ApiError> {
        if self.rate == 0.0 {
            return Ok(());
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bucket) = buckets.get_mut(key) else { return Ok(()) };
        bucket.tokens = self.tokens(bucket, now);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            metrics::counter!("postrider_requests_throttled_total").increment(1);
            let seconds = ((1.0 - bucket.tokens) / self.rate).ceil().max(1.0);
            return Err(ApiError::TooFast(seconds as u64));
        }
        bucket.tokens -= 1.0;
        Ok(())
    }

    fn know_at(&self, key: [u8; 32], now: Instant) {
        if self.rate == 0.0 {
            return;
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.contains_key(&key) {
            return;
        }
        if buckets.len() >= KEYS_MAX {
            buckets.retain(|_, bucket| self.tokens(bucket, now) < self.burst);
        }
        if buckets.len() >= KEYS_MAX {
            // All of them are busy. Forgetting them is kinder than to refuse a key that did nothing wrong.
            buckets.clear();
        }
        buckets.insert(key, Bucket { tokens: self.burst - 1.0, at: now });
    }

    fn tokens(&self, bucket: &Bucket, now: Instant) -> f64 {
        let since = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.tokens + since * self.rate).min(self.burst)
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
        assert!(throttle.spend_at(&key(2), start).is_ok(), "a key that is not known has no bucket");
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
        assert!(throttle.buckets.lock().unwrap().len() <= KEYS_MAX);
    }
}

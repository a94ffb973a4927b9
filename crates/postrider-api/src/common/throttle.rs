//! Request limits: tokens per API key, and tokens per client address for keys that are not valid.
//!
//! A key gets a bucket only after it was valid once, so invalid keys cannot fill the memory. The server refuses a key that is too
//! fast before it asks the database.
//!
//! A key that was not valid before has to be looked up. Each look-up that fails takes a token of the client's address, and an
//! address without tokens is refused without a look-up. No two addresses share a bucket, so one client cannot keep the valid
//! keys of another one out. (The reverse: a new valid key behind the address of an attacker waits; `api.trusted_proxies` tells
//! clients behind a proxy apart.)
//!
//! Each process counts for itself.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::common::error::ApiError;

/// Maximum number of keys with a bucket. Keys that have their whole burst again are removed first.
const KEYS_MAX: usize = 10_000;
/// Maximum number of client addresses with a bucket, in each of two generations.
const CLIENTS_MAX: usize = 20_000;

/// The limits of requests.
#[derive(Debug, Clone, Copy)]
pub struct ThrottleSettings {
    /// Requests per second of one valid key; 0 is no limit.
    pub rate_per_second: u32,
    /// Requests of one valid key at once.
    pub burst: u32,
    /// Requests per second with invalid keys from one client address; 0 is no limit.
    pub invalid_keys_per_second: u32,
    /// Requests with invalid keys from one client address at once.
    pub invalid_keys_burst: u32,
}

/// Buckets by the hash of a key, and by client address.
#[derive(Debug, Clone)]
pub struct Throttle {
    pace: Pace,
    buckets: Arc<Mutex<Buckets>>,
}

#[derive(Debug)]
struct Buckets {
    known: HashMap<[u8; 32], Bucket>,
    failures: Failures,
}

/// Tokens per second, and tokens at most.
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

impl Pace {
    fn new(rate: u32, burst: u32) -> Self {
        Self { rate: rate.into(), burst: burst.max(1).into() }
    }

    fn is_unlimited(self) -> bool {
        self.rate == 0.0
    }

    /// Time in which an empty bucket becomes full. A full bucket is the same as no bucket.
    fn recovery(self) -> Duration {
        if self.is_unlimited() { Duration::ZERO } else { Duration::from_secs_f64(self.burst / self.rate) }
    }
}

impl Bucket {
    fn full(pace: Pace, now: Instant) -> Self {
        Self { tokens: pace.burst, at: now }
    }

    fn tokens(&self, pace: Pace, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        (self.tokens + since * pace.rate).min(pace.burst)
    }

    /// Whether there is a token, or in how many seconds there is one.
    fn check(&self, pace: Pace, now: Instant) -> Result<(), u64> {
        let tokens = self.tokens(pace, now);
        if tokens < 1.0 {
            return Err(((1.0 - tokens) / pace.rate).ceil().max(1.0) as u64);
        }
        Ok(())
    }

    /// Takes a token, also where there is none: look-ups that ran at the same time may all have failed.
    fn take(&mut self, pace: Pace, now: Instant) {
        self.tokens = self.tokens(pace, now) - 1.0;
        self.at = now;
    }
}

/// Failed look-ups by client address. The addresses live in two generations: when the newer one is full or old, it becomes the
/// older one, and the older one is dropped. An address that fails moves to the newer one. So memory and time are bounded, and
/// only an address that was quiet while [`CLIENTS_MAX`] others failed gets a new burst early.
#[derive(Debug)]
struct Failures {
    newer: HashMap<IpAddr, Bucket>,
    older: HashMap<IpAddr, Bucket>,
    since: Instant,
    pace: Pace,
}

impl Failures {
    fn new(pace: Pace, now: Instant) -> Self {
        Self { pace, newer: HashMap::new(), older: HashMap::new(), since: now }
    }

    fn check(&self, client: IpAddr, now: Instant) -> Result<(), u64> {
        if self.pace.is_unlimited() {
            return Ok(());
        }
        let client = network(client);
        let bucket = self.newer.get(&client).or_else(|| self.older.get(&client));
        bucket.map_or(Ok(()), |bucket| bucket.check(self.pace, now))
    }

    fn count(&mut self, client: IpAddr, now: Instant) {
        if self.pace.is_unlimited() {
            return;
        }
        let (client, pace) = (network(client), self.pace);
        let is_old = now.saturating_duration_since(self.since) > pace.recovery();
        if is_old || self.newer.len() >= CLIENTS_MAX {
            self.older = std::mem::take(&mut self.newer);
            self.since = now;
        }
        let older = self.older.remove(&client);
        let bucket = self.newer.entry(client).or_insert_with(|| older.unwrap_or(Bucket::full(pace, now)));
        bucket.take(pace, now);
    }
}

/// The part of an address that counts as one client. A single host usually has a whole /64 of IPv6 addresses.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
    }
}

impl Throttle {
    /// No client and no key is known yet.
    #[must_use]
    pub fn new(settings: ThrottleSettings) -> Self {
        let pace = Pace::new(settings.rate_per_second, settings.burst);
        let failures = Pace::new(settings.invalid_keys_per_second, settings.invalid_keys_burst);
        let buckets = Buckets { known: HashMap::new(), failures: Failures::new(failures, Instant::now()) };
        Self { pace, buckets: Arc::new(Mutex::new(buckets)) }
    }

    /// Takes a token of a key that was valid before. Says whether it was: otherwise the key has to be looked up first.
    pub(crate) fn spend(&self, key: &[u8; 32]) -> Result<bool, ApiError> {
        self.spend_at(key, Instant::now())
    }

    /// Refuses to look up a key for a client with too many failures.
    pub(crate) fn check(&self, client: IpAddr) -> Result<(), ApiError> {
        self.check_at(client, Instant::now())
    }

    /// Remembers a key that is valid.
    pub(crate) fn know(&self, key: [u8; 32]) {
        self.know_at(key, Instant::now());
    }

    /// Counts a key that is not valid, and forgets that it was.
    pub(crate) fn fail(&self, key: &[u8; 32], client: IpAddr) {
        self.fail_at(key, client, Instant::now());
    }

    fn spend_at(&self, key: &[u8; 32], now: Instant) -> Result<bool, ApiError> {
        let mut buckets = self.lock();
        let Some(bucket) = buckets.known.get_mut(key) else { return Ok(false) };
        if !self.pace.is_unlimited() {
            bucket.check(self.pace, now).map_err(|wait| throttled(ApiError::TooFast(wait)))?;
            bucket.take(self.pace, now);
        }
        Ok(true)
    }

    fn check_at(&self, client: IpAddr, now: Instant) -> Result<(), ApiError> {
        let checked = self.lock().failures.check(client, now);
        checked.map_err(|wait| throttled(ApiError::TooManyFailures(wait)))
    }

    fn know_at(&self, key: [u8; 32], now: Instant) {
        let mut buckets = self.lock();
        if buckets.known.contains_key(&key) {
            return;
        }
        if buckets.known.len() >= KEYS_MAX {
            buckets.known.retain(|_, bucket| bucket.tokens(self.pace, now) < self.pace.burst);
        }
        if buckets.known.len() >= KEYS_MAX {
            // All of them are in use. A key without a bucket is looked up like a new one, and gets a new burst.
            buckets.known.clear();
        }
        buckets.known.insert(key, Bucket { tokens: self.pace.burst - 1.0, at: now });
    }

    fn fail_at(&self, key: &[u8; 32], client: IpAddr, now: Instant) {
        let mut buckets = self.lock();
        buckets.known.remove(key);
        buckets.failures.count(client, now);
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn throttled(error: ApiError) -> ApiError {
    metrics::counter!("postrider_requests_throttled_total").increment(1);
    error
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn throttle(rate_per_second: u32, burst: u32) -> Throttle {
        let (invalid_keys_per_second, invalid_keys_burst) = (20, 100);
        Throttle::new(ThrottleSettings {
            rate_per_second,
            burst,
            invalid_keys_per_second,
            invalid_keys_burst,
        })
    }

    fn key(n: usize) -> [u8; 32] {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&n.to_le_bytes());
        key
    }

    fn client(n: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(n))
    }

    /// How many of a thousand unknown keys are looked up for a client.
    fn guesses(throttle: &Throttle, client: IpAddr, now: Instant) -> usize {
        let looked_up = |n: &usize| {
            let is_looked_up = matches!(throttle.spend_at(&key(*n), now), Ok(false))
                && throttle.check_at(client, now).is_ok();
            if is_looked_up {
                throttle.fail_at(&key(*n), client, now);
            }
            is_looked_up
        };
        (1000..2000).filter(looked_up).count()
    }

    #[test]
    fn a_key_gets_its_burst_then_its_rate_and_others_theirs() {
        let (throttle, start) = (throttle(2, 3), Instant::now());
        throttle.know_at(key(1), start);
        assert!(throttle.spend_at(&key(1), start).is_ok() && throttle.spend_at(&key(1), start).is_ok());
        assert!(matches!(throttle.spend_at(&key(1), start), Err(ApiError::TooFast(1))));
        assert!(matches!(throttle.spend_at(&key(2), start), Ok(false)), "an unknown key has no bucket");
        let later = start + Duration::from_millis(500);
        assert!(matches!(throttle.spend_at(&key(1), later), Ok(true)));
        assert!(throttle.spend_at(&key(1), later).is_err());
        let much_later = start + Duration::from_secs(3600);
        for _ in 0..3 {
            assert!(throttle.spend_at(&key(1), much_later).is_ok());
        }
        assert!(throttle.spend_at(&key(1), much_later).is_err(), "a burst does not grow");
    }

    #[test]
    fn failures_of_one_client_are_bounded_and_cost_no_other_client_and_no_known_key_anything() {
        for throttle in [throttle(1000, 1000), throttle(0, 1)] {
            let start = Instant::now();
            // Look-ups of valid keys take nothing.
            for n in 0..500 {
                assert!(throttle.check_at(HERE, start).is_ok());
                throttle.know_at(key(n), start);
            }
            assert_eq!(guesses(&throttle, HERE, start), 100);
            assert!(matches!(throttle.check_at(HERE, start), Err(ApiError::TooManyFailures(1))));
            assert!(matches!(throttle.spend_at(&key(0), start), Ok(true)));
            assert!(throttle.check_at(client(7), start).is_ok(), "another client is not concerned");
            let later = start + Duration::from_secs(1);
            assert_eq!(guesses(&throttle, HERE, later), 20);
            throttle.fail_at(&key(0), client(7), later);
            assert!(
                matches!(throttle.spend_at(&key(0), later), Ok(false)),
                "a revoked key is looked up again"
            );
        }
    }

    #[test]
    fn a_client_is_an_ipv4_address_or_64_bits_of_an_ipv6_address() {
        let (throttle, now) = (throttle(1, 1), Instant::now());
        let address = |text: &str| -> IpAddr { text.parse().unwrap() };
        assert_eq!(guesses(&throttle, address("2001:db8:0:1::7"), now), 100);
        assert_eq!(guesses(&throttle, address("2001:db8:0:1:ffff::8"), now), 0);
        assert_eq!(guesses(&throttle, address("2001:db8:0:2::7"), now), 100);
        assert_eq!(guesses(&throttle, address("192.0.2.1"), now), 100);
        assert_eq!(guesses(&throttle, address("::ffff:192.0.2.1"), now), 0);
        assert_eq!(guesses(&throttle, address("192.0.2.2"), now), 100);
    }

    #[test]
    fn no_rate_is_no_limit_and_the_memory_is_bounded() {
        let (free, start) = (throttle(0, 0), Instant::now());
        free.know_at(key(1), start);
        for _ in 0..1000 {
            assert!(free.spend_at(&key(1), start).is_ok());
        }
        let unlimited = ThrottleSettings {
            rate_per_second: 1,
            burst: 1,
            invalid_keys_per_second: 0,
            invalid_keys_burst: 1,
        };
        assert_eq!(guesses(&Throttle::new(unlimited), HERE, start), 1000);
        let throttle = throttle(1, 1);
        for n in 0..=KEYS_MAX {
            throttle.know_at(key(n), start);
        }
        assert!(throttle.lock().known.len() <= KEYS_MAX);
    }

    #[test]
    fn however_many_clients_fail_memory_is_bounded_and_a_busy_one_stays_refused() {
        let (throttle, start) = (throttle(1, 1), Instant::now());
        assert_eq!(guesses(&throttle, HERE, start), 100);
        for n in 0..5 * CLIENTS_MAX as u32 {
            throttle.fail_at(&key(9), client(n), start);
            if n % 1000 == 0 {
                // It fails on, as look-ups that ran at the same time do.
                throttle.fail_at(&key(9), HERE, start);
                assert!(throttle.check_at(HERE, start).is_err());
            }
        }
        let buckets = throttle.lock();
        assert!(buckets.failures.newer.len() + buckets.failures.older.len() <= 2 * CLIENTS_MAX);
        drop(buckets);
        // After a quiet time nothing is kept.
        for seconds in [6, 12] {
            throttle.fail_at(&key(9), client(1), start + Duration::from_secs(seconds));
        }
        let buckets = throttle.lock();
        assert_eq!((buckets.failures.newer.len(), buckets.failures.older.len()), (1, 0));
    }
}

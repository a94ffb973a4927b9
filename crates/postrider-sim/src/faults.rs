//! Faults: their kinds, their rates, and the generator that draws them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum Fault {
    /// Waits, then sends the good answer.
    Latency,
    /// Acts and never answers.
    Stall,
    /// Reports an error without acting.
    Fail,
    /// Acts, then reports an error.
    FailAfter,
    /// Refuses permanently, without acting.
    Refuse,
    /// Reports a rate limit with a time for the retry, without acting.
    Busy,
    /// Acts, then resets the connection.
    Reset,
    /// Resets the connection without acting.
    ResetBefore,
    /// Acts, then breaks off in the middle of its answer.
    Half,
    /// Acts and loses the answer; the key is stored after a delay, so a repeat until then acts again.
    KeyLate,
    /// Acts and loses the answer; look-ups find the action only after a delay.
    LookupEarly,
    /// Loses the answer and acts after a delay, like a proxy that held the request.
    ActLate,
}

/// The fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnFault {
    /// The kind of fault.
    pub fault: Fault,
    /// The end of the exchange.
    pub ending: Ending,
    /// Duration of the fault, for faults with one.
    pub delay: Duration,
    /// The answer waits until these rules are replaced, instead of that time.
    pub held_by: Option<Generation>,
}

/// A number that every replacement of the rules changes.
pub type Generation = u64;

/// The kind of a request, as the provider sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A request for a new action.
    Action,
    /// A repeat of a request that was accepted or is delayed, and that the provider does not recognise.
    UnknownRepeat,
    /// A repeat that is answered from memory.
    Repeat,
    /// A look-up, which does not act.
    LookUp,
}

/// The end of an exchange. Faces express it with a status (HTTP) or a reply code (SMTP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a good answer.
    Well,
    /// With a good answer, after a delay.
    Late,
    /// Without an answer.
    Silence,
    /// With an internal error.
    Error,
    /// With a permanent refusal.
    Refusal,
    /// With a rate limit.
    Busy,
    /// In the middle of a good answer.
    Half,
    /// With RST.
    Reset,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 12] = [
        Self::Latency,
        Self::Stall,
        Self::Fail,
        Self::FailAfter,
        Self::Refuse,
        Self::Busy,
        Self::Reset,
        Self::ResetBefore,
        Self::Half,
        Self::KeyLate,
        Self::LookupEarly,
        Self::ActLate,
    ];

    /// The whole table: name, whether the sim acts on the request, how the exchange ends.
    #[rustfmt::skip]
    const fn row(self) -> (&'static str, bool, Ending) {
        match self {
            Self::Latency     => ("latency",      true,  Ending::Late),
            Self::Stall       => ("stall",        true,  Ending::Silence),
            Self::Fail        => ("fail",         false, Ending::Error),
            Self::FailAfter   => ("fail_after",   true,  Ending::Error),
            Self::Refuse      => ("refuse",       false, Ending::Refusal),
            Self::Busy        => ("busy",         false, Ending::Busy),
            Self::Reset       => ("reset",        true,  Ending::Reset),
            Self::ResetBefore => ("reset_before", false, Ending::Reset),
            Self::Half        => ("half",         true,  Ending::Half),
            Self::KeyLate     => ("key_late",     true,  Ending::Reset),
            Self::LookupEarly => ("lookup_early", true,  Ending::Reset),
            Self::ActLate     => ("act_late",     false, Ending::Reset),
        }
    }

    /// Name in flags, in `PUT /faults` and in receipts.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Whether the sim acts on the request.
    pub const fn acts(self) -> bool {
        self.row().1
    }

    /// The end of the exchange, unless a rule sets another.
    pub const fn ending(self) -> Ending {
        self.row().2
    }

    /// Whether the fault delays an effect beyond the exchange. Rules may choose how such an exchange ends.
    pub const fn delays_an_effect(self) -> bool {
        matches!(self, Self::KeyLate | Self::LookupEarly | Self::ActLate)
    }

    /// Whether the fault can apply to such a request. An accepted request is never refused later, because a provider that
    /// remembers it repeats its answer.
    pub const fn applies_to(self, kind: RequestKind) -> bool {
        match kind {
            RequestKind::Action => true,
            RequestKind::UnknownRepeat => !matches!(self, Self::Refuse),
            RequestKind::Repeat => !self.delays_an_effect() && !matches!(self, Self::Refuse),
            RequestKind::LookUp => !self.delays_an_effect(),
        }
    }
}

impl From<Fault> for &'static str {
    fn from(fault: Fault) -> Self {
        fault.name()
    }
}

impl TryFrom<String> for Fault {
    type Error = anyhow::Error;

    fn try_from(name: String) -> anyhow::Result<Self> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let named = Self::ALL.into_iter().find(|fault| fault.name() == name);
        named.with_context(|| format!("there is no fault `{name}`; known are {}", known()))
    }
}

/// The probability of each fault. The other requests get good answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates(BTreeMap<Fault, f64>);

impl Rates {
    /// Checks that each rate and the sum of all rates are probabilities.
    pub fn new(named: impl IntoIterator<Item = (String, f64)>) -> anyhow::Result<Self> {
        let mut rates = BTreeMap::new();
        for (name, rate) in named {
            let fault = Fault::try_from(name)?;
            ensure!(
                (0.0..=1.0).contains(&rate),
                "the rate of `{}` must be between 0 and 1, not {rate}",
                fault.name()
            );
            ensure!(rates.insert(fault, rate).is_none(), "the rate of `{}` is given twice", fault.name());
        }
        let sum: f64 = rates.values().sum();
        // Ten times 0.1 is not quite 1.
        ensure!(sum <= 1.0 + 1e-9, "the rates add up to {sum}, and may not exceed 1");
        Ok(Self(rates))
    }

    /// The fault at one point of the line from 0 to 1, on which the rates lie end to end.
    fn at(&self, point: f64) -> Option<Fault> {
        let mut end = 0.0;
        self.0.iter().find_map(|(fault, rate)| {
            end += rate;
            (point < end).then_some(*fault)
        })
    }
}

/// Reads `NAME=PROBABILITY`.
pub fn parse_flag(text: &str) -> anyhow::Result<(String, f64)> {
    let (name, rate) = text.split_once('=').context("expected NAME=PROBABILITY, such as stall=0.01")?;
    let fault = Fault::try_from(name.to_owned())?;
    let rate = rate.parse().with_context(|| format!("`{rate}` is not a number between 0 and 1"))?;
    ensure!((0.0..=1.0).contains(&rate), "the rate must be between 0 and 1, not {rate}");
    Ok((fault.name().to_owned(), rate))
}

/// Draws the faults of requests. The n-th draw depends only on the seed and on n, so the same seed gives the same
/// faults in the same order, however many requests are in flight.
pub struct FaultSampler {
    seed: u64,
    drawn: AtomicU64,
    rates: Mutex<Rates>,
}

impl FaultSampler {
    /// A generator with this seed.
    pub fn new(seed: u64, rates: Rates) -> Self {
        Self { seed, drawn: AtomicU64::new(0), rates: Mutex::new(rates) }
    }

    /// Draws the fault of the next request, if any.
    pub fn sample(&self) -> Option<Fault> {
        let nth = self.drawn.fetch_add(1, Ordering::Relaxed);
        // 53 bits, as many as an f64 holds exactly: 0 <= point < 1.
        let point = (split_mix_64(self.seed, nth) >> 11) as f64 / (1u64 << 53) as f64;
        self.rates_now().at(point)
    }

    /// Replaces the rates from the next draw on.
    pub fn set_rates(&self, rates: Rates) {
        *self.rates_now() = rates;
    }

    /// The rates in force.
    pub fn rates(&self) -> Rates {
        self.rates_now().clone()
    }

    /// The seed of the generator.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    fn rates_now(&self) -> MutexGuard<'_, Rates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The n-th number of the SplitMix64 sequence of `seed`.
fn split_mix_64(seed: u64, nth: u64) -> u64 {
    let mut z = seed.wrapping_add(nth.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(named: &[(&str, f64)]) -> anyhow::Result<Rates> {
        Rates::new(named.iter().map(|(name, rate)| ((*name).to_owned(), *rate)))
    }

    #[test]
    fn the_generator_is_split_mix_64() {
        // The first numbers of the reference implementation, seeded with 1234567.
        let expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431];
        assert_eq!([0, 1, 2, 3].map(|nth| split_mix_64(1234567, nth)), expected);
    }

    #[test]
    fn faults_are_drawn_at_their_rates() {
        let sampler = FaultSampler::new(7, rates(&[("stall", 0.1), ("half", 0.3)]).unwrap());
        let drawn: Vec<_> = (0..100_000).map(|_| sampler.sample()).collect();
        let share = |fault| drawn.iter().filter(|t| **t == fault).count() as f64 / 100_000.0;
        assert!((share(Some(Fault::Stall)) - 0.1).abs() < 0.01);
        assert!((share(Some(Fault::Half)) - 0.3).abs() < 0.01);
        assert!((share(None) - 0.6).abs() < 0.01);
    }

    #[test]
    fn a_rate_of_one_always_applies() {
        let sampler = FaultSampler::new(7, rates(&[("fail", 1.0)]).unwrap());
        assert!((0..10_000).all(|_| sampler.sample() == Some(Fault::Fail)));
    }

    #[test]
    fn invalid_probabilities_are_refused() {
        let refused = |named: &[(&str, f64)]| rates(named).unwrap_err().to_string();
        assert!(refused(&[("fire", 0.1)]).contains("known are latency, stall, fail, fail_after"));
        assert!(refused(&[("fail", 1.1)]).contains("between 0 and 1"));
        assert!(refused(&[("fail", -0.1)]).contains("between 0 and 1"));
        assert!(refused(&[("fail", f64::NAN)]).contains("between 0 and 1"));
        assert!(refused(&[("fail", 0.6), ("busy", 0.6)]).contains("add up to 1.2"));
        assert!(refused(&[("fail", 0.1), ("fail", 0.1)]).contains("given twice"));
    }
}

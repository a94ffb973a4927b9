//! Faults: what can go wrong on the way, how often, and the dice that decide.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// Something that goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum Fault {
    /// Waits a bit, then answers well.
    Latency,
    /// Acts, and never answers.
    Stall,
    /// Reports an error, and did not act.
    Fail,
    /// Reports an error, and did act.
    FailAfter,
    /// Says no, and would say so again.
    Refuse,
    /// Says "later", and when.
    Busy,
    /// Acts, then resets the connection.
    Reset,
    /// Resets the connection without acting.
    ResetBefore,
    /// Acts, then breaks off in the middle of its answer.
    Half,
    /// Acts and loses the answer; the key is remembered only after a while, so a repeat until then acts again.
    KeyLate,
    /// Acts and loses the answer; whoever looks for it does not find it for a while.
    LookupEarly,
    /// Loses the answer, and acts only after a while: the request was stuck in some proxy.
    ActLate,
}

/// A fault that strikes one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strike {
    /// What happens.
    pub fault: Fault,
    /// How the exchange ends.
    pub ending: Ending,
    /// How long the fault lasts, if it is one that lasts.
    pub delay: Duration,
}

/// What a request is to its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Something new to do.
    ToAct,
    /// Something that was taken, or is still on its way, and the provider does not know it.
    ToActAgain,
    /// What was done already, and is answered from memory.
    Again,
    /// A question: nothing is done.
    ToLook,
}

/// How an exchange ends. Each face has its own way of saying it: HTTP a status, SMTP a reply code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a good answer.
    Well,
    /// With a good answer, after a while.
    Late,
    /// With no answer.
    Silence,
    /// With "something broke here".
    Error,
    /// With "no, and do not ask again".
    Refusal,
    /// With "later".
    Busy,
    /// In the middle of a good answer.
    Half,
    /// With the connection.
    Reset,
}

impl Fault {
    /// Every fault there is.
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

    /// Its name in flags, in `PUT /faults` and in receipts.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Whether the sim does what it was asked before the fault strikes.
    pub const fn acts(self) -> bool {
        self.row().1
    }

    /// How the exchange ends, unless a rule says otherwise.
    pub const fn ending(self) -> Ending {
        self.row().2
    }

    /// Whether it plays with what happens after the answer. Rules may choose how such an exchange ends.
    pub const fn is_mean(self) -> bool {
        matches!(self, Self::KeyLate | Self::LookupEarly | Self::ActLate)
    }

    /// Whether it can strike such a request. What was taken is never refused afterwards: a provider that remembers it
    /// says so again.
    pub const fn strikes(self, asked: Asked) -> bool {
        match asked {
            Asked::ToAct => true,
            Asked::ToActAgain => !matches!(self, Self::Refuse),
            Asked::Again => !self.is_mean() && !matches!(self, Self::Refuse),
            Asked::ToLook => !self.is_mean(),
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

/// How often each fault strikes. What remains up to 1 is answered well.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates(BTreeMap<Fault, f64>);

impl Rates {
    /// Takes named rates that are probabilities, alone and together.
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

/// Decides which request meets which fault. The n-th throw depends on the seed and on n alone, so a seed
/// strikes the same share of requests in the same order however many are in flight.
pub struct Dice {
    seed: u64,
    thrown: AtomicU64,
    rates: Mutex<Rates>,
}

impl Dice {
    /// Dice that fall as `seed` says.
    pub fn new(seed: u64, rates: Rates) -> Self {
        Self { seed, thrown: AtomicU64::new(0), rates: Mutex::new(rates) }
    }

    /// The fault that the next request meets, if any.
    pub fn throw(&self) -> Option<Fault> {
        let nth = self.thrown.fetch_add(1, Ordering::Relaxed);
        // 53 bits, as many as an f64 holds exactly: 0 <= point < 1.
        let point = (split_mix_64(self.seed, nth) >> 11) as f64 / (1u64 << 53) as f64;
        self.rates_now().at(point)
    }

    /// Replaces the rates from the next throw on.
    pub fn set_rates(&self, rates: Rates) {
        *self.rates_now() = rates;
    }

    /// The rates in force.
    pub fn rates(&self) -> Rates {
        self.rates_now().clone()
    }

    /// The seed the dice were made with.
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
    fn faults_strike_as_often_as_their_rates_say() {
        let dice = Dice::new(7, rates(&[("stall", 0.1), ("half", 0.3)]).unwrap());
        let thrown: Vec<_> = (0..100_000).map(|_| dice.throw()).collect();
        let share = |fault| thrown.iter().filter(|t| **t == fault).count() as f64 / 100_000.0;
        assert!((share(Some(Fault::Stall)) - 0.1).abs() < 0.01);
        assert!((share(Some(Fault::Half)) - 0.3).abs() < 0.01);
        assert!((share(None) - 0.6).abs() < 0.01);
    }

    #[test]
    fn a_rate_of_one_always_strikes() {
        let dice = Dice::new(7, rates(&[("fail", 1.0)]).unwrap());
        assert!((0..10_000).all(|_| dice.throw() == Some(Fault::Fail)));
    }

    #[test]
    fn rates_that_are_no_probabilities_are_refused() {
        let refused = |named: &[(&str, f64)]| rates(named).unwrap_err().to_string();
        assert!(refused(&[("fire", 0.1)]).contains("known are latency, stall, fail, fail_after"));
        assert!(refused(&[("fail", 1.1)]).contains("between 0 and 1"));
        assert!(refused(&[("fail", -0.1)]).contains("between 0 and 1"));
        assert!(refused(&[("fail", f64::NAN)]).contains("between 0 and 1"));
        assert!(refused(&[("fail", 0.6), ("busy", 0.6)]).contains("add up to 1.2"));
        assert!(refused(&[("fail", 0.1), ("fail", 0.1)]).contains("given twice"));
    }
}

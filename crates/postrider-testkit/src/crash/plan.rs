//! Which faults a run injects, and how often.

use std::{fmt, str::FromStr, time::Duration};

use anyhow::Context;

use super::SeededRandom;

/// A fault of the system. Kills and freezes name the group of processes that they hit, such as `workers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A process is killed, and another one is started in its place.
    Kill(&'static str),
    /// A process is stopped until its work was taken from it, and goes on later.
    Freeze(&'static str),
    /// The database ends a connection of a process.
    CutConnection,
    /// Postgres stops at once, and recovers.
    CrashPostgres,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(group) => write!(f, "kills of {group}"),
            Self::Freeze(group) => write!(f, "freezes of {group}"),
            Self::CutConnection => f.write_str("connections cut"),
            Self::CrashPostgres => f.write_str("Postgres crashes"),
        }
    }
}

/// The faults of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    /// How often each fault is injected in a round.
    pub faults: Vec<(Fault, usize)>,
    /// Rounds are repeated for so long. Zero means one round.
    pub time: Duration,
    /// How often each fault of the providers occurs, from 0 to 1.
    pub provider_faults: Vec<(String, f64)>,
    /// Each fault of the providers must occur so often, or the run is void.
    pub provider_faults_min: usize,
}

impl Plan {
    /// One round with these faults; those of the providers are written like `stall=0.01,half=0.02`.
    #[expect(
        clippy::expect_used,
        reason = "a plan is a constant of its test, so a malformed one must end that test"
    )]
    pub fn new(seed: u64, faults: &[(Fault, usize)], rates: &str, provider_faults_min: usize) -> Self {
        let provider_faults = parse_rates(rates).expect("the rates of a plan are well-formed");
        Self { seed, faults: faults.to_vec(), time: Duration::ZERO, provider_faults, provider_faults_min }
    }

    /// A long run: this plan as CRASH_SECONDS, CRASH_SEED, CRASH_KILLS and CRASH_RATES change it.
    pub fn from_environment(mut self) -> anyhow::Result<Self> {
        self.seed = setting("CRASH_SEED", u64::from(std::process::id()))?;
        self.time = Duration::from_secs(setting("CRASH_SECONDS", 600)?);
        let planned = self.kills();
        let kills = setting("CRASH_KILLS", planned)?;
        for (_, count) in &mut self.faults {
            *count = (*count * kills).div_ceil(planned);
        }
        if let Ok(rates) = std::env::var("CRASH_RATES") {
            self.provider_faults = parse_rates(&rates)?;
        }
        Ok(self)
    }

    /// Number of kills in a round, of all groups.
    pub fn kills(&self) -> usize {
        let kills = self.faults.iter().filter(|(fault, _)| matches!(fault, Fault::Kill(_)));
        kills.map(|(_, count)| count).sum()
    }

    /// Number of faults in a round.
    pub fn round(&self) -> usize {
        self.faults.iter().map(|(_, count)| count).sum()
    }

    /// Number of injections of one fault in a round.
    pub fn count(&self, fault: Fault) -> usize {
        self.faults.iter().filter(|(known, _)| *known == fault).map(|(_, count)| count).sum()
    }

    /// Every fault of a round, in an order that the seed decides.
    pub fn shuffled(&self, random: &mut SeededRandom) -> Vec<Fault> {
        let mut faults: Vec<Fault> =
            self.faults.iter().flat_map(|(fault, count)| vec![*fault; *count]).collect();
        for last in (1..faults.len()).rev() {
            faults.swap(last, random.below(last + 1));
        }
        faults
    }

    /// Arguments of `postrider sim`: the seed and the faults of the providers.
    pub fn sim_arguments(&self) -> Vec<String> {
        let faults = self
            .provider_faults
            .iter()
            .flat_map(|(name, rate)| ["--fault".to_owned(), format!("{name}={rate}")]);
        ["--seed".to_owned(), self.seed.to_string()].into_iter().chain(faults).collect()
    }
}

/// A setting from the environment.
pub fn setting<T>(name: &str, default: T) -> anyhow::Result<T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
}

fn parse_rates(text: &str) -> anyhow::Result<Vec<(String, f64)>> {
    let rate = |part: &str| {
        let (name, rate) =
            part.split_once('=').with_context(|| format!("`{part}` is not like stall=0.01"))?;
        Ok((name.trim().to_owned(), rate.parse()?))
    };
    text.split(',').map(rate).collect()
}

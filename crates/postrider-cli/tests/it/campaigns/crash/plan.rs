//! How hard a run is: how many items, how many blows of each kind, how often the provider fails, and the seed.

use std::{str::FromStr, time::Duration};

use anyhow::Context;

/// What is done to the system while it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// A worker is killed, and another one started in its place.
    Kill,
    /// A worker is stopped until its locks have gone stale, and goes on later.
    Freeze,
    /// A connection of a worker is ended by the database.
    Cut,
    /// Postgres stops at once, and recovers.
    Crash,
}

/// Where items go: the channel, and the account, which has the name of its provider.
pub type Route = (&'static str, &'static str);

/// One run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub routes: &'static [Route],
    /// Whether resolvers settle what is in doubt while the run goes on.
    pub settles: bool,
    /// At least so many items must have been in doubt.
    pub doubts_min: usize,
    pub seed: u64,
    /// At least so many items are intended.
    pub items: usize,
    pub kills: usize,
    pub freezes: usize,
    pub cuts: usize,
    pub crashes: usize,
    /// The blows are dealt again and again for so long; once, when it is zero.
    pub time: Duration,
    pub workers: usize,
    /// How often each fault of the provider strikes.
    pub rates: Vec<(String, f64)>,
    /// Each fault must strike so often, or the run says nothing.
    pub strikes_min: usize,
}

/// Answers late, never, wrongly, half, or not at all; acts or does not.
pub const RATES: &str = "latency=0.02,stall=0.005,fail=0.01,fail_after=0.01,refuse=0.02,busy=0.02,reset=0.01,\
                         reset_before=0.01,half=0.01";

/// The same, and meaner: it remembers a key late, denies what it has just done, acts when everybody has gone.
const MEAN_RATES: &str = "latency=0.02,stall=0.08,fail=0.04,fail_after=0.08,refuse=0.01,busy=0.01,reset=0.1,\
                          reset_before=0.04,half=0.08,key_late=0.05,lookup_early=0.05,act_late=0.08";

impl Plan {
    /// The run of `make test`.
    pub fn short() -> Self {
        Self {
            routes: &[("email", "sim"), ("voice", "sim"), ("email", "smtp")],
            settles: false,
            doubts_min: 0,
            seed: 20_261_115,
            items: 20_000,
            kills: 110,
            freezes: 20,
            cuts: 40,
            crashes: 11,
            time: Duration::ZERO,
            workers: 4,
            rates: rates(RATES).unwrap(),
            strikes_min: 20,
        }
    }

    /// Every provider, all of them mean, with resolvers that clear up behind.
    pub fn settling() -> Self {
        Self {
            routes: &[
                ("email", "resend"),
                ("voice", "twilio"),
                ("social", "mastodon"),
                ("social", "bluesky"),
                ("email", "webhook"),
                ("voice", "sim"),
                ("email", "smtp"),
            ],
            settles: true,
            doubts_min: 5000,
            items: 14_000,
            kills: 30,
            // A request that a stopped worker sends after the quiet time is what the quiet time must be longer than.
            freezes: 0,
            cuts: 10,
            crashes: 3,
            rates: rates(MEAN_RATES).unwrap(),
            strikes_min: 50,
            ..Self::short()
        }
    }

    /// A small one, for twins that are broken on purpose.
    pub fn small() -> Self {
        Self {
            items: 1500,
            kills: 8,
            freezes: 1,
            cuts: 2,
            crashes: 1,
            workers: 3,
            strikes_min: 0,
            ..Self::short()
        }
    }

    /// The run of `make crash`: like the short one, changed by the environment.
    pub fn from_environment() -> anyhow::Result<Self> {
        let short = Self::short();
        let kills = setting("CRASH_KILLS", short.kills)?;
        let share = |of: usize| (of * kills).div_ceil(short.kills);
        Ok(Self {
            seed: setting("CRASH_SEED", u64::from(std::process::id()))?,
            items: setting("CRASH_ITEMS", short.items)?,
            kills,
            freezes: share(short.freezes),
            cuts: share(short.cuts),
            crashes: share(short.crashes),
            time: Duration::from_secs(setting("CRASH_SECONDS", 600)?),
            rates: rates(&setting("CRASH_RATES", RATES.to_owned())?)?,
            ..short
        })
    }

    /// Every blow of the plan, in an order that the seed decides.
    pub fn blows(&self, dice: &mut Dice) -> Vec<Blow> {
        let counts = [
            (Blow::Kill, self.kills),
            (Blow::Freeze, self.freezes),
            (Blow::Cut, self.cuts),
            (Blow::Crash, self.crashes),
        ];
        let mut blows: Vec<Blow> = counts.into_iter().flat_map(|(blow, count)| vec![blow; count]).collect();
        for last in (1..blows.len()).rev() {
            blows.swap(last, dice.below(last + 1));
        }
        blows
    }
}

fn setting<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    name: &str,
    default: T,
) -> anyhow::Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
}

/// Reads `stall=0.01,half=0.02`.
fn rates(text: &str) -> anyhow::Result<Vec<(String, f64)>> {
    let rate = |part: &str| {
        let (name, rate) =
            part.split_once('=').with_context(|| format!("`{part}` is not like stall=0.01"))?;
        Ok((name.trim().to_owned(), rate.parse()?))
    };
    text.split(',').map(rate).collect()
}

/// Numbers that follow from a seed (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// One of `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

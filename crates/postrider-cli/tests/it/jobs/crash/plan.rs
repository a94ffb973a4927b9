//! How hard a run is.

use std::time::Duration;

use anyhow::Context;

#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    /// At least so many runs there must have been.
    pub runs: usize,
    /// Functions that are invoked before each kill. A schedule with a dozen firings that are due is set beside them.
    pub invocations: u32,
    pub processes: usize,
    pub kills: usize,
    /// Before each so-manieth kill another process is stopped until its runs were taken from it, and goes on as if nothing had been.
    pub kills_per_stop: usize,
    /// The kills are dealt again and again for so long; once, when it is zero.
    pub time: Duration,
    /// How often each fault strikes.
    pub faults: &'static [(&'static str, f64)],
    /// Each fault must strike so often, or the run says nothing.
    pub strikes_min: usize,
}

/// Answers late, never, wrongly, half, or not at all; acts or does not.
const FAULTS: &[(&str, f64)] = &[
    ("latency", 0.08),
    ("stall", 0.03),
    ("fail", 0.06),
    ("fail_after", 0.06),
    ("refuse", 0.03),
    ("busy", 0.03),
    ("reset", 0.04),
    ("reset_before", 0.04),
    ("half", 0.04),
];

impl Plan {
    /// The run of `make test`.
    pub fn short() -> Self {
        Self {
            seed: 20_261_116,
            runs: 500,
            invocations: 14,
            processes: 4,
            kills: 30,
            kills_per_stop: 5,
            time: Duration::ZERO,
            faults: FAULTS,
            strikes_min: 2,
        }
    }

    /// The run of `make crash-jobs`: like the short one, again and again.
    pub fn from_environment() -> anyhow::Result<Self> {
        let setting = |name: &str, default: u64| match std::env::var(name) {
            Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
            Err(_) => Ok(default),
        };
        let time = Duration::from_secs(setting("CRASH_SECONDS", 600)?);
        Ok(Self { seed: setting("CRASH_SEED", u64::from(std::process::id()))?, time, ..Self::short() })
    }
}

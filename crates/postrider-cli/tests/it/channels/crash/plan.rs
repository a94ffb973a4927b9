//! How hard a run is.

use std::time::Duration;

use anyhow::Context;

#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    /// At least so many messages are delivered.
    pub messages: u32,
    /// Deliveries that the vendors have under way at a time.
    pub clients: usize,
    pub receivers: usize,
    pub dispatchers: usize,
    /// Kills of those who receive.
    pub receiver_kills: usize,
    /// Kills of those who reply.
    pub dispatcher_kills: usize,
    /// The kills are dealt again and again for so long; once, when it is zero.
    pub time: Duration,
    /// How often each fault strikes.
    pub faults: &'static [(&'static str, f64)],
    /// Each fault must strike so often, or the run says nothing.
    pub strikes_min: usize,
}

/// Answers late, never, wrongly, half, or not at all; acts or does not.
const FAULTS: &[(&str, f64)] = &[
    ("latency", 0.02),
    ("stall", 0.01),
    ("fail", 0.02),
    ("fail_after", 0.02),
    ("refuse", 0.01),
    ("busy", 0.01),
    ("reset", 0.02),
    ("reset_before", 0.02),
    ("half", 0.02),
];

impl Plan {
    /// The run of `make test`.
    pub fn short() -> Self {
        Self {
            seed: 20_261_115,
            messages: 1800,
            clients: 8,
            receivers: 2,
            dispatchers: 3,
            receiver_kills: 24,
            dispatcher_kills: 36,
            time: Duration::ZERO,
            faults: FAULTS,
            strikes_min: 5,
        }
    }

    /// The run of `make crash-replies`: like the short one, again and again.
    pub fn from_environment() -> anyhow::Result<Self> {
        let setting = |name: &str, default: u64| match std::env::var(name) {
            Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
            Err(_) => Ok(default),
        };
        let time = Duration::from_secs(setting("CRASH_SECONDS", 600)?);
        Ok(Self { seed: setting("CRASH_SEED", u64::from(std::process::id()))?, time, ..Self::short() })
    }
}

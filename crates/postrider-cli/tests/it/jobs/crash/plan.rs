//! How hard a run of jobs is.

use postrider_testkit::crash::{self, Fault};

pub const KILL: Fault = Fault::Kill("runners");
pub const FREEZE: Fault = Fault::Freeze("runners");

#[derive(Debug, Clone)]
pub struct Plan {
    pub faults: crash::Plan,
    /// At least so many runs there must have been.
    pub runs: usize,
    /// Functions that are invoked before each fault. A schedule with a dozen firings that are due is set beside them.
    pub invocations: u32,
    pub processes: usize,
}

/// Answers late, never, wrongly, half, or not at all; acts or does not.
const RATES: &str = "latency=0.08,stall=0.03,fail=0.06,fail_after=0.06,refuse=0.03,busy=0.03,reset=0.04,\
                     reset_before=0.04,half=0.04";

impl Plan {
    /// The run of `make test`.
    pub fn short() -> Self {
        Self {
            faults: crash::Plan::new(20_261_116, &[(KILL, 30), (FREEZE, 6)], RATES, 2),
            runs: 500,
            invocations: 12,
            processes: 4,
        }
    }

    /// The run of `make crash-jobs`: the short one, as the environment changes it.
    pub fn from_environment() -> anyhow::Result<Self> {
        let short = Self::short();
        Ok(Self { faults: short.faults.clone().from_environment()?, ..short })
    }
}

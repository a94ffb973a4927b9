//! How hard a run of chat is.

use postrider_testkit::crash::{self, Fault};

pub const KILL_RECEIVER: Fault = Fault::Kill("receivers");
pub const KILL_DISPATCHER: Fault = Fault::Kill("dispatchers");

#[derive(Debug, Clone)]
pub struct Plan {
    pub faults: crash::Plan,
    /// At least so many messages are delivered.
    pub messages: u32,
    /// Deliveries that the vendors have under way at a time.
    pub clients: usize,
    pub receivers: usize,
    pub dispatchers: usize,
}

/// Answers late, never, wrongly, half, or not at all; acts or does not.
const RATES: &str = "latency=0.02,stall=0.01,fail=0.02,fail_after=0.02,refuse=0.01,busy=0.01,reset=0.02,\
                     reset_before=0.02,half=0.02";

impl Plan {
    /// The run of `make test`.
    pub fn short() -> Self {
        Self {
            faults: crash::Plan::new(20_261_115, &[(KILL_RECEIVER, 24), (KILL_DISPATCHER, 36)], RATES, 5),
            messages: 1800,
            clients: 8,
            receivers: 2,
            dispatchers: 3,
        }
    }

    /// The run of `make crash-replies`: the short one, as the environment changes it.
    pub fn from_environment() -> anyhow::Result<Self> {
        let short = Self::short();
        Ok(Self { faults: short.faults.clone().from_environment()?, ..short })
    }
}

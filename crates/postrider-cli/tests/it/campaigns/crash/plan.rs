//! How hard a run of campaigns is.

use postrider_testkit::crash::{self, Fault, setting};

/// Where items go: the channel, and the account, which has the name of its provider.
pub type Route = (&'static str, &'static str);

pub const KILL: Fault = Fault::Kill("workers");
pub const FREEZE: Fault = Fault::Freeze("workers");

/// One run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub faults: crash::Plan,
    pub routes: &'static [Route],
    /// Whether resolvers settle what is in doubt while the run goes on.
    pub settles: bool,
    /// At least so many items must have been in doubt.
    pub doubts_min: usize,
    /// At least so many items are intended.
    pub items: usize,
    /// So many single messages are sent by applications.
    pub messages: usize,
    pub workers: usize,
}

/// Answers late, never, wrongly, half, or not at all; acts or does not.
const RATES: &str = "latency=0.02,stall=0.005,fail=0.01,fail_after=0.01,refuse=0.02,busy=0.02,reset=0.01,\
                     reset_before=0.01,half=0.01";

/// The same, and harder: the provider remembers a key late, denies what it has just done, and acts after the client has gone.
const HARD_RATES: &str = "latency=0.02,stall=0.08,fail=0.04,fail_after=0.08,refuse=0.01,busy=0.01,reset=0.1,\
                          reset_before=0.04,half=0.08,key_late=0.05,lookup_early=0.05,act_late=0.08";

/// Kills, freezes, connections cut, Postgres crashes.
fn faults(counts: [usize; 4], rates: &str, provider_faults_min: usize) -> crash::Plan {
    let kinds = [KILL, FREEZE, Fault::CutConnection, Fault::CrashPostgres];
    let faults: Vec<(Fault, usize)> = kinds.into_iter().zip(counts).collect();
    crash::Plan::new(20_261_115, &faults, rates, provider_faults_min)
}

impl Plan {
    /// The run of `make test`.
    pub fn short() -> Self {
        Self {
            faults: faults([110, 20, 40, 11], RATES, 20),
            routes: &[("email", "sim"), ("voice", "sim"), ("email", "smtp")],
            settles: false,
            doubts_min: 0,
            items: 20_000,
            messages: 3_000,
            workers: 4,
        }
    }

    /// Every provider with hard faults, and resolvers that settle the doubts.
    pub fn settling() -> Self {
        Self {
            // No freezes: a stopped worker could send a request after the quiet time, which must be longer than any call.
            faults: faults([30, 0, 10, 3], HARD_RATES, 50),
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
            messages: 0,
            ..Self::short()
        }
    }

    /// A small one, for copies with a broken guard.
    pub fn small() -> Self {
        Self { faults: faults([8, 1, 2, 1], RATES, 0), items: 1500, messages: 0, workers: 3, ..Self::short() }
    }

    /// The run of `make crash`: the short one, as the environment changes it.
    pub fn from_environment() -> anyhow::Result<Self> {
        let short = Self::short();
        let items = setting("CRASH_ITEMS", short.items)?;
        let messages = setting("CRASH_MESSAGES", 20_000)?;
        Ok(Self { faults: short.faults.clone().from_environment()?, items, messages, ..short })
    }
}

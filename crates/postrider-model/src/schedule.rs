//! When a schedule fires, and what becomes of the firings that nobody was there for.
//!
//! A cron expression names civil times: what a clock on the wall of its zone shows. Every civil time that it names fires
//! exactly once:
//!
//! | the civil time | fires |
//! |---|---|
//! | occurs once | then |
//! | occurs twice, because the clocks are put back | at its first occurrence |
//! | does not occur, because the clocks are put forward | at the first instant after the gap; those that fall together there fire once |
//!
//! The rule is the same for every expression. So `*/5 * * * *` pauses while an hour is repeated: all of its times have
//! fired. Who wants something every five minutes whatever the clocks do takes the zone `UTC`.

mod cron;
mod fields;
mod grains;
mod misfire;
mod timing;
mod zone;

#[cfg(test)]
mod tests;

pub use cron::{Cron, InvalidCron};
pub use grains::shared_grains;
pub use misfire::{Misfire, Plan, Policy, Skipped, plan};
pub use timing::Timing;
pub use zone::{UnknownZone, Zone};

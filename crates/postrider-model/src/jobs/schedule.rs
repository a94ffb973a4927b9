//! The firings of a schedule, and the policy for firings that are late.
//!
//! A cron expression names civil times, which are the times that a clock in its zone shows. Every civil time that it names
//! fires exactly once:
//!
//! | the civil time | fires |
//! |---|---|
//! | occurs once | then |
//! | occurs twice, because the clocks are put back | at its first occurrence |
//! | does not occur, because the clocks are put forward | at the first instant after the gap; several such times fire once together |
//!
//! The rule is the same for every expression. So `*/5 * * * *` pauses while an hour is repeated, because all of its times
//! have fired. Use the zone `UTC` for a firing every five minutes without that pause.

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

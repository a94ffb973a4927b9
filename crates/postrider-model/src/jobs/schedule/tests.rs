mod expressions;
mod grains;
mod misfires;
mod oracle;
mod timings;
mod transitions;
mod zones;

use jiff::Timestamp;

use super::*;

fn timing(cron: &str, zone: &str) -> Timing {
    Timing { cron: cron.parse().unwrap(), zone: zone.parse().unwrap() }
}

fn at(moment: &str) -> Timestamp {
    moment.parse().unwrap()
}

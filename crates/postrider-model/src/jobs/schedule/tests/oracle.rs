//! A second, simple implementation of the rule: it reads a clock every few minutes.
//!
//! It does not know gaps, repeated hours or the evaluator of expressions. It reads the clock, and when the clock shows a
//! later time than ever before, all named times since then fire.

use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};

/// The readings of a clock, each with the civil times that it showed for the first time.
pub struct ObservedClock {
    readings: Vec<(Timestamp, Vec<DateTime>)>,
}

impl ObservedClock {
    /// Reads a clock around one of its changes. The first reading has no new times.
    pub fn new(zone: &TimeZone, change: Timestamp, distance: SignedDuration) -> Self {
        // Most clocks change at a multiple of five minutes, and then a reading every five minutes misses no time.
        let step = SignedDuration::from_mins(if change.as_second() % 300 == 0 { 5 } else { 1 });
        assert_eq!(change.as_second() % 60, 0);
        let (from, until) = (change - distance, change + distance);
        let mut shown = zone.to_datetime(from);
        let mut readings = vec![];
        let mut now = from + step;
        while now <= until {
            let clock = zone.to_datetime(now);
            let mut new = vec![];
            while shown < clock {
                shown += step;
                new.push(shown);
            }
            readings.push((now, new));
            now += step;
        }
        Self { readings }
    }

    /// The firings of an expression that names these civil times.
    pub fn firings(&self, names: impl Fn(DateTime) -> bool) -> Vec<Timestamp> {
        let fires =
            |(at, new): &(Timestamp, Vec<DateTime>)| new.iter().any(|civil| names(*civil)).then_some(*at);
        self.readings.iter().filter_map(fires).collect()
    }
}

//! The rule once more, in the plainest way: a clock that is looked at every few minutes.
//!
//! It knows nothing of gaps and repeated hours, nor of the evaluator of expressions. It reads the clock, and whenever the
//! clock shows more than it ever did, all that it names since then fires.

use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};

/// When the clock was looked at, and the civil times that came up with that.
pub struct Watched {
    looks: Vec<(Timestamp, Vec<DateTime>)>,
}

impl Watched {
    /// Looks at a clock around the moment when it is changed. What it shows first does not count.
    pub fn new(zone: &TimeZone, change: Timestamp, distance: SignedDuration) -> Self {
        // Few clocks are changed at an odd minute. At all others, and from there on, nothing happens in between.
        let step = SignedDuration::from_mins(if change.as_second() % 300 == 0 { 5 } else { 1 });
        assert_eq!(change.as_second() % 60, 0);
        let (from, until) = (change - distance, change + distance);
        let mut shown = zone.to_datetime(from);
        let mut looks = vec![];
        let mut now = from + step;
        while now <= until {
            let clock = zone.to_datetime(now);
            let mut new = vec![];
            while shown < clock {
                shown += step;
                new.push(shown);
            }
            looks.push((now, new));
            now += step;
        }
        Self { looks }
    }

    /// When something fires that names these civil times.
    pub fn firings(&self, names: impl Fn(DateTime) -> bool) -> Vec<Timestamp> {
        let fires =
            |(at, new): &(Timestamp, Vec<DateTime>)| new.iter().any(|civil| names(*civil)).then_some(*at);
        self.looks.iter().filter_map(fires).collect()
    }
}

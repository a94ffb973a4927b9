//! The firings of a cron expression in a time zone.

use std::iter::successors;

use jiff::{
    Timestamp,
    civil::DateTime,
    tz::{AmbiguousOffset, Offset},
};

use super::{Cron, Zone};

/// A cron expression and the time zone of its civil times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// The expression.
    pub cron: Cron,
    /// The time zone.
    pub zone: Zone,
}

impl Timing {
    /// The first firing after this time. There is always one, until the calendar of the expressions ends in the year 5000.
    #[must_use]
    pub fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        self.firings_after(moment).next()
    }

    /// Every firing after this time, in order.
    pub fn firings_after(&self, moment: Timestamp) -> impl Iterator<Item = Timestamp> {
        // Later civil times fire later or together, so those up to the civil time of `moment` have fired. Of the ones
        // after it some may have, too, when an hour is repeated; and some fire together, after a gap.
        let civil = self.zone.time_zone().to_datetime(moment);
        let mut last = moment;
        successors(self.cron.after(civil), |civil| self.cron.after(*civil))
            .map_while(|civil| self.instant(civil))
            .filter(move |firing| {
                let is_new = *firing > last;
                last = last.max(*firing);
                is_new
            })
    }

    /// The last firing after `from` and up to `until`. The search begins at `until`, so the length of the period does not matter.
    #[must_use]
    pub fn latest_until(&self, from: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let zone = self.zone.time_zone();
        let mut civil = zone.to_datetime(until);
        if let AmbiguousOffset::Fold { before, .. } = zone.to_ambiguous_timestamp(civil).offset() {
            // Once an hour is being repeated, all of its times have fired.
            civil = before.to_datetime(until);
        }
        successors(self.cron.until(civil), |civil| self.cron.before(*civil))
            .map_while(|civil| self.instant(civil))
            .find(|firing| *firing <= until)
            .filter(|firing| *firing > from)
    }

    /// The instant at which a civil time fires.
    fn instant(&self, civil: DateTime) -> Option<Timestamp> {
        let local = self.zone.time_zone().to_ambiguous_timestamp(civil);
        match local.offset() {
            AmbiguousOffset::Gap { before, after } => self.end_of_gap(civil, before, after),
            AmbiguousOffset::Fold { .. } | AmbiguousOffset::Unambiguous { .. } => local.earlier().ok(),
        }
    }

    /// The first instant after the gap in which this civil time lies.
    fn end_of_gap(&self, civil: DateTime, before: Offset, after: Offset) -> Option<Timestamp> {
        // With the offset after the gap it would lie before the gap, with the offset before the gap after it.
        let (lower, upper) = (after.to_timestamp(civil).ok()?, before.to_timestamp(civil).ok()?);
        let mut changes =
            self.zone.time_zone().following(lower).take_while(|change| change.timestamp() <= upper);
        // The change is between them. If it were not, the later instant would be used, because firing late is better than never.
        let change = changes.find(|change| change.offset() == after);
        Some(change.map_or(upper, |change| change.timestamp()))
    }
}

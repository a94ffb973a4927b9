//! The sending hours of accounts, item by item. They are a wish of the tenant's about people, so they count wherever an item goes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::{Timestamp, tz::TimeZone};
use postrider_model::{
    limits::{By, Hours},
    schedule::Zone,
};
use postrider_store::jobs::Lead;

use super::{gate::Look, prepare::Prepared, route::Route, turns::Way};

/// The hours that an item must keep to on its way, at one moment.
pub(super) struct Openings<'a> {
    first: Option<Clock<'a>>,
    /// Those of the account that it fails over to, if it goes there.
    second: Option<Clock<'a>>,
    /// When the first account is worth another look.
    first_again: Timestamp,
}

impl<'a> Openings<'a> {
    pub(super) fn new(prepared: &'a Prepared, way: Way) -> Self {
        let now = Timestamp::now();
        let second = prepared.second.as_ref().filter(|_| way == Way::Second);
        let wait = match prepared.first.look() {
            Look::Wait { wait, .. } => wait,
            Look::Clear | Look::HalfOpen => Duration::ZERO,
        };
        Self {
            first: Clock::of(&prepared.first, now),
            second: second.and_then(|second| Clock::of(second, now)),
            first_again: now.checked_add(wait).unwrap_or(now),
        }
    }

    /// When this lead's item may go: `None` when it may now.
    pub(super) fn opens_at(&mut self, lead: Option<&Arc<Lead>>) -> Option<Timestamp> {
        let first = self.first.as_mut().and_then(|clock| clock.opens_at(lead));
        let second = self.second.as_mut().and_then(|clock| clock.opens_at(lead));
        // What only the second one's hours keep from going may find the first one well again before they open.
        first.or_else(|| second.map(|opens| opens.min(self.first_again)))
    }
}

/// The hours of one account. Leads share few time zones, and each is worked out once.
struct Clock<'a> {
    hours: &'a Hours,
    now: Timestamp,
    of_account: &'a TimeZone,
    openings: HashMap<Option<String>, Option<Timestamp>>,
}

impl<'a> Clock<'a> {
    fn of(route: &'a Route, now: Timestamp) -> Option<Self> {
        let hours = route.limits.hours.as_ref()?;
        Some(Self { hours, now, of_account: &route.zone, openings: HashMap::new() })
    }

    fn opens_at(&mut self, lead: Option<&Arc<Lead>>) -> Option<Timestamp> {
        let name = lead.filter(|_| self.hours.by == By::Lead).and_then(|lead| lead.timezone.as_deref());
        let key = name.map(str::to_owned);
        let (hours, now, of_account) = (self.hours, self.now, self.of_account);
        *self.openings.entry(key).or_insert_with(|| {
            let zone = name.and_then(Zone::find);
            hours.opens_at(now, zone.as_ref().map_or(of_account, Zone::time_zone))
        })
    }
}

//! The sending hours of accounts, item by item. The tenant sets them for the sake of the recipients, so they also count at the failover
//! account.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::{Timestamp, tz::TimeZone};
use postrider_model::{
    campaigns::limits::{By, Hours},
    jobs::schedule::Zone,
};
use postrider_store::campaigns::send_jobs::Lead;

use super::{account::Availability, choice::Target, route::Route};
use crate::campaigns::prepare::Prepared;

/// The hours that an item must keep at one moment.
pub(in crate::campaigns) struct Openings<'a> {
    account: Option<Clock<'a>>,
    /// The hours of the failover account, if the item goes there.
    failover: Option<Clock<'a>>,
    /// When the account may be available again.
    account_again: Timestamp,
}

impl<'a> Openings<'a> {
    pub(in crate::campaigns) fn new(prepared: &'a Prepared, target: Target) -> Self {
        let now = Timestamp::now();
        let failover = prepared.failover.as_ref().filter(|_| target == Target::Failover);
        let wait = match prepared.account.availability() {
            Availability::Wait { wait, .. } => wait,
            Availability::Clear | Availability::HalfOpen => Duration::ZERO,
        };
        Self {
            account: Clock::of(&prepared.account, now),
            failover: failover.and_then(|failover| Clock::of(failover, now)),
            account_again: now.checked_add(wait).unwrap_or(now),
        }
    }

    /// When this lead's item may be sent; `None` if it may be sent now.
    pub(in crate::campaigns) fn opens_at(&mut self, lead: Option<&Arc<Lead>>) -> Option<Timestamp> {
        let account = self.account.as_mut().and_then(|clock| clock.opens_at(lead));
        let failover = self.failover.as_mut().and_then(|clock| clock.opens_at(lead));
        // Only the hours of the failover account are closed: the account may be available again before they open.
        account.or_else(|| failover.map(|opens| opens.min(self.account_again)))
    }
}

/// The hours of one account. Leads share few time zones, and each zone is computed once.
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

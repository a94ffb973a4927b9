//! The time that calls take under the limits of their account.

use jiff::{SignedDuration, Timestamp, ToSpan};

use super::limits::{Limits, Why};

/// Longest estimate. A run that takes longer takes at least this.
pub const LONGEST: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);

/// The facts about an account before a run begins.
#[derive(Debug, Clone, Copy)]
pub struct Account<'a> {
    /// Its limits.
    pub limits: &'a Limits,
    /// The calls per second that the provider allows, for an account without a rate of its own.
    pub provider_rate: Option<f64>,
    /// Its calls of today.
    pub used_today: u64,
}

/// An estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Time from the beginning to the last call.
    pub seconds: i64,
    /// The limit that takes most of it.
    pub because: Why,
}

impl Account<'_> {
    /// The rate that applies.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        self.limits.rate_per_second.or(self.provider_rate)
    }

    /// The time that so many calls take from a moment on. `None` where no limit delays them: then the speed of the provider decides. Sending
    /// hours count in the time zone of the account.
    #[must_use]
    pub fn estimate(&self, calls: u64, begins_at: Timestamp) -> Option<Estimate> {
        let zone = self.limits.zone();
        let ends = begins_at.checked_add(LONGEST).unwrap_or(Timestamp::MAX);
        let (mut now, mut left, mut used) = (begins_at, calls, self.used_today);
        let (mut by_rate, mut by_daily, mut by_hours) = (0.0, 0.0, 0.0);
        while left > 0 && now < ends {
            if let Some(opens) = self.limits.hours.as_ref().and_then(|hours| hours.opens_at(now, &zone)) {
                by_hours += seconds(now, opens);
                now = opens;
                continue;
            }
            let closes = self.limits.hours.as_ref().and_then(|hours| hours.closes_at(now, &zone));
            let tomorrow = now
                .to_zoned(zone.clone())
                .date()
                .checked_add(1.day())
                .and_then(|date| date.to_zoned(zone.clone()))
                .map_or(ends, |midnight| midnight.timestamp());
            let allowance = self.limits.daily.map_or(left, |daily| left.min(daily.saturating_sub(used)));
            if allowance == 0 {
                by_daily += seconds(now, tomorrow);
                (now, used) = (tomorrow, 0);
                continue;
            }
            let until = closes.map_or(tomorrow, |closes| closes.min(tomorrow));
            let time = self.rate().map_or(0.0, |rate| count(allowance) / rate);
            let available = seconds(now, until);
            if time <= available {
                by_rate += time;
                now = later(now, time).min(until);
                left -= allowance;
                used = used.saturating_add(allowance);
            } else {
                by_rate += available;
                // At least one call, so that a slow rate makes progress.
                let made = whole(available * self.rate().unwrap_or(1.0)).clamp(1, allowance);
                left -= made;
                used = used.saturating_add(made);
                now = until;
            }
            if now >= tomorrow {
                used = 0;
            }
        }
        let total = by_rate + by_daily + by_hours;
        let because = [(by_daily, Why::Daily), (by_hours, Why::Hours)]
            .into_iter()
            .fold((by_rate, Why::Rate), |most, next| if next.0 > most.0 { next } else { most });
        (total > 0.0).then(|| Estimate { seconds: signed(total.ceil()), because: because.1 })
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

fn later(from: Timestamp, seconds: f64) -> Timestamp {
    SignedDuration::try_from_secs_f64(seconds)
        .ok()
        .and_then(|duration| from.checked_add(duration).ok())
        .unwrap_or(Timestamp::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "an estimate needs no more than 53 bits")]
fn count(calls: u64) -> f64 {
    calls as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast saturates, and the caller bounds the number"
)]
fn whole(calls: f64) -> u64 {
    calls as u64
}

#[expect(clippy::cast_possible_truncation, reason = "at most ten years")]
fn signed(seconds: f64) -> i64 {
    seconds as i64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_estimate_adds_up_rate_days_and_hours() {
        let hours = json!({ "from": "09:00", "to": "17:00" });
        let work = json!({ "from": "09:00", "to": "17:00", "days": ["mon", "tue", "wed", "thu", "fri"] });
        #[rustfmt::skip]
        let table = [
            // limits                                         calls      used   begins                  seconds        because
            (json!({}),                                       1_000_000, 0,     "2030-07-01T09:00:00Z", None,          Why::Rate),
            (json!({ "rate_per_second": 10 }),                1_000,     0,     "2030-07-01T09:00:00Z", Some(100),     Why::Rate),
            (json!({ "rate_per_second": 0.5 }),               3,         0,     "2030-07-01T09:00:00Z", Some(6),       Why::Rate),
            (json!({ "rate_per_second": 10 }),                0,         0,     "2030-07-01T09:00:00Z", None,          Why::Rate),
            // Enough for today, and nothing delays the calls.
            (json!({ "daily": 1000 }),                        1_000,     0,     "2030-07-01T09:00:00Z", None,          Why::Rate),
            // The rest waits for midnight, or for two of them.
            (json!({ "daily": 1000 }),                        1_500,     0,     "2030-07-01T09:00:00Z", Some(54_000),  Why::Daily),
            (json!({ "daily": 1000 }),                        1_500,     600,   "2030-07-01T09:00:00Z", Some(140_400), Why::Daily),
            (json!({ "daily": 1000 }),                        1,         1_000, "2030-07-01T23:00:00Z", Some(3_600),   Why::Daily),
            (json!({ "daily": 1000, "time_zone": "Europe/Berlin" }), 1, 1_000,  "2030-07-01T21:00:00Z", Some(3_600),   Why::Daily),
            // Until the hours begin, then a minute of calls.
            (json!({ "rate_per_second": 10, "hours": hours }), 600,      0,     "2030-07-01T08:00:00Z", Some(3_660),   Why::Hours),
            // Eight hours today, and the last hour tomorrow.
            (json!({ "rate_per_second": 1, "hours": hours }), 32_400,    0,     "2030-07-01T09:00:00Z", Some(90_000),  Why::Hours),
            // A Friday evening waits for Monday.
            (json!({ "rate_per_second": 1, "hours": work }),  1,         0,     "2030-07-05T17:00:00Z", Some(230_401), Why::Hours),
            // Ten years, at least.
            (json!({ "daily": 1 }),                           1_000_000, 0,     "2030-07-01T00:00:00Z", Some(315_360_000), Why::Daily),
        ];
        for (limits, calls, used_today, begins, seconds, because) in table {
            let read = Limits::read(&limits).unwrap();
            let account = Account { limits: &read, provider_rate: None, used_today };
            let estimate = account.estimate(calls, begins.parse().unwrap());
            assert_eq!(estimate, seconds.map(|seconds| Estimate { seconds, because }), "{limits}: {calls}");
        }
    }

    #[test]
    fn the_provider_s_rate_applies_where_the_account_has_none() {
        let (none, own) = (Limits::default(), Limits::read(&json!({ "rate_per_second": 1 })).unwrap());
        let begins = "2030-07-01T09:00:00Z".parse().unwrap();
        let seconds = |limits| {
            let account = Account { limits, provider_rate: Some(100.0), used_today: 0 };
            account.estimate(1_000, begins).map(|estimate| estimate.seconds)
        };
        assert_eq!((seconds(&none), seconds(&own)), (Some(10), Some(1_000)));
    }
}

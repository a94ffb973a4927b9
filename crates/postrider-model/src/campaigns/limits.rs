//! Limits of an account (rate, calls per day, sending hours), and the reasons why items wait.
//!
//! ```json
//! {
//!   "rate_per_second": 50,
//!   "burst": 10,
//!   "concurrency": 8,
//!   "daily": 20000,
//!   "quota": { "calls": 300, "seconds": 10800 },
//!   "look_ups_per_minute": 50,
//!   "hours": { "from": "09:00", "to": "20:00", "days": ["mon", "tue"], "time_zone": "Europe/Berlin", "by": "lead" }
//! }
//! ```

use std::{fmt, str::FromStr};

use jiff::{
    Timestamp, ToSpan,
    civil::{Date, Weekday},
    tz::TimeZone,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::jobs::schedule::Zone;

/// Limits of an account. For an absent value the provider's manifest decides; otherwise there is no limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Calls per second, over all processes. May be less than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<f64>,
    /// Calls that may start at once after a pause. By default a fifth of `rate_per_second`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Maximum concurrent calls of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Calls per day, in the account's time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily: Option<u64>,
    /// Calls in any span of so many seconds, beside the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Look-ups of replies in doubt per minute, over all processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub look_ups_per_minute: Option<u32>,
    /// Time zone of the account, unless `hours` names one. UTC by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<Zone>,
    /// Sending hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<Hours>,
}

/// A number of calls in a span of time, wherever the span begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Number of calls.
    pub calls: u32,
    /// Length of the span.
    pub seconds: u32,
}

/// Sending hours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hours {
    /// Time of day at which sending begins.
    pub from: TimeOfDay,
    /// Time of day at which sending ends. If it is earlier than `from`, it is on the next day.
    pub to: TimeOfDay,
    /// Days on which sending begins; hours that cross midnight belong to the day on which they begin. By default every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "some_days")]
    pub days: Vec<Day>,
    /// Time zone of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<Zone>,
    /// The time zone that decides.
    #[serde(default)]
    pub by: By,
}

/// The owner of the time zone that decides about sending hours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The lead, if its time zone is known; otherwise the account.
    #[default]
    Lead,
    /// The account.
    Account,
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names of days need no description")]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

impl Day {
    const fn weekday(self) -> Weekday {
        match self {
            Self::Mon => Weekday::Monday,
            Self::Tue => Weekday::Tuesday,
            Self::Wed => Weekday::Wednesday,
            Self::Thu => Weekday::Thursday,
            Self::Fri => Weekday::Friday,
            Self::Sat => Weekday::Saturday,
            Self::Sun => Weekday::Sunday,
        }
    }
}

/// Refuses an empty list of days.
fn some_days<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Day>, D::Error> {
    let days = Vec::deserialize(deserializer)?;
    if days.is_empty() {
        return Err(D::Error::custom("days names no day; leave it out to send on every day"));
    }
    Ok(days)
}

/// A time of day to the minute, from 00:00 to 24:00.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay {
    minutes: i16,
}

impl TimeOfDay {
    const DAY: i16 = 24 * 60;
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.minutes / 60, self.minutes % 60)
    }
}

impl FromStr for TimeOfDay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits: &str| {
            let plain = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit());
            digits.parse::<i16>().ok().filter(|_| plain)
        };
        text.split_once(':')
            .and_then(|(hours, minutes)| {
                Some((number(hours)?, number(minutes).filter(|minutes| *minutes < 60)?))
            })
            .map(|(hours, minutes)| Self { minutes: hours * 60 + minutes })
            .filter(|time| time.minutes <= Self::DAY)
            .ok_or_else(|| format!("`{}` is not a time of day; write it like `09:00`", text.escape_debug()))
    }
}

impl Serialize for TimeOfDay {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeOfDay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// An error in limits, as one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidLimits(String);

impl Limits {
    /// Parses and validates limits.
    pub fn read(value: &serde_json::Value) -> Result<Self, InvalidLimits> {
        const KNOWN: &str = r#"known are rate_per_second, burst, concurrency, daily, quota, look_ups_per_minute, time_zone and hours, as in {"rate_per_second": 10}"#;
        let invalid = |problem: String| Err(InvalidLimits(problem));
        if !value.is_object() {
            return invalid(format!("limits are a JSON object; {KNOWN}"));
        }
        let limits: Self = match serde_json::from_value(value.clone()) {
            Ok(limits) => limits,
            Err(error) => return invalid(format!("{error}; {KNOWN}")),
        };
        if limits.rate_per_second.is_some_and(|rate| !(0.0001..=1_000_000.0).contains(&rate)) {
            return invalid("rate_per_second must lie between 0.0001 and 1000000".to_owned());
        }
        for (name, is_zero) in [
            ("burst", limits.burst == Some(0)),
            ("concurrency", limits.concurrency == Some(0)),
            ("daily", limits.daily == Some(0)),
            ("look_ups_per_minute", limits.look_ups_per_minute == Some(0)),
            ("quota.calls", limits.quota.is_some_and(|quota| quota.calls == 0)),
            ("quota.seconds", limits.quota.is_some_and(|quota| quota.seconds == 0)),
        ] {
            if is_zero {
                return invalid(format!("{name} must be at least 1; leave it out for no limit"));
            }
        }
        if limits.burst.is_some() && limits.rate_per_second.is_none() {
            return invalid("burst needs a rate_per_second beside it".to_owned());
        }
        if limits.daily.is_some_and(|daily| daily > 1_000_000_000) {
            return invalid("daily must be at most 1000000000".to_owned());
        }
        if limits.look_ups_per_minute.is_some_and(|look_ups| look_ups > 60_000) {
            return invalid("look_ups_per_minute must be at most 60000".to_owned());
        }
        if limits.quota.is_some_and(|quota| quota.calls > 1_000_000_000 || quota.seconds > 31 * 86_400) {
            return invalid("quota must be at most 1000000000 calls in at most 31 days".to_owned());
        }
        if let Some(hours) = &limits.hours {
            if hours.from == hours.to {
                return invalid(
                    "hours begin and end at the same time; leave them out to send all day".to_owned(),
                );
            }
            if hours.from.minutes == TimeOfDay::DAY {
                return invalid("hours cannot begin at 24:00; write 00:00".to_owned());
            }
            if hours.time_zone.is_some() && limits.time_zone.is_some() {
                return invalid("time_zone is given twice; set it once, beside hours or in them".to_owned());
            }
        }
        Ok(limits)
    }

    /// The account's time zone.
    #[must_use]
    pub fn zone(&self) -> TimeZone {
        let of_hours = self.hours.as_ref().and_then(|hours| hours.time_zone.as_ref());
        of_hours.or(self.time_zone.as_ref()).map_or(TimeZone::UTC, |zone| zone.time_zone().clone())
    }
}

impl Hours {
    /// The next time at which sending may begin, in this time zone. `None` when sending is allowed now.
    #[must_use]
    pub fn opens_at(&self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let today = now.to_zoned(zone.clone()).date();
        // From yesterday, whose hours may cross midnight, to the same day of the next week.
        let windows =
            (-1..=8).filter_map(|offset: i32| self.on(today.checked_add(offset.days()).ok()?, zone));
        let mut next = None;
        for (opens, closes) in windows {
            if opens <= now && now < closes {
                return None;
            }
            if opens > now && next.is_none_or(|next| opens < next) {
                next = Some(opens);
            }
        }
        // Every week has an opening. Only at the end of the calendar there is none, and then sending is allowed.
        next
    }

    /// The sending hours that begin on this day, if there are any.
    fn on(&self, day: Date, zone: &TimeZone) -> Option<(Timestamp, Timestamp)> {
        if !self.days.is_empty() && !self.days.iter().any(|on| on.weekday() == day.weekday()) {
            return None;
        }
        let closing = if self.to > self.from { day } else { day.tomorrow().ok()? };
        Some((at(day, self.from, zone)?, at(closing, self.to, zone)?))
    }
}

/// A time of day as an instant. A time in a gap moves by the length of the gap; of a time that occurs twice it is the first.
fn at(day: Date, time: TimeOfDay, zone: &TimeZone) -> Option<Timestamp> {
    let day = if time.minutes == TimeOfDay::DAY { day.tomorrow().ok()? } else { day };
    let minutes = time.minutes % TimeOfDay::DAY;
    let local = day.at(i8::try_from(minutes / 60).ok()?, i8::try_from(minutes % 60).ok()?, 0, 0);
    Some(local.to_zoned(zone.clone()).ok()?.timestamp())
}

/// The reason why items of an account wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The rate limit of the account.
    Rate,
    /// The daily limit of the account.
    Daily,
    /// The current time is outside the sending hours.
    Hours,
    /// The provider asked to wait.
    RetryAfter,
    /// The circuit breaker of the account is open.
    Circuit,
}

impl Why {
    /// All reasons.
    pub const ALL: &[Self] = &[Self::Rate, Self::Daily, Self::Hours, Self::RetryAfter, Self::Circuit];

    /// The word in the database, the API and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Daily => "daily",
            Self::Hours => "hours",
            Self::RetryAfter => "retry_after",
            Self::Circuit => "circuit",
        }
    }

    /// The reason with this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|why| why.as_str() == word)
    }

    /// The reason as a clause for people.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Rate => "the account's rate is used up",
            Self::Daily => "the account's calls for today are used up",
            Self::Hours => "the current time is outside the sending hours",
            Self::RetryAfter => "the provider asked to wait",
            Self::Circuit => "the provider fails, and its circuit is open",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hours(value: serde_json::Value) -> Hours {
        serde_json::from_value(value).unwrap()
    }

    fn opening(hours: &Hours, now: &str, zone: &str) -> String {
        let opens = hours.opens_at(now.parse().unwrap(), zone.parse::<Zone>().unwrap().time_zone());
        opens.map_or_else(|| "open".to_owned(), |opens| opens.to_string())
    }

    #[test]
    fn hours_open_and_close_by_the_clock_of_the_zone() {
        let day = json!({ "from": "09:00", "to": "20:00" });
        let work = json!({ "from": "09:00", "to": "17:30", "days": ["mon", "tue", "wed", "thu", "fri"] });
        let night = json!({ "from": "22:00", "to": "06:00" });
        let friday_night = json!({ "from": "22:00", "to": "06:00", "days": ["fri"] });
        let whole_saturday = json!({ "from": "00:00", "to": "24:00", "days": ["sat"] });
        let to_midnight = json!({ "from": "18:00", "to": "00:00" });
        let gap = json!({ "from": "02:30", "to": "04:00" });
        let in_the_gap = json!({ "from": "02:00", "to": "02:30" });
        let fold = json!({ "from": "02:30", "to": "05:00" });
        let until_fold = json!({ "from": "01:00", "to": "02:30" });
        #[rustfmt::skip]
        let table = [
            // hours          now                     zone                opens
            // Berlin is at +2 in summer; the first minute is in, the last is not.
            (&day,            "2030-07-01T06:59:59Z", "Europe/Berlin",    "2030-07-01T07:00:00Z"),
            (&day,            "2030-07-01T07:00:00Z", "Europe/Berlin",    "open"),
            (&day,            "2030-07-01T17:59:59Z", "Europe/Berlin",    "open"),
            (&day,            "2030-07-01T18:00:00Z", "Europe/Berlin",    "2030-07-02T07:00:00Z"),
            // The same moment elsewhere: a day ahead, a day behind, half an hour beside.
            (&day,            "2030-07-01T18:00:00Z", "America/New_York", "open"),
            (&day,            "2030-07-01T18:00:00Z", "Pacific/Auckland", "2030-07-01T21:00:00Z"),
            (&day,            "2030-07-01T03:29:59Z", "Asia/Kolkata",     "2030-07-01T03:30:00Z"),
            (&day,            "2030-07-01T03:30:00Z", "Asia/Kolkata",     "open"),
            // A Friday evening waits for Monday.
            (&work,           "2030-07-05T15:30:00Z", "Europe/Berlin",    "2030-07-08T07:00:00Z"),
            (&work,           "2030-07-06T10:00:00Z", "Europe/Berlin",    "2030-07-08T07:00:00Z"),
            (&work,           "2030-07-08T07:00:00Z", "Europe/Berlin",    "open"),
            // Across midnight.
            (&night,          "2030-07-01T21:59:00Z", "UTC",              "2030-07-01T22:00:00Z"),
            (&night,          "2030-07-01T23:00:00Z", "UTC",              "open"),
            (&night,          "2030-07-02T05:59:59Z", "UTC",              "open"),
            (&night,          "2030-07-02T06:00:00Z", "UTC",              "2030-07-02T22:00:00Z"),
            // The night belongs to the day on which it begins: Friday's reaches into Saturday, Thursday's is none.
            (&friday_night,   "2030-07-06T05:00:00Z", "UTC",              "open"),
            (&friday_night,   "2030-07-05T05:00:00Z", "UTC",              "2030-07-05T22:00:00Z"),
            (&friday_night,   "2030-07-06T06:00:00Z", "UTC",              "2030-07-12T22:00:00Z"),
            (&whole_saturday, "2030-07-06T23:59:59Z", "UTC",              "open"),
            (&whole_saturday, "2030-07-07T00:00:00Z", "UTC",              "2030-07-13T00:00:00Z"),
            (&to_midnight,    "2030-07-01T23:59:59Z", "UTC",              "open"),
            (&to_midnight,    "2030-07-02T00:00:00Z", "UTC",              "2030-07-02T18:00:00Z"),
            // 31 March 2030, Berlin: 02:00 is 03:00. Hours from 02:30 begin at 03:30, an hour after 01:30.
            (&gap,            "2030-03-31T01:29:59Z", "Europe/Berlin",    "2030-03-31T01:30:00Z"),
            (&gap,            "2030-03-31T01:30:00Z", "Europe/Berlin",    "open"),
            (&gap,            "2030-03-31T02:00:00Z", "Europe/Berlin",    "2030-04-01T00:30:00Z"),
            (&in_the_gap,     "2030-03-31T00:59:59Z", "Europe/Berlin",    "2030-03-31T01:00:00Z"),
            (&in_the_gap,     "2030-03-31T01:29:59Z", "Europe/Berlin",    "open"),
            (&in_the_gap,     "2030-03-31T01:30:00Z", "Europe/Berlin",    "2030-04-01T00:00:00Z"),
            // 27 October 2030, Berlin: 02:00 to 03:00 comes twice, from 00:00Z and from 01:00Z. The first counts.
            (&fold,           "2030-10-27T00:29:59Z", "Europe/Berlin",    "2030-10-27T00:30:00Z"),
            (&fold,           "2030-10-27T01:10:00Z", "Europe/Berlin",    "open"),
            (&fold,           "2030-10-27T03:59:59Z", "Europe/Berlin",    "open"),
            (&fold,           "2030-10-27T04:00:00Z", "Europe/Berlin",    "2030-10-28T01:30:00Z"),
            (&until_fold,     "2030-10-27T00:29:59Z", "Europe/Berlin",    "open"),
            (&until_fold,     "2030-10-27T01:10:00Z", "Europe/Berlin",    "2030-10-28T00:00:00Z"),
        ];
        for (value, now, zone, expected) in table {
            assert_eq!(opening(&hours(value.clone()), now, zone), expected, "{value} at {now} in {zone}");
        }
    }

    #[test]
    fn invalid_limits_are_refused_with_the_correction() {
        let hours = |more: serde_json::Value| {
            let mut hours = json!({ "from": "09:00", "to": "20:00" });
            for (key, value) in more.as_object().unwrap() {
                hours[key] = value.clone();
            }
            json!({ "hours": hours })
        };
        let table = [
            (json!([]), "limits are a JSON object"),
            (json!({ "rate": 5 }), "unknown field `rate`"),
            (json!({ "rate_per_second": 0 }), "rate_per_second must lie between 0.0001 and 1000000"),
            (json!({ "rate_per_second": -1 }), "rate_per_second must lie between"),
            (json!({ "rate_per_second": "5" }), "invalid type: string"),
            (json!({ "burst": 5 }), "burst needs a rate_per_second"),
            (json!({ "rate_per_second": 5, "burst": 0 }), "burst must be at least 1"),
            (json!({ "concurrency": 0 }), "concurrency must be at least 1"),
            (json!({ "daily": 0 }), "daily must be at least 1"),
            (json!({ "daily": 1.5 }), "invalid type: floating point"),
            (hours(json!({ "from": "9:00" })), "`9:00` is not a time of day; write it like `09:00`"),
            (hours(json!({ "to": "24:01" })), "`24:01` is not a time of day"),
            (hours(json!({ "to": "+9:00" })), "`+9:00` is not a time of day"),
            (hours(json!({ "to": "09:00" })), "hours begin and end at the same time"),
            (hours(json!({ "from": "24:00" })), "hours cannot begin at 24:00"),
            (hours(json!({ "days": ["monday"] })), "unknown variant `monday`"),
            (hours(json!({ "days": [] })), "days names no day; leave it out to send on every day"),
            (
                hours(json!({ "time_zone": "Berlin" })),
                "`Berlin` is not a time zone: the IANA database has none of this name; did you mean `Europe/Berlin`",
            ),
            (hours(json!({ "by": "moon" })), "unknown variant `moon`"),
        ];
        for (value, expected) in table {
            let error = Limits::read(&value).unwrap_err().to_string();
            assert!(error.starts_with(expected) && error.lines().count() == 1, "{value}: {error}");
        }
    }

    #[test]
    fn limits_are_written_as_they_are_read() {
        let value = json!({
            "rate_per_second": 0.5, "burst": 3, "concurrency": 8, "daily": 200,
            "hours": { "from": "22:00", "to": "06:00", "days": ["mon", "sun"], "time_zone": "Europe/Berlin", "by": "account" },
        });
        let limits = Limits::read(&value).unwrap();
        assert_eq!(serde_json::to_value(&limits).unwrap(), value);
        assert_eq!(limits.zone().iana_name(), Some("Europe/Berlin"));
        assert_eq!(Limits::read(&json!({})).unwrap(), Limits::default());
        assert_eq!(Limits::default().zone(), TimeZone::UTC);
    }
}

//! Lock keys: a function of a tenant runs once per grain, or once per grain and entities if the caller names entities.
//!
//! ```text
//! {function}:{tenant}:{label of the grain}[:{entity hash}]
//! detect-alerts:018f5c3e-…:2026-02-06T14:05:971121298e66
//! ```
//!
//! `jobs.lock_key` and `jobs.entity_hash` compute the same in SQL, and tests compare them.

mod entity;
mod stringify;

use std::time::Duration;

pub use entity::{EntityHash, NotEntities};
use jiff::Timestamp;

use crate::{ids::TenantId, words::words};

/// Maximum nesting of entities. The object itself is the first level.
pub const ENTITY_DEPTH_MAX: usize = 64;

words!(
    /// The period in which a lock key is used once.
    Grain, "grain" {
        /// A day of UTC.
        Day => "day",
        /// An hour.
        Hour => "hour",
        /// Five minutes, beginning with those of the full hour.
        #[serde(rename = "5min")]
        FiveMinutes => "5min",
    }
);

impl Grain {
    /// Length of the grain. A day of UTC always has 24 hours.
    #[must_use]
    pub const fn length(self) -> Duration {
        Duration::from_secs(match self {
            Self::Day => 24 * 60 * 60,
            Self::Hour => 60 * 60,
            Self::FiveMinutes => 5 * 60,
        })
    }

    /// Start of the grain that contains this time.
    #[must_use]
    pub fn start(self, at: Timestamp) -> Timestamp {
        let length = i128::from(self.length().as_secs()) * 1_000_000_000;
        let start = at.as_nanosecond().div_euclid(length) * length;
        // Only the first grain of the calendar begins before `Timestamp::MIN`.
        Timestamp::from_nanosecond(start).unwrap_or(Timestamp::MIN)
    }

    /// Label of the grain: `2026-02-06`, `2026-02-06T14`, `2026-02-06T14:05`.
    #[must_use]
    pub fn label(self, at: Timestamp) -> String {
        let format = match self {
            Self::Day => "%Y-%m-%d",
            Self::Hour => "%Y-%m-%dT%H",
            Self::FiveMinutes => "%Y-%m-%dT%H:%M",
        };
        self.start(at).strftime(format).to_string()
    }
}

/// The key under which at most one job run is active.
#[must_use]
pub fn lock_key(
    function: &str,
    tenant: TenantId,
    grain: Grain,
    at: Timestamp,
    entities: Option<&EntityHash>,
) -> String {
    let key = format!("{function}:{}:{}", tenant.0, grain.label(at));
    match entities {
        Some(hash) => format!("{key}:{hash}"),
        None => key,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_grain_is_named_after_its_start() {
        let table = [
            ("2026-02-06T14:09:59.999999Z", "2026-02-06", "2026-02-06T14", "2026-02-06T14:05"),
            ("2026-02-06T14:10:00Z", "2026-02-06", "2026-02-06T14", "2026-02-06T14:10"),
            ("2026-02-06T23:30:00-05:00", "2026-02-07", "2026-02-07T04", "2026-02-07T04:30"),
            ("2024-02-29T00:00:00Z", "2024-02-29", "2024-02-29T00", "2024-02-29T00:00"),
            ("1969-12-31T23:59:59.5Z", "1969-12-31", "1969-12-31T23", "1969-12-31T23:55"),
        ];
        for (moment, day, hour, five_minutes) in table {
            let labels = Grain::ALL.iter().map(|grain| grain.label(at(moment))).collect::<Vec<_>>();
            assert_eq!(labels, [day, hour, five_minutes], "{moment}");
        }
        for grain in Grain::ALL {
            assert_eq!(grain.start(Timestamp::MIN), Timestamp::MIN);
        }
    }

    #[test]
    fn grains_are_read_as_they_are_written() {
        for grain in Grain::ALL {
            assert_eq!(grain.as_str().parse::<Grain>().unwrap(), *grain);
            assert_eq!(serde_json::to_value(grain).unwrap(), grain.as_str());
            assert_eq!(serde_json::from_value::<Grain>(grain.as_str().into()).unwrap(), *grain);
        }
    }

    #[test]
    fn a_lock_key_has_its_parts_in_order() {
        let tenant = TenantId(Uuid::from_u128(7));
        let moment = at("2026-02-06T14:07:00Z");
        assert_eq!(
            lock_key("detect-alerts", tenant, Grain::Day, moment, None),
            "detect-alerts:00000000-0000-0000-0000-000000000007:2026-02-06"
        );
        let hash = EntityHash::of(r#"{"rule_id":"r123","sku":"SKU001"}"#).unwrap();
        assert_eq!(
            lock_key("detect-alerts", tenant, Grain::FiveMinutes, moment, Some(&hash)),
            "detect-alerts:00000000-0000-0000-0000-000000000007:2026-02-06T14:05:971121298e66"
        );
    }

    proptest! {
        #[test]
        fn grains_follow_each_other_without_gap_or_overlap(second in -4_000_000_000i64..8_000_000_000, nano in 0u64..1_000_000_000) {
            let at = Timestamp::new(second, 0).unwrap() + Duration::from_nanos(nano);
            for grain in Grain::ALL {
                let start = grain.start(at);
                prop_assert!(start <= at && at < start + grain.length());
                prop_assert_eq!(grain.start(start), start);
                prop_assert_eq!(grain.start(start + grain.length()), start + grain.length());
                prop_assert_eq!(grain.label(at), grain.label(start));
                prop_assert_ne!(grain.label(start + grain.length()), grain.label(start));
            }
        }
    }
}

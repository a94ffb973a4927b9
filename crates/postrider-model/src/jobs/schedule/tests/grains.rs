use jiff::SignedDuration;

use super::*;
use crate::jobs::lock_key::Grain;

#[test]
fn firings_share_a_grain_as_the_table_says() {
    use Grain::{Day, FiveMinutes, Hour};
    let pair = |first, second| Some((first, second));
    #[rustfmt::skip]
    let table = [
        // cron          zone                    grain        the first two that share one
        ("0 9 * * *",    "Europe/Berlin",        Day,         None),
        ("0 9,17 * * *", "Europe/Berlin",        Day,         pair("2030-01-02T08:00:00Z", "2030-01-02T16:00:00Z")),
        // 01:00 in Berlin is midnight in UTC, or 23:00 the day before in summer: the first firing in summer falls into the day before.
        ("0 1 * * *",    "Europe/Berlin",        Day,         pair("2030-03-31T00:00:00Z", "2030-03-31T23:00:00Z")),
        ("0 1 * * *",    "Europe/Berlin",        Hour,        None),
        // The first of April begins in March.
        ("0 0 1 * *",    "Europe/Berlin",        Day,         None),
        ("0 * * * *",    "Europe/Berlin",        Hour,        None),
        ("*/20 * * * *", "Europe/Berlin",        Hour,        pair("2030-01-01T12:20:00Z", "2030-01-01T12:40:00Z")),
        // Half an hour is left out in October, after five thousand firings.
        ("45 * * * *",   "Australia/Lord_Howe",  Hour,        pair("2030-10-05T15:15:00Z", "2030-10-05T15:45:00Z")),
        ("45 * * * *",   "Asia/Kolkata",         Hour,        None),
        ("*/5 * * * *",  "Australia/Lord_Howe",  FiveMinutes, None),
        ("* * * * *",    "UTC",                  FiveMinutes, pair("2030-01-01T12:01:00Z", "2030-01-01T12:02:00Z")),
    ];
    for (cron, zone, grain, expected) in table {
        let shared = shared_grains(
            &timing(cron, zone),
            grain,
            at("2030-01-01T12:00:00Z"),
            SignedDuration::from_hours(400 * 24),
        );
        let expected = expected.map(|(first, second)| (at(first), at(second)));
        assert_eq!(shared, expected, "{cron} in {zone}, grain {grain}");
    }
}

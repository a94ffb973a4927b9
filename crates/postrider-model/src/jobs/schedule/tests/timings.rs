use super::*;

#[test]
fn firings_around_changes_of_clocks_are_those_of_the_table() {
    #[rustfmt::skip]
    let table = [
        // Berlin, 31 March 2030: 02:00 to 03:00 does not occur. Its times fire at 03:00, which is 01:00Z.
        ("30 2 * * *",     "Europe/Berlin",       "2030-03-30T00:00:00Z", vec!["2030-03-30T01:30:00Z", "2030-03-31T01:00:00Z", "2030-04-01T00:30:00Z"]),
        ("0,30 2,3 * * *", "Europe/Berlin",       "2030-03-31T00:00:00Z", vec!["2030-03-31T01:00:00Z", "2030-03-31T01:30:00Z", "2030-04-01T00:00:00Z"]),
        ("*/30 * * * *",   "Europe/Berlin",       "2030-03-31T00:00:00Z", vec!["2030-03-31T00:30:00Z", "2030-03-31T01:00:00Z", "2030-03-31T01:30:00Z"]),
        ("30 2 31 * *",    "Europe/Berlin",       "2030-03-30T00:00:00Z", vec!["2030-03-31T01:00:00Z", "2030-05-31T00:30:00Z"]),
        // Berlin, 27 October 2030: 02:00 to 03:00 occurs twice, from 00:00Z and from 01:00Z.
        ("30 2 * * *",     "Europe/Berlin",       "2030-10-26T00:00:00Z", vec!["2030-10-26T00:30:00Z", "2030-10-27T00:30:00Z", "2030-10-28T01:30:00Z"]),
        ("*/30 * * * *",   "Europe/Berlin",       "2030-10-27T00:00:00Z", vec!["2030-10-27T00:30:00Z", "2030-10-27T02:00:00Z", "2030-10-27T02:30:00Z"]),
        ("0 * * * *",      "Europe/Berlin",       "2030-10-26T23:30:00Z", vec!["2030-10-27T00:00:00Z", "2030-10-27T02:00:00Z"]),
        // The civil time is 02:15 at both of these instants.
        ("30 2 * * *",     "Europe/Berlin",       "2030-10-27T00:15:00Z", vec!["2030-10-27T00:30:00Z", "2030-10-28T01:30:00Z"]),
        ("30 2 * * *",     "Europe/Berlin",       "2030-10-27T01:15:00Z", vec!["2030-10-28T01:30:00Z"]),
        // In UTC the distance is always the same.
        ("*/30 * * * *",   "UTC",                 "2030-10-27T00:30:00Z", vec!["2030-10-27T01:00:00Z", "2030-10-27T01:30:00Z"]),
        // New York changes at 02:00, on other days.
        ("30 2 * * *",     "America/New_York",    "2030-03-10T00:00:00Z", vec!["2030-03-10T07:00:00Z", "2030-03-11T06:30:00Z"]),
        ("30 1 * * *",     "America/New_York",    "2030-11-03T00:00:00Z", vec!["2030-11-03T05:30:00Z", "2030-11-04T06:30:00Z"]),
        // Lord Howe changes by half an hour.
        ("15 2 * * *",     "Australia/Lord_Howe", "2030-10-05T00:00:00Z", vec!["2030-10-05T15:30:00Z", "2030-10-06T15:15:00Z"]),
        ("45 1 * * *",     "Australia/Lord_Howe", "2030-04-06T00:00:00Z", vec!["2030-04-06T14:45:00Z", "2030-04-07T15:15:00Z"]),
        // Cairo changes at midnight: a day without its first hour, and one whose last hour occurs twice.
        ("0 0 * * *",      "Africa/Cairo",        "2030-04-25T00:00:00Z", vec!["2030-04-25T22:00:00Z", "2030-04-26T21:00:00Z"]),
        ("30 0 26 4 *",    "Africa/Cairo",        "2030-04-25T00:00:00Z", vec!["2030-04-25T22:00:00Z", "2031-04-25T21:30:00Z"]),
        ("30 23 * * *",    "Africa/Cairo",        "2030-10-31T00:00:00Z", vec!["2030-10-31T20:30:00Z", "2030-11-01T21:30:00Z"]),
        ("0 0 * * *",      "Africa/Cairo",        "2030-10-31T00:00:00Z", vec!["2030-10-31T22:00:00Z", "2030-11-01T22:00:00Z"]),
        // Casablanca put its clocks back for Ramadan.
        ("30 2 * * *",     "Africa/Casablanca",   "2025-02-22T12:00:00Z", vec!["2025-02-23T01:30:00Z", "2025-02-24T02:30:00Z"]),
        ("30 2 * * *",     "Africa/Casablanca",   "2025-04-05T12:00:00Z", vec!["2025-04-06T02:00:00Z", "2025-04-07T01:30:00Z"]),
        // Dublin, whose law calls the winter the exception.
        ("30 1 * * *",     "Europe/Dublin",       "2030-03-30T12:00:00Z", vec!["2030-03-31T01:00:00Z", "2030-04-01T00:30:00Z"]),
        ("30 1 * * *",     "Europe/Dublin",       "2030-10-26T12:00:00Z", vec!["2030-10-27T00:30:00Z", "2030-10-28T01:30:00Z"]),
        // Samoa had no 30 December 2011: its times fire when the 31st begins.
        ("0 12 * * *",     "Pacific/Apia",        "2011-12-29T12:00:00Z", vec!["2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"]),
        ("0 * * * *",      "Pacific/Apia",        "2011-12-30T09:00:00Z", vec!["2011-12-30T10:00:00Z", "2011-12-30T11:00:00Z"]),
        ("0 12 30 12 *",   "Pacific/Apia",        "2011-01-01T00:00:00Z", vec!["2011-12-30T10:00:00Z", "2012-12-29T22:00:00Z"]),
        // Kwajalein had most of 30 September 1969 twice.
        ("0 12 * * *",     "Pacific/Kwajalein",   "1969-09-29T12:00:00Z", vec!["1969-09-30T01:00:00Z", "1969-10-02T00:00:00Z"]),
        ("0 * * * *",      "Pacific/Kwajalein",   "1969-09-30T12:00:00Z", vec!["1969-10-01T12:00:00Z"]),
    ];
    for (cron, zone, after, expected) in table {
        let timing = timing(cron, zone);
        let expected: Vec<_> = expected.into_iter().map(at).collect();
        let firings: Vec<_> = timing.firings_after(at(after)).take(expected.len()).collect();
        assert_eq!(firings, expected, "{cron} in {zone} after {after}");
        // The functions for one firing, forwards and backwards, agree.
        for pair in expected.windows(2) {
            assert_eq!(timing.next_after(pair[0]), Some(pair[1]), "{cron} in {zone}");
            let almost = pair[1] - jiff::SignedDuration::from_nanos(1);
            assert_eq!(timing.latest_until(at(after), almost), Some(pair[0]), "{cron} in {zone}");
            assert_eq!(timing.latest_until(pair[0], pair[1]), Some(pair[1]), "{cron} in {zone}");
            assert_eq!(timing.latest_until(pair[0], almost), None, "{cron} in {zone}");
        }
    }
}

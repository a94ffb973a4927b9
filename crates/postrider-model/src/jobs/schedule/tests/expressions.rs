use proptest::prelude::*;

use super::*;

#[test]
fn expressions_name_the_times_that_the_table_says() {
    #[rustfmt::skip]
    let table = [
        // 15 May 2030 is a Wednesday.
        ("* * * * *",          "2030-05-15T10:00:00Z", "2030-05-15T10:01:00Z"),
        ("*/5 * * * *",        "2030-05-15T10:01:00Z", "2030-05-15T10:05:00Z"),
        ("7-59/20 * * * *",    "2030-05-15T10:08:00Z", "2030-05-15T10:27:00Z"),
        ("  30\t2 * * *  ",    "2030-05-15T10:00:00Z", "2030-05-16T02:30:00Z"),
        ("0 9 * * MON-FRI",    "2030-05-17T09:00:00Z", "2030-05-20T09:00:00Z"),
        ("0 9 * * fri-sun",    "2030-05-15T09:00:00Z", "2030-05-17T09:00:00Z"),
        ("0 9 * * sat-0",      "2030-05-18T09:00:00Z", "2030-05-19T09:00:00Z"),
        ("0 9 * * 7",          "2030-05-15T09:00:00Z", "2030-05-19T09:00:00Z"),
        ("0 0 1 jan,JUL *",    "2030-05-15T09:00:00Z", "2030-07-01T00:00:00Z"),
        ("0 0 29 2 *",         "2030-05-15T09:00:00Z", "2032-02-29T00:00:00Z"),
        ("0 0 L * *",          "2030-05-15T09:00:00Z", "2030-05-31T00:00:00Z"),
        // The first of June is a Saturday, the last of June a Sunday.
        ("0 0 1W * *",         "2030-05-15T09:00:00Z", "2030-06-03T00:00:00Z"),
        ("0 0 LW 6 *",         "2030-05-15T09:00:00Z", "2030-06-28T00:00:00Z"),
        ("0 0 * * TUE#3",      "2030-05-15T09:00:00Z", "2030-05-21T00:00:00Z"),
        ("0 0 * * 7#1",        "2030-05-15T09:00:00Z", "2030-06-02T00:00:00Z"),
        ("0 0 * * FRIL",       "2030-05-15T09:00:00Z", "2030-05-31T00:00:00Z"),
        ("0 0 * * 7L",         "2030-05-15T09:00:00Z", "2030-05-26T00:00:00Z"),
        // A day by its number or by its weekday: the 20th, or a Friday.
        ("0 0 20 * FRI",       "2030-05-15T09:00:00Z", "2030-05-17T00:00:00Z"),
        ("0 0 20 * FRI",       "2030-05-17T09:00:00Z", "2030-05-20T00:00:00Z"),
        ("@hourly",            "2030-05-15T09:00:00Z", "2030-05-15T10:00:00Z"),
        ("@daily",             "2030-05-15T09:00:00Z", "2030-05-16T00:00:00Z"),
        ("@midnight",          "2030-05-15T09:00:00Z", "2030-05-16T00:00:00Z"),
        ("@weekly",            "2030-05-15T09:00:00Z", "2030-05-19T00:00:00Z"),
        ("@Monthly",           "2030-05-15T09:00:00Z", "2030-06-01T00:00:00Z"),
        ("@yearly",            "2030-05-15T09:00:00Z", "2031-01-01T00:00:00Z"),
        ("@annually",          "2030-05-15T09:00:00Z", "2031-01-01T00:00:00Z"),
    ];
    for (cron, after, next) in table {
        assert_eq!(timing(cron, "UTC").next_after(at(after)), Some(at(next)), "{cron} after {after}");
    }
}

#[test]
fn invalid_expressions_are_refused_with_a_reason() {
    let long = "1,".repeat(200);
    #[rustfmt::skip]
    let table = [
        ("",                     "it is empty"),
        ("   ",                  "it is empty"),
        (long.as_str(),          "400 bytes, and at most 255"),
        ("hourly",               "one field instead of five"),
        ("* * * *",              "4 fields instead of five"),
        ("0 */5 * * * *",        "6 fields; seconds and years cannot be given"),
        ("0 0 0 1 1 * 2030",     "7 fields; seconds and years cannot be given"),
        ("* * * * * * * *",      "8 fields instead of five"),
        ("60 * * * *",           "the minute `60` is not from 0 to 59"),
        ("0 24 * * *",           "the hour `24` is not from 0 to 23"),
        ("0 0 0 * *",            "the day `0` is not from 1 to 31"),
        ("0 0 * 13 *",           "the month `13` is not from 1 to 12, or from JAN to DEC"),
        ("0 0 * * 8",            "the weekday `8` is not from 0 to 7, or from SUN to SAT"),
        ("0 0 * * Montag",       "the weekday `Montag`"),
        ("0 0 * MON *",          "the month `MON`"),
        ("1MON 0 * * *",         "the minute `1MON`"),
        ("-5 * * * *",           "the minute `` is not"),
        ("5- * * * *",           "the minute `` is not"),
        ("1-2-3 * * * *",        "the minute `2-3`"),
        ("** * * * *",           "the minute `**`"),
        ("50-10 * * * *",        "ends before it begins; write `50-59,0-10`"),
        ("1,,2 * * * *",         "an empty place in its list"),
        (", * * * *",            "an empty place in its list"),
        ("*/0 * * * *",          "the step `0`, and it must be a number from 1 to 59"),
        ("*/90 * * * *",         "the step `90`, and it must be a number from 1 to 59"),
        ("*/x * * * *",          "the step `x`"),
        ("*/5/5 * * * *",        "the step `5/5`"),
        ("5/10 * * * *",         "a step without a range; write `*/…` or `0-59/…`"),
        ("/10 * * * *",          "a step without a range"),
        ("L * * * *",            "the minute `L`"),
        ("0 0 * * L",            "the weekday `` is not"),
        ("0 0 * * MON#6",        "write `MON#1` to `MON#5`"),
        ("0 0 32W * *",          "the day `32` is not"),
        ("0 0 ? * *",            "the day `?` is not"),
        ("0 0 * * +MON",         "the weekday `+MON` is not"),
        ("0 0 30 2 *",           "it would never fire"),
        ("0 0 31 4,6,9,11 *",    "it would never fire"),
        ("@reboot",              "no such nickname; known are @hourly, @daily"),
        ("@daily 5",             "no such nickname"),
        ("٣ * * * *",            "the minute `٣` is not"),
        ("0 0 * * ſun",          "the weekday `ſun` is not"),
    ];
    for (text, problem) in table {
        let message = text.parse::<Cron>().unwrap_err().to_string();
        assert!(message.contains(problem), "{text}: {message}");
        assert!(message.ends_with("as in `*/5 * * * *` or `30 9 * * MON-FRI`"), "{text}: {message}");
        assert!(message.chars().count() < 400, "{message}");
    }
    // The examples in the messages are valid.
    for example in ["*/5 * * * *", "30 9 * * MON-FRI", "50-59,0-10 * * * *"] {
        assert!(example.parse::<Cron>().is_ok(), "{example}");
    }
}

#[test]
fn an_expression_is_text_in_json() {
    let cron: Cron = serde_json::from_str(r#"" 30 2 * * mon ""#).unwrap();
    assert_eq!(serde_json::to_string(&cron).unwrap(), r#""30 2 * * mon""#);
    let refused = serde_json::from_str::<Cron>(r#""30 2 * *""#).unwrap_err().to_string();
    assert!(refused.contains("4 fields"), "{refused}");
}

#[test]
fn firings_at_the_ends_of_the_calendar_are_absent_or_in_order() {
    let timing = timing("30 2 * * *", "Asia/Kathmandu");
    assert_eq!(timing.next_after(Timestamp::MAX), None);
    assert_eq!(timing.next_after(at("5000-12-31T23:59:59Z")), None);
    assert_eq!(timing.latest_until(Timestamp::MIN, Timestamp::MIN), None);
    assert_eq!(timing.latest_until(Timestamp::MIN, at("-000400-01-01T00:00:00Z")), None);
    assert_eq!(timing.latest_until(Timestamp::MAX, Timestamp::MAX), None);
    let first = timing.next_after(Timestamp::MIN).unwrap();
    assert!(timing.next_after(first).unwrap() > first);
    let last = timing.latest_until(Timestamp::MIN, Timestamp::MAX).unwrap();
    assert_eq!(timing.next_after(last), None);
}

proptest! {
    #[test]
    fn any_text_is_an_expression_that_fires_or_refused(text in "([0-9*/,#LWa-c-]{1,6} ){4}[0-9A-Z*/,#-]{1,6}") {
        if let Ok(cron) = text.parse::<Cron>() {
            let timing = Timing { cron, zone: "Europe/Berlin".parse().unwrap() };
            let start = at("2030-01-01T00:00:00Z");
            let firings: Vec<_> = timing.firings_after(start).take(5).collect();
            prop_assert_eq!(firings.len(), 5);
            prop_assert!(firings.is_sorted_by(|a, b| a < b) && firings[0] > start);
            prop_assert_eq!(timing.latest_until(start, firings[4]), Some(firings[4]));
        }
    }

    #[test]
    fn error_messages_for_any_text_have_one_line(text in "\\PC{0,300}") {
        if let Err(error) = text.parse::<Cron>() {
            prop_assert!(!error.to_string().contains('\n'));
        }
        if let Err(error) = text.parse::<Zone>() {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}

use super::*;

#[test]
fn zones_are_known_by_name_and_keep_it() {
    #[rustfmt::skip]
    let table = [
        ("Europe/Berlin",    "Europe/Berlin"),
        ("europe/berlin",    "Europe/Berlin"),
        ("UTC",              "UTC"),
        ("utc",              "UTC"),
        // An alias keeps its name, so that people find the name they wrote.
        ("Europe/Kiev",      "Europe/Kiev"),
        ("Asia/Calcutta",    "Asia/Calcutta"),
        ("EST5EDT",          "EST5EDT"),
        ("Etc/GMT+5",        "Etc/GMT+5"),
    ];
    for (input, name) in table {
        let zone: Zone = input.parse().unwrap();
        assert_eq!(zone.as_str(), name);
        assert_eq!(serde_json::to_value(&zone).unwrap(), name);
    }
    assert!(Zone::names().count() > 500);
    for name in Zone::names() {
        assert_eq!(name.parse::<Zone>().unwrap().as_str(), name);
    }
}

#[test]
fn unknown_zones_are_refused_with_a_suggestion() {
    #[rustfmt::skip]
    let table = [
        ("",                    "it is empty",            "write it like `Europe/Berlin`, or `UTC`"),
        ("local",               "each machine",           "write it like `Europe/Berlin`, or `UTC`"),
        ("localtime",           "each machine",           "write it like `Europe/Berlin`, or `UTC`"),
        ("+02:00",              "an offset does not say", "write it like `Europe/Berlin`, or `UTC`"),
        ("UTC+2",               "an offset does not say", "write it like `Europe/Berlin`, or `UTC`"),
        ("-05",                 "an offset does not say", "write it like `Europe/Berlin`, or `UTC`"),
        ("Z",                   "an offset does not say", "write it like `Europe/Berlin`, or `UTC`"),
        ("Berlin",              "none of this name",      "did you mean `Europe/Berlin`?"),
        ("Europe/Berln",        "none of this name",      "did you mean `Europe/Berlin`"),
        (" Europe/Berlin",      "none of this name",      "did you mean `Europe/Berlin`"),
        ("America/New York",    "none of this name",      "did you mean `America/New_York`"),
        ("EST5EDT4",            "none of this name",      "did you mean `EST5EDT`"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "none of this name", "write it like `Europe/Berlin`, or `UTC`"),
        (":Europe/Berlin",      "none of this name",      "did you mean `Europe/Berlin`"),
        ("../Europe/Berlin",    "none of this name",      "did you mean `Europe/Berlin`"),
        ("/etc/localtime",      "none of this name",      "write it like `Europe/Berlin`, or `UTC`"),
        ("Etc/Unknown",         "none of this name",      ""),
        ("Factory",             "none of this name",      ""),
        ("Europe/Berlin\0",     "none of this name",      "did you mean `Europe/Berlin`"),
    ];
    for (input, problem, advice) in table {
        let message = input.parse::<Zone>().unwrap_err().to_string();
        assert!(message.contains(problem), "{input}: {message}");
        assert!(message.contains(advice), "{input}: {message}");
    }
    let message = "x".repeat(100_000).parse::<Zone>().unwrap_err().to_string();
    assert!(message.len() < 300, "{message}");
}

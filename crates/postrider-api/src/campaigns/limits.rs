//! Limits of an account as the document shows them. Only their schema is used; the model reads them.

use utoipa::ToSchema;

/// Limits of an account. A limit that is left out is that of the provider's manifest, or none.
#[derive(ToSchema)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"rate_per_second": 10, "daily": 20000}))]
#[cfg_attr(not(test), expect(dead_code, reason = "only its schema is used"))]
pub(crate) struct Limits {
    /// Calls per second, over all processes. Less than one is possible.
    #[schema(minimum = 0.0001, maximum = 1_000_000.0)]
    rate_per_second: Option<f64>,
    /// How many calls may come at once after a pause; with `rate_per_second`.
    #[schema(value_type = Option<i64>, minimum = 1, maximum = 4_294_967_295_i64)]
    burst: Option<u32>,
    /// Most calls at a time of one process.
    #[schema(value_type = Option<i64>, minimum = 1, maximum = 4_294_967_295_i64)]
    concurrency: Option<u32>,
    /// Calls per day, in the account's time zone.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    daily: Option<u64>,
    quota: Option<Quota>,
    /// Look-ups of replies in doubt per minute, over all processes.
    #[schema(value_type = Option<i64>, minimum = 1, maximum = 60_000)]
    look_ups_per_minute: Option<u32>,
    /// The account's time zone, where its hours do not name one: an IANA name; UTC by default.
    #[schema(example = "Europe/Berlin")]
    time_zone: Option<String>,
    hours: Option<Hours>,
}

/// Calls in any span of so many seconds, over all processes.
#[derive(ToSchema)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(test), expect(dead_code, reason = "only its schema is used"))]
pub(crate) struct Quota {
    /// Number of calls.
    #[schema(value_type = i64, minimum = 1, maximum = 1_000_000_000)]
    calls: u32,
    /// Length of the span.
    #[schema(value_type = i64, minimum = 1, maximum = 2_678_400)]
    seconds: u32,
}

/// Hours in which messages may be sent.
#[derive(ToSchema)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(test), expect(dead_code, reason = "only its schema is used"))]
pub(crate) struct Hours {
    /// From this time of day on.
    #[schema(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$", example = "09:00")]
    from: String,
    /// Until this time of day. An earlier one than `from` is that of the next day.
    #[schema(pattern = "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$", example = "20:00")]
    to: String,
    /// On these days; hours that cross midnight belong to the day on which they begin. Every day, where none is named.
    #[schema(required = false, min_items = 1)]
    days: Vec<Day>,
    /// The account's time zone: an IANA name.
    #[schema(example = "Europe/Berlin")]
    time_zone: Option<String>,
    /// The clock that counts: the lead's, where its time zone is known, or the account's. The lead's when left out.
    #[schema(required = false)]
    by: By,
}

/// A day of the week.
#[derive(ToSchema)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(test), expect(dead_code, reason = "only its schema is used"))]
pub(crate) enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// The clock that counts.
#[derive(ToSchema)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(rename_all = "snake_case")]
#[schema(as = HoursBy)]
#[cfg_attr(not(test), expect(dead_code, reason = "only its schema is used"))]
pub(crate) enum By {
    Lead,
    Account,
}

#[cfg(test)]
mod tests {
    use postrider_model::Limits as Read;

    use super::*;

    #[test]
    fn the_document_shows_the_limits_that_the_model_reads() {
        use Day::{Fri, Mon, Sat, Sun, Thu, Tue, Wed};
        for by in [By::Lead, By::Account] {
            let hours = Hours {
                from: "09:00".to_owned(),
                to: "24:00".to_owned(),
                days: vec![Mon, Tue, Wed, Thu, Fri, Sat, Sun],
                time_zone: None,
                by,
            };
            let whole = Limits {
                rate_per_second: Some(0.0001),
                burst: Some(u32::MAX),
                concurrency: Some(1),
                daily: Some(1_000_000_000),
                quota: Some(Quota { calls: 300, seconds: 10_800 }),
                look_ups_per_minute: Some(60_000),
                time_zone: Some("Europe/Berlin".to_owned()),
                hours: Some(hours),
            };
            let mut shown = serde_json::to_value(whole).unwrap();
            let read = Read::read(&shown).unwrap();
            shown["hours"].as_object_mut().unwrap().remove("time_zone");
            assert_eq!(serde_json::to_value(read).unwrap(), shown, "no name is missing here");
        }
    }
}

//! Every change of every clock from 2020 to 2040.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::Offset};

use super::{oracle::ObservedClock, *};

/// A change of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    at: Timestamp,
    before: Offset,
    after: Offset,
}

/// The changes of a zone from 2020 to 2040.
fn changes_of(zone: &Zone) -> Vec<Change> {
    let zone = zone.time_zone();
    let (from, until) = (at("2020-01-01T00:00:00Z"), at("2041-01-01T00:00:00Z"));
    let mut before = zone.to_offset(from);
    let mut changes = vec![];
    for change in zone.following(from).take_while(|change| change.timestamp() < until) {
        let after = change.offset();
        if after != before {
            changes.push(Change { at: change.timestamp(), before, after });
        }
        before = after;
    }
    changes
}

type Names = Box<dyn Fn(DateTime) -> bool>;

/// Expressions, each with a predicate over the civil times that it names.
fn expressions(change: Change) -> Vec<(String, Names)> {
    fn daily(hour: i8, minute: i8) -> impl Fn(DateTime) -> bool + Copy {
        move |civil| (civil.hour(), civil.minute()) == (hour, minute)
    }
    let mut expressions: Vec<(String, Names)> = vec![
        ("*/5 * * * *".to_owned(), Box::new(|civil| civil.minute() % 5 == 0)),
        ("0 * * * *".to_owned(), Box::new(|civil| civil.minute() == 0)),
        ("0 0 * * *".to_owned(), Box::new(daily(0, 0))),
        ("30 1 * * *".to_owned(), Box::new(daily(1, 30))),
        ("30 2 * * *".to_owned(), Box::new(daily(2, 30))),
        ("30 2 1 * *".to_owned(), Box::new(move |civil| civil.day() == 1 && daily(2, 30)(civil))),
    ];
    // Times at and within the change itself, daily and on that day of each month.
    let (old, new) = (change.before.to_datetime(change.at), change.after.to_datetime(change.at));
    let (first, last) = (old.min(new), old.max(new));
    for civil in BTreeSet::from([first, first + SignedDuration::from_mins(15), last]) {
        let (day, hour, minute) = (civil.day(), civil.hour(), civil.minute());
        expressions.push((format!("{minute} {hour} * * *"), Box::new(daily(hour, minute))));
        expressions.push((
            format!("{minute} {hour} {day} * *"),
            Box::new(move |civil| civil.day() == day && daily(hour, minute)(civil)),
        ));
    }
    expressions
}

/// The zones, grouped by their changes.
fn zones_by_changes() -> BTreeMap<Vec<Change>, Vec<Zone>> {
    let mut zones: BTreeMap<_, Vec<Zone>> = BTreeMap::new();
    for name in Zone::names() {
        let zone: Zone = name.parse().unwrap();
        zones.entry(changes_of(&zone)).or_default().push(zone);
    }
    zones
}

/// Reads each expression once.
#[derive(Default)]
struct Timings {
    crons: HashMap<String, Cron>,
}

impl Timings {
    fn get(&mut self, cron: &str, zone: &Zone) -> Timing {
        let cron = self.crons.entry(cron.to_owned()).or_insert_with(|| cron.parse().unwrap()).clone();
        Timing { cron, zone: zone.clone() }
    }
}

fn between(timing: &Timing, from: Timestamp, until: Timestamp) -> Vec<Timestamp> {
    timing.firings_after(from).take_while(|firing| *firing <= until).collect()
}

#[test]
fn at_every_change_of_every_clock_each_civil_time_fires_once() {
    let mut timings = Timings::default();
    let mut seen = 0;
    for (changes, zones) in zones_by_changes() {
        for change in changes {
            let zone = &zones[0];
            let observed = ObservedClock::new(zone.time_zone(), change.at, SignedDuration::from_hours(27));
            for (cron, names) in expressions(change) {
                // The next test covers frequent firings for longer, at one change of each kind.
                let hours = if cron.ends_with("* * * *") { 4 } else { 27 };
                let distance = SignedDuration::from_hours(hours);
                let (from, until) = (change.at - distance, change.at + distance);
                let mut expected = observed.firings(names);
                expected.retain(|firing| from < *firing && *firing <= until);
                let fired = between(&timings.get(&cron, zone), from, until);
                assert_eq!(fired, expected, "`{cron}` in {zone} at {change:?}");
            }
            seen += 1;
        }
    }
    assert!(seen > 1_000, "only {seen} changes");
}

#[test]
fn all_queries_agree_on_the_firings_at_a_change_of_each_kind() {
    // A kind is the offsets before and after, and the time of day.
    let mut kinds = BTreeMap::new();
    for (changes, zones) in zones_by_changes() {
        for change in changes {
            let kind = (change.before, change.after, change.before.to_datetime(change.at).time());
            kinds.entry(kind).or_insert_with(|| (zones[0].clone(), change));
        }
    }
    assert!(kinds.len() > 50, "only {} kinds", kinds.len());

    let mut timings = Timings::default();
    for (zone, change) in kinds.into_values() {
        let days = SignedDuration::from_hours(48);
        let (from, until) = (change.at - days, change.at + days);
        let observed = ObservedClock::new(zone.time_zone(), change.at, days);
        for (cron, names) in expressions(change) {
            let timing = timings.get(&cron, &zone);
            let expected = observed.firings(names);
            assert_eq!(between(&timing, from, until), expected, "`{cron}` in {zone} at {change:?}");

            for minutes in (-150..=150).step_by(25) {
                let now = change.at + SignedDuration::from_mins(minutes);
                let (past, coming) = expected.split_at(expected.partition_point(|firing| *firing <= now));
                let latest = timing.latest_until(from, now);
                assert_eq!(latest, past.last().copied(), "`{cron}` in {zone}, the latest at {now}");
                if let Some(next) = coming.first() {
                    assert_eq!(timing.next_after(now), Some(*next), "`{cron}` in {zone}, the next at {now}");
                }
            }
        }
    }
}

#[test]
fn zones_with_equal_changes_have_equal_firings() {
    let quarters: Cron = "*/15 * * * *".parse().unwrap();
    for (changes, zones) in zones_by_changes() {
        let firings_in = |zone: &Zone| {
            let timing = Timing { cron: quarters.clone(), zone: zone.clone() };
            let at = |change: &Change| {
                timing.firings_after(change.at - SignedDuration::from_hours(1)).take(8).collect::<Vec<_>>()
            };
            changes.iter().map(at).collect::<Vec<_>>()
        };
        let expected = firings_in(&zones[0]);
        for zone in &zones[1..] {
            assert_eq!(firings_in(zone), expected, "{zone} and {}", zones[0]);
        }
    }
}

#[test]
fn zones_without_changes_fire_at_even_distances() {
    let zones = zones_by_changes().remove(&vec![]).unwrap();
    assert!(zones.len() > 100, "only {}", zones.len());
    let mut timings = Timings::default();
    for zone in zones {
        for (cron, seconds) in [("0 * * * *", 60 * 60), ("30 2 * * *", 24 * 60 * 60)] {
            let timing = timings.get(cron, &zone);
            let fired: Vec<_> = timing.firings_after(at("2030-03-30T00:00:00Z")).take(30).collect();
            assert!(
                fired.windows(2).all(|pair| (pair[1] - pair[0]).get_seconds() == seconds),
                "{cron} in {zone}"
            );
            let shown = zone.time_zone().to_datetime(fired[0]);
            assert!(shown.minute() == 0 || (shown.hour(), shown.minute()) == (2, 30), "{cron} in {zone}");
        }
    }
}

#[test]
fn a_monthly_expression_fires_once_a_month_in_every_zone() {
    let mut timings = Timings::default();
    for zones in zones_by_changes().into_values() {
        let timing = timings.get("30 2 1 * *", &zones[0]);
        let months = timing.firings_after(at("2020-01-02T00:00:00Z")).take(250).map(|firing| {
            let shown = zones[0].time_zone().to_datetime(firing);
            assert_eq!(shown.day(), 1, "{firing} in {}", zones[0]);
            i32::from(shown.year()) * 12 + i32::from(shown.month())
        });
        assert!(months.eq(2020 * 12 + 2..2020 * 12 + 252), "{}", zones[0]);
    }
}

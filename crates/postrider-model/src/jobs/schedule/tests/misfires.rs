use jiff::SignedDuration;

use super::*;

/// The firings to run, the skipped firings and the next one of a plan, as times of 6 May 2030.
fn summary(plan: &Plan) -> (String, String, String) {
    let time = |moment: &Timestamp| moment.strftime("%H:%M").to_string();
    let skipped = plan.skipped.map_or_else(String::new, |skipped| match skipped.count {
        Some(1) => time(&skipped.first),
        count => {
            let count = count.map_or_else(|| "many".to_owned(), |count| count.to_string());
            format!("{count}, {} to {}", time(&skipped.first), time(&skipped.last))
        }
    });
    let run: Vec<_> = plan.run.iter().map(time).collect();
    (run.join(" "), skipped, plan.next.as_ref().map_or_else(String::new, time))
}

#[test]
fn firings_run_late_or_not_at_all_as_the_table_says() {
    use Misfire::{All, Once, Skip};
    const HOURLY: &str = "0 * * * *";
    const QUARTERS: &str = "*/15 * * * *";
    #[rustfmt::skip]
    let table = [
        // The grace is ten minutes, a plan has at most four firings.
        // policy  cron       due      now          runs                         skipped              next
        // It is not due yet.
        (Skip,     HOURLY,    "08:00", "07:59:59",  "",                          "",                  "08:00"),
        // In time, or late within the grace period: the firing runs under every policy.
        (Skip,     HOURLY,    "08:00", "08:00:00",  "08:00",                     "",                  "09:00"),
        (Skip,     HOURLY,    "08:00", "08:10:00",  "08:00",                     "",                  "09:00"),
        (Once,     HOURLY,    "08:00", "08:10:00",  "08:00",                     "",                  "09:00"),
        (All,      HOURLY,    "08:00", "08:10:00",  "08:00",                     "",                  "09:00"),
        // Later than that, and alone.
        (Skip,     HOURLY,    "08:00", "08:10:01",  "",                          "08:00",             "09:00"),
        (Once,     HOURLY,    "08:00", "08:10:01",  "08:00",                     "",                  "09:00"),
        (All,      HOURLY,    "08:00", "08:10:01",  "08:00",                     "",                  "09:00"),
        // Several are too late.
        (Skip,     HOURLY,    "08:00", "10:30:00",  "",                          "3, 08:00 to 10:00", "11:00"),
        (Once,     HOURLY,    "08:00", "10:30:00",  "10:00",                     "2, 08:00 to 09:00", "11:00"),
        (All,      HOURLY,    "08:00", "10:30:00",  "08:00 09:00 10:00",         "",                  "11:00"),
        // One of them is in time, and runs as well.
        (Skip,     HOURLY,    "08:00", "10:05:00",  "10:00",                     "2, 08:00 to 09:00", "11:00"),
        (Once,     HOURLY,    "08:00", "10:05:00",  "09:00 10:00",               "08:00",             "11:00"),
        (All,      HOURLY,    "08:00", "10:05:00",  "08:00 09:00 10:00",         "",                  "11:00"),
        (Once,     HOURLY,    "09:00", "10:05:00",  "09:00 10:00",               "",                  "11:00"),
        // More than one plan allows: the others stay due.
        (All,      HOURLY,    "01:00", "10:30:00",  "01:00 02:00 03:00 04:00",   "",                  "05:00"),
        (All,      HOURLY,    "05:00", "08:30:00",  "05:00 06:00 07:00 08:00",   "",                  "09:00"),
        (Skip,     QUARTERS,  "08:00", "09:05:00",  "09:00",                     "4, 08:00 to 08:45", "09:15"),
        (Once,     QUARTERS,  "08:00", "09:05:00",  "08:45 09:00",               "3, 08:00 to 08:30", "09:15"),
        // A schedule whose expression was changed may be due at a time that the new one does not name.
        (Skip,     HOURLY,    "08:20", "08:25:00",  "08:20",                     "",                  "09:00"),
        (Skip,     HOURLY,    "08:20", "08:45:00",  "",                          "08:20",             "09:00"),
        (Once,     HOURLY,    "08:20", "09:45:00",  "09:00",                     "08:20",             "10:00"),
        (All,      HOURLY,    "08:20", "09:45:00",  "08:20 09:00",               "",                  "10:00"),
    ];
    for (misfire, cron, due, now, run, skipped, next) in table {
        let policy = Policy { misfire, grace: SignedDuration::from_mins(10), limit: 4 };
        let due = at(&format!("2030-05-06T{due}:00Z"));
        let plan = plan(&timing(cron, "UTC"), &policy, due, at(&format!("2030-05-06T{now}Z")));
        let expected = (run.to_owned(), skipped.to_owned(), next.to_owned());
        assert_eq!(summary(&plan), expected, "{misfire}, {cron}, due {due}, now {now}");
    }
}

#[test]
fn planning_a_year_of_minutely_firings_is_fast() {
    let minutely = timing("* * * * *", "Europe/Berlin");
    let (due, now) = (at("2030-05-06T08:00:00Z"), at("2031-05-06T08:00:30Z"));
    for misfire in [Misfire::Skip, Misfire::Once, Misfire::All] {
        let policy = Policy { misfire, grace: SignedDuration::from_secs(10), limit: 100 };
        let took = |_| {
            let begun = std::time::Instant::now();
            (plan(&minutely, &policy, due, now), begun.elapsed())
        };
        // Half a million firings would take far longer each time; a machine that is busy may delay one of three.
        let plans: Vec<_> = (0..3).map(took).collect();
        let fastest = plans.iter().map(|(_, took)| *took).min().unwrap();
        assert!(fastest.as_secs() < 2, "{misfire} took {fastest:?}");
        let plan = plans.into_iter().next().unwrap().0;
        match misfire {
            Misfire::Skip => {
                let skipped = plan.skipped.unwrap();
                assert_eq!((skipped.first, skipped.last), (due, at("2031-05-06T08:00:00Z")));
                assert_eq!(
                    skipped.to_string(),
                    "more than 1000 firings from 2030-05-06T08:00:00Z to 2031-05-06T08:00:00Z"
                );
                assert_eq!((plan.run, plan.next), (vec![], Some(at("2031-05-06T08:01:00Z"))));
            }
            Misfire::Once => {
                assert_eq!(plan.skipped.unwrap().last, at("2031-05-06T07:59:00Z"));
                assert_eq!(plan.run, [at("2031-05-06T08:00:00Z")]);
                assert_eq!(plan.next, Some(at("2031-05-06T08:01:00Z")));
            }
            Misfire::All => {
                assert_eq!((plan.run.len(), plan.run[0]), (100, due));
                assert_eq!(plan.next, Some(at("2030-05-06T09:40:00Z")));
            }
        }
    }
}

#[test]
fn successive_plans_run_every_firing_once() {
    let quarters = timing("*/15 * * * *", "Europe/Berlin");
    // Over the end of summer, when an hour is repeated.
    let (mut due, now) = (at("2030-10-26T12:00:00Z"), at("2030-10-27T12:00:00Z"));
    let policy = Policy { misfire: Misfire::All, grace: SignedDuration::ZERO, limit: 7 };
    let mut run = vec![];
    while due <= now {
        let plan = plan(&quarters, &policy, due, now);
        assert!((1..=7).contains(&plan.run.len()));
        run.extend(plan.run);
        due = plan.next.unwrap();
    }
    let expected: Vec<_> =
        quarters.firings_after(at("2030-10-26T11:59:59Z")).take_while(|firing| *firing <= now).collect();
    assert_eq!(run, expected);
    assert_eq!(run.len(), 24 * 4 + 1 - 4);
}

#[test]
fn policies_with_extreme_values_still_make_progress() {
    let hourly = timing("0 * * * *", "UTC");
    let (due, now) = (at("2030-05-06T08:00:00Z"), at("2030-05-06T10:30:00Z"));
    for (grace, limit) in [(SignedDuration::MAX, 0), (SignedDuration::MIN, 0), (SignedDuration::MAX, 100)] {
        for misfire in Misfire::ALL {
            let plan = plan(&hourly, &Policy { misfire: *misfire, grace, limit }, due, now);
            assert!(plan.next.unwrap() > due, "{misfire}, {grace}, {limit}");
        }
    }
}

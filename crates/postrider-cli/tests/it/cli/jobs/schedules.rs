//! Schedules, and what a preview shows of them.

use insta::assert_snapshot;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::{
    assert_misused, assert_refused,
    channels::by_ada,
    stage::{Stage, redacted},
    succeeded,
};
use crate::{sql, world::Server};

#[tokio::test]
async fn schedules_are_added_shown_switched_and_removed() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    assert!(stage.told(&["schedule", "list"])?.starts_with("there are no schedules; "));
    stage.sql_function("rebuild", "return p_input;").await?;
    succeeded(stage.jobs(&["function", "put", "b", "--sql", "public.rebuild"])?)?;
    succeeded(stage.jobs(&["function", "put", "c", "--sql", "public.rebuild"])?)?;
    let add =
        |function: &str, more: &[&str]| stage.jobs(&[&["schedule", "add", function][..], more].concat());
    let nightly = succeeded(add(
        "c",
        &[
            "--cron",
            "0 2 * * *",
            "--timezone",
            "europe/berlin",
            "--depends-on",
            "b",
            "--input",
            r#"{"a":1}"#,
            "--disabled",
        ],
    )?)?;
    let schedule = nightly.stdout.trim();
    let lines: Vec<&str> = nightly.stderr.lines().collect();
    assert_eq!(
        (lines.len(), lines[0]),
        (6, "the schedule is disabled; once enabled it fires at"),
        "{lines:?}"
    );
    assert!(lines[1].contains(" 02:00 +0") && lines[1].ends_with(":00:00Z"), "{lines:?}");
    let often = succeeded(add("b", &["--cron", "0 * * * *"])?)?;
    assert!(
        often.stderr.contains("lie in one grain (day), so only the first of them runs; --grain hour"),
        "{}",
        often.stderr
    );
    let fits = stage.jobs_json(&["schedule", "add", "noop", "--cron", "*/5 * * * *"])?;
    assert_eq!((&fits["warning"], fits["firings"].as_array().map(Vec::len)), (&Value::Null, Some(5)));

    // A circle is refused, and so is the shortest one.
    let circle = add("b", &["--cron", "@daily", "--depends-on", "c"])?;
    assert_refused(
        &circle,
        "the functions would wait for each other: b → c → b; leave one of them out of --depends-on",
    );
    assert_refused(&add("b", &["--cron", "@daily", "--depends-on", "b"])?, "b → b");

    assert_snapshot!(stage.told(&["schedule", "list", "--function", "c"])?, @r"
    SCHEDULE FUNCTION CRON ZONE GRAIN DEPENDS ON NEXT LAST
    schedule_[id] c 0 2 * * * Europe/Berlin - b disabled -
    ");
    let enabled = stage.told(&["schedule", "enable", schedule])?;
    assert!(enabled.contains(" fires next ") && enabled.contains(" 02:00 +0"), "{enabled}");
    // A function that the schedule depends on failed, and the output names it.
    let failed = Uuid::now_v7();
    let fire = format!(
        "insert into jobs.job_runs (id, tenant_id, function_name, lock_key, status, completed_at, grain, grain_start)
         values ('{failed}', '{tenant}', 'b', 'k', 'failed', now(), 'day', '2026-02-06');
         insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome)
         values ('{tenant}', '{schedule}', '2026-02-06 01:00Z', 'waiting');
         insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome, reason, decided_at)
         values ('{tenant}', '{schedule}', '2026-02-05 01:00Z', 'skipped', 'completed before in this grain', now())",
        tenant = stage.tenant
    );
    sql::execute(&stage.admin, fire).await?;
    let shown = stage.told(&["schedule", "show", schedule])?;
    assert!(shown.contains(" 02:00 +0"), "{shown}");
    let shown: Vec<&str> = shown.lines().filter(|line| !line.contains("fires next")).collect();
    assert_snapshot!(shown.join("\n"), @r#"
    schedule_[id] c at 0 2 * * * in Europe/Berlin
    │ grain: the function's own; missed firings: once
    │ after b
    │ input {"a":1}
    │ made [date] [time], changed [date] [time]
    FIRED FOR OUTCOME RUN REASON
    [date] [time] waiting - waits for b: it failed (run [id])
    [date] [time] skipped - completed before in this grain
    "#);
    assert_snapshot!(stage.told(&["schedule", "disable", &format!("schedule_{schedule}")])?, @"schedule_[id] is disabled; its waiting firings are skipped");
    assert_snapshot!(stage.told(&["schedule", "remove", schedule])?, @"removed schedule_[id]; it does not run `c` any more");
    for verb in ["show", "remove", "enable", "disable"] {
        assert_refused(
            &stage.jobs(&["schedule", verb, schedule])?,
            "; `postrider jobs schedule list --tenant acme` lists them",
        );
    }
    assert_eq!(
        stage.audited(&format!("schedule:{schedule}")).await?,
        by_ada(&["schedule.put", "schedule.enabled", "schedule.disabled", "schedule.removed"])
    );
    Ok(())
}

#[tokio::test]
async fn the_log_of_a_firing_names_the_next_time_and_not_how_rust_prints_it() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    stage.put_daily().await?;
    succeeded(stage.jobs(&["schedule", "add", "daily", "--cron", "@daily"])?)?;
    sql::execute(&stage.admin, "update jobs.schedules set next_fire_at = now() - interval '1 second'")
        .await?;
    let server = Server::start(&stage.world, "scheduler", "")?;
    let line: Value = serde_json::from_str(&server.process.wait_for_line("a schedule fired")?)?;
    let next: jiff::Timestamp = line["next"].as_str().unwrap_or_default().parse()?;
    assert!(next > jiff::Timestamp::now(), "{line}");
    Ok(())
}

#[test]
fn a_preview_shows_every_civil_time_once_and_opens_nothing() -> anyhow::Result<()> {
    let preview = |more: &[&str]| {
        let args = ["--database-url", "postgres://nobody@127.0.0.1:1/none", "jobs", "schedule", "preview"];
        crate::world::run(crate::world::postrider().args(args).args(more))
    };
    let gap = [
        "--cron",
        "30 2 * * *",
        "--timezone",
        "Europe/Berlin",
        "--after",
        "2026-03-28T00:00:00Z",
        "--count",
        "3",
    ];
    assert_snapshot!(redacted(&succeeded(preview(&gap)?)?.stdout), @r"
    EUROPE/BERLIN UTC
    Sat [date] 02:30 +01:00 [date] [time]
    Sun [date] 03:00 +02:00 [date] [time]
    Mon [date] 02:30 +02:00 [date] [time]
    ");
    let hourly = ["--cron", "*/30 * * * *", "--after", "2026-01-01T00:00:00Z", "--grain", "hour", "--json"];
    let hourly: Value = serde_json::from_str(&succeeded(preview(&hourly)?)?.stdout)?;
    assert_eq!(
        hourly["firings"][0],
        json!({ "local": "2026-01-01T00:30:00+00:00[UTC]", "utc": "2026-01-01T00:30:00Z" })
    );
    assert!(
        hourly["warning"].as_str().is_some_and(|words| words.contains("lie in one grain (hour)")),
        "{hourly}"
    );
    // A smaller grain is advised only if it keeps all firings apart.
    for (cron, grain, advice) in [
        (
            "* * * * *",
            "hour",
            "; no grain is small enough to keep them apart; fire at most every five minutes",
        ),
        ("* * * * *", "5min", "; no grain is small enough to keep them apart"),
        ("*/30 * * * *", "hour", "; --grain 5min keeps them apart"),
        ("*/10 * * * *", "day", "; --grain 5min keeps them apart"),
        ("0 * * * *", "day", "; --grain hour keeps them apart"),
    ] {
        let warned = preview(&["--cron", cron, "--grain", grain, "--after", "2026-01-01T00:00:00Z"])?;
        assert!(succeeded(warned)?.stderr.contains(advice), "{cron} {grain}: {advice}");
    }
    for (args, says) in [
        (&["--cron", "* * * *"][..], "`* * * *` is not a cron expression"),
        (&["--cron", "0 0 2 * * *"], "is not a cron expression"),
        (&["--cron", "0 0 30 2 *"], "so it would never fire"),
        (&["--cron", "@daily", "--timezone", "Europe/Berln"], "did you mean `Europe/Berlin`?"),
        (&["--cron", "@daily", "--timezone", "+01:00"], "an offset does not say when the clocks change"),
        (&["--cron", "@daily", "--count", "0"], "0 is not in 1..=1000"),
        (&["--cron", "@daily", "--after", "soon"], "invalid value 'soon'"),
    ] {
        assert_misused(&preview(args)?, says);
    }
    Ok(())
}

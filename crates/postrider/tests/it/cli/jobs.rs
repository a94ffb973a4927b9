//! `postrider jobs`: functions, their runs, schedules, and what people must look at.

use insta::assert_snapshot;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    assert_misused, assert_refused,
    channels::by_ada,
    stage::{Stage, redacted},
    succeeded,
};
use crate::{
    api::conversations::SECRET,
    sql,
    world::{Output, Server},
};

impl Stage {
    /// A function in the database that does this.
    async fn sql_function(&self, name: &str, body: &str) -> anyhow::Result<()> {
        let create = format!(
            "create or replace function public.{name}(p_input jsonb) returns jsonb language plpgsql as $$ begin {body} end $$"
        );
        Ok(sql::execute(&self.admin, create).await?)
    }

    /// `jobs …`, as somebody of tenant `acme` types it.
    fn jobs(&self, args: &[&str]) -> anyhow::Result<Output> {
        self.run(&[&["jobs"][..], args].concat())
    }

    /// The same, where it must succeed: what it said, with ids and times made the same.
    fn told(&self, args: &[&str]) -> anyhow::Result<String> {
        let Output { stdout, stderr, .. } = succeeded(self.jobs(args)?)?;
        Ok(redacted(&format!("{stdout}{stderr}")))
    }

    fn jobs_json(&self, args: &[&str]) -> anyhow::Result<Value> {
        self.json(&[&["jobs"][..], args].concat())
    }

    /// A function that does nothing, once a day: no test is long enough to see two of its grains.
    fn put_daily(&self) -> anyhow::Result<()> {
        succeeded(self.jobs(&["function", "put", "daily", "--builtin", "noop", "--grain", "day"])?).map(drop)
    }

    /// A statement in the tenant's context.
    async fn as_acme(&self, statement: &str) -> anyhow::Result<()> {
        let context = format!("select set_config('app.current_tenant_id', '{}', true)", self.tenant);
        Ok(sql::execute(&self.admin, format!("begin; {context}; {statement}; commit")).await?)
    }
}

/// What is told of a run, without its grain and how long it took.
fn timeless(told: &str, run: &Value) -> String {
    let start = id(&run["grain_start"]);
    let told = told.replace(&start[..10], "[grain]");
    let words: Vec<&str> = told.split(' ').collect();
    let units = ["ms", "ms,", "s", "s,"];
    let is_span = |n: usize| {
        words[n].parse::<f64>().is_ok() && words.get(n + 1).is_some_and(|unit| units.contains(unit))
    };
    let kept = (0..words.len()).map(|n| match n {
        _ if is_span(n) => "[n]".to_owned(),
        1.. if is_span(n - 1) => words[n].replace("ms", "s"),
        _ => words[n].to_owned(),
    });
    kept.collect::<Vec<_>>().join(" ")
}

/// A table whose rows come in no order that could be relied on.
fn in_order(table: &str) -> String {
    let mut lines: Vec<&str> = table.lines().collect();
    lines[1..].sort_unstable();
    lines.join("\n")
}

fn id(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_function_is_invoked_and_what_fails_is_mended_and_run_again() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    let _server = Server::start(&stage.world, "scheduler", "")?;
    let noop = ["invoke", "noop", "--input", r#"{"a": [1, "ü"]}"#];
    let done = succeeded(stage.jobs(&noop)?)?;
    assert_eq!(serde_json::from_str::<Value>(&done.stdout)?, json!({ "a": [1, "ü"] }));

    // Once per grain, for the same entities.
    stage.put_daily()?;
    succeeded(stage.jobs(&["invoke", "daily"])?)?;
    let again = stage.jobs(&["invoke", "daily"])?;
    assert_refused(&again, "`daily` was completed in this grain (day), as job_run_");
    assert!(again.stderr.contains("shows its result, --force runs it once more"), "{}", again.stderr);
    let of_one = stage.jobs_json(&["invoke", "daily", "--entities", r#"{"rule_id": "r1"}"#])?;
    assert_eq!((&of_one["status"], &of_one["is_forced"]), (&json!("completed"), &json!(false)));
    let forced = stage.jobs_json(&["invoke", "daily", "--force"])?;
    assert_eq!(forced["is_forced"], true);
    assert_eq!(
        stage.audited(&format!("job_run:{}", id(&forced["id"]))).await?,
        by_ada(&["run.forced"]),
        "{forced}"
    );

    stage
        .sql_function("rebuild", "raise exception 'no such\u{1b}[2J month' using errcode = 'PR400';")
        .await?;
    let put = ["function", "put", "rebuild", "--sql", "public.rebuild", "--max-retries", "0"];
    assert_snapshot!(stage.told(&put)?, @"`rebuild` is new; `postrider jobs invoke rebuild --tenant acme` runs it");
    let refused = stage.jobs(&["invoke", "rebuild", "--input", "null"])?;
    assert_refused(&refused, "failed for good as sync_error_");
    assert_snapshot!(redacted(&refused.stderr), @"error: job_run_[id] failed for good as sync_error_[id]: public.rebuild: no such�[2J month; mend that, then `postrider jobs retry job_run_[id] --tenant acme` runs it again");
    assert_snapshot!(stage.told(&["errors"])?, @r"
    ERROR FUNCTION CODE RETRIES SINCE MESSAGE RESOLVED
    sync_error_[id] rebuild EXECUTION_ERROR 0 [date] [time] public.rebuild: no such�[2J month -
    `postrider jobs retry ERROR` runs one again, `postrider jobs resolve ERROR --note …` closes it without that
    ");
    let letter = id(&stage.jobs_json(&["errors"])?[0]["id"]);
    let failed = &stage.jobs_json(&["list", "--status", "failed"])?[0];
    let run = id(&failed["id"]);
    assert_snapshot!(timeless(&stage.told(&["show", &run])?, failed), @r"
    job_run_[id] rebuild, failed
    │ invoked [date] [time], last attempt [date] [time], took [n] s, retried never
    │ lock key rebuild:[id]:[grain]
    │ once per day, this one from [date] [time]
    │ input null
    │ for good: public.rebuild: no such�[2J month
    └─ sync_error_[id] EXECUTION_ERROR, [date] [time]
    public.rebuild: no such�[2J month
    ");

    stage.sql_function("rebuild", "return jsonb_build_object('rebuilt', p_input);").await?;
    assert_snapshot!(stage.told(&["retry", &format!("sync_error_{letter}")])?, @"job_run_[id] runs again; `postrider jobs show job_run_[id] --tenant acme` says how it goes");
    crate::world::eventually("the run is completed", async || {
        Ok(stage.jobs_json(&["show", &run])?["run"]["status"] == "completed")
    })
    .await?;
    assert_snapshot!(timeless(&stage.told(&["show", &run])?, failed), @r#"
    job_run_[id] rebuild, completed
    │ invoked [date] [time], last attempt [date] [time], took [n] s, retried once
    │ lock key rebuild:[id]:[grain]
    │ once per day, this one from [date] [time]
    │ input null
    │ result {"rebuilt":null}
    └─ sync_error_[id] EXECUTION_ERROR, [date] [time]
    public.rebuild: no such�[2J month
    resolved [date] [time] by postrider: a later attempt completed the run
    log
    [date] [time] run.retried by cli:ada: rebuild:[id]:[grain]
    "#);
    assert_snapshot!(stage.told(&["errors", "--all"])?, @r"
    ERROR FUNCTION CODE RETRIES SINCE MESSAGE RESOLVED
    sync_error_[id] rebuild EXECUTION_ERROR 0 [date] [time] public.rebuild: no such�[2J month by postrider: a later attempt completed the run
    ");
    assert_refused(&stage.jobs(&["retry", &run])?, "is completed, and only what failed is run again");
    assert_refused(&stage.jobs(&["cancel", &run])?, "is completed, and what is done cannot be cancelled");
    let listed = stage.told(&["list", "--function", "rebuild"])?;
    assert_snapshot!(timeless(&listed, failed), @r#"
    RUN FUNCTION STATUS GRAIN INVOKED TOOK RETRIES HOW IT STANDS
    job_run_[id] rebuild completed [date] [date] [time] [n] s 1 {"rebuilt":null}
    "#);
    let health = stage.jobs_json(&["health"])?;
    assert_eq!(health["functions"][2]["retried_count"], json!(1), "{health}");
    assert_eq!(health["thresholds"][2]["is_exceeded"], json!(true), "{health}");
    Ok(())
}

#[tokio::test]
async fn a_run_that_nobody_picks_up_is_said_so_and_can_be_given_up() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    stage.put_daily()?;
    let waited = stage.jobs(&["invoke", "daily", "--wait", "1"])?;
    assert_eq!(waited.code, 2, "{}", waited.stderr);
    let run = waited.stdout.trim();
    assert_snapshot!(redacted(&waited.stderr), @r"
    nobody has picked it up yet: is a process with the role scheduler running?
    job_run_[id] is not over, and goes on by itself; `postrider jobs show job_run_[id] --tenant acme` says how it goes
    ");
    let taken = stage.jobs(&["invoke", "daily", "--force"])?;
    assert_refused(
        &taken,
        &format!("`daily` is running already, as job_run_{run}; wait for it, `postrider jobs show"),
    );
    assert_refused(&stage.jobs(&["retry", run])?, "is running, and only what failed is run again");
    assert_snapshot!(stage.told(&["list"])?, @r"
    RUN FUNCTION STATUS GRAIN INVOKED TOOK RETRIES HOW IT STANDS
    job_run_[id] daily running [date] [date] [time] - 0 waits for a runner
    ");
    assert_snapshot!(stage.told(&["health"])?, @r"
    FUNCTION STATUS COUNT AVG DURATION MAX DURATION RETRIED
    daily running 1 - - 0

    WHAT NOW ALERT OVER
    failed in 24 hours 0 5 ok
    running for too long 0 0, after 30 min ok
    retried in 24 hours 0.0 % 10 % ok
    ");

    let mut listener = sqlx::postgres::PgListener::connect(&stage.world.admin_url()).await?;
    listener.listen_all(["postrider_job_runs", "postrider_job_cancels"]).await?;
    assert_snapshot!(stage.told(&["cancel", run, "--note", "a mistake"])?, @"job_run_[id] is cancelled; its lock key is free");
    succeeded(stage.jobs(&["cancel", run])?)?;
    for _ in 0..2 {
        let hint = tokio::time::timeout(crate::world::PATIENCE, listener.recv()).await??;
        assert_eq!(hint.channel(), "postrider_job_cancels");
    }
    assert_eq!(stage.audited(&format!("job_run:{run}")).await?, by_ada(&["run.cancelled"]));
    assert_refused(
        &stage.jobs(&["retry", run])?,
        "is cancelled, and only what failed is run again; that is for ever",
    );

    let next = succeeded(stage.jobs(&["invoke", "daily", "--wait", "0"])?)?;
    let hint = tokio::time::timeout(crate::world::PATIENCE, listener.recv()).await??;
    assert_eq!(hint.channel(), "postrider_job_runs");
    // It failed, and waits for its retry.
    let wait = format!(
        "update jobs.job_runs set status = 'failed', completed_at = now(), error_message = 'no', retry_at = now() + interval '1 hour'
          where id = '{}'",
        next.stdout.trim()
    );
    sql::execute(&stage.admin, wait).await?;
    let pending = stage.jobs(&["invoke", "daily"])?;
    assert_refused(
        &pending,
        "and waits for its next try; wait for it, or try at once with `postrider jobs retry job_run_",
    );
    assert_snapshot!(stage.told(&["retry", next.stdout.trim()])?, @"job_run_[id] runs again; `postrider jobs show job_run_[id] --tenant acme` says how it goes");
    Ok(())
}

#[tokio::test]
async fn functions_are_set_listed_and_removed_and_a_secret_is_shown_once() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    let put = |more: &[&str]| -> anyhow::Result<Output> {
        stage.with_secret(
            &[&["jobs", "function", "put", "sync", "--http", "https://example.com/sync"], more].concat(),
            "",
        )
    };
    let made = succeeded(put(&["--grain", "hour", "--timeout", "5"])?)?;
    let secret = made.stdout.trim().to_owned();
    assert!(secret.starts_with("whsec_") && secret.len() > 40, "{secret}");
    assert_snapshot!(made.stderr, @r"
    `sync` is new; `postrider jobs invoke sync --tenant acme` runs it
    keep the secret, which signs the requests: it is not shown again
    ");
    // Set again, it keeps its secret; a file and a variable replace it.
    assert_eq!(succeeded(put(&["--max-retries", "0"])?)?.stdout, "");
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), format!("{SECRET}\n"))?;
    assert_eq!(succeeded(put(&["--secret-file", &file.path().display().to_string()])?)?.stdout, "");
    let mut from_env =
        stage.command(&["jobs", "function", "put", "sync", "--http", "https://example.com/sync"]);
    from_env.env("POSTRIDER_MASTER_KEY", crate::world::MASTER_KEY).env("SYNC_SECRET", SECRET);
    from_env.args(["--secret-env", "SYNC_SECRET", "--json"]);
    let set: Value = serde_json::from_str(&succeeded(crate::world::run(&mut from_env)?)?.stdout)?;
    assert_eq!((&set["is_new"], &set["secret"]), (&json!(false), &Value::Null));

    stage.sql_function("rebuild", "return p_input;").await?;
    succeeded(stage.jobs(&[
        "function",
        "put",
        "rebuild",
        "--sql",
        "public.rebuild",
        "--max-retries",
        "0",
    ])?)?;
    succeeded(stage.jobs(&["function", "put", "quiet", "--builtin", "noop"])?)?;
    let listed = stage.told(&["function", "list"])?;
    assert_snapshot!(listed, @r"
    FUNCTION WHAT IT IS ONCE PER TIMEOUT RETRIES SET
    quiet builtin noop 5min 60 s 3, after 1000 ms, then 5 times as long, 30000 ms at most [date] [time]
    rebuild sql public.rebuild day 60 s none [date] [time]
    sync https://example.com/sync day 60 s 3, after 1000 ms, then 5 times as long, 30000 ms at most [date] [time]
    detect-alerts comes with Postrider 5min - - -
    generate-decision-cards comes with Postrider 5min - - -
    process-alert-notifications comes with Postrider 5min - - -
    noop comes with Postrider 5min - - -
    ");
    let dump = format!("{listed}{}", stage.world.dump().await?);
    for secret in [&secret[6..], &SECRET[6..]] {
        assert!(!dump.contains(secret));
    }
    assert_eq!(
        stage.audited("function:quiet").await?.first().map(|(_, actor)| actor.as_str()),
        Some("cli:ada")
    );

    succeeded(stage.jobs(&["schedule", "add", "rebuild", "--cron", "@daily", "--depends-on", "quiet"])?)?;
    assert_refused(
        &stage.jobs(&["function", "remove", "quiet"])?,
        "a schedule of the function rebuild needs it; remove or change that",
    );
    assert_snapshot!(stage.told(&["function", "remove", "sync"])?, @"removed `sync`; what it ran stays in `postrider jobs list --tenant acme`");
    assert_refused(
        &stage.jobs(&["function", "remove", "sync"])?,
        "has no function `sync`; `postrider jobs function list",
    );
    Ok(())
}

#[tokio::test]
async fn schedules_are_added_shown_switched_and_removed() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    assert!(stage.told(&["schedule", "list"])?.starts_with("nothing runs by itself; "));
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
    assert_eq!((lines.len(), lines[0]), (6, "it is disabled; once enabled it fires"), "{lines:?}");
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
    // What it depends on failed, and it says so.
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
    assert_snapshot!(stage.told(&["schedule", "disable", &format!("schedule_{schedule}")])?, @"schedule_[id] is disabled; what waits of it is skipped");
    assert_snapshot!(stage.told(&["schedule", "remove", schedule])?, @"removed schedule_[id]; `c` does not run by it any more");
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

#[tokio::test]
async fn the_chain_that_watches_is_set_up_once_however_often_it_is_asked_for() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    stage.add_account("ops", "webhook").await?;
    stage.add_account("calls", "twilio").await?;
    let monitor = |more: &[&str]| stage.jobs(&[&["monitor"][..], more].concat());
    let first = succeeded(monitor(&["--notify", "ops"])?)?;
    assert_snapshot!(redacted(&format!("{}{}", first.stdout, first.stderr)), @r"
    FUNCTION CRON SCHEDULE
    detect-alerts */5 * * * * schedule_[id] new
    generate-decision-cards */5 * * * * schedule_[id] new
    process-alert-notifications */5 * * * * schedule_[id] new
    told: ops
    each waits for the one before it; a process with the role scheduler runs them
    ");
    let before = stage.jobs_json(&["schedule", "list"])?;
    assert_snapshot!(stage.told(&["monitor", "--notify", "ops", "mailer:ops@example.com"])?, @r"
    FUNCTION CRON SCHEDULE
    detect-alerts */5 * * * * schedule_[id] set again
    generate-decision-cards */5 * * * * schedule_[id] set again
    process-alert-notifications */5 * * * * schedule_[id] set again
    told: ops, mailer:ops@example.com
    each waits for the one before it; a process with the role scheduler runs them
    ");
    let after = stage.jobs_json(&["schedule", "list"])?;
    let ids =
        |list: &Value| list.as_array().map(|all| all.iter().map(|one| id(&one["id"])).collect::<Vec<_>>());
    assert_eq!((ids(&before), ids(&after).map(|ids| ids.len())), (ids(&after), Some(3)));
    assert_eq!(
        after[2]["input"],
        json!({ "notify": [{ "account": "ops" }, { "account": "mailer", "to": "ops@example.com" }] })
    );
    assert_eq!(after[2]["depends_on"], json!(["generate-decision-cards"]));

    for (args, says) in [
        (&["--notify", "nobody:x"][..], "--notify: there is no account `nobody`; `postrider accounts list`"),
        (&["--notify", "mailer"], "--notify: say to whom `mailer` sends, as in --notify mailer:ops@"),
        (&["--notify", "mailer:"], "nobody is named after the colon of `mailer:`"),
        (&["--notify", "ops", "calls:+491"], "the account `calls` can be told nothing"),
    ] {
        assert_refused(&monitor(args)?, says);
    }
    assert_misused(&monitor(&[])?, "--notify <ACCOUNT[:TO]>...");
    assert_misused(&monitor(&["--tell-nobody", "--notify", "ops"])?, "cannot be used with");
    assert_eq!(stage.jobs_json(&["schedule", "list"])?, after);
    Ok(())
}

#[tokio::test]
async fn alerts_and_cards_are_listed_and_decided() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    assert_eq!(stage.told(&["alerts"])?, "no alert holds");
    assert_eq!(stage.told(&["cards"])?, "nothing waits for a decision");
    stage
        .as_acme(
            "select jobs.raise_alert('failed-jobs', null, '6 jobs failed', 'critical');
             select * from jobs.generate_decision_cards();
             select jobs.raise_alert('stock', 'SKU001', 'SKU001 runs out');
             select * from jobs.generate_decision_cards();
             select jobs.resolve_alert('stock', 'SKU001');
             select * from jobs.generate_decision_cards()",
        )
        .await?;
    assert_snapshot!(in_order(&stage.told(&["alerts", "--all"])?), @r"
    ALERT RULE SEVERITY STATUS SINCE OVER WHAT TOLD
    alert_[id] failed-jobs critical active [date] [time] - 6 jobs failed nobody
    alert_[id] stock warning resolved [date] [time] [date] [time] SKU001 runs out nobody
    ");
    assert_eq!(stage.jobs_json(&["alerts"])?.as_array().map(Vec::len), Some(1));
    assert_snapshot!(in_order(&stage.told(&["cards", "--all"])?), @r"
    CARD STATUS DAY WHAT WHAT TO DO DECIDED
    card_[id] OPEN [date] 6 jobs failed Look at the dead letters, mend what they name, and retry or resolve each of them. -
    card_[id] RESOLVED [date] SKU001 runs out Look at the evidence, and resolve or dismiss this card. by postrider: the alert resolved itself
    ");
    let open = stage.jobs_json(&["cards"])?;
    assert_eq!(open.as_array().map(Vec::len), Some(1));
    let card = id(&open[0]["id"]);
    assert_snapshot!(stage.told(&["decide", &card, "in-progress"])?, @"card_[id] is IN_PROGRESS");
    assert_eq!(stage.jobs_json(&["cards"])?[0]["status"], "IN_PROGRESS");
    succeeded(stage.jobs(&["decide", &format!("card_{card}"), "RESOLVED", "--note", "mended"])?)?;
    assert_refused(
        &stage.jobs(&["decide", &card, "dismissed"])?,
        "is RESOLVED, and stays so; what happens again is a new alert",
    );
    assert_refused(&stage.jobs(&["decide", &Uuid::now_v7().to_string(), "OPEN"])?, "has no card");
    assert_misused(
        &stage.jobs(&["decide", &card, "done"])?,
        "choose OPEN, IN_PROGRESS, RESOLVED or DISMISSED",
    );
    assert_eq!(stage.audited(&format!("card:{card}")).await?, by_ada(&["card.in_progress", "card.resolved"]));
    Ok(())
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_writes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    let before = stage.world.dump().await?;
    let nowhere = Uuid::now_v7().to_string();
    let large = format!("\"{}\"", "x".repeat(64 * 1024));
    for (args, says) in [
        (
            &["invoke", "nothing"][..],
            "tenant `acme` has no function `nothing`; `postrider jobs function list --tenant acme`",
        ),
        (&["invoke", "noop", "--input", "{a: 1}"], "--input is not JSON: key must be a string"),
        (&["invoke", "noop", "--input", "@/nonexistent"], "cannot read --input from /nonexistent"),
        (&["invoke", "noop", "--input", r#""\u0000""#], "which Postgres cannot store"),
        (&["invoke", "noop", "--input", &large], "--input is larger than 65536 bytes"),
        (&["invoke", "noop", "--entities", "[1]"], "--entities: the entities must be a JSON object"),
        (&["invoke", "noop", "--entities", "{"], "--entities: the entities are not valid JSON"),
        (&["show", &nowhere], "; `postrider jobs list --tenant acme` lists them"),
        (&["retry", &nowhere], "; `postrider jobs list --tenant acme` lists them"),
        (&["cancel", &nowhere], "; `postrider jobs list --tenant acme` lists them"),
        (&["resolve", &nowhere, "--note", "x"], "; `postrider jobs errors --all --tenant acme` lists them"),
        (&["resolve", &nowhere, "--note", " "], "--note is empty; say how it was resolved"),
        (&["schedule", "add", "nothing", "--cron", "@daily"], "has no function `nothing`"),
        (
            &["schedule", "add", "noop", "--cron", "@daily", "--depends-on", "detect-alerts,nothing"],
            "has no function `nothing`",
        ),
        (&["function", "put", "f", "--http", "http://example.com"], "--http: plain http is not encrypted"),
        (&["function", "put", "f", "--http", "https://10.0.0.1"], "--http: `10.0.0.1` is "),
        (
            &["function", "put", "f", "--sql", "public.nowhere"],
            "--sql: there is no function public.nowhere(jsonb) in the database",
        ),
        (
            &["function", "put", "f", "--sql", "jobs.new_id"],
            "--sql: the functions of the schema `jobs` cannot be run as jobs",
        ),
        (
            &["function", "put", "f", "--builtin", "noop", "--backoff-multiplier", "0.5"],
            "--backoff-multiplier must lie between 1 and 100",
        ),
        (
            &["function", "put", "f", "--http", "https://example.com", "--secret-env", "NOT_SET"],
            "the variable NOT_SET is not set, or empty",
        ),
        (
            &["function", "put", "f", "--http", "https://example.com", "--secret-file", "/nonexistent"],
            "cannot read the secret from /nonexistent",
        ),
        (
            &["function", "put", "f", "--http", "https://example.com"],
            "none is set; make one with `head -c 32 /dev/urandom",
        ),
        (
            &["function", "put", "f", "--http", "https://example.com", "--secret-env", "USER"],
            "the secret does not begin with `whsec_`; leave it out",
        ),
        (
            &["function", "put", "f", "--sql", "a.b", "--secret-env", "USER"],
            "nothing would be signed with a secret; leave it out, or give --http",
        ),
    ] {
        assert_refused(&stage.jobs(args)?, says);
    }
    for (args, says) in [
        (&["list", "--status", "lost"][..], "running, completed, failed, cancelled"),
        (&["show", "seven"], "`seven` is not a job_run id"),
        (&["retry", "seven"], "`seven` is not the id of a run or an error"),
        (&["cancel", &format!("schedule_{nowhere}")], "is not a job_run id"),
        (&["invoke", "noop", "--wait", "-1"], "unexpected argument '-1'"),
        (&["schedule", "add", "noop"], "--cron <CRON>"),
        (&["schedule", "add", "noop", "--cron", "every day"], "`every day` is not a cron expression"),
        (
            &["schedule", "add", "noop", "--cron", "@daily", "--timezone", "Mars/Base"],
            "`Mars/Base` is not a time zone",
        ),
        (&["schedule", "add", "noop", "--cron", "@daily", "--misfire", "never"], "skip, once, all"),
        (&["schedule", "add", "noop", "--cron", "@daily", "--grain", "week"], "day, hour, 5min"),
        (&["function", "put", "f"], "required arguments were not provided"),
        (&["function", "put", "a:b", "--builtin", "noop"], "cannot be the name of a function"),
        (&["function", "put", "f", "--builtin", "mine"], "[possible values: detect-alerts"),
        (
            &["function", "put", "f", "--sql", "rebuild"],
            "is not the name of a SQL function; write it with its schema",
        ),
        (&["function", "put", "f", "--sql", "a.b", "--http", "https://example.com"], "cannot be used with"),
        (&["function", "put", "f", "--builtin", "noop", "--timeout", "901"], "901 is not in 1..=900"),
    ] {
        assert_misused(&stage.jobs(args)?, says);
    }
    assert_eq!(stage.world.dump().await?, before);
    Ok(())
}

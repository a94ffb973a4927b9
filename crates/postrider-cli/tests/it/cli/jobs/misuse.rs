//! Arguments that make no sense.

use uuid::Uuid;

use super::super::{assert_misused, assert_refused, stage::Stage};

#[tokio::test]
async fn senseless_arguments_are_refused_and_write_nothing() -> anyhow::Result<()> {
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
        (&["resolve", &nowhere, "--note", " "], "--note is empty; describe how the error was resolved"),
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
            "--sql: the functions of the schema `jobs` cannot be called by job runs",
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
            "none is set; make one with `postrider master-key generate`",
        ),
        (
            &["function", "put", "f", "--http", "https://example.com", "--secret-env", "USER"],
            "the secret does not begin with `whsec_`; leave the option out",
        ),
        (
            &["function", "put", "f", "--sql", "a.b", "--secret-env", "USER"],
            "only requests to a URL are signed with a secret; leave the secret out, or give --http",
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

//! Functions: set, listed, removed.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::super::{assert_refused, stage::Stage, succeeded};
use crate::{api::conversations::SECRET, world::Output};

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
    keep the secret, which signs the requests: it is shown only once
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
    FUNCTION TARGET ONCE PER TIMEOUT RETRIES SET
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
    assert_snapshot!(stage.told(&["function", "remove", "sync"])?, @"removed `sync`; its runs stay in `postrider jobs list --tenant acme`");
    assert_refused(
        &stage.jobs(&["function", "remove", "sync"])?,
        "has no function `sync`; `postrider jobs function list",
    );
    Ok(())
}

#[tokio::test]
async fn a_rust_function_is_set_while_a_running_process_provides_it() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    let set = |name: &str| stage.jobs(&["function", "put", "monthly", "--builtin", name]);
    assert_refused(
        &set("close-month")?,
        "--builtin: no function `close-month` comes with Postrider, and no running process provides one; known are detect-alerts, ",
    );
    stage.world.as_superuser("select jobs.provide_functions('r', array['close-month'], '1 minute')").await?;
    let listed = stage.told(&["function", "list"])?;
    assert!(
        listed.contains("close-month provided by a running process; `postrider jobs function put"),
        "{listed}"
    );
    succeeded(set("close-month")?)?;
    assert_refused(&set("close-year")?, "process-alert-notifications, noop, close-month; start the process");

    // A process that died does not renew its rows. The function stays set; another one cannot be set to this name.
    stage
        .world
        .as_superuser("update jobs.provided_functions set expires_at = now() - interval '1 second'")
        .await?;
    assert_refused(&set("close-month")?, "no running process provides one");
    assert!(stage.told(&["function", "list"])?.contains("monthly builtin close-month day"));
    // The next process that registers its functions removes those rows.
    stage.world.as_superuser("select jobs.provide_functions('s', array['other'], '1 minute')").await?;
    assert_eq!(stage.world.rows().await?["jobs.provided_functions"], 1);
    Ok(())
}

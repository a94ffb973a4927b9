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

//! Support for shells and scripts: completions, man pages, variables for flags, and JSON of everything that changes.

use std::process::Command;

use serde_json::{Value, json};

use super::{World, assert_refused, stage::Stage, succeeded};
use crate::{
    sql,
    world::{postrider, run, run_with_input},
};

#[test]
fn completions_name_every_command_and_need_no_configuration() -> anyhow::Result<()> {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(postrider().args(["completions", shell]).env("POSTRIDER_NO_SUCH_KEY", "1"))?;
        let script = succeeded(script)?.stdout;
        for word in ["in-doubt", "schedule", "--tell-nobody", "--database-url"] {
            assert!(script.contains(word.trim_start_matches("--")), "{shell}: {word}");
        }
    }
    let script = succeeded(run(postrider().args(["completions", "bash"]))?)?.stdout;
    let home = tempfile::tempdir()?;
    let file = home.path().join("complete.bash");
    let complete = "COMP_WORDS=(postrider campaign ver); COMP_CWORD=2; _postrider postrider ver campaign; echo \"${COMPREPLY[@]}\"";
    std::fs::write(&file, format!("{script}\n{complete}\n"))?;
    let completed = Command::new("bash").arg(&file).output()?;
    assert_eq!(String::from_utf8(completed.stdout)?.trim(), "verify");
    Ok(())
}

#[test]
fn man_pages_are_made_of_every_command() -> anyhow::Result<()> {
    let page = succeeded(run(postrider().arg("man"))?)?.stdout;
    assert!(page.contains(".TH postrider 1") && page.contains("POSTRIDER_CONFIG"), "{page}");
    let home = tempfile::tempdir()?;
    let out = home.path().join("man1");
    succeeded(run(postrider().arg("man").arg("--out").arg(&out))?)?;
    for (name, says) in [
        ("postrider.1", "execution kernel"),
        ("postrider-campaign-verify.1", "Exit codes"),
        ("postrider-jobs-schedule-add.1", "cron"),
    ] {
        let page = std::fs::read_to_string(out.join(name))?;
        assert!(page.contains(says), "{name}: {page}");
    }
    Ok(())
}

#[tokio::test]
async fn variables_stand_for_the_tenant_and_the_workspace() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let (acme, first) = sql::tenant(&admin, "acme").await?;
    let (_, foreign) = sql::tenant(&admin, "globex").await?;
    let second = uuid::Uuid::now_v7();
    sqlx::query("insert into tenancy.workspaces (id, tenant_id, name) values ($1, $2, 'second')")
        .bind(second)
        .bind(acme)
        .execute(&admin)
        .await?;
    let command = |tenant: &str, workspace: &str, args: &[&str]| {
        let mut command = postrider();
        command
            .env("POSTRIDER_MASTER_KEY", super::MASTER_KEY)
            .env("POSTRIDER_TENANT", tenant)
            .env("POSTRIDER_WORKSPACE", workspace)
            .args(["--database-url", &world.admin_url()])
            .args(args);
        run_with_input(&mut command, "secret")
    };
    let add = |name: &'static str, more: &[&'static str]| {
        let at = ["--provider", "sim", "--settings", r#"{"url": "https://a.example"}"#];
        [&["accounts", "add", name], &at[..], more].concat()
    };
    let no_workspace = succeeded(command("acme", "", &add("one", &[]))?)?;
    assert!(no_workspace.stderr.is_empty());
    succeeded(command("acme", &second.to_string(), &add("two", &[]))?)?;
    let flag = format!("--workspace={first}");
    let flag = [&add("three", &[])[..], &[flag.as_str()]].concat();
    succeeded(command("acme", &second.to_string(), &flag)?)?;
    let listed = succeeded(command("acme", "", &["accounts", "list", "--json"])?)?.stdout;
    let listed: Vec<Value> = serde_json::from_str(&listed)?;
    let workspace_of = |name: &str| {
        let account = listed.iter().find(|account| account["name"] == name);
        account.map(|account| account["workspace_id"].clone())
    };
    assert_eq!(workspace_of("one"), Some(json!(first)));
    assert_eq!(workspace_of("two"), Some(json!(second)));
    assert_eq!(workspace_of("three"), Some(json!(first)), "the flag comes before the variable");

    assert_refused(
        &command("acme", &foreign.to_string(), &add("four", &[]))?,
        &format!("tenant `acme` has no workspace {foreign}; it has {first}, {second}"),
    );
    assert_refused(&command("acme", "second one", &add("four", &[]))?, "POSTRIDER_WORKSPACE: ");
    assert_refused(&command("nobody", "", &["keys", "list"])?, "there is no tenant `nobody`");
    // The flag comes before the variable, and neither is taken for a key of the configuration.
    succeeded(command("nobody", "", &["keys", "list", "--tenant", "globex"])?)?;
    let printed = succeeded(command("acme", "x", &["--print-config"])?)?.stdout;
    assert!(!printed.contains("workspace ="), "{printed}");
    assert_refused(
        &world.postrider(&["keys", "list"])?,
        "no tenant is given; name one with --tenant or POSTRIDER_TENANT",
    );
    Ok(())
}

const OTHER_KEY: &str = "bm90IHRoZSBrZXkgb2YgdGhlIG90aGVycywgYnV0IDM=";

#[tokio::test]
async fn a_command_that_changes_something_prints_it_as_json() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    let with_secret = |args: &[&str]| -> anyhow::Result<Value> {
        let mut command = stage.command(&[args, &["--json"]].concat());
        let output = run_with_input(command.env("POSTRIDER_MASTER_KEY", super::MASTER_KEY), "a secret")?;
        Ok(serde_json::from_str(&succeeded(output)?.stdout)?)
    };
    let at = ["--provider", "sim", "--settings", r#"{"url": "https://a.example"}"#];
    let added = with_secret(&[&["accounts", "add", "sms"], &at[..]].concat())?;
    assert_eq!((&added["name"], &added["provider"]), (&json!("sms"), &json!("sim")));
    let limited = stage.json(&["accounts", "limit", "sms", "--limits", r#"{"daily": 5}"#])?;
    assert_eq!((&limited["id"], &limited["limits"]), (&added["id"], &json!({ "daily": 5 })));
    let rotated = with_secret(&["accounts", "rotate", "sms"])?;
    assert_eq!(rotated["id"], added["id"]);
    assert!(!rotated.to_string().contains("a secret"));

    let key = stage.json(&["keys", "create", "ci"])?;
    let revoked = stage.json(&["keys", "revoke", key["id"].as_str().unwrap_or_default()])?;
    assert_eq!((&revoked["id"], revoked["revoked_at"].is_string()), (&key["id"], true));

    let linked = stage.json(&["channels", "link", "sms", "U1", "--user", "ada", "--role", "operator"])?;
    assert_eq!((&linked["sender_id"], &linked["role"]), (&json!("U1"), &json!("operator")));
    let unlinked = stage.json(&["channels", "unlink", linked["id"].as_str().unwrap_or_default()])?;
    assert_eq!(unlinked, linked);
    let executor = with_secret(&["channels", "executor", "set", "--echo"])?;
    let removed =
        stage.json(&["channels", "executor", "remove", executor["id"].as_str().unwrap_or_default()])?;
    assert_eq!(removed, executor);
    assert_eq!(stage.json(&["accounts", "remove", "sms"])?["id"], added["id"]);

    stage.json(&["jobs", "function", "put", "f", "--builtin", "noop"])?;
    let schedule = stage.json(&["jobs", "schedule", "add", "f", "--cron", "@daily"])?["id"].clone();
    let id = schedule.as_str().unwrap_or_default();
    for (verb, enabled) in [("disable", false), ("enable", true), ("remove", true)] {
        let changed = stage.json(&["jobs", "schedule", verb, id])?;
        assert_eq!((&changed["id"], &changed["enabled"]), (&schedule, &json!(enabled)), "{verb}");
    }
    let monitor = stage.json(&["jobs", "monitor", "--tell-nobody"])?;
    assert_eq!(monitor.as_array().map(Vec::len), Some(3), "{monitor}");
    assert_eq!(
        (&monitor[0]["function"], &monitor[0]["is_new"], monitor[0]["schedule_id"].is_string()),
        (&json!("detect-alerts"), &json!(true), true)
    );
    let run = stage.json(&["jobs", "invoke", "f", "--wait", "0"])?["id"].clone();
    let cancelled = stage.json(&["jobs", "cancel", run.as_str().unwrap_or_default()])?;
    assert_eq!((&cancelled["id"], &cancelled["status"]), (&run, &json!("cancelled")));
    assert_eq!(stage.json(&["jobs", "function", "remove", "f"])?["name"], json!("f"));

    let world = &stage.world;
    let publish = ["events", "publish", "order.placed", "--aggregate-type", "order", "--aggregate-id", "42"];
    let event = world.json(&publish)?["id"].clone();
    let number = event.to_string();
    assert_eq!(world.json(&["events", "retry", &number])?[0]["id"], event);
    let closed = world.json(&["events", "close", &number, "--note", "a test"])?;
    assert_eq!((&closed[0]["id"], &closed[0]["state"]), (&event, &json!("processed")));
    assert_eq!(world.json(&["migrate"])?["applied"], json!([]));
    assert_eq!(world.json(&["tenants", "rotate-context-key"])?, json!({ "rotated": true }));
    with_secret(&[&["accounts", "add", "kept"], &at[..]].concat())?;
    let replace = ["--database-url", &world.admin_url(), "master-key", "replace-lost", "--yes", "--json"];
    let replaced = run_with_input(postrider().env("POSTRIDER_MASTER_KEY", OTHER_KEY).args(replace), "")?;
    let replaced: Value = serde_json::from_str(&succeeded(replaced)?.stdout)?;
    assert_eq!(replaced, json!({ "secrets_to_set_again": 1 }));
    Ok(())
}

// Decisions of people about work that failed.
#[tokio::test]
async fn a_command_that_settles_something_prints_it_as_json() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    stage.deploy_spring(500).await?;
    let worker = stage.worker("hand").await?;
    let item = worker.reserve(&worker.claim().await?, 1).await?[0];
    worker.settle(&[(item, "in_doubt", "no answer within 30 s")]).await?;
    let note = ["--note", "asked them"];
    let resolve = ["in-doubt", "resolve", &item.to_string(), "--as", "sent"];
    let resolved = stage.json(&[&resolve, &note[..]].concat())?;
    assert_eq!(resolved, json!({ "id": item, "status": "sent" }));

    stage.json(&["jobs", "function", "put", "f", "--builtin", "noop"])?;
    let run = stage.json(&["jobs", "invoke", "f", "--wait", "0"])?["id"].clone();
    let run_id = run.as_str().unwrap_or_default();
    let fail = format!(
        "update jobs.job_runs set status = 'failed', completed_at = now(), error_message = 'no', retry_at = now() + interval '1 hour'
          where id = '{run_id}'"
    );
    sql::execute(&stage.admin, fail).await?;
    let retried = stage.json(&["jobs", "retry", run_id])?;
    assert_eq!((&retried["id"], &retried["status"]), (&run, &json!("running")));

    let letter = uuid::Uuid::now_v7();
    let dead_letter = format!(
        "insert into jobs.sync_errors (id, tenant_id, error_type, error_code, error_message, source_entity_type, source_entity_id)
         values ('{letter}', '{}', 'job', 'EXECUTION_ERROR', 'no', 'job_run', '{run_id}')",
        stage.tenant
    );
    sql::execute(&stage.admin, dead_letter).await?;
    let resolved = stage.json(&[&["jobs", "resolve", &letter.to_string()], &note[..]].concat())?;
    assert_eq!(
        (&resolved["id"], &resolved["resolution_note"]),
        (&json!(letter), &json!("asked them")),
        "{resolved}"
    );

    stage
        .as_acme(
            "select jobs.raise_alert(tenancy.current_tenant_id(), 'failed-jobs', null, '6 jobs failed', 'critical');
             select * from jobs.generate_decision_cards(tenancy.current_tenant_id())",
        )
        .await?;
    let card = stage.json(&["jobs", "cards"])?[0]["id"].clone();
    let decided = stage.json(&["jobs", "decide", card.as_str().unwrap_or_default(), "in-progress"])?;
    assert_eq!((&decided["id"], &decided["status"]), (&card, &json!("IN_PROGRESS")));
    Ok(())
}

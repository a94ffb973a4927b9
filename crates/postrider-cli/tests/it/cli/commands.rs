//! Each command, when no error occurs.

use insta::assert_snapshot;
use serde_json::json;

use super::{World, stable, succeeded};
use crate::world::{eventually, postrider, run};

#[tokio::test]
async fn a_tenant_is_made_with_its_first_key_and_listed() -> anyhow::Result<()> {
    let world = World::new().await?;
    let made = succeeded(world.postrider(&["tenants", "create", "acme"])?)?;
    assert_snapshot!(stable(&made.stdout), @r"
    tenant_id [id]
    workspace_id [id]
    admin_key [key]
    ");
    assert_eq!(made.stderr, "keep the key: it is shown only once\n");
    assert_snapshot!(stable(&world.stdout(&["tenants", "list"])?), @r"
    NAME TENANT ID WORKSPACE ID CREATED
    acme [id] [id] [date] [time]
    ");

    let other = world.json(&["tenants", "create", "other"])?;
    let listed = world.json(&["tenants", "list"])?;
    assert_eq!(listed[0]["name"], "acme");
    assert_eq!((&listed[1]["id"], &listed[1]["workspace_id"]), (&other["tenant_id"], &other["workspace_id"]));
    assert!(other["admin_key"].as_str().is_some_and(|key| key.starts_with("pr_")));
    Ok(())
}

#[tokio::test]
async fn lists_without_entries_say_so_on_stderr_and_are_empty_arrays_as_json() -> anyhow::Result<()> {
    let world = World::new().await?;
    for (args, says) in [
        (&["tenants", "list"][..], "`postrider tenants create NAME` creates one"),
        (&["events", "list"], "no such events"),
        (&["events", "stuck"], "no event has failed more than 10 times"),
    ] {
        let output = succeeded(world.postrider(args)?)?;
        assert!(output.stdout.is_empty() && output.stderr.contains(says), "{}", output.stderr);
        assert_eq!(world.json(args)?, json!([]));
    }
    Ok(())
}

#[tokio::test]
async fn a_key_is_made_with_a_role_and_an_expiry_listed_and_revoked() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.stdout(&["tenants", "create", "acme"])?;
    let made = world.stdout(&[
        "keys",
        "create",
        "ci",
        "--tenant",
        "acme",
        "--role",
        "operator",
        "--expires-in-days",
        "3",
    ])?;
    assert_snapshot!(stable(&made), @r"
    id [id]
    key [key]
    ");
    let viewer = world.json(&["keys", "create", "screen", "--tenant", "acme"])?;
    let id = viewer["id"].as_str().unwrap();
    let revoked = succeeded(world.postrider(&["keys", "revoke", id, "--tenant", "acme"])?)?;
    assert_eq!(revoked.stderr, format!("revoked {id}\n"));
    // Once more changes nothing.
    world.stdout(&["keys", "revoke", id, "--tenant", "acme"])?;

    assert_snapshot!(stable(&world.stdout(&["keys", "list", "--tenant", "acme"])?), @r"
    ID NAME ROLE KEY STATE LAST USED
    [id] first admin [key] active -
    [id] ci operator [key] until [date] [time] -
    [id] screen viewer [key] revoked [date] [time] -
    ");
    let listed = world.json(&["keys", "list", "--tenant", "acme"])?;
    let lifetime = |key: &serde_json::Value| -> Option<jiff::SignedDuration> {
        let at = |name: &str| key[name].as_str()?.parse::<jiff::Timestamp>().ok();
        Some(at("expires_at")?.duration_since(at("created_at")?))
    };
    let three_days = jiff::SignedDuration::from_hours(72);
    assert!(
        lifetime(&listed[1])
            .is_some_and(|lived| (lived - three_days).abs() < jiff::SignedDuration::from_secs(60))
    );
    assert_eq!(lifetime(&listed[0]), None);
    // The prefix by which people know ids is understood, too, and so is a tenant's id.
    let tenant = world.json(&["tenants", "list"])?[0]["id"].as_str().unwrap().to_owned();
    world.stdout(&["keys", "revoke", &format!("key_{id}"), "--tenant", &tenant])?;
    Ok(())
}

#[tokio::test]
async fn an_account_is_added_from_stdin_or_a_file_rotated_checked_and_removed() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.stdout(&["tenants", "create", "acme"])?;
    let of = ["--tenant", "acme"];
    let at = |url| ["--provider", "sim", "--settings", url];
    let add = [&["accounts", "add", "sms"], &at(r#"{"url": "https://a.example"}"#)[..], &of].concat();
    let added = succeeded(world.postrider_with_secret(&add, "one\n")?)?;
    assert_snapshot!(stable(&added.stdout), @"[id]");
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), "two")?;
    let path = file.path().display().to_string();
    let limits = ["--limits", r#"{"daily": 500, "rate_per_second": 2}"#, "--secret-file", &path];
    let add =
        [&["accounts", "add", "mail"], &at(r#"{"url": "https://b.example"}"#)[..], &limits, &of].concat();
    succeeded(world.postrider_with_secret(&add, "")?)?;

    assert_snapshot!(stable(&world.stdout(&[&["accounts", "list"], &of[..]].concat())?), @r#"
    NAME PROVIDER ID SETTINGS LIMITS STATE SECRET SET
    mail sim [id] {"url":"https://b.example"} {"daily":500,"rate_per_second":2.0} - [date] [time]
    sms sim [id] {"url":"https://a.example"} {} - [date] [time]
    "#);
    let before = world.json(&[&["accounts", "list"], &of[..]].concat())?;
    let rotated = succeeded(
        world.postrider_with_secret(&[&["accounts", "rotate", "sms"], &of[..]].concat(), "three")?,
    )?;
    assert_eq!(rotated.stderr, "`sms` has a new secret\n");
    let after = world.json(&[&["accounts", "list"], &of[..]].concat())?;
    assert_ne!(before[1]["updated_at"], after[1]["updated_at"]);
    assert_eq!((&before[0], &before[1]["id"]), (&after[0], &after[1]["id"]));

    let check = [&["accounts", "check"], &of[..]].concat();
    let checked = succeeded(world.postrider_with_secret(&check, "")?)?;
    assert_eq!(checked.stderr, "2 secrets open under this master key\n");
    world.stdout(&[&["accounts", "remove", "mail"], &of[..]].concat())?;
    let checked = succeeded(world.postrider_with_secret(&check, "")?)?;
    assert_eq!(checked.stderr, "1 secret opens under this master key\n");
    Ok(())
}

#[tokio::test]
async fn events_are_published_and_listed_by_state_tenant_and_place() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.stdout(&["tenants", "create", "acme"])?;
    let about = ["--aggregate-type", "order", "--aggregate-id", "42"];
    let first = world.stdout(
        &[&["events", "publish", "order.placed", "--payload", r#"{"total": 12}"#], &about[..]].concat(),
    )?;
    assert_eq!(first, "1\n");
    let second =
        world.json(&[&["events", "publish", "order.paid", "--tenant", "acme"], &about[..]].concat())?;
    assert_eq!(second, json!({ "id": 2 }));

    let listed = world.json(&["events", "list"])?;
    assert_eq!(listed[0]["payload"], json!({ "total": 12 }));
    // An event without a tenant belongs to the system tenant.
    assert_eq!(
        (&listed[0]["tenant_id"], &listed[1]["payload"]),
        (&json!("00000000-0000-0000-0000-000000000001"), &json!({}))
    );
    let of_acme = world.json(&["events", "list", "--tenant", "acme"])?;
    assert_eq!(of_acme, json!([listed[1]]));
    assert_eq!(
        world.json(&["events", "list", "--after", "1", "--state", "pending", "--limit", "5"])?,
        of_acme
    );
    assert_eq!(world.json(&["events", "list", "--state", "processed"])?, json!([]));
    assert_snapshot!(stable(&world.stdout(&["events", "list"])?), @r"
    ID STATE TYPE AGGREGATE FAILURES NEXT LAST ERROR
    1 pending order.placed order/42 0 [date] [time] -
    2 pending order.paid order/42 0 [date] [time] -
    ");
    Ok(())
}

#[tokio::test]
async fn a_stuck_event_is_listed_retried_and_closed_by_a_named_person() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.stdout(&[
        "events",
        "publish",
        "order.placed",
        "--aggregate-type",
        "order",
        "--aggregate-id",
        "42",
    ])?;
    world
        .as_superuser("update m10_recovery.outbox set retry_count = 11, process_after = now() + interval '1 hour', last_error = 'crm: 500'")
        .await?;
    assert_snapshot!(stable(&world.stdout(&["events", "stuck"])?), @r"
    ID STATE TYPE AGGREGATE FAILURES NEXT LAST ERROR
    1 pending order.placed order/42 11 [date] [time] crm: 500
    ");
    assert_eq!(world.json(&["events", "stuck", "--over", "11"])?, json!([]));
    assert_eq!(world.json(&["events", "stuck", "--over", "10"])?[0]["id"], 1);

    let as_ada = |args: &[&str]| {
        run(postrider().env("USER", "ada").args(["--database-url", &world.admin_url()]).args(args))
    };
    let retried = succeeded(as_ada(&["events", "retry", "1"])?)?;
    assert_eq!(
        (retried.stdout.as_str(), retried.stderr.as_str()),
        ("", "the events are ready to be delivered now\n")
    );
    let admin = world.client("postgres").await?;
    let due: bool = sqlx::query_scalar("select process_after <= now() from m10_recovery.outbox")
        .fetch_one(&admin)
        .await?;
    assert!(due);

    succeeded(as_ada(&["events", "close", "1", "--note", "refunded by hand"])?)?;
    let closed = world.json(&["events", "list", "--state", "processed"])?;
    assert_eq!(closed[0]["last_error"], "closed by cli:ada: refunded by hand");
    let audited: Vec<(String, String, Option<String>)> =
        sqlx::query_as("select actor, action, note from tenancy.audit_log order by id")
            .fetch_all(&admin)
            .await?;
    let by_ada =
        |action: &str, note: Option<&str>| ("cli:ada".to_owned(), action.to_owned(), note.map(str::to_owned));
    assert_eq!(audited, [by_ada("event.retried", None), by_ada("event.closed", Some("refunded by hand"))]);
    Ok(())
}

#[tokio::test]
async fn publishing_wakes_a_listener_only_after_the_event_is_there() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut listener = sqlx::postgres::PgListener::connect(&world.admin_url()).await?;
    listener.listen("postrider_events").await?;
    world.stdout(&[
        "events",
        "publish",
        "order.placed",
        "--aggregate-type",
        "order",
        "--aggregate-id",
        "42",
    ])?;
    let admin = world.client("postgres").await?;
    tokio::time::timeout(crate::world::PATIENCE, listener.recv()).await??;
    eventually("the event is there", async || {
        Ok(sqlx::query_scalar::<_, i64>("select count(*) from m10_recovery.outbox").fetch_one(&admin).await?
            == 1)
    })
    .await
}

#[tokio::test]
async fn migrating_names_what_it_applied_and_does_nothing_the_second_time() -> anyhow::Result<()> {
    let world = World::empty().await?;
    let first = succeeded(world.postrider(&["migrate"])?)?;
    let files = postrider_store::postgres::migrate::Tree::current().sources;
    assert_eq!(
        first.stdout.lines().collect::<Vec<_>>(),
        files.iter().map(|file| &*file.path).collect::<Vec<_>>()
    );
    let second = succeeded(world.postrider(&["migrate"])?)?;
    assert_eq!(second.stdout, "");
    assert_eq!(second.stderr, format!("the schema is up to date: {} files\n", files.len()));
    Ok(())
}

#[tokio::test]
async fn the_dumped_script_makes_the_same_schema_through_psql_and_needs_no_database() -> anyhow::Result<()> {
    let dumped = succeeded(run(postrider().args([
        "migrate",
        "--dump",
        "--database-url",
        "postgres://nobody@127.0.0.1:1/none",
    ]))?)?;
    let script = tempfile::NamedTempFile::new()?;
    std::fs::write(script.path(), &dumped.stdout)?;
    let world = World::empty().await?;
    let psql = std::process::Command::new("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &world.admin_url(), "-f"])
        .arg(script.path())
        .output()?;
    assert!(psql.status.success(), "{}", String::from_utf8_lossy(&psql.stderr));
    // The binary recognises every step as its own.
    assert_eq!(succeeded(world.postrider(&["migrate"])?)?.stdout, "");
    world.stdout(&["tenants", "create", "acme"])?;
    Ok(())
}

#[tokio::test]
async fn an_account_gets_a_new_version_and_is_retired() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.stdout(&["tenants", "create", "acme"])?;
    let of = ["--tenant", "acme"];
    let add =
        ["accounts", "add", "sms", "--provider", "sim", "--settings", r#"{"url": "https://a.example"}"#];
    succeeded(world.postrider_with_secret(&[&add[..], &of].concat(), "one\n")?)?;
    let update = |settings: &str, more: &[&str], secret: &str| {
        world.postrider_with_secret(
            &[&["accounts", "update", "sms", "--settings", settings][..], more, &of].concat(),
            secret,
        )
    };
    let changed = succeeded(update(r#"{"url": "https://b.example"}"#, &[], "")?)?;
    assert_eq!(changed.stderr, "`sms` has new settings, version 2; new calls use them\n");
    let again = succeeded(update(r#"{"url": "https://b.example"}"#, &[], "")?)?;
    assert_eq!(again.stderr, "`sms` has these settings already\n");
    let both = succeeded(update(r#"{"url": "https://c.example"}"#, &["--new-secret", "--json"], "two\n")?)?;
    let both: serde_json::Value = serde_json::from_str(&both.stdout)?;
    assert_eq!((&both["version"], &both["settings"]["url"]), (&json!(3), &json!("https://c.example")));
    succeeded(world.postrider_with_secret(&["accounts", "check", "--tenant", "acme"], "")?)?;
    let before = world.json(&["accounts", "list", "--tenant", "acme"])?;
    for (settings, more, says) in [
        (r#"{"wings": 2}"#, &[][..], "wings"),
        ("{", &[], "--settings is not JSON"),
        ("{}", &["--new-secret"], "the secret is empty"),
    ] {
        let refused = update(settings, more, "")?;
        assert!(refused.code != 0 && refused.stderr.contains(says), "{settings}: {}", refused.stderr);
    }
    assert_eq!(world.json(&["accounts", "list", "--tenant", "acme"])?, before);

    let retired = succeeded(world.postrider(&["accounts", "retire", "sms", "--tenant", "acme"])?)?;
    assert!(retired.stderr.starts_with("`sms` is retired: no new campaign"), "{}", retired.stderr);
    let listed = world.stdout(&["accounts", "list", "--tenant", "acme"])?;
    assert!(listed.contains("retired"), "{listed}");
    let json = world.json(&["accounts", "retire", "sms", "--undo", "--tenant", "acme"])?;
    assert_eq!(json["retired_at"], json!(null));
    let unknown = world.postrider(&["accounts", "retire", "fax", "--tenant", "acme"])?;
    assert!(unknown.stderr.contains("there is no account `fax`"), "{}", unknown.stderr);
    Ok(())
}

//! `postrider doctor`: healthy is exit 0; anything that must be put right is exit 1, with what to do.

use serde_json::Value;

use super::{World, succeeded};
use crate::postgres::Postgres;
use crate::world::{MASTER_KEY, eventually, postrider, run};

#[tokio::test]
async fn a_healthy_database_passes_every_check() -> anyhow::Result<()> {
    let world = World::new().await?;
    let output = succeeded(world.doctor(&[])?)?;
    assert!(output.stderr.ends_with("checks, none failed\n"), "{}", output.stderr);
    let names =
        ["version", "durability", "schema", "drift", "contracts", "roles", "row-level security", "grants"];
    for name in names.iter().chain(&[
        "definer functions",
        "clock",
        "notification queue",
        "oldest transaction",
        "oldest lock wait",
        "master key",
        "restored copy",
        "serving logins",
        "connections",
    ]) {
        assert!(output.stdout.contains(&format!("  {name} ")), "{name}: {}", output.stdout);
    }
    let output = succeeded(world.doctor(&["--json"])?)?;
    let findings: Value = serde_json::from_str(&output.stdout)?;
    assert!(
        findings.as_array().is_some_and(|all| all.iter().all(|one| one["severity"] != "failure")),
        "{findings}"
    );
    Ok(())
}

#[tokio::test]
async fn a_relay_without_sinks_is_a_warning_and_a_failure_where_the_relay_is_named() -> anyhow::Result<()> {
    let world = World::new().await?;
    for (args, severity) in [
        (&["--json"][..], Some("warning")),
        (&["--json", "--roles", "relay"], Some("failure")),
        (&["--json", "--roles", "api,campaigns"], None),
    ] {
        let output = world.doctor(args)?;
        assert_eq!(output.code, i32::from(severity == Some("failure")), "{args:?}: {}", output.stdout);
        let findings: Vec<Value> = serde_json::from_str(&output.stdout)?;
        let sinks = findings.iter().find(|finding| finding["check"] == "sinks");
        let found = sinks.and_then(|sinks| sinks["severity"].as_str());
        assert_eq!(found, severity, "{args:?}: {sinks:?}");
    }
    Ok(())
}

#[tokio::test]
async fn damage_by_hand_is_found_and_comes_with_advice() -> anyhow::Result<()> {
    let cases = [
        (
            "alter table tenancy.api_keys disable row level security",
            "row-level security",
            "tenancy.api_keys: row-level security is off",
            "tenancy.protect",
        ),
        (
            "alter table m10_recovery.outbox no force row level security",
            "row-level security",
            "m10_recovery.outbox: row-level security is not forced",
            "tenancy.protect",
        ),
        (
            "create policy open on tenancy.tenants for select to postrider_app using (true)",
            "row-level security",
            "tenancy.tenants",
            "tenancy.protect",
        ),
        (
            "create function m10_recovery.publish_outbox(a text, b text, c text, d json) returns bigint language sql as 'select 1::bigint'",
            "contracts",
            "publish_outbox has 2 signatures instead of one",
            "drop an extra signature",
        ),
        (
            "drop trigger outbox_processed_is_final on m10_recovery.outbox",
            "drift",
            "outbox_processed_is_final",
            "undo",
        ),
        (
            "alter table tenancy.audit_log disable trigger audit_log_is_append_only",
            "drift",
            "audit_log_is_append_only",
            "undo",
        ),
        (
            "alter table m10_recovery.outbox add next_retry_at timestamptz",
            "contracts",
            "next_retry_at",
            "undo",
        ),
        (
            "grant update on m10_recovery.outbox to postrider_app",
            "grants",
            "postrider_app may update",
            "revoke",
        ),
        (
            "alter function tenancy.create_tenant(uuid, uuid, text, text) reset search_path",
            "definer functions",
            "search_path is not pinned",
            "set search_path",
        ),
        (
            "delete from postrider.sources where path = 'jobs/functions/claim.sql'",
            "schema",
            "1 file behind",
            "postrider migrate",
        ),
        (
            "update postrider.sources set checksum = 'x' where path = 'jobs/tables.sql'",
            "schema",
            "is not the one",
            "run the version",
        ),
    ];
    for (sql, check, found, advice) in cases {
        let world = World::new().await?;
        world.as_superuser(sql).await?;
        let output = world.postrider(&["doctor", "--json"])?;
        assert_eq!(output.code, 1, "{sql}: {}", output.stdout);
        assert!(
            output.stderr.contains("checks failed; the lines with an arrow say how to fix them"),
            "{}",
            output.stderr
        );
        let findings: Value = serde_json::from_str(&output.stdout)?;
        let finding = findings.as_array().unwrap().iter().find(|finding| finding["check"] == check).unwrap();
        assert_eq!(finding["severity"], "failure", "{sql}: {finding}");
        assert!(finding["found"].as_str().is_some_and(|text| text.contains(found)), "{sql}: {finding}");
        assert!(finding["advice"].as_str().is_some_and(|text| text.contains(advice)), "{sql}: {finding}");
    }
    Ok(())
}

#[tokio::test]
async fn a_database_without_our_schema_is_told_to_migrate() -> anyhow::Result<()> {
    let world = World::empty().await?;
    let output = world.postrider(&["doctor"])?;
    assert_eq!(output.code, 1);
    assert!(
        output.stdout.contains("FAIL  schema") && output.stdout.contains("→ run `postrider migrate`"),
        "{}",
        output.stdout
    );
    Ok(())
}

#[tokio::test]
async fn a_server_that_may_lose_commits_fails_the_doctor_and_is_never_served_on() -> anyhow::Result<()> {
    let postgres = Postgres::start().await?;
    let admin_url = postgres.url("postgres");
    succeeded(run(postrider().args(["--database-url", &admin_url, "migrate"]))?)?;
    let admin = sqlx::PgPool::connect(&admin_url).await?;
    for setting in ["fsync", "full_page_writes", "synchronous_commit"] {
        for sql in [format!("alter system set {setting} = off"), "select pg_reload_conf()".to_owned()] {
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&admin).await?;
        }
        eventually("the setting counts", async || {
            let mut fresh = <sqlx::PgConnection as sqlx::Connection>::connect(&admin_url).await?;
            Ok(sqlx::query_scalar::<_, String>("select current_setting($1)")
                .bind(setting)
                .fetch_one(&mut fresh)
                .await?
                == "off")
        })
        .await?;

        let serving = run(postrider().args([
            "--database-url",
            &postgres.url("postrider_worker"),
            "serve",
            "--listen",
            "127.0.0.1:0",
        ]))?;
        super::assert_refused(
            &serving,
            &format!("the database runs with {setting} = off; set {setting} = on"),
        );
        let doctor = run(postrider().args(["--database-url", &admin_url, "doctor"]))?;
        assert_eq!(doctor.code, 1);
        assert!(
            doctor.stdout.contains(&format!("FAIL  durability           {setting} = off")),
            "{}",
            doctor.stdout
        );
        assert!(doctor.stdout.contains(&format!("→ set {setting} = on")), "{}", doctor.stdout);

        for sql in [format!("alter system reset {setting}"), "select pg_reload_conf()".to_owned()] {
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&admin).await?;
        }
        eventually("the setting is undone", async || {
            let mut fresh = <sqlx::PgConnection as sqlx::Connection>::connect(&admin_url).await?;
            Ok(sqlx::query_scalar::<_, String>("select current_setting($1)")
                .bind(setting)
                .fetch_one(&mut fresh)
                .await?
                == "on")
        })
        .await?;
    }
    // A resolver needs a master key, and a relay a sink.
    let mut doctor = postrider();
    for (setting, role) in
        [("ADMIN_URL", "postgres"), ("URL", "postrider_worker"), ("APP_URL", "postrider_app")]
    {
        doctor.env(format!("POSTRIDER_DATABASE__{setting}"), postgres.url(role));
    }
    let doctor = run(doctor.env("POSTRIDER_MASTER_KEY", MASTER_KEY).args(["doctor", "--roles", "resolver"]))?;
    assert_eq!(doctor.code, 0, "{}", doctor.stdout);
    Ok(())
}

//! Where the promises would not hold, nothing is served: one sentence says why.

use std::net::TcpListener;

use anyhow::Context;
use serde_json::Value;
use sqlx::AssertSqlSafe;

use crate::world::{MASTER_KEY, Output, Process, World, postrider, run};

fn serve(url: &str) -> anyhow::Result<Output> {
    run(postrider().env("POSTRIDER_MASTER_KEY", MASTER_KEY).args([
        "--database-url",
        url,
        "serve",
        "--listen",
        "127.0.0.1:0",
    ]))
}

pub(super) fn assert_refused(output: &Output, says: &str) {
    assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{}", output.stderr);
    assert!(output.stderr.starts_with("error: ") && output.stderr.lines().count() == 1, "{}", output.stderr);
    assert!(output.stderr.contains(says), "`{says}` is not in: {}", output.stderr);
}

/// `doctor` on a machine with this configuration fails with the sentence with which `serve` was refused.
fn assert_doctor_fails(
    world: &World,
    url: &str,
    app_url: &str,
    args: &[&str],
    refused: &Output,
) -> anyhow::Result<()> {
    let doctor = world.doctor_as(url, app_url, &[&["--json"], args].concat())?;
    let findings: Vec<Value> = serde_json::from_str(&doctor.stdout).context(doctor.stderr)?;
    let logins =
        findings.iter().find(|finding| finding["check"] == "serving logins").context("no finding")?;
    assert_eq!((doctor.code, logins["severity"].as_str()), (1, Some("failure")), "{logins}");
    let part = |name: &str| logins[name].as_str().unwrap_or_default().to_owned();
    let says = format!("error: {}; {}\n", part("found"), part("advice"));
    assert_eq!(says, refused.stderr);
    Ok(())
}

/// A login that is gone with its test.
pub(super) struct Login {
    pub(super) admin: sqlx::PgPool,
    pub(super) name: String,
}

impl Login {
    pub(super) async fn create(world: &World, rights: &str) -> anyhow::Result<Self> {
        let (admin, name) =
            (world.client("postgres").await?, format!("login_{}", uuid::Uuid::now_v7().simple()));
        sqlx::raw_sql(AssertSqlSafe(format!("create role {name} login {rights}"))).execute(&admin).await?;
        Ok(Self { admin, name })
    }

    pub(super) async fn drop(self) -> anyhow::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(format!("drop role {}", self.name))).execute(&self.admin).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_login_that_row_level_security_does_not_bind_is_refused() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.admin_url();
    let superuser = serve(&admin)?;
    assert_refused(&superuser, "serving as `postgres` is refused: it is a superuser");
    assert_doctor_fails(&world, &admin, &admin, &[], &superuser)?;
    for (rights, says) in [
        ("bypassrls in role postrider_app, postrider_worker", "it is allowed to bypass row-level security"),
        ("in role postrider_owner", "it is a member of postrider_owner"),
        ("in role postrider_app, postrider_worker, postrider_owner", "it is a member of postrider_owner"),
    ] {
        let login = Login::create(&world, rights).await?;
        let url = world.url(&login.name);
        let output = serve(&url)?;
        assert_doctor_fails(&world, &url, &url, &[], &output)?;
        login.drop().await?;
        assert_refused(&output, says);
        assert!(output.stderr.contains("create a login for serving"), "{}", output.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn a_powerful_login_is_refused_for_requests_and_for_the_loops_alike() -> anyhow::Result<()> {
    let world = World::new().await?;
    for key in ["APP_URL", "URL"] {
        let mut command = postrider();
        command.env("POSTRIDER_MASTER_KEY", MASTER_KEY);
        let [app_url, url] =
            [("APP_URL", "postrider_app"), ("URL", "postrider_worker")].map(|(name, role)| {
                let url = world.url(if name == key { "postgres" } else { role });
                command.env(format!("POSTRIDER_DATABASE__{name}"), &url);
                url
            });
        let output = run(command.args(["serve", "--listen", "127.0.0.1:0"]))?;
        assert_refused(&output, "it is a superuser");
        assert_doctor_fails(&world, &url, &app_url, &[], &output)?;
    }
    // An API verifies its master key as the login of the loops, although it has none.
    let both = Login::create(&world, "in role postrider_app, postrider_worker").await?;
    let (url, app_url) = (world.admin_url(), world.url(&both.name));
    let mut command = postrider();
    command.env("POSTRIDER_MASTER_KEY", MASTER_KEY);
    command.env("POSTRIDER_DATABASE__URL", &url).env("POSTRIDER_DATABASE__APP_URL", &app_url);
    let output = run(command.args(["serve", "--listen", "127.0.0.1:0", "--roles", "api"]))?;
    assert_refused(&output, "it is a superuser");
    assert_doctor_fails(&world, &url, &app_url, &["--roles", "api"], &output)?;
    both.drop().await
}

#[tokio::test]
async fn the_login_that_the_refusal_suggests_can_serve() -> anyhow::Result<()> {
    let world = World::new().await?;
    let login = Login::create(&world, "password 'x' in role postrider_app, postrider_worker").await?;
    let process = Process::start(postrider().env("POSTRIDER_MASTER_KEY", MASTER_KEY).args([
        "--database-url",
        &world.url(&login.name),
        "serve",
        "--listen",
        "127.0.0.1:0",
    ]))?;
    process.wait_for_line("postrider is serving at ")?;
    drop(process);
    // Its sessions end a moment after the process.
    crate::world::eventually("nobody is logged in", async || {
        let sessions =
            sqlx::query_scalar::<_, i64>("select count(*) from pg_stat_activity where usename = $1");
        Ok(sessions.bind(&login.name).fetch_one(&login.admin).await? == 0)
    })
    .await?;
    login.drop().await
}

#[tokio::test]
async fn a_schema_that_is_missing_behind_or_changed_is_refused() -> anyhow::Result<()> {
    let empty = World::empty().await?;
    assert_refused(
        &serve(&empty.url("postrider_worker"))?,
        "the database has no schema of Postrider; run `postrider migrate`",
    );

    for (sql, says) in [
        ("delete from postrider.sources where path = 'jobs/functions/claim.sql'", "1 file behind"),
        (
            "update postrider.sources set checksum = repeat('0', 64) where path = 'jobs/tables.sql'",
            "the binary or the record was changed",
        ),
    ] {
        let world = World::new().await?;
        sqlx::query(sql).execute(&world.client("postgres").await?).await?;
        assert_refused(&serve(&world.url("postrider_worker"))?, says);
    }
    Ok(())
}

#[tokio::test]
async fn an_occupied_port_is_said_in_one_sentence_and_nothing_is_started() -> anyhow::Result<()> {
    let occupied = TcpListener::bind("127.0.0.1:0")?;
    let address = occupied.local_addr()?.to_string();
    let home = tempfile::tempdir()?;
    let data_dir = home.path().join("data");
    let output = run(postrider().arg("--data-dir").arg(&data_dir).args(["serve", "--listen", &address]))?;
    assert_refused(&output, &format!("cannot listen on {address}: Address already in use"));
    assert!(output.stderr.contains("choose another address with --listen"), "{}", output.stderr);
    assert!(!data_dir.exists());
    Ok(())
}

#[tokio::test]
async fn a_login_without_our_roles_is_told_which_to_ask_for() -> anyhow::Result<()> {
    let world = World::new().await?;
    let login = Login::create(&world, "").await?;
    let url = world.url(&login.name);
    let output = serve(&url)?;
    assert_doctor_fails(&world, &url, &url, &[], &output)?;
    login.drop().await?;
    assert_refused(&output, "has none of Postrider's roles; `grant postrider_app, postrider_worker to …`");
    Ok(())
}

#[tokio::test]
async fn a_login_that_lacks_what_a_part_of_the_server_needs_is_refused() -> anyhow::Result<()> {
    let world = World::new().await?;
    for (rights, says) in [
        ("in role postrider_worker", "is not a member of postrider_app, which HTTP needs"),
        ("in role postrider_app", "is not a member of postrider_worker, which the campaign worker needs"),
    ] {
        let login = Login::create(&world, rights).await?;
        let url = world.url(&login.name);
        let output = serve(&url)?;
        assert_doctor_fails(&world, &url, &url, &[], &output)?;
        login.drop().await?;
        assert_refused(&output, says);
    }
    Ok(())
}

#[tokio::test]
async fn doctor_reports_a_serving_login_that_cannot_connect() -> anyhow::Result<()> {
    let world = World::new().await?;
    let [worker, app] = ["postrider_worker", "postrider_app"].map(|role| world.url(role));
    let gone = "postgres://postrider_server@127.0.0.1:1/shop";
    for (url, app_url, setting) in [(gone, app.as_str(), "database.url"), (&worker, gone, "database.app_url")]
    {
        let doctor = world.doctor_as(url, app_url, &["--json"])?;
        let findings: Vec<Value> = serde_json::from_str(&doctor.stdout).context(doctor.stderr)?;
        let logins =
            findings.iter().find(|finding| finding["check"] == "serving logins").context("no finding")?;
        assert_eq!((doctor.code, logins["severity"].as_str()), (1, Some("failure")), "{logins}");
        let advice = logins["advice"].as_str().unwrap_or_default();
        assert!(advice.contains(&format!("host and port in {setting} are right")), "{logins}");
        assert!(findings.iter().any(|finding| finding["check"] == "clock"), "the other checks are missing");
    }
    Ok(())
}

#[tokio::test]
async fn an_api_that_cannot_sign_tenants_is_refused() -> anyhow::Result<()> {
    let world = World::new().await?;
    let login = Login::create(&world, "in role postrider_app").await?;
    let url = world.url(&login.name);
    let args = ["--database-url", &url, "serve", "--listen", "127.0.0.1:0", "--roles", "api"];
    let output = run(postrider().env("POSTRIDER_MASTER_KEY", MASTER_KEY).args(args))?;
    assert_doctor_fails(&world, &url, &url, &["--roles", "api"], &output)?;
    login.drop().await?;
    assert_refused(
        &output,
        "is not a member of postrider_worker, which the API with a login of postrider_app alone",
    );
    Ok(())
}

#[tokio::test]
async fn commands_that_look_at_everything_refuse_a_login_that_sees_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.postrider(&["tenants", "create", "acme"])?;
    let login = Login::create(&world, "in role postrider_app, postrider_worker").await?;
    let url = world.url(&login.name);
    for args in [
        &["events", "stuck"][..],
        &["events", "list"],
        &["tenants", "list"],
        &["keys", "list", "--tenant", "acme"],
    ] {
        let output = run(postrider().args(["--database-url", &url]).args(args))?;
        assert_refused(&output, "set database.admin_url to the login that migrated");
    }
    login.drop().await
}

//! Bad input: a clear message, an exit code, nothing written.

use super::{MASTER_KEY, World, assert_misused, assert_refused, succeeded};
use crate::{
    postgres::Postgres,
    sql::execute,
    world::{postrider, run, run_with_input},
};
use postrider_store::postgres::migrate;

#[tokio::test]
async fn bad_arguments_are_refused_in_one_line_and_write_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.stdout(&["tenants", "create", "acme"])?;
    let about = ["--aggregate-type", "order", "--aggregate-id", "42"];
    let publish = |event_type| [&["events", "publish", event_type][..], &about].concat();
    let long = "x".repeat(256);
    let before = world.rows().await?;
    for (args, says) in [
        (publish(""), "event_type is empty"),
        (publish("   "), "event_type is empty"),
        (publish("order\nplaced"), "event_type contains a control character"),
        (publish(&long), "event_type has 256 bytes"),
        (
            vec!["events", "publish", "a", "--aggregate-type", "", "--aggregate-id", "1"],
            "aggregate_type is empty",
        ),
        (
            vec!["events", "publish", "a", "--aggregate-type", "b", "--aggregate-id", " "],
            "aggregate_id is empty",
        ),
        (
            [&publish("a")[..], &["--payload", "{total: 12}"]].concat(),
            "--payload is not JSON: key must be a string",
        ),
        ([&publish("a")[..], &["--payload", ""]].concat(), "--payload is not JSON"),
        ([&publish("a")[..], &["--payload", r#"{"a": "\u0000"}"#]].concat(), "which Postgres cannot store"),
        (
            [&publish("a")[..], &["--tenant", "nobody"]].concat(),
            "there is no tenant `nobody`; `postrider tenants list`",
        ),
        (vec!["events", "list", "--tenant", "nobody"], "there is no tenant `nobody`"),
        (vec!["tenants", "create", "acme"], "a tenant called `acme` exists already"),
        (vec!["tenants", "create", ""], "a tenant needs a name"),
        (vec!["tenants", "create", &long], "a tenant needs a name of 1 to 255 bytes"),
        (vec!["keys", "create", "ci"], "no tenant is given; name one with --tenant"),
        (vec!["keys", "create", "ci", "--tenant", "nobody"], "there is no tenant `nobody`"),
        (vec!["keys", "create", "", "--tenant", "acme"], "a key needs a name"),
        (
            vec!["keys", "revoke", "01890000-0000-7000-8000-000000000000", "--tenant", "acme"],
            "tenant `acme` has no key",
        ),
        (vec!["accounts", "remove", "sms", "--tenant", "acme"], "there is no account `sms`"),
        (vec!["events", "close", "1", "--note", " "], "--note is empty"),
    ] {
        let output = world.postrider(&args)?;
        assert_refused(&output, says);
        assert_eq!(world.rows().await?, before, "{args:?}");
    }
    Ok(())
}

#[tokio::test]
async fn arguments_that_are_missing_or_of_the_wrong_kind_show_how_to_use_the_command() -> anyhow::Result<()> {
    for (args, says) in [
        (&["events", "close", "1"][..], "--note <NOTE>"),
        (&["events", "retry"], "<IDS>..."),
        (&["events", "retry", "one"], "invalid value 'one'"),
        (&["events", "publish", "order.placed"], "--aggregate-type"),
        (&["events", "list", "--state", "stuck"], "[possible values: pending, claimed, processed]"),
        (&["events", "list", "--limit", "0"], "0 is not in 1..=10000"),
        (
            &["keys", "create", "ci", "--role", "owner"],
            "`owner` is not a role; choose viewer, operator or admin",
        ),
        (&["keys", "create", "ci", "--expires-in-days", "0"], "0 is not in 1..=36500"),
        (&["keys", "revoke", "tenant_01890000-0000-7000-8000-000000000000"], "is not a key id"),
        (
            &["serve", "--roles", "mailer"],
            "[possible values: api, campaigns, resolver, dispatcher, relay, scheduler]",
        ),
        (&["serve", "--listen", "8080"], "invalid value '8080' for '--listen <ADDRESS>'"),
        (&["tenant", "list"], "a similar subcommand exists: 'tenants'"),
    ] {
        let output = run(postrider().args(args))?;
        assert_misused(&output, says);
    }
    Ok(())
}

#[tokio::test]
async fn retrying_and_closing_several_events_is_all_or_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    for _ in 0..3 {
        world.stdout(&[
            "events",
            "publish",
            "order.placed",
            "--aggregate-type",
            "order",
            "--aggregate-id",
            "42",
        ])?;
    }
    // 1 waits for its next time, 2 is processed, 3 is being delivered.
    world
        .as_superuser(
            "update m10_recovery.outbox set retry_count = 1, process_after = now() + interval '1 hour' where id = 1;
             update m10_recovery.outbox set processed_at = now(), claimed_at = now(), claimed_by = 'test' where id = 2;
             update m10_recovery.outbox set claimed_at = now(), claimed_by = 'test' where id = 3",
        )
        .await?;
    let before = world.dump().await?;
    for (args, says) in [
        (&["events", "retry", "1", "99"][..], "there is no event 99; nothing was changed"),
        (&["events", "retry", "1", "2"], "event 2 is processed already; nothing was changed"),
        (&["events", "retry", "1", "3"], "event 3 is being delivered now; nothing was changed"),
        (&["events", "close", "1", "99", "--note", "x"], "there is no event 99; nothing was changed"),
        (&["events", "close", "1", "2", "--note", "x"], "event 2 is processed already; nothing was changed"),
    ] {
        assert_refused(&world.postrider(args)?, says);
        assert_eq!(world.dump().await?, before, "{args:?}");
    }
    world.stdout(&["events", "retry", "1", "1"])?;
    world.stdout(&["events", "close", "1", "3", "--note", "x"])?;
    Ok(())
}

#[tokio::test]
async fn rotating_refuses_a_secret_that_adding_refuses() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.stdout(&["tenants", "create", "acme"])?;
    let add = ["accounts", "add", "hook", "--tenant", "acme", "--provider", "webhook"];
    let add = [&add[..], &["--settings", r#"{"url": "https://a.example"}"#]].concat();
    let rotate = ["accounts", "rotate", "hook", "--tenant", "acme"];
    let refused = world.postrider_with_secret(&add, "canary")?;
    let says = refused.stderr.trim().trim_start_matches("error: ").to_owned();
    assert!(says.contains("the secret "), "{says}");
    succeeded(world.postrider_with_secret(&add, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?)?;
    let before = world.json(&["accounts", "list", "--tenant", "acme"])?;
    assert_refused(&world.postrider_with_secret(&rotate, "canary")?, &says);
    assert_refused(
        &world.postrider_with_secret(&[&rotate[..], &["--no-secret"]].concat(), "")?,
        "the account is not valid: the secret ",
    );
    assert_eq!(world.json(&["accounts", "list", "--tenant", "acme"])?, before);
    succeeded(world.postrider_with_secret(&rotate, "whsec_AfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSx")?)?;
    Ok(())
}

#[tokio::test]
async fn bad_secrets_settings_and_master_keys_are_refused_and_write_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.stdout(&["tenants", "create", "acme"])?;
    let add = |more: &[&'static str]| [&["accounts", "add", "sms", "--tenant", "acme"][..], more].concat();
    let known = ["--provider", "sim", "--settings", r#"{"url": "https://a.example"}"#];
    let long = "x".repeat(64 * 1024 + 1);
    let long_url = format!(r#"{{"url": "https://a.example/{}"}}"#, "x".repeat(2048));
    let before = world.rows().await?;
    for (args, input, says) in [
        (add(&known), "", "the secret is empty; pipe it in, name a file"),
        (add(&known), "\n", "the secret is empty"),
        (add(&known), &long, "the secret is longer than 65536 bytes"),
        (
            add(&["--provider", "sim", "--secret-file", "/nonexistent"]),
            "",
            "cannot read the secret from /nonexistent",
        ),
        (add(&["--provider", "sim", "--settings", "{from: 1}"]), "canary", "--settings is not JSON"),
        (add(&["--provider", "sim", "--settings", "[1]"]), "canary", "the account is not valid: "),
        (add(&["--provider", "Sim!"]), "canary", "there is no provider `Sim!`; this version knows "),
        (add(&["--provider", "fax"]), "canary", "there is no provider `fax`; this version knows "),
        (
            add(&["--provider", "sendgrid"]),
            "",
            "there is no provider `sendgrid`; this version knows bluesky, mastodon, resend, ",
        ),
        (
            add(&["--provider", "webhook", "--settings", r#"{"url": "https://a.example/\r\nx"}"#]),
            "canary",
            "`url` holds a line break or another control character; remove it",
        ),
        (
            [&add(&["--provider", "webhook", "--settings"])[..], &[long_url.as_str()]].concat(),
            "canary",
            "`url` is longer than 2048 bytes",
        ),
        (add(&["--provider", "sim", "--limits", "{rate: 1}"]), "canary", "--limits is not JSON"),
        (
            add(&["--provider", "sim", "--limits", r#"{"rate": 1}"#]),
            "canary",
            "--limits: unknown field `rate`",
        ),
        (
            vec!["accounts", "limit", "sms", "--tenant", "acme", "--limits", r#"{"daily": 0}"#],
            "",
            "--limits: daily must be at least 1",
        ),
        (
            vec!["accounts", "limit", "sms", "--tenant", "acme", "--limits", "{}"],
            "",
            "there is no account `sms`",
        ),
        (vec!["accounts", "rotate", "sms", "--tenant", "acme"], "canary", "there is no account `sms`"),
        (
            [&["accounts", "add", "", "--tenant", "acme"][..], &known].concat(),
            "canary",
            "an account needs a name",
        ),
    ] {
        let output = world.postrider_with_secret(&args, input)?;
        assert_refused(&output, says);
        assert!(!output.stderr.contains("canary"), "{}", output.stderr);
        assert_eq!(world.rows().await?, before, "{args:?}");
    }

    for (key, says) in [
        (None, "none is set; make one with `postrider master-key generate`"),
        (Some(""), "the master key must be 32 bytes in base64"),
        (Some("canary-canary"), "the master key must be 32 bytes in base64"),
        (Some("Y2FuYXJ5"), "the master key must be 32 bytes in base64"),
        (Some("73310815"), "POSTRIDER_MASTER_KEY: this must be a text"),
    ] {
        let mut command = postrider();
        command
            .args(["--database-url", &world.admin_url()])
            .args(add(&known))
            .envs(key.map(|key| ("POSTRIDER_MASTER_KEY", key)));
        let output = run_with_input(&mut command, "canary")?;
        assert_refused(&output, says);
        assert!(
            !output.stderr.contains("canary") && !output.stderr.contains("73310815"),
            "{}",
            output.stderr
        );
        assert_eq!(world.rows().await?, before, "{key:?}");
    }

    succeeded(world.postrider_with_secret(&add(&known), "canary")?)?;
    assert_refused(
        &world.postrider_with_secret(&add(&known), "canary")?,
        "an account called `sms` exists already; `accounts rotate`",
    );
    Ok(())
}

#[tokio::test]
async fn a_wrong_database_url_says_what_is_wrong_with_it_and_hides_its_password() -> anyhow::Result<()> {
    let world = World::new().await?;
    let nowhere = world.admin_url().replace("/test_", "/gone_");
    for (url, says) in [
        (
            "canary",
            "the given URL is not a Postgres URL; correct --database-url, as in postgres://user:password@host:5432/database",
        ),
        ("mysql://u:canary@127.0.0.1:3306/shop", "the given URL is not a Postgres URL"),
        ("postgres://u:canary@127.0.0.1:port/shop", "the given URL is not a Postgres URL"),
        ("", "the given URL is not a Postgres URL"),
        ("postgres://u:canary@127.0.0.1:1/shop", "(database `shop` at 127.0.0.1:1); check that it runs"),
        ("postgres://u:canary@host.invalid/shop", "(database `shop` at host.invalid:5432)"),
        ("postgres:///shop?host=/nonexistent&password=canary", "(database `shop` at /nonexistent)"),
        (
            &format!("{nowhere}&password=canary"),
            "create it with `createdb`, or correct the name in --database-url",
        ),
        (&world.url("canar_y"), "role \"canar_y\" does not exist"),
    ] {
        for command in
            [&["tenants", "list"][..], &["doctor"], &["migrate"], &["serve", "--listen", "127.0.0.1:0"]]
        {
            let output = run(postrider().args(["--database-url", url]).args(command))?;
            assert_refused(&output, says);
            assert!(!output.stderr.contains("canary"), "{}", output.stderr);
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_command_on_a_database_that_was_never_migrated_says_to_migrate_it() -> anyhow::Result<()> {
    let world = World::empty().await?;
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    for args in [
        &["tenants", "create", "acme"][..],
        &["keys", "list", "--tenant", "acme"],
        &["events", "publish", "a", "--aggregate-type", "b", "--aggregate-id", "c"],
        &["events", "stuck"],
        &["accounts", "check", "--tenant", "acme"],
        &serve,
    ] {
        assert_refused(
            &world.postrider(args)?,
            "the database has no schema of Postrider; run `postrider migrate`",
        );
    }
    Ok(())
}

#[tokio::test]
async fn every_command_on_a_schema_of_another_version_is_refused_with_the_reason() -> anyhow::Result<()> {
    let world = World::new().await?;
    world
        .as_superuser(
            "insert into postrider.sources (path, kind, version, checksum, release)
             values ('upgrades/0999_x.sql', 'upgrade', 999, '', '0.1.0')",
        )
        .await?;
    let before = world.rows().await?;
    for args in [&["tenants", "create", "acme"][..], &["migrate"], &["events", "list"]] {
        assert_refused(&world.postrider(args)?, "it was migrated by a newer one; run that version");
    }
    assert_eq!(world.rows().await?, before);
    let mut command = postrider();
    command.env("POSTRIDER_MASTER_KEY", MASTER_KEY).args([
        "--database-url",
        &world.url("postrider_worker"),
        "serve",
    ]);
    assert_refused(&run(command.args(["--listen", "127.0.0.1:0"]))?, "it was migrated by a newer one");
    Ok(())
}

#[test]
fn commands_with_a_cluster_of_their_own_refuse_a_database() -> anyhow::Result<()> {
    for (command, says) in [
        ("demo", "the demo creates its own private cluster and removes it at the end"),
        ("bench", "the benchmark creates its own private cluster and removes it at the end"),
        ("sim", "the sim uses no database"),
    ] {
        for flag in [["--database-url", "postgres://db.example.com/shop"], ["--data-dir", "/nonexistent"]] {
            let refused = run(postrider().args(flag).arg(command))?;
            assert_refused(&refused, &format!("{} is not allowed with this command: {says}", flag[0]));
        }
    }
    Ok(())
}

#[test]
fn a_missing_choice_names_every_alternative() -> anyhow::Result<()> {
    for (args, alternatives) in [
        (&["channels", "executor", "set"][..], ["--echo", "--url <URL>"]),
        (&["jobs", "monitor"], ["--notify <ACCOUNT[:TO]>", "--tell-nobody"]),
    ] {
        let misused = run(postrider().args(args))?;
        for alternative in alternatives {
            assert_misused(&misused, alternative);
        }
    }
    for (args, says) in [
        (
            &["channels", "executor", "set", "--echo", "--url", "https://example.com"][..],
            "cannot be used with",
        ),
        (&["jobs", "monitor", "--tell-nobody", "--notify", "mailer:a@example.com"], "cannot be used with"),
    ] {
        assert_misused(&run(postrider().args(args))?, says);
    }
    Ok(())
}

// The server of the other tests trusts every login, so this one asks for passwords.
#[tokio::test]
async fn a_wrong_password_is_blamed_on_the_setting_that_has_it() -> anyhow::Result<()> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let postgres = Postgres::start_listening(port).await?;
    migrate::run(&postgres.url("postgres")).await?;
    let admin = sqlx::PgPool::connect(&postgres.url("postgres")).await?;
    let mut right = Vec::new();
    for (setting, rights) in [
        ("url", "in role postrider_app, postrider_worker"),
        ("admin_url", "superuser"),
        ("app_url", "in role postrider_app"),
        ("listen_url", "in role postrider_worker"),
    ] {
        execute(&admin, format!("create role its_{setting} login {rights} password 'right'")).await?;
        right.push((setting, format!("postgres://its_{setting}:right@127.0.0.1:{port}/postgres")));
    }
    let serve = &["serve", "--listen", "127.0.0.1:0", "--roles", "api,resolver"][..];
    for (wrong, command) in
        [("admin_url", &["tenants", "list"][..]), ("app_url", serve), ("listen_url", serve), ("url", serve)]
    {
        let mut command_line = postrider();
        command_line.args(command).env("POSTRIDER_MASTER_KEY", MASTER_KEY);
        for (setting, url) in &right {
            let value = if *setting == wrong { url.replace("right", "wrong_canary") } else { url.clone() };
            command_line.env(format!("POSTRIDER_DATABASE__{}", setting.to_uppercase()), value);
        }
        let refused = run(&mut command_line)?;
        assert_refused(&refused, &format!("check user and password in database.{wrong}"));
        assert!(refused.stderr.contains("password authentication failed"), "{}", refused.stderr);
        assert!(!refused.stderr.contains("canary"), "{}", refused.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn a_database_that_cannot_be_reached_is_blamed_on_the_setting_that_names_it() -> anyhow::Result<()> {
    let world = World::new().await?;
    let right = [
        ("url", world.url("postrider_worker")),
        ("admin_url", world.admin_url()),
        ("app_url", world.url("postrider_app")),
        ("listen_url", world.url("postrider_worker")),
    ];
    let serve = &["serve", "--listen", "127.0.0.1:0", "--roles", "api,resolver"][..];
    for (wrong, command) in [
        ("admin_url", &["tenants", "list"][..]),
        ("admin_url", &["doctor"]),
        ("admin_url", &["migrate"]),
        ("app_url", serve),
        ("listen_url", serve),
        ("url", serve),
    ] {
        for (url, advice) in [
            (world.url("somebody"), "check user and password in"),
            ("postgres://u@127.0.0.1:1/shop".to_owned(), "host and port in"),
            ("nonsense".to_owned(), "correct"),
        ] {
            let mut command_line = postrider();
            command_line.args(command).env("POSTRIDER_MASTER_KEY", MASTER_KEY);
            for (setting, right) in &right {
                let value = if *setting == wrong { &url } else { right };
                command_line.env(format!("POSTRIDER_DATABASE__{}", setting.to_uppercase()), value);
            }
            assert_refused(&run(&mut command_line)?, &format!("{advice} database.{wrong}"));
        }
    }
    Ok(())
}

//! Where settings come from, what is refused, and what is never printed.

use super::{assert_refused, succeeded};
use crate::world::{Output, postrider, run};

fn with_file(toml: &str, more: &[(&str, &str)]) -> anyhow::Result<Output> {
    let home = tempfile::tempdir()?;
    let file = home.path().join("postrider.toml");
    std::fs::write(&file, toml)?;
    run(postrider().current_dir(home.path()).envs(more.iter().copied()).arg("--print-config"))
}

#[test]
fn flags_override_the_environment_which_overrides_the_file_in_this_directory() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let toml =
        "data_dir = '/from/file'\n[relay]\nbatch_size = 7\npoll_interval_ms = 70\n[log]\nfilter = 'warn'\n";
    std::fs::write(home.path().join("postrider.toml"), toml)?;
    let mut command = postrider();
    command
        .current_dir(home.path())
        .env("POSTRIDER_RELAY__BATCH_SIZE", "8")
        .env("POSTRIDER_DATA_DIR", "/from/environment")
        .args(["--data-dir", "/from/flag", "--print-config", "serve", "--listen", "127.0.0.1:9"]);
    let printed: toml::Value = toml::from_str(&succeeded(run(&mut command)?)?.stdout)?;
    assert_eq!(printed["data_dir"].as_str(), Some("/from/flag"));
    assert_eq!(printed["relay"]["batch_size"].as_integer(), Some(8));
    assert_eq!(printed["relay"]["poll_interval_ms"].as_integer(), Some(70));
    assert_eq!(printed["http"]["listen"].as_str(), Some("127.0.0.1:9"));
    assert_eq!(printed["log"]["filter"].as_str(), Some("warn"));
    Ok(())
}

#[test]
fn the_environment_may_name_the_file() -> anyhow::Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), "[relay]\nbatch_size = 9\n")?;
    let output = run(postrider().env("POSTRIDER_CONFIG", file.path()).arg("--print-config"))?;
    let printed: toml::Value = toml::from_str(&succeeded(output)?.stdout)?;
    assert_eq!(printed["relay"]["batch_size"].as_integer(), Some(9));
    let missing = run(postrider().env("POSTRIDER_CONFIG", "/nowhere/postrider.toml").arg("--print-config"))?;
    assert_refused(&missing, "cannot read the configuration /nowhere/postrider.toml");
    Ok(())
}

#[test]
fn the_printed_configuration_hides_secrets_wherever_they_come_from() -> anyhow::Result<()> {
    let toml = "
        master_key = 'Y2FuYXJ5LW1hc3Rlci1rZXktMDEyMzQ1Njc4OWFiY2Q='
        [database]
        admin_url = 'postgres://admin:canary-admin@db/shop'
        app_url = 'postgres://app@db/shop?password=canary-parameter'
        [relay.sinks.crm]
        kind = 'http'
        url = 'https://u:canary-url@crm.example/hooks?token=canary-token'
        secrets = ['whsec_canary1', 'whsec_canary2']
        [relay.sinks.bus]
        kind = 'nats'
        servers = ['nats://bus.example']
        subject = 'shop'
        token = 'canary-nats'
    ";
    let home = tempfile::tempdir()?;
    let file = home.path().join("other.toml");
    std::fs::write(&file, toml)?;
    let mut command = postrider();
    command
        .env("POSTRIDER_MASTER_KEY", "Y2FuYXJ5LWVudmlyb25tZW50LTAxMjM0NTY3ODlhYmM=")
        .env("POSTRIDER_DATABASE__LISTEN_URL", "postgres://u:canary-listen@db/shop")
        .args([
            "--database-url",
            "postgres://u:canary-flag@db/shop",
            "--print-config",
            "--log",
            "trace",
            "--config",
        ])
        .arg(&file);
    let Output { stdout, stderr, .. } = succeeded(run(&mut command)?)?;
    for secret in ["canary", "Y2FuYXJ5"] {
        assert!(!stdout.contains(secret) && !stderr.contains(secret), "{stdout}{stderr}");
    }
    assert!(stdout.matches("(hidden)").count() >= 8, "{stdout}");
    assert!(
        stdout.contains("postgres://u:(hidden)@db/shop") && stdout.contains("crm.example/(hidden)"),
        "{stdout}"
    );
    Ok(())
}

#[test]
fn the_printed_configuration_can_be_read_back() -> anyhow::Result<()> {
    let printed = succeeded(with_file("", &[])?)?.stdout;
    assert_eq!(succeeded(with_file(&printed, &[])?)?.stdout, printed);
    Ok(())
}

#[test]
fn a_mistake_in_the_file_is_named_with_its_place_and_what_would_be_right() -> anyhow::Result<()> {
    let sink = |rest: &str| {
        format!(
            "[relay.sinks.crm]\nkind = 'http'\nurl = 'https://crm.example'\nsecrets = ['whsec_canary']\n{rest}"
        )
    };
    for (toml, says) in [
        (
            "colour = 'canary'".to_owned(),
            "postrider.toml, `colour`: there is no such key as `colour`; known keys are data_dir, master_key,",
        ),
        (
            "[relay]\nbatch = 1".to_owned(),
            "`relay.batch`: there is no such key as `batch`; known keys are batch_size,",
        ),
        (sink("secret = 'whsec_canary'"), "there is no such key as `secret`; known keys are"),
        (sink("").replace("http'\n", "kafka'\n"), "unknown value `kafka`; choose `http` or `nats`"),
        (
            sink("events = ['order..placed']"),
            "`order..placed` is not an event pattern: a word between two dots is empty",
        ),
        (sink("events = ['order.?']"), "the only wildcards are `*` and `**`"),
        (sink("events = []"), "relay.sinks.crm.events is empty; leave it out to get every event"),
        (sink("concurrency = 0"), "relay.sinks.crm.concurrency must be at least 1"),
        (
            "[relay.sinks.crm]\nkind = 'http'\nurl = 'canary'\nsecrets = []".to_owned(),
            "a URL of this sink cannot be read: relative URL",
        ),
        ("[relay.sinks.crm]\nurl = 'https://canary'".to_owned(), "`kind` is missing"),
        ("[relay.sinks.crm]\nkind = 'http'\nurl = 'https://e.example'".to_owned(), "`secrets` is missing"),
        ("master_key = canary".to_owned(), "TOML parse error at line 1, column 14"),
        ("[database]\nurl = 'postgres://u:canary@db/shop".to_owned(), "TOML parse error at line 2, column"),
        ("[relay]\nbatch_size = 'canary'".to_owned(), "`relay.batch_size`: this must be"),
        ("[relay]\nbatch_size = 0".to_owned(), "relay.batch_size must lie between 1 and 10000"),
        ("[log]\nformat = 'xml'".to_owned(), "unknown value `xml`; choose `text` or `json`"),
        ("[http]\nlisten = '8080'".to_owned(), "`http.listen`: invalid socket address"),
    ] {
        let output = with_file(&toml, &[])?;
        assert_refused(&output, says);
        assert!(!output.stderr.contains("canary"), "{}", output.stderr);
    }
    Ok(())
}

#[test]
fn a_mistake_in_the_environment_is_named_by_its_variable() -> anyhow::Result<()> {
    for (name, value, says) in [
        (
            "POSTRIDER_COLOUR",
            "canary",
            "POSTRIDER_COLOUR: there is no such key as `colour`; known keys are data_dir,",
        ),
        (
            "POSTRIDER_DATABASE_URL",
            "postgres://u:canary@h/d",
            "separate a section from its key by two underscores: POSTRIDER_DATABASE__URL",
        ),
        (
            "POSTRIDER_RELAY__BATCH",
            "1",
            "POSTRIDER_RELAY__BATCH: there is no such key as `batch`; known keys are batch_size,",
        ),
        ("POSTRIDER_RELAY__BATCH_SIZE", "many", "POSTRIDER_RELAY__BATCH_SIZE: this must be"),
        (
            "POSTRIDER_DATABASE",
            "postgres://u:canary@h/d",
            "POSTRIDER_DATABASE: this must be a section with keys of its own, not a text",
        ),
        ("POSTRIDER_MASTER_KEY", "73310815", "quotes of its own"),
        ("POSTRIDER_CONFIG", "/nonexistent.toml", "cannot read the configuration /nonexistent.toml"),
    ] {
        let output = with_file("", &[(name, value)])?;
        assert_refused(&output, says);
        assert!(
            !output.stderr.contains("canary") && !output.stderr.contains("73310815"),
            "{}",
            output.stderr
        );
    }
    let output = run(postrider().args(["--log", "loud=very", "tenants", "list"]))?;
    assert_refused(&output, "cannot filter logs by `loud=very`");
    Ok(())
}

/// The server checks the rules about a sink that types cannot express before it starts.
#[test]
fn a_sink_that_cannot_work_is_refused_before_anything_is_started() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let data_dir = home.path().join("data");
    let good = "whsec_dGVzdHMgb2YgdGhlIGNsaSBzaWduIHdpdGggdGhpcyBrZXk=";
    for (url, secret, says) in [
        ("https://crm.example/", "whsec_short", "relay.sinks.crm"),
        ("https://crm.example/", "canary", "relay.sinks.crm"),
        ("https://u:canary@crm.example/", good, "the URL has a user name or password"),
        ("http://crm.example/", good, "relay.sinks.crm"),
        ("https://127.0.0.1/", good, "relay.sinks.crm"),
        ("ftp://crm.example/", good, "relay.sinks.crm"),
    ] {
        let file = home.path().join("postrider.toml");
        std::fs::write(
            &file,
            format!("[relay.sinks.crm]\nkind = 'http'\nurl = '{url}'\nsecrets = ['{secret}']\n"),
        )?;
        let mut command = postrider();
        command.arg("--config").arg(&file).arg("--data-dir").arg(&data_dir).args([
            "serve",
            "--listen",
            "127.0.0.1:0",
        ]);
        let output = run(&mut command)?;
        assert_refused(&output, says);
        assert!(!output.stderr.contains("canary") && !output.stderr.contains(good), "{}", output.stderr);
        assert!(!data_dir.exists(), "{url}");
    }
    Ok(())
}

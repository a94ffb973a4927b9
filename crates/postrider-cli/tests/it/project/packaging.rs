//! The systemd unit that is shipped: it does what the docs say of it.

use std::{collections::BTreeMap, path::PathBuf, process::Command};

use anyhow::Context;

fn unit() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/postrider.service")
}

/// The settings of a section, in order; a setting may come several times.
fn section(text: &str, name: &str) -> BTreeMap<String, Vec<String>> {
    let mut settings = BTreeMap::<String, Vec<String>>::new();
    let mut is_in = false;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with('[') {
            is_in = line == format!("[{name}]");
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_in) {
            settings.entry(key.to_owned()).or_default().push(value.to_owned());
        }
    }
    settings
}

#[test]
fn the_systemd_unit_drains_restarts_and_hands_over_the_master_key() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(unit())?;
    let service = section(&text, "Service");
    let one = |key: &str| -> anyhow::Result<&str> {
        let values = service.get(key).with_context(|| format!("no {key}"))?;
        anyhow::ensure!(values.len() == 1, "{key}: {values:?}");
        Ok(values[0].as_str())
    };
    // SIGTERM must reach the server alone, which stops its Postgres after it has drained.
    assert_eq!((one("KillMode")?, one("KillSignal")?), ("mixed", "SIGTERM"));
    assert_eq!(one("Restart")?, "on-failure");
    // A drain waits for a call and its record: up to 120 s and the time to write it down.
    assert!(one("TimeoutStopSec")?.parse::<u64>()? > 150, "a drain takes longer");
    assert!(one("LimitNOFILE")?.parse::<u64>()? >= 2 * 11_000, "every reader of a stream is an open file");
    assert_eq!(one("LoadCredential")?, "master_key:/etc/postrider/master_key");
    let environment = &service["Environment"];
    assert!(environment.contains(&"POSTRIDER_MASTER_KEY_FILE=%d/master_key".to_owned()), "{environment:?}");
    assert_eq!(one("EnvironmentFile")?, "-/etc/postrider/environment");
    assert!(one("ExecStart")?.ends_with("/postrider serve"));
    assert_ne!(one("User")?, "root");
    for on in ["NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "LockPersonality"] {
        assert_eq!(one(on)?, "yes", "{on}");
    }
    assert_eq!(one("ProtectSystem")?, "strict");
    assert_eq!(one("CapabilityBoundingSet")?, "");
    // No key or password may stand in the unit itself: every user of the machine can read it.
    assert!(!text.contains("POSTRIDER_MASTER_KEY=") && !text.contains("postgres://postrider"), "{text}");
    Ok(())
}

#[test]
fn systemd_accepts_the_unit_where_it_is_installed() -> anyhow::Result<()> {
    // The program need not be installed for the rest to be checked.
    let home = tempfile::tempdir()?;
    let copy = home.path().join("postrider.service");
    let text = std::fs::read_to_string(unit())?.replace("/usr/local/bin/postrider", "/bin/true");
    std::fs::write(&copy, text)?;
    let Ok(verified) = Command::new("systemd-analyze").arg("verify").arg(&copy).output() else {
        return Ok(());
    };
    let said = String::from_utf8_lossy(&verified.stderr);
    let about_ours: Vec<&str> = said.lines().filter(|line| line.contains("postrider.service")).collect();
    assert_eq!(about_ours, [""; 0], "{said}");
    Ok(())
}

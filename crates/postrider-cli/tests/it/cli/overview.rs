//! `postrider overview` and `postrider catalogue`.

use super::{assert_refused, stable, stage::Stage, succeeded};
use crate::world::{postrider, run};

#[tokio::test]
async fn the_overview_of_a_tenant_is_a_table_and_json() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    let table = stable(&stage.world.stdout(&["overview", "--tenant", "acme"])?);
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("WHAT NUMBER OLDEST"));
    assert_eq!(lines.next(), Some("items in doubt 0 -"));
    assert!(table.lines().any(|line| line == "accounts 1 -"), "{table}");
    let json = stage.world.json(&["overview", "--tenant", "acme"])?;
    assert_eq!((&json["accounts"]["total"], &json["items"]["in_doubt"]), (&1.into(), &0.into()));
    assert_eq!(json["capped"], serde_json::json!([]));
    let unknown = stage.world.postrider(&["overview", "--tenant", "globex"])?;
    assert_refused(&unknown, "globex");
    Ok(())
}

#[tokio::test]
async fn the_catalogue_needs_no_database_and_shows_the_fields_of_an_account() -> anyhow::Result<()> {
    let catalogue = |args: &[&str]| run(postrider().arg("catalogue").args(args));
    let all = succeeded(catalogue(&[])?)?.stdout;
    assert!(stable(&all).lines().any(|line| line.starts_with("resend Resend email from")), "{all}");
    assert!(all.contains("detect-alerts"), "{all}");
    let smtp = stable(&succeeded(catalogue(&["--provider", "smtp"])?)?.stdout);
    assert!(smtp.lines().any(|line| line.starts_with("host yes -")), "{smtp}");
    assert!(smtp.contains("One of tls, starttls, none."), "{smtp}");
    assert!(smtp.lines().any(|line| line.starts_with("secret no -")), "{smtp}");
    let slack = succeeded(catalogue(&["--provider", "slack"])?)?.stdout;
    assert!(slack.contains("secret: signing_secret"), "{slack}");
    let json: serde_json::Value = serde_json::from_str(&succeeded(catalogue(&["--json"])?)?.stdout)?;
    assert_eq!(json["providers"].as_array().map(Vec::len), Some(10));
    assert_refused(
        &catalogue(&["--provider", "pigeon"])?,
        "there is no provider `pigeon`; this version knows bluesky",
    );
    Ok(())
}

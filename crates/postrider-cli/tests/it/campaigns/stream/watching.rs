//! `postrider campaign watch`, through a server.

use serde_json::Value;

use super::{Stage, cutter::Cutter};
use crate::world::{Process, postrider, run};

impl Stage {
    async fn control(&self, trigger: &str) -> anyhow::Result<()> {
        let mut transaction = super::acting_for(&self.app, &self.api.acme).await?;
        sqlx::query(
            "select execution.control_phase(tenancy.current_tenant_id(), $1, 'only', $2, null, 'a test')",
        )
        .bind(self.campaign)
        .bind(trigger)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    fn watch(&self, url: &str, more: &[&str]) -> std::process::Command {
        let mut command = postrider();
        command
            .args(["campaign", "watch", &self.campaign.to_string(), "--url", url])
            .args(more)
            .env("POSTRIDER_API_KEY", &self.api.acme.viewer);
        command
    }
}

// The breaking network must work while this waits for a process.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_every_event_as_a_line_though_the_network_breaks() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.write(5).await?;
    // The first answer on a connection says how everything stands; what breaks is the stream after it.
    let cutter = Cutter::start(stage.url(), 4, 2000, 3000).await?;
    let mut watching = Process::start(&mut stage.watch(&cutter.http_url, &["--json", "--after", "0"]))?;
    watching.wait_for_line("\"sequence\":5")?;
    while cutter.cuts() < 4 {
        stage.write(2).await?;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await; // a pace, not a wait
    }
    stage.control("complete").await?;
    assert_eq!(watching.wait()?.code(), Some(0), "{:?}", watching.lines());
    watching.wait_for_line("only: completed")?;
    let lines = watching.lines();
    let read: Vec<i64> = lines
        .iter()
        .filter(|line| line.starts_with('{'))
        .map(|line| Ok(serde_json::from_str::<Value>(line)?["sequence"].as_i64().unwrap_or_default()))
        .collect::<anyhow::Result<_>>()?;
    let history: Vec<i64> =
        stage.history().await?.iter().filter_map(|event| event["sequence"].as_i64()).collect();
    assert_eq!(read, history);
    Ok(())
}

#[tokio::test]
async fn a_person_sees_each_state_and_how_it_ended() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let early = run(&mut stage.watch(stage.url(), &[]))?;
    assert_eq!(early.code, 1);
    assert!(early.stderr.contains("was started"), "{}", early.stderr);

    stage.control("start").await?;
    let mut watching = Process::start(&mut stage.watch(stage.url(), &[]))?;
    watching.wait_for_line("only: in progress, 0 %")?;
    stage.control("pause").await?;
    watching.wait_for_line("only: paused, 0 %")?;
    stage.control("resume").await?;
    stage.control("fail").await?;
    assert_eq!(watching.wait()?.code(), Some(4));
    watching.wait_for_line("only: failed, 0 %")?;
    Ok(())
}

#[tokio::test]
async fn an_impossible_watch_names_its_reason() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = stage.campaign.to_string();
    let other = stage.api.tenant("globex").await?;
    for (what, url, key, expected) in [
        ("spring", stage.url(), stage.api.acme.viewer.as_str(), "is not an id"),
        (campaign.as_str(), stage.url(), "", "no API key for"),
        (&campaign, stage.url(), "pr_wrong", "401"),
        (&campaign, stage.url(), &other.viewer, "there is no such campaign"),
        (&campaign, "ftp://x", &stage.api.acme.viewer, "is not the URL of a server"),
        (&campaign, "http://127.0.0.1:1", &stage.api.acme.viewer, "does not answer"),
    ] {
        let mut command = postrider();
        command.args(["campaign", "watch", what, "--url", url]);
        if !key.is_empty() {
            command.args(["--key", key]);
        }
        let refused = run(&mut command)?;
        assert_ne!(refused.code, 0);
        assert!(refused.stderr.contains(expected), "{what} {url}: {}", refused.stderr);
        assert!(key.is_empty() || !refused.stderr.contains(key), "{}", refused.stderr);
    }
    Ok(())
}

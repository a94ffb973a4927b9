//! The items of a run: `campaign export`, `campaign failures`, and the dry runs that count them.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{assert_misused, assert_refused, stage::Stage, succeeded};

/// A run of three items that has ended: one was sent, one failed and one was left out.
async fn ended(stage: &Stage) -> anyhow::Result<Uuid> {
    let run = stage.deploy_spring(500).await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 3).await?;
    worker
        .settle(&[
            (items[0], "sent", "m-1"),
            (items[1], "failed", "=mailbox full"),
            (items[2], "sent", "m-3"),
        ])
        .await?;
    worker.complete(&job).await?;
    stage
        .world
        .as_superuser(
            "select execution.tend_phase(due.tenant_id, 'w') from execution.tenants_with_due_phases(10) as due",
        )
        .await?;
    Ok(run)
}

#[tokio::test]
async fn the_items_of_a_run_are_exported() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    let run = ended(&stage).await?.to_string();
    let csv = stage.stdout(&["campaign", "export", &run])?;
    let lines: Vec<&str> = csv.split("\r\n").collect();
    assert!(lines[0].starts_with("id,job_id,") && lines.len() == 5, "{csv}");
    assert!(csv.contains(",'=mailbox full,"), "{csv}");
    let ndjson = stage.stdout(&["campaign", "export", &run, "--format", "ndjson", "--status", "failed"])?;
    let row: Value = serde_json::from_str(&ndjson)?;
    assert_eq!((&row["status"], &row["error"]), (&json!("failed"), &json!("=mailbox full")));

    let unknown = Uuid::now_v7().to_string();
    for command in ["export", "failures"] {
        assert_refused(&stage.run(&["campaign", command, &unknown])?, "there is no run `run_");
        assert_misused(&stage.run(&["campaign", command, "spring"])?, "is not a run id");
    }
    assert_misused(
        &stage.run(&["campaign", "export", &run, "--format", "xlsx"])?,
        "possible values: csv, ndjson",
    );
    Ok(())
}

#[tokio::test]
async fn the_errors_of_a_run_are_grouped() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    let run = ended(&stage).await?.to_string();
    let shown = stage.stdout(&["campaign", "failures", &run])?;
    assert!(shown.contains("=mailbox full") && shown.contains("item_"), "{shown}");
    let listed = stage.json(&["campaign", "failures", &run])?;
    assert_eq!((&listed[0]["error"], &listed[0]["count"]), (&json!("=mailbox full"), &json!(1)));
    Ok(())
}

#[tokio::test]
async fn a_dry_run_counts_and_changes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    ended(&stage).await?;
    let before = stage.world.dump().await?;
    let told = succeeded(stage.run(&["campaign", "retry", "spring", "--dry-run"])?)?;
    assert_eq!(told.stdout, "failed\n");
    assert_eq!(told.stderr, "1 items would be sent; nothing was changed\n");
    let told = stage.json(&["campaign", "retry", "spring", "--dry-run"])?;
    for (member, expected) in [
        ("status", json!("failed")),
        ("changed", json!(false)),
        ("would_change", json!(true)),
        ("items", json!(1)),
        ("second_messages", json!(0)),
    ] {
        assert_eq!(told[member], expected, "{member}: {told}");
    }
    // A failed phase is retried, not rerun.
    assert_refused(
        &stage.run(&["campaign", "rerun", "spring", "--dry-run", "--phase", "mail"])?,
        "cannot rerun",
    );
    assert_misused(
        &stage.run(&["campaign", "rerun", "spring", "--dry-run", "--yes"])?,
        "cannot be used with",
    );
    assert_eq!(stage.world.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn a_dry_run_of_a_rerun_counts_the_second_messages() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    stage.deploy_spring(500).await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 3).await?;
    let settled: Vec<_> = items.iter().map(|item| (*item, "sent", "m")).collect();
    worker.settle(&settled).await?;
    worker.complete(&job).await?;
    stage
        .world
        .as_superuser(
            "select execution.tend_phase(due.tenant_id, 'w') from execution.tenants_with_due_phases(10) as due",
        )
        .await?;
    let before = stage.world.dump().await?;
    let told = succeeded(stage.run(&["campaign", "rerun", "spring", "--dry-run"])?)?;
    assert!(
        told.stderr.starts_with("3 items would be sent, 3 of them to people who got this message before")
    );
    assert_eq!(stage.json(&["campaign", "rerun", "spring", "--dry-run"])?["second_messages"], 3);
    assert_eq!(stage.world.dump().await?, before);
    Ok(())
}

//! The history of a campaign page by page, the counts in its progress, and the filters of the list of campaigns.

use serde_json::{Value, json};

use super::{
    Stage,
    material::{account, assert_same_404, column, id, run, take_all, walk},
};
use crate::{campaigns::execution::calls::finalize, sql::execute};

fn external(stage: &Stage, name: &str, phases: &[&str]) -> anyhow::Result<String> {
    let phases: Vec<Value> =
        phases.iter().map(|phase| json!({ "phase": phase, "kind": "external" })).collect();
    let body = json!({ "name": name, "auto_advance": false, "phases": phases });
    id(&stage.post(&stage.acme.operator, "/campaigns", &body)?.expect(201)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_has_every_event_newest_first_with_its_actor_and_reason() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = external(&stage, "spring", &["print"])?;
    for (control, body) in [
        ("start", json!({})),
        ("pause", json!({ "reason": "the printer is out of paper" })),
        ("resume", json!({})),
        ("complete", json!({})),
    ] {
        let path = format!("/campaigns/{campaign}/phases/print/{control}");
        stage.post(&stage.acme.operator, &path, &body)?.expect(200)?;
    }
    let path = format!("/campaigns/{campaign}/history");
    let events = walk(&stage, &stage.acme.viewer, &path, 2, |_| Ok(()))?;
    let sequences: Vec<i64> = events.iter().filter_map(|event| event["sequence"].as_i64()).collect();
    let mut descending: Vec<i64> = (1..=i64::try_from(events.len())?).collect();
    descending.reverse();
    assert_eq!(sequences, descending);
    let changes = walk(
        &stage,
        &stage.acme.viewer,
        &format!("{path}?type=phase_started,phase_paused,phase_resumed,phase_completed"),
        3,
        |_| Ok(()),
    )?;
    assert_eq!(
        column(&changes, "type"),
        ["phase_completed", "phase_resumed", "phase_paused", "phase_started"]
    );
    let paused = &changes[2];
    assert_eq!((&paused["phase"], &paused["campaignId"]), (&json!("print"), &json!(campaign)));
    assert_eq!(paused["payload"]["reason"], "the printer is out of paper");
    assert!(paused["payload"]["actor"].as_str().is_some_and(|actor| actor.starts_with("key:")), "{paused}");
    for wrong in ["type=phase_exploded", "type=", "limit=0", "cursor=x"] {
        stage.get(&stage.acme.viewer, &format!("{path}?{wrong}"))?.problem(400)?;
    }
    let beta = stage.tenant("beta").await?;
    let calls = [("GET", "/campaigns/{id}/history", Value::Null)];
    assert_same_404(&stage, &beta.admin, &calls, &campaign)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_progress_event_carries_the_counts_of_the_run() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (campaign, run) = run(&stage, &stage.acme, "spring", 10, 5).await?;
    let (worker, taken) = take_all(&stage).await?;
    let items = &taken[0].1;
    let settled = [(items[0], "sent"), (items[1], "failed"), (items[2], "sent"), (items[3], "in_doubt")];
    finalize(&worker, stage.acme.id.0, "w", &settled).await?;
    execute(
        &stage.admin,
        "select execution.note_progress(due.tenant_id, 'w') from execution.tenants_with_due_progress('w') as due",
    )
    .await?;
    let path = format!("/campaigns/{campaign}/history?type=campaign_progress");
    let newest = stage.get(&stage.acme.viewer, &path)?.expect(200)?["items"][0]["payload"].clone();
    assert_eq!(
        newest,
        json!({
            "progressPercentage": 30.0,
            "run": {
                "id": run, "intended": 10, "succeeded": 2, "failed": 1, "skipped": 0, "inDoubt": 1, "inFlight": 6,
            },
        })
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn campaigns_are_found_by_their_name_and_by_the_states_of_their_phases() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let spring = external(&stage, "Spring 100%", &["mail", "print"])?;
    let summer = external(&stage, "summer_sale", &["print"])?;
    let autumn = external(&stage, "autumn", &["print"])?;
    for (campaign, phase, controls) in [
        (&spring, "print", &["start"][..]),
        (&summer, "print", &["start", "pause"]),
        (&autumn, "print", &["start", "complete"]),
    ] {
        for control in controls {
            let path = format!("/campaigns/{campaign}/phases/{phase}/{control}");
            stage.post(&stage.acme.operator, &path, &json!({}))?.expect(200)?;
        }
    }
    for (query, expected) in [
        ("", vec![&autumn, &summer, &spring]),
        ("?q=SPRING", vec![&spring]),
        ("?q=100%25", vec![&spring]),
        ("?q=_", vec![&summer]),
        ("?q=nothing", vec![]),
        ("?phase_status=not_started", vec![&spring]),
        ("?phase_status=in_progress,paused", vec![&summer, &spring]),
        ("?phase_status=completed&q=aut", vec![&autumn]),
        ("?phase_status=failed", vec![]),
    ] {
        let items = walk(&stage, &stage.acme.viewer, &format!("/campaigns{query}"), 1, |_| Ok(()))?;
        assert_eq!(column(&items, "id").iter().collect::<Vec<_>>(), expected, "{query}");
    }
    let shown = stage.get(&stage.acme.viewer, "/campaigns?q=spring")?.expect(200)?;
    assert_eq!(
        shown["items"][0]["phases"][1],
        json!({
            "phase": "print", "kind": "external", "channel": null, "status": "in_progress", "progress_percentage": 0.0,
        })
    );
    for (query, field) in [
        ("q=", "q".to_owned()),
        ("phase_status=asleep", "phase_status".to_owned()),
        ("phase_status=paused,", "phase_status".to_owned()),
        (&format!("q={}", "x".repeat(501)), "q".to_owned()),
    ] {
        assert_eq!(stage.get(&stage.acme.viewer, &format!("/campaigns?{query}"))?.field(400)?, field);
    }
    Ok(())
}

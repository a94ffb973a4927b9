//! Cancel, retry and rerun over HTTP: what they take, what they refuse, and the log of a refusal.

use serde_json::{Value, json};

use super::{
    Stage,
    attacks::census,
    material::{account, run, take_all},
};
use crate::{
    campaigns::execution::calls::{complete, finalize},
    sql::{execute, texts},
};

/// Ends send jobs of canceled runs, as a worker does.
async fn advance(stage: &Stage) -> anyhow::Result<()> {
    let tend =
        "select execution.tend_phase(due.tenant_id, 'w') from execution.tenants_with_due_phases(10) as due";
    for _ in 0..20 {
        execute(&stage.admin, tend).await?;
    }
    Ok(())
}

/// A campaign of six items in send jobs of two: one was sent, one failed, and four wait.
async fn begun(stage: &Stage) -> anyhow::Result<(String, String)> {
    account(stage, &stage.acme).await?;
    let (campaign, run) = run(stage, &stage.acme, "spring", 6, 2).await?;
    let later = "update execution.job_queue set run_after = now() + interval '1 hour' where position > 1";
    execute(&stage.admin, later).await?;
    let (worker, taken) = take_all(stage).await?;
    let (job, items) = &taken[0];
    finalize(&worker, stage.acme.id.0, "w", &[(items[0], "sent"), (items[1], "failed")]).await?;
    complete(&worker, "w", job).await?;
    Ok((campaign, run))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_is_canceled_and_continued() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (campaign, run) = begun(&stage).await?;
    let control = |by: &str, body: &Value| {
        stage.post(&stage.acme.operator, &format!("/campaigns/{campaign}/phases/mail/{by}"), body)
    };
    let status = || {
        let status = stage.get(&stage.acme.viewer, &format!("/campaigns/{campaign}/status"))?.expect(200)?;
        anyhow::Ok(status["phases"][0].clone())
    };
    assert_eq!(status()?["allowed"], json!(["pause", "cancel"]));

    let before = census(&stage.admin).await?;
    let trial = control("cancel?dry_run=true", &json!({}))?.expect(200)?;
    assert_eq!((&trial["wouldChange"], &trial["status"]), (&json!(true), &json!("in_progress")));
    assert_eq!((&trial["runId"], &trial["items"]), (&json!(run), &json!(6)));
    assert_eq!(census(&stage.admin).await?, before);

    let canceled = control("cancel", &json!({ "expected_state": "in_progress", "reason": "wrong text" }))?;
    let canceled = canceled.expect(200)?;
    for (member, expected) in [
        ("status", json!("failed")),
        ("changed", json!(true)),
        ("runId", json!(run)),
        ("inFlight", json!(0)),
        ("allowed", json!(["retry"])),
    ] {
        assert_eq!(canceled[member], expected, "{member}: {canceled}");
    }
    let again = control("cancel", &json!({}))?.expect(200)?;
    assert_eq!((&again["changed"], &again["sequence"]), (&json!(false), &canceled["sequence"]));
    assert_eq!(status()?["canceled"], true);
    let history = stage.get(&stage.acme.viewer, &format!("/campaigns/{campaign}/history"))?.expect(200)?;
    let events = history["items"].as_array().cloned().unwrap_or_default();
    let failed = events.iter().find(|event| event["type"] == "phase_failed").cloned().unwrap_or_default();
    assert_eq!(
        (&failed["payload"]["control"], &failed["payload"]["trigger"]),
        (&json!("cancel"), &json!("fail"))
    );
    assert_eq!(failed["payload"]["reason"], "wrong text");

    // A retry has to wait for the end of the run, which a worker brings.
    let early = control("retry", &json!({}))?.problem(409)?;
    assert!(early["detail"].as_str().unwrap_or_default().contains("has not ended yet"), "{early}");
    let logged = stage
        .server
        .process
        .wait_for_line("retry of phase mail was refused: its canceled run has not ended yet")?;
    assert!(logged.contains(&campaign), "{logged}");
    advance(&stage).await?;
    let skipped = stage.get(&stage.acme.viewer, &format!("/runs/{run}/items?status=skipped"))?.expect(200)?;
    let reasons: Vec<_> =
        skipped["items"].as_array().into_iter().flatten().map(|item| &item["error"]).collect();
    assert_eq!(reasons, [&json!("canceled"); 4]);
    let launch = stage.get(&stage.acme.viewer, &format!("/runs/{run}/launch"))?.expect(200)?;
    let counts = ["intended", "sent", "failed", "skipped", "missing"].map(|count| launch[count].clone());
    assert_eq!(counts, [6, 1, 1, 4, 0].map(|count| json!(count)), "{launch}");

    let sequence = canceled["sequence"].clone();
    let counted = |body: &Value| control("retry?dry_run=true", body)?.expect(200);
    let one = counted(&json!({ "expected_sequence": sequence }))?;
    assert_eq!((&one["items"], &one["secondMessages"]), (&json!(1), &json!(0)), "{one}");
    let all = counted(&json!({ "include_canceled": true }))?;
    assert_eq!((&all["items"], &all["secondMessages"]), (&json!(5), &json!(0)), "{all}");
    let retry = json!({ "include_canceled": true, "expected_sequence": sequence });
    let retried = control("retry", &retry)?.expect(200)?;
    assert_eq!((&retried["changed"], &retried["items"]), (&json!(true), &json!(5)));
    assert_eq!(status()?["canceled"], false);

    // Repeated, it changes nothing: not while it runs, and not after it was canceled in its turn.
    assert_eq!(control("retry", &retry)?.expect(200)?["changed"], false);
    control("cancel", &json!({}))?.expect(200)?;
    advance(&stage).await?;
    let before = census(&stage.admin).await?;
    let late = control("retry", &retry)?.problem(409)?;
    assert_eq!(late["currentState"], "failed");
    assert_eq!(census(&stage.admin).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_failed_items_are_rerun() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (campaign, _) = run(&stage, &stage.acme, "spring", 40, 500).await?;
    let (worker, taken) = take_all(&stage).await?;
    let (job, items) = &taken[0];
    let settled: Vec<_> =
        items.iter().enumerate().map(|(n, item)| (*item, if n == 0 { "failed" } else { "sent" })).collect();
    finalize(&worker, stage.acme.id.0, "w", &settled).await?;
    complete(&worker, "w", job).await?;
    let rerun = |query: &str, body: &Value| {
        let path = format!("/campaigns/{campaign}/phases/mail/rerun{query}");
        stage.post(&stage.acme.operator, &path, body)
    };
    let everyone = rerun("?dry_run=true", &json!({}))?.expect(200)?;
    assert_eq!((&everyone["items"], &everyone["secondMessages"]), (&json!(40), &json!(39)));
    let failed = rerun("", &json!({ "only": "failed" }))?.expect(200)?;
    assert_eq!((&failed["items"], &failed["secondMessages"]), (&json!(1), &json!(0)));
    let runs =
        texts(&stage.admin, "select cause || ' ' || intended from execution.campaign_runs order by number")
            .await?;
    assert_eq!(runs, ["start 40", "retry 1"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn controls_take_only_the_fields_that_are_theirs() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (campaign, _) = begun(&stage).await?;
    let beta = stage.tenant("beta").await?;
    let before = census(&stage.admin).await?;
    let path = |by: &str| format!("/campaigns/{campaign}/phases/mail/{by}");
    let control = |by: &str, body: &Value| stage.post(&stage.acme.operator, &path(by), body);
    for by in ["start", "pause", "cancel", "rerun"] {
        assert_eq!(control(by, &json!({ "include_canceled": true }))?.field(422)?, "include_canceled");
    }
    for by in ["start", "retry", "cancel"] {
        assert_eq!(control(by, &json!({ "only": "failed" }))?.field(422)?, "only");
    }
    assert_eq!(control("rerun", &json!({ "only": "everyone" }))?.field(400)?, "only");
    assert_eq!(control("retry", &json!({ "include_canceled": "yes" }))?.field(400)?, "include_canceled");
    assert_eq!(control("retry", &json!({ "expected_sequence": "last" }))?.field(400)?, "expected_sequence");
    // The phase is in progress: a rerun is no legal transition, and a retry has nothing to change.
    control("rerun", &json!({ "only": "failed", "expected_sequence": 0 }))?.expect(200)?;
    let conflict = control("cancel", &json!({ "expected_sequence": 0 }))?.problem(409)?;
    assert_eq!(conflict["allowed"], json!(["pause", "cancel"]));
    stage.post(&stage.acme.viewer, &path("cancel"), &json!({}))?.problem(403)?;
    stage.post(&beta.operator, &path("cancel"), &json!({}))?.problem(404)?;
    assert_eq!(census(&stage.admin).await?, before);

    // A phase that another service does is failed, not canceled.
    let phases = json!([{ "phase": "print", "kind": "external" }]);
    let body = json!({ "name": "print", "phases": phases });
    let made = stage.post(&stage.acme.operator, "/campaigns", &body)?.expect(201)?;
    let print = format!("/campaigns/{}/phases/print", made["id"].as_str().unwrap_or_default());
    stage.post(&stage.acme.operator, &format!("{print}/start"), &json!({}))?.expect(200)?;
    let refused = stage.post(&stage.acme.operator, &format!("{print}/cancel"), &json!({}))?.problem(409)?;
    assert!(refused["detail"].as_str().unwrap_or_default().contains("`fail` ends it"), "{refused}");
    assert_eq!(refused["allowed"], json!(["pause", "complete", "fail"]));
    Ok(())
}

//! A dry run of a control: everything is counted, nothing changes.

use postrider_store::postgres::pool;
use serde_json::{Value, json};

use super::{
    Stage,
    attacks::census,
    material::{account, run, take_all},
};
use crate::{
    campaigns::execution::calls::{complete, finalize},
    sql::execute,
};

/// A campaign whose only phase has ended: of ten items, one was settled so, the others were sent.
async fn ended(stage: &Stage, one: &'static str) -> anyhow::Result<String> {
    account(stage, &stage.acme).await?;
    let (campaign, _) = run(stage, &stage.acme, "spring", 10, 500).await?;
    let (worker, taken) = take_all(stage).await?;
    let (job, items) = &taken[0];
    let settled: Vec<_> =
        items.iter().enumerate().map(|(n, item)| (*item, if n == 0 { one } else { "sent" })).collect();
    finalize(&worker, stage.acme.id.0, "w", &settled).await?;
    complete(&worker, "w", job).await?;
    execute(
        &stage.admin,
        "select execution.tend_phase(due.tenant_id, 'w') from execution.tenants_with_due_phases(10) as due",
    )
    .await?;
    Ok(campaign)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_a_rerun_counts_the_second_messages_and_changes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = ended(&stage, "sent").await?;
    let path = format!("/campaigns/{campaign}/phases/mail/rerun?dry_run=true");
    let before = census(&stage.admin).await?;
    let newest = stage.get(&stage.acme.viewer, &format!("/campaigns/{campaign}/status"))?.expect(200)?;
    // Under a key, which is not used up.
    let ask = || stage.call("POST", &path).key(&stage.acme.operator).idempotency_key("k").send();
    for _ in 0..2 {
        let reply = ask()?;
        assert_eq!(reply.header("idempotent-replayed"), None);
        let answer = reply.expect(200)?;
        for (member, expected) in [
            ("changed", json!(false)),
            ("wouldChange", json!(true)),
            ("status", json!("completed")),
            ("sequence", newest["sequence"].clone()),
            ("items", json!(10)),
            ("secondMessages", json!(10)),
            ("runId", Value::Null),
        ] {
            assert_eq!(answer[member], expected, "{member}: {answer}");
        }
        assert_eq!(answer["allowed"], json!(["rerun"]));
    }
    assert_eq!(census(&stage.admin).await?, before);
    // The rerun itself answers the same counts.
    let done = stage.post(
        &stage.acme.operator,
        &format!("/campaigns/{campaign}/phases/mail/rerun?dry_run=false"),
        &json!({}),
    )?;
    let done = done.expect(200)?;
    assert_eq!((&done["items"], &done["secondMessages"]), (&json!(10), &json!(10)));
    assert_eq!((&done["changed"], done.get("wouldChange")), (&json!(true), None));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_a_retry_counts_the_failed_items() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = ended(&stage, "failed").await?;
    let before = census(&stage.admin).await?;
    let path = format!("/campaigns/{campaign}/phases/mail/retry?dry_run=true");
    let answer =
        stage.post(&stage.acme.operator, &path, &json!({ "expected_state": "failed" }))?.expect(200)?;
    assert_eq!((&answer["wouldChange"], &answer["items"]), (&json!(true), &json!(1)), "{answer}");
    assert_eq!(census(&stage.admin).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_is_refused_as_the_control_would_be() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = ended(&stage, "sent").await?;
    let before = census(&stage.admin).await?;
    let control = |by: &str, body: &Value| {
        let path = format!("/campaigns/{campaign}/phases/mail/{by}?dry_run=true");
        stage.post(&stage.acme.operator, &path, body)
    };
    let conflict = control("pause", &json!({}))?.problem(409)?;
    assert_eq!((&conflict["currentState"], &conflict["allowed"]), (&json!("completed"), &json!(["rerun"])));
    control("rerun", &json!({ "expected_state": "failed" }))?.problem(409)?;
    control("explode", &json!({}))?.problem(404)?;
    assert_eq!(control("rerun", &json!({ "state": "x" }))?.field(400)?, "state");
    let wrong = format!("/campaigns/{campaign}/phases/mail/rerun?dry_run=perhaps");
    assert_eq!(stage.post(&stage.acme.operator, &wrong, &json!({}))?.field(400)?, "dry_run");
    let viewer = format!("/campaigns/{campaign}/phases/mail/rerun?dry_run=true");
    stage.post(&stage.acme.viewer, &viewer, &json!({}))?.problem(403)?;
    let beta = stage.tenant("beta").await?;
    stage.post(&beta.operator, &viewer, &json!({}))?.problem(404)?;
    // The keys of beta are new.
    let mut after = census(&stage.admin).await?;
    for table in ["tenancy.api_keys", "tenancy.audit_log", "tenancy.tenants", "tenancy.workspaces"] {
        after.insert(table.to_owned(), before[table].clone());
    }
    assert_eq!(after, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phase_in_the_target_state_would_not_change() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (campaign, run) = run(&stage, &stage.acme, "spring", 3, 500).await?;
    let ask = |control: &str| {
        let path = format!("/campaigns/{campaign}/phases/mail/{control}?dry_run=true");
        stage.post(&stage.acme.operator, &path, &json!({}))?.expect(200)
    };
    let start = ask("start")?;
    assert_eq!((&start["wouldChange"], &start["status"]), (&json!(false), &json!("in_progress")));
    let pause = ask("pause")?;
    assert_eq!((&pause["wouldChange"], &pause["status"]), (&json!(true), &json!("in_progress")));
    assert_eq!(
        (&pause["runId"], &pause["items"], &pause["inFlight"]),
        (&json!(run), &json!(3), &Value::Null)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_that_takes_too_long_is_refused_with_its_parameter() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = ended(&stage, "sent").await?;
    let mut busy = pool::begin(&stage.admin).await?;
    sqlx::raw_sql("select from execution.campaigns for update").execute(&mut *busy).await?;
    let path = format!("/campaigns/{campaign}/phases/mail/rerun?dry_run=true");
    let refused = stage.post(&stage.acme.operator, &path, &json!({}))?;
    assert_eq!(refused.field(422)?, "dry_run");
    assert!(refused.text().contains("too many items to count exactly"), "{}", refused.text());
    pool::rollback(busy).await?;
    Ok(())
}

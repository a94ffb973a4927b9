//! The life of an item, and what becomes of it when something dies.

use std::collections::BTreeSet;

use stage::Stage;

use super::stage;
use crate::{
    sql::execute,
    world::{Server, Sim, World, eventually},
};

/// A server that only works on campaigns, and may reach the sim.
pub fn worker(world: &World, more: &str) -> anyhow::Result<Server> {
    Server::start(world, "campaigns", &format!("[outbound]\nallow_private = true\n[campaigns]\n{more}\n"))
}

fn keys(sim: &Sim) -> anyhow::Result<Vec<String>> {
    let acted = sim.receipts()?.into_iter().filter(|receipt| receipt["acted"] == true);
    Ok(acted.filter_map(|receipt| receipt["key"].as_str().map(str::to_owned)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_item_of_every_channel_is_called_once_and_recorded() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sim = Sim::start(&[])?;
    let stage = Stage::with_sim(&world, &sim, 1200).await?;
    let mut worker = worker(&world, "")?;
    for (channel, state, count) in
        [("email", "sent", 1200), ("voice", "called", 1200), ("social", "posted", 1)]
    {
        let run = stage.deploy_one(&format!("by {channel}"), channel).await?;
        assert_eq!(stage.ended(run).await?, "completed");
        assert_eq!(stage.items(run).await?, [(state.to_owned(), count)].into());
        let launched = stage
            .ask(&format!(
                "select launched::text from execution.verify_launch(tenancy.current_tenant_id(), '{run}')"
            ))
            .await?;
        assert_eq!(launched, "true");
    }
    let acted = keys(&sim)?;
    assert_eq!(acted.len(), 2401);
    assert_eq!(acted.iter().collect::<BTreeSet<_>>().len(), 2401, "a key was called twice");
    worker.process.signal("TERM")?;
    assert!(worker.process.wait()?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_reserved_by_a_dead_worker_is_never_called_again() -> anyhow::Result<()> {
    let world = World::new().await?;
    // The provider acts and never answers: the worker dies in the middle of its calls.
    let sim = Sim::start(&["--fault", "stall=1"])?;
    let stage = Stage::with_sim(&world, &sim, 10).await?;
    let run = stage.deploy_one("stalled", "email").await?;
    let dead = worker(&world, "")?;
    eventually("all ten calls are under way", || async { Ok(keys(&sim)?.len() == 10) }).await?;
    dead.process.signal("KILL")?;
    drop(dead);
    stage.no_worker_runs().await?;
    stage.age_locks("6 minutes").await?;

    let _alive = worker(&world, "")?;
    eventually("the job was looked at again", || async {
        Ok(stage.ask(&format!("select status from execution.job_queue where run_id = '{run}'")).await?
            == "failed")
    })
    .await?;
    assert_eq!(stage.items(run).await?, [("in doubt".to_owned(), 10)].into());
    assert_eq!(keys(&sim)?.len(), 10, "somebody was called again");
    let attempts =
        stage.ask(&format!("select attempts::text from execution.job_queue where run_id = '{run}'")).await?;
    assert_eq!(attempts, "2");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsubscribed_person_gets_no_message_under_another_name() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sim = Sim::start(&[])?;
    let stage = Stage::with_sim(&world, &sim, 5).await?;
    // Not on the list, and written differently; the phone is another one.
    let other = format!(
        "insert into execution.leads (id, tenant_id, workspace_id, identity, email, phone, suppressed_at, suppression_reason)
         values (gen_random_uuid(), '{}', '{}', 'id:x', 'ALL3@example.com', '+491700000004', now(), 'unsubscribed')",
        stage.tenant, stage.workspace
    );
    execute(&stage.admin, other).await?;
    let _worker = worker(&world, "")?;
    for (channel, state, left_out) in
        [("email", "sent", "all3@example.com"), ("voice", "called", "+491700000004")]
    {
        let run = stage.deploy_one(channel, channel).await?;
        assert_eq!(stage.ended(run).await?, "completed");
        assert_eq!(stage.items(run).await?, [(state.to_owned(), 4), ("skipped".to_owned(), 1)].into());
        let skipped = stage
            .ask(&format!(
                "select recipient || ' ' || error from execution.channel_outbox where run_id = '{run}' and status = 'skipped'"
            ))
            .await?;
        assert_eq!(skipped, format!("{left_out} suppressed: unsubscribed"));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_exceeds_its_limits_for_one_lead_fails_that_item_only() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sim = Sim::start(&[])?;
    let stage = Stage::with_sim(&world, &sim, 5).await?;
    let other = Stage::with_sim(&world, &sim, 5).await?;
    let mut worker = worker(&world, "")?;
    let content = serde_json::json!({
        "subject": "Hello",
        "text": "{{ (''%'' ~ (99999999999999 if n == 3 else 5) ~ ''s'')|format(name) }}",
    });
    let run = stage.deploy_content("hostile", &content).await?;
    let after = other.deploy_one("harmless", "email").await?;
    assert_eq!(stage.ended(run).await?, "partial");
    assert_eq!(stage.items(run).await?, [("failed".to_owned(), 1), ("sent".to_owned(), 4)].into());
    let error = format!(
        "select recipient || ' ' || error from execution.channel_outbox where run_id = '{run}' and status = 'failed'"
    );
    assert_eq!(
        stage.ask(&error).await?,
        "all3@example.com the text cannot be filled in: it exceeds its limits: `format` has a width or precision above 100"
    );
    assert_eq!(other.ended(after).await?, "completed");
    assert_eq!(other.items(after).await?, [("sent".to_owned(), 5)].into());
    worker.process.signal("TERM")?;
    assert!(worker.process.wait()?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_share_few_turns_at_one_account() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sim = Sim::start(&["--fault", "latency=1", "--latency-ms", "20"])?;
    let stage = Stage::with_sim(&world, &sim, 120).await?;
    let campaign = stage.campaign("narrow", &[("only", "email", Some("all"), "sim")]).await?;
    let run: uuid::Uuid = stage
        .ask(&format!("select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', 'only', null, null, 10)::text"))
        .await?
        .parse()?;
    let _worker = worker(&world, "account_concurrency = 2")?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!(stage.items(run).await?, [("sent".to_owned(), 120)].into());
    Ok(())
}

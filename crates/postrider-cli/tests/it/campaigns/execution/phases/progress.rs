//! Progress events at their interval, phases that start by themselves, and removed events.

use serde_json::json;

use super::{advance, control, delivery, events, external, external_phase, history, status};
use crate::{
    campaigns::execution::{Stage, Windows, claim, complete, finalize, reserve_all},
    sql::{execute, number, refusal, texts},
};

async fn report(stage: &Stage, campaign: uuid::Uuid, percentage: &str) -> Result<String, sqlx::Error> {
    let sql = format!(
        "select outcome || ' ' || status from execution.report_progress(tenancy.current_tenant_id(), '{campaign}', 'only', {percentage}, 'a test')"
    );
    stage.ask(stage.own, sql).await
}

async fn note_progress(stage: &Stage) -> Result<(), sqlx::Error> {
    let note = "select execution.note_progress(due.tenant_id, 'w') from execution.tenants_with_due_progress('w') as due";
    execute(&stage.worker, note).await
}

/// As if the last progress had been said a while ago.
async fn let_time_pass(stage: &Stage) -> Result<(), sqlx::Error> {
    execute(&stage.admin, "update execution.campaigns set progress_at = now() - interval '1 minute'").await
}

/// As if it had been said this very moment, however slow the test is.
async fn stop_the_clock(stage: &Stage) -> Result<(), sqlx::Error> {
    execute(&stage.admin, "update execution.campaigns set progress_at = now() + interval '1 hour'").await
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_coalesced_and_the_last_one_is_said() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = external(&stage).await?;
    assert_eq!(report(&stage, campaign, "5").await?, "conflict not_started");
    control(&stage, campaign, "only", "start", None).await?;
    assert_eq!(report(&stage, campaign, "10").await?, "changed in_progress");
    stop_the_clock(&stage).await?;
    for percentage in ["20", "30", "40"] {
        assert_eq!(report(&stage, campaign, percentage).await?, "changed in_progress");
    }
    note_progress(&stage).await?;
    assert_eq!(history(&stage, campaign).await?, ["1 phase_started only", "2 campaign_progress only 10.0"]);
    let_time_pass(&stage).await?;
    note_progress(&stage).await?;
    stop_the_clock(&stage).await?;
    note_progress(&stage).await?;
    assert_eq!(history(&stage, campaign).await?[2..], ["3 campaign_progress only 40.0"]);

    // Unreported progress is recorded before the change of state if the interval allows it, or else after it.
    report(&stage, campaign, "77.77").await?;
    let_time_pass(&stage).await?;
    control(&stage, campaign, "only", "pause", None).await?;
    assert_eq!(
        history(&stage, campaign).await?[3..],
        ["4 campaign_progress only 77.7", "5 phase_paused only"]
    );
    stop_the_clock(&stage).await?;
    control(&stage, campaign, "only", "resume", None).await?;
    control(&stage, campaign, "only", "complete", None).await?;
    control(&stage, campaign, "only", "rerun", None).await?;
    report(&stage, campaign, "3").await?;
    let_time_pass(&stage).await?;
    note_progress(&stage).await?;
    assert_eq!(
        history(&stage, campaign).await?[5..],
        [
            "6 phase_resumed only",
            "7 phase_completed only",
            "8 phase_started only",
            "9 campaign_progress only 3.0"
        ],
        "only the newest is said"
    );
    control(&stage, campaign, "only", "pause", None).await?;
    assert_eq!(report(&stage, campaign, "80").await?, "changed paused", "and it does not touch the state");
    for wrong in ["-1", "100.1", "'NaN'::numeric"] {
        assert_eq!(refusal(report(&stage, campaign, wrong).await)?.code, "22023", "{wrong}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_s_progress_is_counted() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 4, &json!({})).await?;
    control(&stage, campaign, "first", "start", None).await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    note_progress(&stage).await?;
    assert_eq!(events(&stage, campaign).await?, 1, "nothing has ended yet");
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent")]).await?;
    note_progress(&stage).await?;
    note_progress(&stage).await?;
    assert_eq!(history(&stage, campaign).await?[1..], ["2 campaign_progress first 25.0"]);
    assert_eq!(status(&stage, campaign, "first").await?, "in_progress");
    let sql = format!(
        "select outcome || ': ' || reason from execution.report_progress(tenancy.current_tenant_id(), '{campaign}', 'first', 50, 'a test')"
    );
    assert_eq!(
        stage.ask::<String>(stage.own, sql).await?,
        "conflict: the progress of a delivery is counted, not reported"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_goes_on_by_itself_once() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let first = stage.phase(stage.own, 2, &json!({})).await?;
    let last = stage.phase(stage.own, 2, &json!({ "phase": "last" })).await?;
    let campaign = stage.campaign(stage.own, &json!([first, external_phase("check"), last])).await?;
    control(&stage, campaign, "first", "start", None).await?;
    advance(&stage).await?;
    assert_eq!(status(&stage, campaign, "check").await?, "not_started");
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent"), (ids[1], "sent")]).await?;
    complete(&stage.worker, "w", &job).await?;
    advance(&stage).await?;
    assert_eq!(status(&stage, campaign, "check").await?, "in_progress");
    assert_eq!(status(&stage, campaign, "last").await?, "not_started");
    control(&stage, campaign, "check", "fail", None).await?;
    advance(&stage).await?;
    assert_eq!(status(&stage, campaign, "last").await?, "not_started", "a phase that failed leads nowhere");
    control(&stage, campaign, "check", "retry", None).await?;
    control(&stage, campaign, "check", "complete", None).await?;
    advance(&stage).await?;
    advance(&stage).await?;
    assert_eq!(status(&stage, campaign, "last").await?, "in_progress");
    assert_eq!(number(&stage.admin, "select count(*) from execution.campaign_runs").await?, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_phase_that_completes_leads_to_its_own_successor() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let phases = ["a", "b", "c", "d"].map(external_phase);
    let campaign = stage.campaign(stage.own, &json!(phases)).await?;
    for phase in ["a", "c"] {
        control(&stage, campaign, phase, "start", None).await?;
    }
    for phase in ["a", "c"] {
        control(&stage, campaign, phase, "complete", None).await?;
    }
    advance(&stage).await?;
    for phase in ["b", "d"] {
        assert_eq!(status(&stage, campaign, phase).await?, "in_progress", "{phase}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_does_not_go_on_by_itself_waits() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign =
        stage.campaign(stage.own, &json!([external_phase("only"), external_phase("next")])).await?;
    execute(&stage.admin, "update execution.campaigns set auto_advance = false").await?;
    control(&stage, campaign, "only", "start", None).await?;
    control(&stage, campaign, "only", "complete", None).await?;
    advance(&stage).await?;
    assert_eq!(status(&stage, campaign, "next").await?, "not_started");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_that_cannot_start_says_why_and_can_be_started_later() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let empty = stage.phase(stage.own, 0, &json!({ "phase": "second" })).await?;
    let campaign = stage.campaign(stage.own, &json!([external_phase("only"), empty])).await?;
    control(&stage, campaign, "only", "start", None).await?;
    control(&stage, campaign, "only", "complete", None).await?;
    advance(&stage).await?;
    assert_eq!(status(&stage, campaign, "second").await?, "not_started");
    let why = || texts(&stage.admin, "select coalesce(not_advanced, 'null') from execution.campaigns");
    assert_eq!(why().await?, ["second: the list of phase `second` is empty"]);
    execute(
        &stage.admin,
        format!(
            "with lead as (insert into execution.leads (id, tenant_id, workspace_id, identity, email)
                           values (gen_random_uuid(), '{0}', '{1}', 'new', 'new@example.com') returning id)
             insert into execution.lead_list_members (tenant_id, list_id, lead_id)
             select '{0}', (select list_id from execution.campaign_phases where phase = 'second'), id from lead",
            stage.own.id, stage.own.workspace
        ),
    )
    .await?;
    assert_eq!(control(&stage, campaign, "second", "start", None).await?.outcome, "changed");
    assert_eq!(why().await?, ["null"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn old_events_are_removed_in_order_and_the_campaign_remembers() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = external(&stage).await?;
    control(&stage, campaign, "only", "start", None).await?;
    for _ in 0..4 {
        control(&stage, campaign, "only", "pause", None).await?;
        control(&stage, campaign, "only", "resume", None).await?;
    }
    let prune =
        |limit: i32| format!("select execution.prune_campaign_events('{}', now(), {limit})", stage.own.id);
    let old = "select count(*) from execution.tenants_with_old_history(now())";
    assert_eq!(number(&stage.worker, old).await?, 0);
    assert_eq!(number(&stage.worker, prune(1000)).await?, 0, "what is younger than an hour stays");
    execute(
        &stage.admin,
        "set session_replication_role = replica;
         update execution.campaign_events set at = at - interval '2 hours' where sequence <= 6;
         reset session_replication_role",
    )
    .await?;
    assert_eq!(number(&stage.worker, old).await?, 1);
    assert_eq!(number(&stage.worker, prune(4)).await?, 4);
    assert_eq!(number(&stage.admin, "select pruned_through from execution.campaigns").await?, 4);
    assert_eq!(number(&stage.worker, prune(1000)).await?, 2);
    assert_eq!(history(&stage, campaign).await?.len(), 3);
    assert_eq!(history(&stage, campaign).await?[0], "7 phase_resumed only");
    control(&stage, campaign, "only", "pause", None).await?;
    assert_eq!(history(&stage, campaign).await?[3], "10 phase_paused only", "numbers go on");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_that_meet_a_pause_in_the_middle_leave_the_others_whole() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (one, two, three) = (
        delivery(&stage, 2, &json!({})).await?,
        delivery(&stage, 2, &json!({})).await?,
        delivery(&stage, 2, &json!({})).await?,
    );
    for campaign in [one, two, three] {
        control(&stage, campaign, "first", "start", None).await?;
    }
    control(&stage, two, "first", "pause", None).await?;
    control(&stage, two, "first", "resume", None).await?;
    let mut jobs = claim(&stage.worker, "w", 10).await?;
    jobs.sort_by_key(|job| job.job_id);
    control(&stage, two, "first", "pause", None).await?;
    let windows = Windows::of(&jobs[0], 1, 2).and(&jobs[1], 1, 2).and(&jobs[2], 1, 2);
    let begun = windows.begin(&stage.worker, "w").await?;
    assert_eq!(begun.iter().filter(|item| item.verdict == "reserved").count(), 4);
    // Each row belongs to its own job, with its own item.
    for item in begun.iter().filter(|item| item.verdict == "reserved") {
        let job = jobs.iter().find(|job| job.job_id == item.job_id);
        assert!(job.is_some_and(|job| item.item_id.is_some_and(|id| job.item_ids.contains(&id))));
    }
    let paused_run = format!("select id::text from execution.campaign_runs where campaign_id = '{two}'");
    let paused = texts(&stage.admin, paused_run).await?;
    assert!(begun.iter().filter(|item| item.verdict == "reserved").all(|item| {
        jobs.iter().any(|job| job.job_id == item.job_id && job.run_id.to_string() != paused[0])
    }));
    Ok(())
}

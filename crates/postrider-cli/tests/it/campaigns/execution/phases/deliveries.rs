//! Effects of controls on a delivery: runs over a whole list, runs over the failed items, and never a second message that no operator asked for.

use serde_json::json;

use super::{advance, control, delivery, history, status};
use crate::{
    campaigns::execution::{Stage, claim, complete, finalize, reserve_all},
    sql::{execute, number, texts},
};

/// Works off everything that waits, settling the items in turn as these words say.
async fn work(stage: &Stage, words: &[&str]) -> anyhow::Result<()> {
    let mut words = words.iter().copied().cycle();
    loop {
        let jobs = claim(&stage.worker, "w", 10).await?;
        if jobs.is_empty() {
            return Ok(());
        }
        for job in jobs {
            let ids = reserve_all(&stage.worker, "w", &job).await?;
            let settled: Vec<_> = ids.into_iter().zip(words.by_ref()).collect();
            finalize(&stage.worker, stage.own.id, "w", &settled).await?;
            complete(&stage.worker, "w", &job).await?;
        }
    }
}

async fn items_of(stage: &Stage, run: Option<uuid::Uuid>) -> anyhow::Result<Vec<String>> {
    let run = run.unwrap_or_default();
    let sql = format!(
        "select item::text from execution.job_queue, unnest(item_ids) as item where run_id = '{run}' order by 1"
    );
    Ok(texts(&stage.admin, sql).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_a_run_of_what_failed_and_of_nothing_else() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 8, &json!({})).await?;
    let started = control(&stage, campaign, "first", "start", None).await?;
    assert_eq!((started.items, started.second_messages), (Some(8), None));
    work(&stage, &["sent", "failed"]).await?;
    assert_eq!(status(&stage, campaign, "first").await?, "failed");
    let failed = texts(
        &stage.admin,
        "select recipient_id::text from execution.channel_outbox where status = 'failed' order by 1",
    )
    .await?;
    assert_eq!(failed.len(), 4);

    let retried = control(&stage, campaign, "first", "retry", Some("failed")).await?;
    assert_eq!((retried.outcome.as_str(), retried.items), ("changed", Some(4)));
    assert_ne!(retried.run_id, started.run_id);
    assert_eq!(items_of(&stage, retried.run_id).await?, failed);
    work(&stage, &["sent"]).await?;
    assert_eq!(status(&stage, campaign, "first").await?, "completed");
    let twice =
        "select count(*) from (select recipient_id from execution.channel_outbox where status = 'sent'
                                        group by recipient_id having count(*) > 1) as twice";
    assert_eq!(number(&stage.admin, twice).await?, 0);
    let told = history(&stage, campaign).await?;
    let changes: Vec<&str> = told
        .iter()
        .filter_map(|event| event.split_once(' ').map(|(_, told)| told))
        .filter(|told| !told.starts_with("campaign_progress"))
        .collect();
    assert_eq!(
        changes,
        ["phase_started first", "phase_failed first", "phase_started first", "phase_completed first"]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn items_in_doubt_are_not_retried() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 4, &json!({ "quiet_time_seconds": 1 })).await?;
    control(&stage, campaign, "first", "start", None).await?;
    // Attempts are used up with everything in doubt.
    execute(&stage.admin, "set session_replication_role = replica; update execution.job_queue set max_attempts = 1; reset session_replication_role").await?;
    work(&stage, &["in_doubt"]).await?;
    assert_eq!(status(&stage, campaign, "first").await?, "failed");
    let refused = control(&stage, campaign, "first", "retry", None).await?;
    assert_eq!(
        (refused.outcome.as_str(), refused.reason.as_deref()),
        (
            "conflict",
            Some("nothing of it failed for certain; 4 items are in doubt and must be settled first")
        )
    );
    // One turns out not to have been sent; that one alone goes out again.
    let ids = texts(&stage.admin, "select id::text from execution.channel_outbox order by id").await?;
    execute(&stage.admin, "update execution.channel_outbox set in_doubt_since = now() - interval '1 hour'")
        .await?;
    let settle = |id: &str, how: &str| {
        format!(
            "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{id}', '{how}', null, 'it was looked up', 'a test')"
        )
    };
    stage.ask::<String>(stage.own, settle(&ids[0], "failed")).await?;
    let retried = control(&stage, campaign, "first", "retry", None).await?;
    assert_eq!((retried.outcome.as_str(), retried.items), ("changed", Some(1)));
    work(&stage, &["sent"]).await?;
    assert_eq!(status(&stage, campaign, "first").await?, "failed", "of three nobody knows");
    for id in &ids[1..] {
        stage.ask::<String>(stage.own, settle(id, "sent")).await?;
    }
    control(&stage, campaign, "first", "retry", None).await?;
    advance(&stage).await?;
    assert_eq!(status(&stage, campaign, "first").await?, "completed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_resolved_as_failed_is_retried_later_and_no_recipient_gets_two() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 4, &json!({ "quiet_time_seconds": 1, "failure_tolerance": 0 })).await?;
    control(&stage, campaign, "first", "start", None).await?;
    execute(&stage.admin, "set session_replication_role = replica; update execution.job_queue set max_attempts = 1; reset session_replication_role").await?;
    work(&stage, &["failed", "in_doubt"]).await?;
    let retried = control(&stage, campaign, "first", "retry", None).await?;
    assert_eq!(retried.items, Some(2), "the two that failed");
    // While those are under way, one of the others turns out not to have been sent.
    execute(&stage.admin, "update execution.channel_outbox set in_doubt_since = now() - interval '1 hour' where in_doubt_since is not null").await?;
    let doubt =
        texts(&stage.admin, "select id::text from execution.channel_outbox where in_doubt_since is not null")
            .await?;
    let sql = format!(
        "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{}', 'failed', null, 'it was looked up', 'a test')",
        doubt[0]
    );
    stage.ask::<String>(stage.own, sql).await?;
    work(&stage, &["sent", "failed"]).await?;
    assert_eq!(status(&stage, campaign, "first").await?, "failed");
    let again = control(&stage, campaign, "first", "retry", None).await?;
    assert_eq!(again.items, Some(2), "the one that failed again, and the one that was settled since");
    work(&stage, &["sent"]).await?;
    let twice = "select count(*) from (select recipient_id from execution.channel_outbox where status in ('sent', 'queued')
                                        group by recipient_id having count(*) > 1) as twice";
    assert_eq!(number(&stage.admin, twice).await?, 0);
    assert_eq!(
        number(&stage.admin, "select count(*) from execution.channel_outbox where status = 'sent'").await?,
        3
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_with_nothing_left_to_send_completes_the_phase() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 2, &json!({})).await?;
    control(&stage, campaign, "first", "start", None).await?;
    execute(&stage.admin, "set session_replication_role = replica; update execution.job_queue set max_attempts = 1; reset session_replication_role").await?;
    work(&stage, &["in_doubt"]).await?;
    for id in texts(&stage.admin, "select id::text from execution.channel_outbox").await? {
        let sql = format!(
            "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{id}', 'sent', null, 'they have it', 'a test')"
        );
        stage.ask::<String>(stage.own, sql).await?;
    }
    let retried = control(&stage, campaign, "first", "retry", None).await?;
    assert_eq!((retried.outcome.as_str(), retried.status.as_str()), ("changed", "in_progress"));
    advance(&stage).await?;
    assert_eq!(status(&stage, campaign, "first").await?, "completed");
    assert_eq!(number(&stage.admin, "select count(*) from execution.campaign_runs").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rerun_says_how_many_get_it_again() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 10, &json!({ "failure_tolerance": 0.5 })).await?;
    control(&stage, campaign, "first", "start", None).await?;
    work(&stage, &["sent", "sent", "sent", "sent", "failed"]).await?;
    assert_eq!(status(&stage, campaign, "first").await?, "completed");
    // A new lead has joined the list since.
    execute(
        &stage.admin,
        format!(
            "with lead as (insert into execution.leads (id, tenant_id, workspace_id, identity, email)
                           values (gen_random_uuid(), '{0}', '{1}', 'new', 'new@example.com') returning id)
             insert into execution.lead_list_members (tenant_id, list_id, lead_id)
             select '{0}', (select list_id from execution.campaign_phases where campaign_id = '{campaign}'), id from lead",
            stage.own.id, stage.own.workspace
        ),
    )
    .await?;
    let again = control(&stage, campaign, "first", "rerun", None).await?;
    assert_eq!(
        (again.outcome.as_str(), again.items, again.second_messages),
        ("changed", Some(11), Some(8)),
        "the eight that got it"
    );
    let told = texts(
        &stage.admin,
        format!(
            "select payload ->> 'secondMessages' from execution.campaign_events
              where campaign_id = '{campaign}' and sequence = {}",
            again.sequence
        ),
    )
    .await?;
    assert_eq!(told, ["8"]);
    work(&stage, &["sent"]).await?;
    assert_eq!(
        number(&stage.admin, "select count(*) from execution.channel_outbox where status = 'sent'").await?,
        19
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_list_does_not_start_and_leaves_no_trace() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 0, &json!({})).await?;
    let before = stage.census().await?;
    let refused = crate::sql::refusal(control(&stage, campaign, "first", "start", None).await)?;
    assert_eq!(refused.message, "the list of phase `first` is empty");
    assert_eq!(stage.census().await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn which_run_is_newest_is_not_a_matter_of_clocks() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 4, &json!({ "failure_tolerance": 0 })).await?;
    control(&stage, campaign, "first", "start", None).await?;
    work(&stage, &["sent", "failed"]).await?;
    // The retry's transaction began before the start's, by the clock.
    let retried = control(&stage, campaign, "first", "retry", None).await?;
    execute(
        &stage.admin,
        format!(
            "set session_replication_role = replica;
             update execution.campaign_runs set created_at = created_at - interval '1 hour' where id = '{}';
             reset session_replication_role",
            retried.run_id.unwrap_or_default()
        ),
    )
    .await?;
    work(&stage, &["sent", "failed"]).await?;
    let again = control(&stage, campaign, "first", "retry", None).await?;
    assert_eq!(again.items, Some(1), "whoever got it in the first retry is not asked again");
    work(&stage, &["sent"]).await?;
    assert_eq!(status(&stage, campaign, "first").await?, "completed");
    let twice =
        "select count(*) from (select recipient_id from execution.channel_outbox where status = 'sent'
                                        group by recipient_id having count(*) > 1) as twice";
    assert_eq!(number(&stage.admin, twice).await?, 0);
    Ok(())
}

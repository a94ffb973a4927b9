//! A pause is exact: what began to reserve before it is waited for, and nothing reserves after its answer.

use std::sync::Arc;

use serde_json::json;

use super::{advance, control, delivery, history, status};
use crate::{
    campaigns::execution::{Stage, Windows, calls::Job, claim, complete, finalize, reserve_all},
    sql::{execute, number, texts},
    world::eventually,
};

async fn release(stage: &Stage, worker: &str, job: &Job) -> anyhow::Result<()> {
    sqlx::query("select execution.release_job($1, $2, $3, $4)")
        .bind(job.tenant_id)
        .bind(job.job_id)
        .bind(worker)
        .bind(job.attempts)
        .execute(&stage.worker)
        .await?;
    Ok(())
}

async fn await_reservations(stage: &Stage, campaign: uuid::Uuid) -> Result<i64, sqlx::Error> {
    stage
        .ask(
            stage.own,
            format!(
                "select execution.await_reservations(tenancy.current_tenant_id(), '{campaign}', 'first')"
            ),
        )
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_phase_reserves_nothing_and_goes_on_where_it_was() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 6, &json!({})).await?;
    control(&stage, campaign, "first", "start", None).await?;
    let mut jobs = claim(&stage.worker, "w", 2).await?;
    let (begun, idle) = (jobs.remove(0), jobs.remove(0));
    let sent = Windows::of(&begun, 1, 1);
    assert_eq!(sent.begin(&stage.worker, "w").await?[0].verdict, "reserved");

    let paused = control(&stage, campaign, "first", "pause", Some("in_progress")).await?;
    assert_eq!((paused.outcome.as_str(), paused.status.as_str()), ("changed", "paused"));
    assert_eq!(await_reservations(&stage, campaign).await?, 1, "one call is under way");
    // One of two windows in a call is paused, both of them here; each says so once.
    let both = Windows::of(&begun, 2, 1).and(&idle, 1, 2);
    let verdicts: Vec<String> =
        both.begin(&stage.worker, "w").await?.into_iter().map(|item| item.verdict).collect();
    assert_eq!(verdicts, ["paused", "paused"]);
    assert_eq!(number(&stage.admin, "select count(*) from execution.channel_outbox").await?, 1);

    // The settlement of a running call is recorded; the send jobs wait where no claim looks, and use no attempt.
    finalize(&stage.worker, stage.own.id, "w", &[(sent.ids[0], "sent")]).await?;
    release(&stage, "w", &begun).await?;
    release(&stage, "w", &idle).await?;
    assert_eq!(claim(&stage.worker, "w", 10).await?.len(), 0);
    let waiting = "select count(*) from execution.job_queue where run_after = 'infinity' and attempts = 0";
    assert_eq!(number(&stage.admin, waiting).await?, 3);

    control(&stage, campaign, "first", "resume", None).await?;
    let jobs = claim(&stage.worker, "w", 10).await?;
    assert_eq!(jobs.len(), 3);
    for job in jobs {
        let windows = Windows::of(&job, 1, 2);
        for item in windows.begin(&stage.worker, "w").await?.iter().filter(|item| item.verdict == "reserved")
        {
            finalize(&stage.worker, stage.own.id, "w", &[(item.outbox_id.unwrap_or_default(), "sent")])
                .await?;
        }
        assert_eq!(complete(&stage.worker, "w", &job).await?, "completed");
    }
    assert_eq!(status(&stage, campaign, "first").await?, "completed");
    assert_eq!(
        number(&stage.admin, "select count(*) from execution.channel_outbox where status = 'sent'").await?,
        6
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn other_phases_in_the_same_call_are_not_held_up() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let paused = delivery(&stage, 2, &json!({})).await?;
    let other = delivery(&stage, 2, &json!({})).await?;
    control(&stage, paused, "first", "start", None).await?;
    control(&stage, other, "first", "start", None).await?;
    let mut jobs = claim(&stage.worker, "w", 10).await?;
    jobs.sort_by_key(|job| job.job_id);
    control(&stage, paused, "first", "pause", None).await?;
    let windows = Windows::of(&jobs[0], 1, 2).and(&jobs[1], 1, 2);
    let mut verdicts: Vec<String> =
        windows.begin(&stage.worker, "w").await?.into_iter().map(|item| item.verdict).collect();
    verdicts.sort_unstable();
    assert_eq!(verdicts, ["paused", "reserved", "reserved"]);
    let runs = format!(
        "select count(distinct run_id) from execution.channel_outbox
          where run_id in (select id from execution.campaign_runs where campaign_id = '{other}')"
    );
    assert_eq!(number(&stage.admin, runs).await?, 1);
    assert_eq!(number(&stage.admin, "select count(*) from execution.channel_outbox").await?, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_waits_for_running_reservations() -> anyhow::Result<()> {
    let stage = Arc::new(Stage::new().await?);
    let campaign = delivery(&stage, 2, &json!({})).await?;
    control(&stage, campaign, "first", "start", None).await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let mut reserving = stage.worker.begin().await?;
    let windows = Windows::of(&job, 1, 2);
    assert_eq!(windows.begin(&mut *reserving, "w").await?.len(), 2);

    // The pause itself does not wait: it is there at once. Its answer does.
    let paused = control(&stage, campaign, "first", "pause", None).await?;
    assert_eq!(paused.outcome, "changed");
    let waiting = {
        let stage = Arc::clone(&stage);
        tokio::spawn(async move { await_reservations(&stage, campaign).await })
    };
    eventually("the answer waits", async || {
        let sql = "select count(*) from pg_stat_activity
                    where query like '%await_reservations%' and wait_event_type = 'Lock'";
        Ok(number(&stage.admin, sql).await? > 0)
    })
    .await?;
    reserving.commit().await?;
    assert_eq!(waiting.await??, 2, "both were reserved before, and are counted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ends_while_paused_ends_its_phase_when_resumed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 2, &json!({})).await?;
    control(&stage, campaign, "first", "start", None).await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    control(&stage, campaign, "first", "pause", None).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent"), (ids[1], "sent")]).await?;
    assert_eq!(complete(&stage.worker, "w", &job).await?, "completed");
    assert_eq!(status(&stage, campaign, "first").await?, "paused");

    let resumed = control(&stage, campaign, "first", "resume", None).await?;
    assert_eq!((resumed.outcome.as_str(), resumed.status.as_str()), ("changed", "in_progress"));
    let again = control(&stage, campaign, "first", "resume", Some("paused")).await?;
    assert_eq!(again.outcome, "unchanged", "saying it twice is no mistake");
    advance(&stage).await?;
    assert_eq!(
        history(&stage, campaign).await?,
        [
            "1 phase_started first",
            "2 phase_paused first",
            "3 phase_resumed first",
            "4 campaign_progress first 100.0",
            "5 phase_completed first",
        ]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phase_that_is_planned_for_later_is_not_hurried_by_a_pause() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 2, &json!({ "scheduled_for": "2100-01-01T00:00:00Z" })).await?;
    control(&stage, campaign, "first", "start", None).await?;
    control(&stage, campaign, "first", "pause", None).await?;
    control(&stage, campaign, "first", "resume", None).await?;
    let times = texts(&stage.admin, "select run_after::date::text from execution.job_queue").await?;
    assert_eq!(times, ["2100-01-01"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_handed_back_meets_a_resume_half_way() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 2, &json!({})).await?;
    control(&stage, campaign, "first", "start", None).await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    control(&stage, campaign, "first", "pause", None).await?;
    // Handed back to the shelf, uncommitted, while somebody resumes: the resume waits and finds it.
    let mut releasing = stage.worker.begin().await?;
    sqlx::query("select execution.release_job($1, $2, 'w', $3)")
        .bind(job.tenant_id)
        .bind(job.job_id)
        .bind(job.attempts)
        .execute(&mut *releasing)
        .await?;
    let resuming = async { control(&stage, campaign, "first", "resume", None).await };
    let releasing = async {
        eventually("the resume waits", async || {
            let sql = "select count(*) from pg_stat_activity
                        where query like '%control_phase%' and wait_event_type = 'Lock'";
            Ok(number(&stage.admin, sql).await? > 0)
        })
        .await?;
        releasing.commit().await?;
        anyhow::Ok(())
    };
    let (resumed, released) = tokio::join!(resuming, releasing);
    released?;
    assert_eq!(resumed?.outcome, "changed");
    assert_eq!(claim(&stage.worker, "w", 1).await?.len(), 1, "it is not left on the shelf");
    execute(&stage.admin, "select 1").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_know_of_pauses_burns_no_attempts() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 2, &json!({})).await?;
    control(&stage, campaign, "first", "start", None).await?;
    let job = claim(&stage.worker, "old", 1).await?.remove(0);
    control(&stage, campaign, "first", "pause", None).await?;
    // It is told `paused`, takes the job for lost, and leaves it.
    stage.age_lock(&job, "6 minutes").await?;
    assert_eq!(claim(&stage.worker, "w", 10).await?.len(), 0);
    let stands = format!(
        "select status || ' ' || attempts || ' ' || run_after from execution.job_queue where id = '{}'",
        job.job_id
    );
    assert_eq!(texts(&stage.admin, stands).await?, ["queued 0 infinity"]);
    control(&stage, campaign, "first", "resume", None).await?;
    assert_eq!(claim(&stage.worker, "w", 10).await?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_cannot_see_a_pause_may_not_reserve() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 1).await?;
    let mut blind = stage.worker.begin_with("begin isolation level repeatable read").await?;
    let refused = crate::sql::refusal(Windows::of(&job, 1, 1).begin(&mut *blind, "w").await)?;
    assert!(refused.message.contains("read committed"), "{}", refused.message);
    Ok(())
}

//! Cancel: one or two transitions in one transaction, skipped items, and the way back by a retry.

use serde_json::json;
use uuid::Uuid;

use super::{Answer, advance, control, delivery, external, force, history, status};
use crate::{
    campaigns::execution::{Stage, Windows, calls::Job, claim, complete, finalize, reserve_all, row},
    sql::{number, refusal, texts},
};

/// A control with the newer arguments: the expected sequence, `include_canceled`, `only failed`.
async fn control_with(
    stage: &Stage,
    campaign: Uuid,
    trigger: &str,
    more: &str,
) -> Result<Answer, sqlx::Error> {
    use sqlx::Row;
    let sql = format!(
        "select * from execution.control_phase(tenancy.current_tenant_id(), '{campaign}', 'first', '{trigger}', null, 'a test', null, 2, {more})"
    );
    let mut transaction = stage.acting_for(stage.own).await?;
    let answer = row(&mut *transaction, sql).await?;
    transaction.commit().await?;
    Ok(Answer {
        outcome: answer.try_get("outcome")?,
        status: answer.try_get("status")?,
        reason: answer.try_get("reason")?,
        sequence: answer.try_get("sequence")?,
        run_id: answer.try_get("run_id")?,
        items: answer.try_get("items")?,
        second_messages: answer.try_get("second_messages")?,
    })
}

async fn release(stage: &Stage, job: &Job) -> Result<(), sqlx::Error> {
    sqlx::query("select execution.release_job($1, $2, 'w', $3)")
        .bind(job.tenant_id)
        .bind(job.job_id)
        .bind(job.attempts)
        .execute(&stage.worker)
        .await
        .map(|_| ())
}

/// Items by status and reason, like `skipped canceled 3`.
async fn items(stage: &Stage, run: Option<Uuid>) -> Result<Vec<String>, sqlx::Error> {
    let sql = format!(
        "select concat_ws(' ', status, case when skipped then error end, count(*)) from execution.channel_outbox
          where run_id = '{}' group by status, case when skipped then error end order by 1",
        run.unwrap_or_default()
    );
    texts(&stage.admin, sql).await
}

async fn run_status(stage: &Stage, run: Option<Uuid>) -> Result<String, sqlx::Error> {
    stage.look("status", "campaign_runs", run.unwrap_or_default()).await
}

/// The lifecycle events of a campaign with their trigger and control.
async fn changes(stage: &Stage, campaign: Uuid) -> Result<Vec<String>, sqlx::Error> {
    let sql = format!(
        "select concat_ws(' ', type, payload ->> 'trigger', payload ->> 'control', payload ->> 'reason') from execution.campaign_events
          where campaign_id = '{campaign}' and type <> 'campaign_progress' order by sequence"
    );
    texts(&stage.admin, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_run_ends_with_what_was_sent_and_skips_the_rest() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    // Send jobs of two items.
    let campaign = delivery(&stage, 8, &json!({})).await?;
    let started = control(&stage, campaign, "first", "start", None).await?;
    let jobs = claim(&stage.worker, "w", 2).await?;
    let done = reserve_all(&stage.worker, "w", &jobs[0]).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(done[0], "sent"), (done[1], "failed")]).await?;
    complete(&stage.worker, "w", &jobs[0]).await?;
    // One call of the second send job is in flight.
    let window = Windows::of(&jobs[1], 1, 1);
    window.begin(&stage.worker, "w").await?;

    let canceled = control(&stage, campaign, "first", "cancel", Some("in_progress")).await?;
    assert_eq!((canceled.outcome.as_str(), canceled.status.as_str()), ("changed", "failed"));
    assert_eq!(canceled.run_id, started.run_id);
    // No claim finds what waits, and a window of a held send job is refused.
    assert!(claim(&stage.worker, "v", 10).await?.is_empty());
    let refused = Windows::of(&jobs[1], 2, 1).begin(&stage.worker, "w").await?;
    assert_eq!(refused[0].verdict, "paused");
    // A retry waits until the run has ended.
    let early = control(&stage, campaign, "first", "retry", None).await?;
    assert_eq!(early.outcome, "conflict");
    assert!(early.reason.is_some_and(|reason| reason.contains("its canceled run has not ended yet")));

    // Send jobs that no worker holds end. The held one waits for its call.
    advance(&stage).await?;
    assert_eq!(
        items(&stage, started.run_id).await?,
        ["failed 1", "queued 1", "sent 1", "skipped canceled 4"]
    );
    assert_eq!(run_status(&stage, started.run_id).await?, "running");
    finalize(&stage.worker, stage.own.id, "w", &[(window.ids[0], "sent")]).await?;
    release(&stage, &jobs[1]).await?;
    assert_eq!(items(&stage, started.run_id).await?, ["failed 1", "sent 2", "skipped canceled 5"]);
    // Computed as always: one send job is partial.
    assert_eq!(run_status(&stage, started.run_id).await?, "partial");
    assert_eq!(status(&stage, campaign, "first").await?, "failed", "because it was canceled");
    let certificate = format!(
        "select launched::int::bigint * intended from execution.verify_launch('{}', '{}')
          where intended = sent + failed + skipped and missing = 0",
        stage.own.id,
        started.run_id.unwrap_or_default()
    );
    assert_eq!(number(&stage.admin, certificate).await?, 8, "the certificate adds up");
    assert_eq!(changes(&stage, campaign).await?, ["phase_started start", "phase_failed fail cancel"]);
    let logged = stage.log_of(started.run_id.unwrap_or_default()).await?;
    assert_eq!(logged.iter().filter(|line| *line == "phase.canceled by a test").count(), 1, "{logged:?}");

    // Once more changes nothing.
    let before = stage.census().await?;
    assert_eq!(control(&stage, campaign, "first", "cancel", None).await?.outcome, "unchanged");
    assert_eq!(stage.census().await?, before);
    let newest = history(&stage, campaign).await?.pop().unwrap_or_default();
    assert!(newest.ends_with("campaign_progress first 100.0"), "readers get the final counts: {newest}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_phase_is_canceled_by_two_transitions() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 6, &json!({})).await?;
    let started = control(&stage, campaign, "first", "start", None).await?;
    control(&stage, campaign, "first", "pause", None).await?;
    let wrong = control(&stage, campaign, "first", "cancel", Some("in_progress")).await?;
    assert_eq!(wrong.outcome, "conflict");
    assert_eq!(control(&stage, campaign, "first", "cancel", None).await?.outcome, "changed");
    assert_eq!(
        changes(&stage, campaign).await?,
        [
            "phase_started start",
            "phase_paused pause",
            "phase_resumed resume cancel",
            "phase_failed fail cancel"
        ]
    );
    assert!(claim(&stage.worker, "w", 10).await?.is_empty(), "no send job became due in between");
    advance(&stage).await?;
    assert_eq!(items(&stage, started.run_id).await?, ["skipped canceled 6"]);
    assert_eq!(run_status(&stage, started.run_id).await?, "completed");
    assert_eq!(status(&stage, campaign, "first").await?, "failed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_for_deliveries_under_way() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 2, &json!({})).await?;
    for from in ["not_started", "completed"] {
        force(&stage, campaign, from).await?;
        let refused = control(&stage, campaign, "first", "cancel", None).await?;
        assert_eq!(refused.outcome, "conflict");
        assert_eq!(refused.reason, Some(format!("a phase that is {from} cannot cancel")));
    }
    let other = external(&stage).await?;
    let refused = control(&stage, other, "only", "cancel", None).await?;
    assert!(refused.reason.is_some_and(|reason| reason.contains("`fail` ends it")));
    for (trigger, more) in [("start", "null, true"), ("retry", "null, false, true"), ("cancel", "null, true")]
    {
        assert_eq!(refusal(control_with(&stage, campaign, trigger, more).await)?.code, "22023", "{trigger}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn items_in_doubt_stay_in_doubt_when_their_run_is_canceled() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 4, &json!({ "quiet_time_seconds": 1 })).await?;
    let started = control(&stage, campaign, "first", "start", None).await?;
    let jobs = claim(&stage.worker, "w", 2).await?;
    // One call has no answer; the send job waits for its next attempt. The worker of the other one dies in its call.
    let ids = reserve_all(&stage.worker, "w", &jobs[0]).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "in_doubt"), (ids[1], "sent")]).await?;
    assert_eq!(complete(&stage.worker, "w", &jobs[0]).await?, "failed");
    Windows::of(&jobs[1], 1, 1).begin(&stage.worker, "w").await?;
    control(&stage, campaign, "first", "cancel", None).await?;
    advance(&stage).await?;
    assert_eq!(stage.look("status", "job_queue", jobs[0].job_id).await?, "dead", "nothing is left to try");
    stage.age_lock(&jobs[1], "5 minutes 1 second").await?;
    assert!(claim(&stage.worker, "v", 10).await?.is_empty());
    assert_eq!(stage.look("status", "job_queue", jobs[1].job_id).await?, "dead");
    assert_eq!(items(&stage, started.run_id).await?, ["queued 2", "sent 1", "skipped canceled 1"]);
    let doubts = "select count(*) from execution.channel_outbox where in_doubt_since is not null";
    assert_eq!(number(&stage.admin, doubts).await?, 2);
    // Evidence settles them; a retry never takes them before.
    let refused = control(&stage, campaign, "first", "retry", None).await?;
    assert_eq!(
        refused.reason.as_deref(),
        Some(
            "nothing of it failed for certain; 1 items were canceled, which a retry with `include_canceled` sends"
        )
    );
    let retried = control_with(&stage, campaign, "retry", "null, true").await?;
    assert_eq!(
        (retried.outcome.as_str(), retried.items, retried.second_messages),
        ("changed", Some(1), Some(0))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_takes_what_failed_and_on_request_what_was_canceled() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 8, &json!({})).await?;
    control(&stage, campaign, "first", "start", None).await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent"), (ids[1], "failed")]).await?;
    complete(&stage.worker, "w", &job).await?;
    control(&stage, campaign, "first", "cancel", None).await?;
    advance(&stage).await?;

    let retried = control(&stage, campaign, "first", "retry", None).await?;
    assert_eq!((retried.items, retried.second_messages), (Some(1), Some(0)), "the one that failed");
    // A send job of the canceled run reserves nothing, although the phase is in progress again.
    let late = Windows::of(&job, 1, 1).begin(&stage.worker, "w").await?;
    assert_eq!(late[0].verdict, "lost");
    let again = claim(&stage.worker, "w", 10).await?;
    let ids = reserve_all(&stage.worker, "w", &again[0]).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent")]).await?;
    complete(&stage.worker, "w", &again[0]).await?;
    assert_eq!(status(&stage, campaign, "first").await?, "failed", "six people got nothing");

    let all = control_with(&stage, campaign, "retry", "null, true").await?;
    assert_eq!((all.items, all.second_messages), (Some(6), Some(0)));
    loop {
        let jobs = claim(&stage.worker, "w", 10).await?;
        if jobs.is_empty() {
            break;
        }
        for job in jobs {
            let ids = reserve_all(&stage.worker, "w", &job).await?;
            let settled: Vec<_> = ids.into_iter().map(|id| (id, "sent")).collect();
            finalize(&stage.worker, stage.own.id, "w", &settled).await?;
            complete(&stage.worker, "w", &job).await?;
        }
    }
    assert_eq!(status(&stage, campaign, "first").await?, "completed");
    let people = "select count(*) * 1000 + count(distinct recipient_id) from execution.channel_outbox where status = 'sent'";
    assert_eq!(number(&stage.admin, people).await?, 8_008, "everybody got it once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rerun_of_the_failed_items_sends_no_second_message() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 10, &json!({ "failure_tolerance": 0.5 })).await?;
    control(&stage, campaign, "first", "start", None).await?;
    for (n, job) in claim(&stage.worker, "w", 10).await?.into_iter().enumerate() {
        let ids = reserve_all(&stage.worker, "w", &job).await?;
        let second = if n < 3 { "failed" } else { "sent" };
        finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent"), (ids[1], second)]).await?;
        complete(&stage.worker, "w", &job).await?;
    }
    assert_eq!(status(&stage, campaign, "first").await?, "completed");
    let again = control_with(&stage, campaign, "rerun", "null, false, true").await?;
    assert_eq!((again.outcome.as_str(), again.items, again.second_messages), ("changed", Some(3), Some(0)));
    // The whole audience counts: seven of ten got it, and the tolerance is a half.
    for job in claim(&stage.worker, "w", 10).await? {
        let ids = reserve_all(&stage.worker, "w", &job).await?;
        let settled: Vec<_> = ids.into_iter().map(|id| (id, "failed")).collect();
        finalize(&stage.worker, stage.own.id, "w", &settled).await?;
        complete(&stage.worker, "w", &job).await?;
    }
    assert_eq!(status(&stage, campaign, "first").await?, "completed");
    let third = control_with(&stage, campaign, "rerun", "null, false, true").await?;
    assert_eq!(third.items, Some(3));
    for job in claim(&stage.worker, "w", 10).await? {
        let ids = reserve_all(&stage.worker, "w", &job).await?;
        let settled: Vec<_> = ids.into_iter().map(|id| (id, "sent")).collect();
        finalize(&stage.worker, stage.own.id, "w", &settled).await?;
        complete(&stage.worker, "w", &job).await?;
    }
    let nothing = control_with(&stage, campaign, "rerun", "null, false, true").await?;
    assert_eq!(nothing.reason.as_deref(), Some("nothing of it failed for certain"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_control_with_its_sequence_changes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 2, &json!({ "failure_tolerance": 0 })).await?;
    control(&stage, campaign, "first", "start", None).await?;
    let fail = async || {
        for job in claim(&stage.worker, "w", 10).await? {
            let ids = reserve_all(&stage.worker, "w", &job).await?;
            let settled: Vec<_> = ids.into_iter().map(|id| (id, "failed")).collect();
            finalize(&stage.worker, stage.own.id, "w", &settled).await?;
            complete(&stage.worker, "w", &job).await?;
        }
        anyhow::Ok(())
    };
    fail().await?;
    let newest = format!("select sequence from execution.campaigns where id = '{campaign}'");
    let seen = number(&stage.admin, newest).await?;
    let retried = control_with(&stage, campaign, "retry", &seen.to_string()).await?;
    assert_eq!(retried.outcome, "changed");
    // The answer was lost, and the client asks again: while the retry runs, and after it has failed, too.
    assert_eq!(control_with(&stage, campaign, "retry", &seen.to_string()).await?.outcome, "unchanged");
    fail().await?;
    assert_eq!(status(&stage, campaign, "first").await?, "failed");
    let before = stage.census().await?;
    let again = control_with(&stage, campaign, "retry", &seen.to_string()).await?;
    assert_eq!(again.outcome, "conflict");
    assert!(again.reason.is_some_and(|reason| reason.ends_with(&format!("after event {seen} as expected"))));
    let ahead = control_with(&stage, campaign, "retry", "1000000").await?;
    assert_eq!(ahead.reason.as_deref(), Some("the campaign has no event 1000000 yet"));
    assert_eq!(stage.census().await?, before);
    assert_eq!(number(&stage.admin, "select count(*) from execution.campaign_runs").await?, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenant_cancels_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 4, &json!({})).await?;
    control(&stage, campaign, "first", "start", None).await?;
    let other = crate::campaigns::execution::Tenant::create(&stage.admin, "other").await?;
    let before = stage.census().await?;
    let sql = format!(
        "select outcome from execution.control_phase(tenancy.current_tenant_id(), '{campaign}', 'first', 'cancel', null, 'a test')"
    );
    let refused = refusal(stage.ask::<String>(other, sql).await)?;
    assert_eq!(refused.message, format!("there is no campaign {campaign}"));
    assert_eq!(stage.census().await?, before);
    assert_eq!(status(&stage, campaign, "first").await?, "in_progress");
    Ok(())
}

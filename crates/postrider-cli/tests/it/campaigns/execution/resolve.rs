//! resolve_in_doubt: positive evidence counts at once, negative evidence after the quiet time, and both are logged.

use serde_json::json;
use uuid::Uuid;

use super::{Job, NOTHING, Stage, Tenant, claim, complete, finalize, reserve_all};
use crate::sql::{execute, number, refusal, texts};

/// Asks for a resolution.
async fn resolve(stage: &Stage, tenant: Tenant, id: Uuid, word: &str) -> Result<String, sqlx::Error> {
    let sql = format!(
        "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{id}', '{word}', 'theirs', 'seen in their log', 'ann')"
    );
    stage.ask(tenant, sql).await
}

/// A job with items that are all in doubt by an unknown answer.
async fn doubtful(stage: &Stage, items: usize) -> anyhow::Result<(Job, Vec<Uuid>)> {
    let job = stage.job("w", items).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    let settled: Vec<(Uuid, &str)> = ids.iter().map(|id| (*id, "in_doubt")).collect();
    finalize(&stage.worker, stage.own.id, "w", &settled).await?;
    Ok((job, ids))
}

/// Moves the beginning of all doubts.
async fn age_doubts(stage: &Stage, age: &str) -> Result<(), sqlx::Error> {
    let sql = format!(
        "update execution.channel_outbox set in_doubt_since = now() - interval '{age}' where in_doubt_since is not null"
    );
    execute(&stage.admin, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn that_it_was_done_counts_at_once_in_the_word_of_the_channel() -> anyhow::Result<()> {
    for (channel, word) in [("email", "sent"), ("voice", "called"), ("social", "posted")] {
        let stage = Stage::new().await?;
        stage.run_of(stage.own, 1, 1, &json!({ "channel": channel })).await?;
        let job = claim(&stage.worker, "w", 1).await?.remove(0);
        let ids = reserve_all(&stage.worker, "w", &job).await?;
        finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "in_doubt")]).await?;

        assert_eq!(resolve(&stage, stage.own, ids[0], "sent").await?, word);

        let row = "concat_ws(' ', status, provider_message_id, error is null, in_doubt_since is null, finalized_at is not null)";
        assert_eq!(stage.look(row, "channel_outbox", ids[0]).await?, format!("{word} theirs t t t"));
        assert_eq!(
            stage.log_of(ids[0]).await?,
            ["item.in_doubt by w".to_owned(), format!("item.resolved_as_{word} by ann")]
        );
        let note = "select count(*) from execution.campaign_audit_log where note = 'seen in their log'";
        assert_eq!(number(&stage.admin, note).await?, 1);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn that_it_was_not_done_counts_when_the_quiet_time_is_over() -> anyhow::Result<()> {
    // Set-up and call in one transaction, in which `now()` stands still.
    for (quiet, age, allowed) in [
        (630, "0 seconds", false),
        (630, "10 minutes 29.999999 seconds", false),
        (630, "10 minutes 30 seconds", true),
        (630, "1 day", true),
        (3600, "10 minutes 30 seconds", false),
        (3600, "1 hour", true),
    ] {
        let stage = Stage::new().await?;
        let run = stage.run_of(stage.own, 1, 1, &json!({ "quiet_time_seconds": quiet })).await?;
        let job = claim(&stage.worker, "w", 1).await?.remove(0);
        assert_eq!(job.run_id, run);
        let ids = reserve_all(&stage.worker, "w", &job).await?;
        finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "in_doubt")]).await?;
        let mut transaction = stage.admin.begin().await?;
        let context = format!(
            "update execution.channel_outbox set in_doubt_since = now() - interval '{age}';
             set local app.current_tenant_id = '{}'; set local role postrider_app",
            stage.own.id
        );
        execute(&mut *transaction, context).await?;
        let sql = format!(
            "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{}', 'failed', null, 'unknown to them', 'ann')",
            ids[0]
        );
        let answer = texts(&mut *transaction, sql).await;
        if allowed {
            assert_eq!(answer?, ["failed"], "{age} of {quiet} s");
        } else {
            let refused = refusal(answer)?;
            assert_eq!(refused.code, "22023");
            assert!(refused.message.contains("may still arrive until"), "{refused:?}");
            assert!(refused.hint.contains("counts only after the quiet time"), "{refused:?}");
        }
        transaction.rollback().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_is_not_in_doubt_while_its_worker_is_heard_of() -> anyhow::Result<()> {
    // How long the worker has been silent, and how old the reservation is: the doubt begins with the later of the two.
    for (silence, age, word, answer) in [
        ("0 seconds", "1 hour", "sent", Err("its worker is at work")),
        ("60 seconds", "1 hour", "sent", Err("its worker is at work")),
        ("60.000001 seconds", "1 hour", "sent", Ok("sent")),
        ("60.000001 seconds", "1 hour", "failed", Err("may still arrive")),
        ("10 minutes 29.999999 seconds", "1 hour", "failed", Err("may still arrive")),
        ("10 minutes 30 seconds", "1 hour", "failed", Ok("failed")),
        ("10 minutes 30 seconds", "10 minutes 29.999999 seconds", "failed", Err("may still arrive")),
        ("1 hour", "0 seconds", "failed", Err("may still arrive")),
        ("1 hour", "10 minutes 30 seconds", "failed", Ok("failed")),
    ] {
        let stage = Stage::new().await?;
        stage.run_of(stage.own, 1, 1, &json!({ "quiet_time_seconds": 630 })).await?;
        let job = claim(&stage.worker, "w", 1).await?.remove(0);
        let ids = reserve_all(&stage.worker, "w", &job).await?;
        let mut transaction = stage.admin.begin().await?;
        let context = format!(
            "update execution.job_queue set locked_at = now() - interval '{silence}';
             alter table execution.channel_outbox disable trigger user;
             update execution.channel_outbox set created_at = now() - interval '{age}';
             set local app.current_tenant_id = '{}'; set local role postrider_app",
            stage.own.id
        );
        execute(&mut *transaction, context).await?;
        let sql = format!(
            "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{}', '{word}', null, 'how', 'ann')",
            ids[0]
        );
        match (texts(&mut *transaction, sql).await, answer) {
            (Ok(said), Ok(expected)) => assert_eq!(said, [expected], "{silence}, {age}"),
            (said, Err(expected)) => assert!(refusal(said)?.message.contains(expected), "{silence}, {age}"),
            (said, expected) => anyhow::bail!("{silence}, {age}: {said:?} instead of {expected:?}"),
        }
        transaction.rollback().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resolution_says_as_what_how_it_is_known_and_by_whom() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (_, ids) = doubtful(&stage, 1).await?;
    age_doubts(&stage, "1 day").await?;
    for arguments in [
        "'skipped', null, 'how', 'ann'",
        "'queued', null, 'how', 'ann'",
        "'called', null, 'how', 'ann'",
        "'', null, 'how', 'ann'",
        "null, null, 'how', 'ann'",
        "'sent', null, null, 'ann'",
        "'sent', null, '  ', 'ann'",
        "'failed', null, '', 'ann'",
        "'sent', null, 'how', null",
        "'failed', null, 'how', ' '",
    ] {
        let sql = format!(
            "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{}', {arguments})",
            ids[0]
        );
        assert_eq!(refusal(stage.ask::<String>(stage.own, sql).await)?.code, "22023", "{arguments}");
    }
    assert_eq!(stage.look("status", "channel_outbox", ids[0]).await?, "queued");
    let none = format!(
        "select execution.resolve_in_doubt('{}', '{}', 'sent', null, 'how', 'ann')",
        stage.own.id, ids[0]
    );
    assert_eq!(refusal(texts(&stage.app, none).await)?.code, "42501", "no tenant");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_item_is_unknown_and_a_settled_one_is_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (_, ids) = doubtful(&stage, 2).await?;
    age_doubts(&stage, "1 day").await?;
    let other = Tenant::create(&stage.admin, "other").await?;
    for word in ["sent", "failed"] {
        let mut said = Vec::new();
        for id in [ids[0], Uuid::now_v7()] {
            let mut refused = refusal(resolve(&stage, other, id, word).await)?;
            refused.message = refused.message.replace(&id.to_string(), "X");
            said.push(refused);
        }
        assert_eq!(said[0], said[1]);
        assert_eq!((said[0].code.as_str(), said[0].message.as_str()), ("P0002", "there is no item X"));
    }
    assert_eq!(resolve(&stage, stage.own, ids[0], "failed").await?, "failed");
    for word in ["sent", "failed"] {
        let refused = refusal(resolve(&stage, stage.own, ids[0], word).await)?;
        assert_eq!(
            (refused.code.as_str(), refused.message),
            ("22023", format!("item {} is failed already", ids[0]))
        );
    }
    // The real answer comes too late: nothing changes, and the log keeps it.
    assert_eq!(finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent")]).await?, NOTHING);
    assert_eq!(stage.look("status", "channel_outbox", ids[0]).await?, "failed");
    assert_eq!(stage.log_of(ids[0]).await?.last().map(String::as_str), Some("item.contradicted by w"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_due_when_the_last_of_its_doubts_is_settled() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (job, ids) = doubtful(&stage, 2).await?;
    assert_eq!(complete(&stage.worker, "w", &job).await?, "failed");
    execute(&stage.admin, "update execution.job_queue set run_after = now() + interval '1 year'").await?;

    resolve(&stage, stage.own, ids[0], "sent").await?;
    assert_eq!(claim(&stage.worker, "v", 1).await?.len(), 0, "one is still in doubt");
    resolve(&stage, stage.own, ids[1], "sent").await?;

    let again = claim(&stage.worker, "v", 1).await?;
    assert_eq!(again.len(), 1);
    assert_eq!(complete(&stage.worker, "v", &again[0]).await?, "completed");
    assert_eq!(stage.look("status", "campaign_runs", job.run_id).await?, "completed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_that_outlived_its_job_is_settled_and_the_job_stays_as_it_ended() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (mut job, ids) = doubtful(&stage, 1).await?;
    execute(&stage.admin, "update execution.job_queue set attempts = max_attempts").await?;
    job.attempts = 5;
    assert_eq!(complete(&stage.worker, "w", &job).await?, "dead");
    assert_eq!(resolve(&stage, stage.own, ids[0], "sent").await?, "sent");
    assert_eq!(stage.look("status || ' ' || outcome", "job_queue", job.job_id).await?, "dead failed");
    Ok(())
}

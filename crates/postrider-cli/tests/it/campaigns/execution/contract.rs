//! The contract of campaign execution (docs/contract.md): refused rows, the four invariants, the three recoveries, the trace.

use sqlx::Row;
use uuid::Uuid;

use super::{Stage, Windows, claim, complete, finalize, reserve_all, row};
use crate::sql::{acting_as, execute, number, refusal, texts};

/// Inserts an item as the superuser.
async fn insert(stage: &Stage, columns: &str, values: &str) -> Result<(), sqlx::Error> {
    let sql = format!(
        "insert into execution.channel_outbox (run_id, job_id, channel, provider, {columns}) \
         values (gen_random_uuid(), gen_random_uuid(), 'email', 'sim', {values})"
    );
    execute(&stage.admin, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_with_a_wrong_status_or_without_a_key_is_rejected() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let own = format!("'{}', '{}'", stage.own.id, stage.own.workspace);
    for status in ["queued", "sent", "called", "posted", "failed", "skipped"] {
        let values = format!("{own}, gen_random_uuid()::text, '{status}', {}", status == "skipped");
        insert(&stage, "tenant_id, workspace_id, idempotency_key, status, skipped", &values).await?;
        if status != "skipped" {
            let values = format!("{own}, gen_random_uuid()::text, '{status}', true");
            let refused =
                insert(&stage, "tenant_id, workspace_id, idempotency_key, status, skipped", &values);
            let refused = refusal(refused.await)?;
            assert_eq!(refused.code, "23514", "skipped as {status}");
            assert!(refused.message.contains("channel_outbox_skipped_status_check"), "{refused:?}");
        }
    }
    for status in ["sending", "delivered", "", "SENT", "sent ", "in_doubt"] {
        let values = format!("{own}, gen_random_uuid()::text, '{status}'");
        let refused =
            refusal(insert(&stage, "tenant_id, workspace_id, idempotency_key, status", &values).await)?;
        assert_eq!(refused.code, "23514", "{status}");
        assert!(refused.message.contains("channel_outbox_status_check"), "{refused:?}");
    }
    let values = format!("{own}, gen_random_uuid()::text, null");
    let no_status = insert(&stage, "tenant_id, workspace_id, idempotency_key, status", &values).await;
    assert_eq!(refusal(no_status)?.code, "23502");
    for (columns, values) in [
        ("tenant_id, workspace_id", own.clone()),
        ("tenant_id, workspace_id, idempotency_key", format!("{own}, null")),
    ] {
        let refused = refusal(insert(&stage, columns, &values).await)?;
        assert_eq!(refused.code, "23502");
        assert!(refused.message.contains("idempotency_key"), "{refused:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_used_once_per_tenant_and_workspace_and_freely_in_others() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, workspace) = (stage.own.id, stage.own.workspace);
    let columns = "tenant_id, workspace_id, idempotency_key, status";
    insert(&stage, columns, &format!("'{own}', '{workspace}', 'k', 'queued'")).await?;
    for status in ["queued", "sent", "failed", "skipped"] {
        let again = insert(&stage, columns, &format!("'{own}', '{workspace}', 'k', '{status}'")).await;
        let refused = refusal(again)?;
        assert_eq!(refused.code, "23505");
        assert!(refused.message.contains("channel_outbox_one_row_per_key"), "{refused:?}");
    }
    let other = Uuid::now_v7();
    insert(&stage, columns, &format!("'{own}', '{other}', 'k', 'queued'")).await?;
    insert(&stage, columns, &format!("'{other}', '{workspace}', 'k', 'queued'")).await?;
    insert(&stage, columns, &format!("'{own}', '{workspace}', 'K', 'queued'")).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_has_the_constraints_of_the_contract_by_name() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let constraints = "select conname || ': ' || pg_get_constraintdef(oid) from pg_constraint \
          where conrelid = 'execution.channel_outbox'::regclass and (conname ~ 'status_check' or contype = 'u') order by 1";
    assert_eq!(
        texts(&stage.admin, constraints).await?,
        [
            // The contract (docs/contract.md) fixes the columns. Their order is ours: see the comment on the indexes of the table.
            "channel_outbox_one_row_per_key: UNIQUE (idempotency_key, tenant_id, workspace_id)",
            "channel_outbox_skipped_status_check: CHECK (((skipped = false) OR (status = 'skipped'::text)))",
            "channel_outbox_status_check: CHECK ((status = ANY (ARRAY['queued'::text, 'sent'::text, 'called'::text, \
             'posted'::text, 'failed'::text, 'skipped'::text])))",
        ]
    );
    let index = "select pg_get_indexdef('execution.idx_channel_outbox_run_id'::regclass)";
    assert_eq!(
        texts(&stage.admin, index).await?,
        ["CREATE INDEX idx_channel_outbox_run_id ON execution.channel_outbox USING btree (run_id)"]
    );
    Ok(())
}

/// Invariants 1, 3 and 4: the row is there before the call, the job ends with its items, the run with its jobs.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_from_queued_to_completed_and_each_step_waits_for_the_one_before() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let run = stage.run(2, 1).await?;
    let status = async || stage.look("status", "campaign_runs", run).await;
    assert_eq!(status().await?, "queued");
    let jobs = claim(&stage.worker, "w", 10).await?;
    assert_eq!(status().await?, "running");
    for (at, job) in jobs.iter().enumerate() {
        let ids = reserve_all(&stage.worker, "w", job).await?;
        assert_eq!(stage.look("status", "channel_outbox", ids[0]).await?, "queued");
        finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent")]).await?;
        assert_eq!(complete(&stage.worker, "w", job).await?, "completed");
        assert_eq!(status().await?, if at == 0 { "running" } else { "completed" });
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_an_item_that_was_not_tried_or_not_answered_is_not_completed() -> anyhow::Result<()> {
    for reserved in [0, 1, 2] {
        let stage = Stage::new().await?;
        let job = stage.job("w", 2).await?;
        let windows = Windows::of(&job, 1, reserved);
        windows.begin(&stage.worker, "w").await?;
        if let Some(first) = windows.ids.first() {
            finalize(&stage.worker, stage.own.id, "w", &[(*first, "sent")]).await?;
        }
        assert_eq!(complete(&stage.worker, "w", &job).await?, "failed", "{reserved} reserved");
        assert_eq!(stage.look("status", "campaign_runs", job.run_id).await?, "running");
    }
    Ok(())
}

/// Recovery 1 and 2 look the same from here: the row is there, and nobody knows whether the call was made.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_between_reservation_and_answer_the_item_is_skipped_and_stays_queued()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("dead", 3).await?;
    let windows = Windows::of(&job, 1, 2);
    windows.begin(&stage.worker, "dead").await?;

    let again = stage.take_over(&job, "alive").await?;
    assert_eq!(again.attempts, 2);
    let begun = Windows::of(&again, 1, 3).begin(&stage.worker, "alive").await?;

    let mut verdicts: Vec<(Option<Uuid>, &str)> =
        begun.iter().map(|item| (item.item_id, item.verdict.as_str())).collect();
    verdicts.sort_unstable_by_key(|(item, _)| job.item_ids.iter().position(|id| Some(*id) == *item));
    let expected = [(0, "queued"), (1, "queued"), (2, "reserved")];
    assert_eq!(verdicts, expected.map(|(at, verdict)| (Some(job.item_ids[at]), verdict)));
    for id in windows.ids {
        assert_eq!(stage.look("status", "channel_outbox", id).await?, "queued");
        assert_eq!(stage.look("in_doubt_since is not null", "channel_outbox", id).await?, "true");
        assert_eq!(stage.log_of(id).await?, ["item.in_doubt by alive"]);
    }
    assert_eq!(number(&stage.admin, "select count(*) from execution.channel_outbox").await?, 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_older_than_five_minutes_is_taken_away_with_one_attempt_more() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("dead", 1).await?;
    assert_eq!(claim(&stage.worker, "alive", 10).await?.len(), 0, "a fresh lock holds");
    stage.age_lock(&job, "4 minutes").await?;
    assert_eq!(claim(&stage.worker, "alive", 10).await?.len(), 0, "a lock of four minutes holds");

    let again = stage.take_over(&job, "alive").await?;

    assert_eq!((job.attempts, again.attempts), (1, 2));
    assert_eq!(stage.look("locked_by", "job_queue", job.job_id).await?, "alive");
    assert_eq!(
        stage.log_of(job.job_id).await?,
        ["job.locked by dead", "job.requeued by alive", "job.locked by alive"]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_works_as_the_document_writes_it() -> anyhow::Result<()> {
    const TRACE: &str = "-- Full execution trace
SELECT 
  cr.id as run_id, cr.status as run_status,
  jq.id as job_id, jq.status as job_status, jq.attempts,
  co.id as outbox_id, co.status as outbox_status, co.provider_message_id
FROM campaign_runs cr
JOIN job_queue jq ON jq.run_id = cr.id
LEFT JOIN channel_outbox co ON co.run_id = cr.id
WHERE cr.campaign_id = 'CAMPAIGN_UUID'
ORDER BY cr.created_at DESC, jq.created_at, co.created_at;";
    let stage = Stage::new().await?;
    let job = stage.job("w", 1).await?;
    let campaign = stage.look("campaign_id", "campaign_runs", job.run_id).await?;
    let trace = TRACE.replace("CAMPAIGN_UUID", &campaign);
    for role in ["postrider_app", "postrider_worker", "postrider_read"] {
        let mut transaction = stage.world.client(role).await?.begin().await?;
        let context = format!("set local search_path = execution; {}", acting_as(stage.own.id));
        execute(&mut *transaction, context).await?;
        let before = row(&mut *transaction, &trace).await?;
        assert_eq!(before.get::<Option<Uuid>, _>("outbox_id"), None, "{role}");
        transaction.rollback().await?;
    }

    let ids = reserve_all(&stage.worker, "w", &job).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent")]).await?;
    complete(&stage.worker, "w", &job).await?;

    let mut transaction = stage.acting_for(stage.own).await?;
    execute(&mut *transaction, "set local search_path = execution").await?;
    let traced = row(&mut *transaction, &trace).await?;
    let text = |name: &str| traced.get::<String, _>(name);
    assert_eq!(traced.get::<Uuid, _>("run_id"), job.run_id);
    assert_eq!(traced.get::<Uuid, _>("job_id"), job.job_id);
    assert_eq!(traced.get::<Uuid, _>("outbox_id"), ids[0]);
    assert_eq!(traced.get::<i32, _>("attempts"), 1);
    let statuses = [text("run_status"), text("job_status"), text("outbox_status")];
    assert_eq!(statuses, ["completed", "completed", "sent"]);
    assert_eq!(text("provider_message_id"), format!("message {}", ids[0]));
    transaction.rollback().await?;
    Ok(())
}

//! Retention of runs: the certificate stays, the rows go, and no key can be reserved again.

use std::time::Duration;

use postrider_engine::tenancy::retention::Retention;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Stage, Tenant, Windows, claim, complete, finalize, reserve_all};
use crate::sql::{execute, number, refusal, texts};

/// Retention of 30 days.
fn retention(export_dir: Option<&std::path::Path>) -> Retention {
    Retention {
        events: None,
        history: None,
        items: Some(Duration::from_secs(30 * 24 * 3600)),
        export_dir: export_dir.map(Into::into),
        messages: None,
        runs: None,
        every: Duration::from_secs(3600),
    }
}

/// Lets a run that has ended be old.
async fn age(stage: &Stage, run: Uuid, age: &str) -> Result<(), sqlx::Error> {
    let sql = format!(
        "begin; set local session_replication_role = replica;
         update execution.campaign_runs set created_at = now() - interval '{age}', finished_at = now() - interval '{age}' where id = '{run}';
         commit"
    );
    execute(&stage.admin, sql).await
}

/// A run in jobs of three, of which the worker sends all but one.
async fn sent(stage: &Stage, tenant: Tenant, leads: usize) -> anyhow::Result<(Uuid, Vec<super::Job>)> {
    let run = stage.run_of(tenant, leads, 3, &json!({})).await?;
    let jobs = claim(&stage.worker, "w", 1000).await?;
    for (n, job) in jobs.iter().enumerate() {
        let items = reserve_all(&stage.worker, "w", job).await?;
        let settled: Vec<_> = items
            .iter()
            .enumerate()
            .map(|(at, item)| (*item, if n == 0 && at == 0 { "failed" } else { "sent" }))
            .collect();
        finalize(&stage.worker, tenant.id, "w", &settled).await?;
        complete(&stage.worker, "w", job).await?;
    }
    Ok((run, jobs))
}

async fn certificate(stage: &Stage, tenant: Tenant, run: Uuid) -> anyhow::Result<Vec<String>> {
    let sql = format!(
        "select concat_ws('/', launch.run_status, launch.intended, launch.sent, launch.failed, launch.in_doubt, launch.missing, launch.launched)
                || ' ' || concat_ws('/', progress.intended, progress.succeeded, progress.failed, progress.in_doubt, progress.jobs_completed)
           from execution.verify_launch('{0}', '{run}') as launch, execution.run_progress('{0}', array['{run}'::uuid]) as progress",
        tenant.id
    );
    Ok(texts(&stage.admin, sql).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_run_loses_its_rows_and_keeps_its_certificate_and_no_key_is_reserved_again()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = Tenant::create(&stage.admin, "other").await?;
    let (old, jobs) = sent(&stage, stage.own, 8).await?;
    let (young, _) = sent(&stage, stage.own, 2).await?;
    let (theirs, _) = sent(&stage, other, 2).await?;
    let reports =
        "insert into execution.deliveries (tenant_id, outbox_id, run_id, status, message_id, reported_at)
        select tenant_id, id, run_id, case status when 'sent' then 'delivered' else 'bounced' end, 'm', now()
          from execution.channel_outbox";
    execute(&stage.admin, reports).await?;
    age(&stage, old, "31 days").await?;
    let before = certificate(&stage, stage.own, old).await?;
    assert_eq!(before, ["partial/8/7/1/0/0/t 8/7/1/0/3"]);
    let key = texts(
        &stage.admin,
        format!("select idempotency_key from execution.channel_outbox where run_id = '{old}' order by 1"),
    )
    .await?;

    let directory = tempfile::tempdir()?;
    let pool = stage.world.pool("postrider_worker").await?;
    let removed = retention(Some(directory.path())).sweep_items(&pool, &CancellationToken::new()).await?;
    assert_eq!(removed, 3 + 8);
    assert_eq!(retention(None).sweep_items(&pool, &CancellationToken::new()).await?, 0);
    let left = "select distinct run_id::text from execution.channel_outbox union select run_id::text from execution.job_queue order by 1";
    let mut kept = [young.to_string(), theirs.to_string()];
    kept.sort_unstable();
    assert_eq!(texts(&stage.admin, left).await?, kept);
    assert_eq!(certificate(&stage, stage.own, old).await?, before);
    let archive = "select concat_ws(' ', removed_at is not null, exported_to) from execution.run_archives";
    let name = format!("{}/{old}.ndjson", stage.own.id);
    assert_eq!(texts(&stage.admin, archive).await?, [format!("t {name}")]);
    let lines = std::fs::read_to_string(directory.path().join(&name))?;
    let lines: Vec<Value> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let kinds = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count();
    assert_eq!(["run", "certificate", "job", "item", "delivery"].map(kinds), [1, 1, 3, 8, 8]);
    // The counts of delivery statuses stay with the certificate.
    let counts = "select deliveries::text from execution.run_archives";
    assert_eq!(texts(&stage.admin, counts).await?, [r#"{"bounced": 1, "delivered": 7}"#]);
    let statuses = format!("select count(*) from execution.deliveries where run_id = '{old}'");
    assert_eq!(number(&stage.admin, statuses).await?, 0);
    assert_eq!(number(&stage.admin, "select count(*) from execution.deliveries").await?, 4);
    let mut exported: Vec<&str> =
        lines.iter().filter_map(|line| line["row"]["idempotency_key"].as_str()).collect();
    exported.sort_unstable();
    assert_eq!(exported, key);
    assert_eq!(std::fs::read_dir(directory.path().join(stage.own.id.to_string()))?.count(), 1);

    // A worker that comes back with what it held has lost it, and no job can be made again.
    for job in &jobs {
        let begun = Windows::of(job, 1, 1).begin(&stage.worker, "w").await?;
        assert_eq!(begun[0].verdict, "lost");
    }
    let job = format!(
        "insert into execution.job_queue (id, tenant_id, workspace_id, run_id, position, job_type, status, attempts, locked_by, locked_at, item_ids)
         values ('{}', '{}', '{}', '{old}', 1, 'email_send_batch', 'locked', 1, 'w', now(), array['{}'::uuid])",
        jobs[0].job_id, stage.own.id, stage.own.workspace, jobs[0].item_ids[0]
    );
    assert_eq!(refusal(execute(&stage.admin, job).await)?.code, "23514");
    assert!(claim(&stage.worker, "w2", 100).await?.is_empty());
    // Its row and certificate stay as they are.
    for attempt in [
        "update execution.run_archives set sent = 8",
        "update execution.run_archives set deliveries = '{}'",
        "update execution.run_archives set removed_at = null",
        "delete from execution.run_archives",
        "truncate execution.run_archives",
    ] {
        assert_eq!(refusal(execute(&stage.admin, attempt).await)?.code, "23514", "{attempt}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_an_item_in_doubt_or_without_an_end_is_kept() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 2).await?;
    let items = reserve_all(&stage.worker, "w", &job).await?;
    let archive = |run: Uuid, before: &str| {
        format!("select execution.archive_run('{}', '{run}', {before}, null, 'me')::text", stage.own.id)
    };
    let month = "now() - interval '30 days'";
    assert_eq!(texts(&stage.worker, archive(job.run_id, month)).await?, ["false"]);
    assert_eq!(refusal(texts(&stage.worker, archive(job.run_id, "now()")).await)?.code, "22023");
    finalize(&stage.worker, stage.own.id, "w", &[(items[0], "sent"), (items[1], "in_doubt")]).await?;
    // The run ends with a dead job.
    execute(&stage.admin, "update execution.job_queue set attempts = max_attempts").await?;
    let dead = super::Job { attempts: 5, ..job.clone() };
    complete(&stage.worker, "w", &dead).await?;
    execute(&stage.admin, "begin; set local session_replication_role = replica;
                           update execution.job_queue set status = 'dead', outcome = 'completed', succeeded = 1, failed = 0, skipped = 0, locked_by = null, locked_at = null;
                           update execution.campaign_runs set status = 'completed'; commit").await?;
    age(&stage, job.run_id, "40 days").await?;
    let pool = stage.world.pool("postrider_worker").await?;
    assert_eq!(retention(None).sweep_items(&pool, &CancellationToken::new()).await?, 0);
    assert_eq!(refusal(texts(&stage.worker, archive(job.run_id, month)).await)?.code, "23514");
    assert_eq!(number(&stage.admin, "select count(*) from execution.channel_outbox").await?, 2);
    // Only the worker archives, and only what is archived is pruned.
    assert_eq!(refusal(texts(&stage.app, archive(job.run_id, month)).await)?.code, "42501");
    let prune = format!("select execution.prune_run('{}', '{}')", stage.own.id, job.run_id);
    assert_eq!(refusal(number(&stage.worker, prune).await)?.code, "22023");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_be_exported_keeps_its_rows() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (old, _) = sent(&stage, stage.own, 4).await?;
    age(&stage, old, "31 days").await?;
    let file = tempfile::NamedTempFile::new()?;
    let pool = stage.world.pool("postrider_worker").await?;
    assert_eq!(retention(Some(file.path())).sweep_items(&pool, &CancellationToken::new()).await?, 0);
    assert_eq!(number(&stage.admin, "select count(*) from execution.channel_outbox").await?, 4);
    assert_eq!(number(&stage.admin, "select count(*) from execution.run_archives").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archived_run_is_not_taken_for_a_sign_of_a_restored_copy() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (old, _) = sent(&stage, stage.own, 1).await?;
    let item: Uuid =
        sqlx::query_scalar("select id from execution.channel_outbox").fetch_one(&stage.admin).await?;
    execute(&stage.worker, "select tenancy.enrol('test')").await?;
    let knows = |item: Uuid| {
        format!(
            "select has_reservations::text from tenancy.read_installation(gen_random_uuid(), null, array['{}'::uuid], array['{item}'::uuid])",
            stage.own.id
        )
    };
    assert_eq!(texts(&stage.worker, knows(item)).await?, ["true"]);
    assert_eq!(texts(&stage.worker, knows(Uuid::now_v7())).await?, ["false"]);
    age(&stage, old, "31 days").await?;
    let pool = stage.world.pool("postrider_worker").await?;
    assert_eq!(retention(None).sweep_items(&pool, &CancellationToken::new()).await?, 2);
    // Reserved now, and its run ended a month ago: that is another item.
    assert_eq!(texts(&stage.worker, knows(item)).await?, ["false"]);
    let then = jiff::Timestamp::now().as_millisecond().unsigned_abs() - 31 * 24 * 3600 * 1000;
    let as_old = Uuid::from_u128((u128::from(then) << 80) | 7);
    assert_eq!(texts(&stage.worker, knows(as_old)).await?, ["true"]);
    Ok(())
}

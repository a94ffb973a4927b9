//! claim_queued_jobs: which jobs are taken, when, and that no two workers take the same.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;
use tokio::sync::Barrier;
use uuid::Uuid;

use super::{Stage, calls::claim_on, claim, complete, finalize, reserve_all};
use crate::sql::{execute, number, refusal, texts};

/// Each status, with what it needs beside it, and whether such a job can be claimed at all.
const STATUSES: &[(&str, &str, bool)] = &[
    ("queued", "null", true),
    ("failed", "null", true),
    ("completed", "'completed'", false),
    ("dead", "'failed'", false),
];
const RUN_AFTER: &[(&str, bool)] = &[
    ("now() - interval '1 day'", true),
    ("now()", true),
    ("now() + interval '1 microsecond'", false),
    ("now() + interval '1 hour'", false),
    ("'infinity'", false),
];
const LOCKED_AT: &[(&str, bool)] = &[
    ("now()", false),
    ("now() + interval '1 hour'", false),
    ("now() - interval '4 minutes 59 seconds'", false),
    ("now() - interval '5 minutes'", false),
    ("now() - interval '5 minutes 0.000001 seconds'", true),
    ("now() - interval '1 day'", true),
];

/// Values of status, outcome, run_after, locked_at and locked_by, and whether a claim takes such a job.
fn combinations() -> Vec<(String, bool)> {
    let mut all = Vec::new();
    for (run_after, due) in RUN_AFTER {
        for (status, outcome, open) in STATUSES {
            all.push((format!("'{status}', {outcome}, {run_after}, null, null"), *open && *due));
        }
        for (locked_at, stale) in LOCKED_AT {
            // Taken away is one thing, taken again another: a job that is not due waits.
            all.push((format!("'locked', null, {run_after}, {locked_at}, 'another'"), *stale && *due));
        }
    }
    all
}

/// Inserts a job of the run with these values.
fn insert(stage: &Stage, run: Uuid, id: Uuid, values: &str) -> String {
    format!(
        "insert into execution.job_queue (id, tenant_id, workspace_id, run_id, position, job_type, item_ids, attempts,
                                          status, outcome, run_after, locked_at, locked_by)
         values ('{id}', '{}', '{}', '{run}', 9, 'email_send_batch', array[gen_random_uuid()], 1, {values})",
        stage.own.id, stage.own.workspace
    )
}

/// A run whose own job is out of the way.
async fn run_without_jobs(stage: &Stage) -> anyhow::Result<Uuid> {
    let run = stage.run(1, 1).await?;
    execute(&stage.admin, "update execution.job_queue set run_after = 'infinity'").await?;
    Ok(run)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_alone_is_claimed_exactly_when_its_conditions_hold() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let run = run_without_jobs(&stage).await?;
    for (values, claimable) in combinations() {
        let mut transaction = stage.admin.begin().await?;
        let id = Uuid::now_v7();
        execute(&mut *transaction, insert(&stage, run, id, &values)).await?;
        execute(&mut *transaction, "set local role postrider_worker").await?;

        let claimed = claim(&mut *transaction, "w", 10).await?;

        let ids: Vec<Uuid> = claimed.iter().map(|job| job.job_id).collect();
        assert_eq!(ids, if claimable { vec![id] } else { vec![] }, "{values}");
        assert!(
            claimed.iter().all(|job| job.attempts == 2),
            "an attempt is counted when it begins: {values}"
        );
        transaction.rollback().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn among_all_combinations_exactly_the_claimable_ones_are_claimed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let run = run_without_jobs(&stage).await?;
    let mut transaction = stage.admin.begin().await?;
    let mut expected = BTreeSet::new();
    for (values, claimable) in combinations() {
        let id = Uuid::now_v7();
        execute(&mut *transaction, insert(&stage, run, id, &values)).await?;
        if claimable {
            expected.insert(id);
        }
    }
    execute(&mut *transaction, "set local role postrider_worker").await?;

    let claimed = claim(&mut *transaction, "w", 1000).await?;

    execute(&mut *transaction, "reset role").await?;
    assert_eq!(claimed.len(), expected.len());
    assert_eq!(claimed.iter().map(|job| job.job_id).collect::<BTreeSet<_>>(), expected);
    let held = "select count(*) from execution.job_queue \
                 where status = 'locked' and locked_by = 'w' and locked_at = now() and attempts = 2";
    assert_eq!(usize::try_from(number(&mut *transaction, held).await?)?, expected.len());
    transaction.rollback().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_tells_everything_that_the_worker_needs() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let run = stage.run_of(stage.own, 3, 10, &json!({ "scheduled_for": "2026-01-01T00:00:00Z" })).await?;
    let sql = "select to_jsonb(claimed)::text from execution.claim_queued_jobs('{}', 'w') as claimed";
    let sql = sql.replace("{}", &stage.own.id.to_string());
    let claimed: serde_json::Value = serde_json::from_str(&texts(&stage.worker, sql).await?.join(""))?;
    for column in ["asset_id", "provider_account_id", "correlation_id", "key_part"] {
        assert_eq!(claimed[column], stage.look(column, "campaign_runs", run).await?, "{column}");
    }
    assert_eq!(claimed["run_id"], json!(run));
    assert_eq!(claimed["tenant_id"], json!(stage.own.id));
    assert_eq!(claimed["workspace_id"], json!(stage.own.workspace));
    assert_eq!(
        (claimed["channel"].as_str(), claimed["provider"].as_str(), claimed["job_type"].as_str()),
        (Some("email"), Some("sim"), Some("email_send_batch"))
    );
    assert_eq!((&claimed["attempts"], &claimed["max_attempts"]), (&json!(1), &json!(5)));
    assert_eq!(claimed["item_ids"].as_array().map(Vec::len), Some(3));
    assert_eq!(claimed["scheduled_for"], "2026-01-01T00:00:00+00:00");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_a_name_or_with_an_odd_limit_is_refused_and_takes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.run(1, 1).await?;
    for (arguments, message) in [
        ("null", "a worker must name itself to claim send jobs"),
        ("''", "a worker must name itself to claim send jobs"),
        ("'  '", "a worker must name itself to claim send jobs"),
        ("'w', null", "the limit must lie between 1 and 1000, not null"),
        ("'w', 0", "the limit must lie between 1 and 1000, not 0"),
        ("'w', -1", "the limit must lie between 1 and 1000, not -1"),
        ("'w', 1001", "the limit must lie between 1 and 1000, not 1001"),
    ] {
        let call = format!("select * from execution.claim_queued_jobs('{}', {arguments})", stage.own.id);
        let refused = refusal(execute(&stage.worker, &call).await)?;
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("22023", message), "{call}");
    }
    let touched = "select count(*) from execution.job_queue where status <> 'queued' or attempts > 0";
    assert_eq!(number(&stage.admin, touched).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_every_worker_is_dead_when_its_attempts_are_used_up() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let mut job = stage.job("w1", 2).await?;
    let innocent = stage.run(1, 1).await?;
    for attempt in 2..=5 {
        // The innocent job stays out of the way until the end.
        let later =
            format!("update execution.job_queue set run_after = 'infinity' where run_id = '{innocent}'");
        execute(&stage.admin, later).await?;
        job = stage.take_over(&job, &format!("w{attempt}")).await?;
        assert_eq!(job.attempts, attempt);
    }
    execute(
        &stage.admin,
        format!("update execution.job_queue set run_after = now() where run_id = '{innocent}'"),
    )
    .await?;
    stage.age_lock(&job, "6 minutes").await?;

    let claimed = claim(&stage.worker, "w6", 10).await?;

    assert_eq!(claimed.iter().map(|job| job.run_id).collect::<Vec<_>>(), [innocent], "others go on");
    let end = "concat_ws(' ', status, outcome, attempts, succeeded, failed, skipped, locked_by is null)";
    assert_eq!(stage.look(end, "job_queue", job.job_id).await?, "dead failed 5 0 2 0 t");
    assert_eq!(stage.look("status", "campaign_runs", job.run_id).await?, "failed");
    let log = stage.log_of(job.job_id).await?;
    assert_eq!(log.iter().filter(|line| line.starts_with("job.locked")).count(), 5);
    assert_eq!(log.last().map(String::as_str), Some("job.dead by w6"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_becomes_running_once_at_its_first_lock() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let run = stage.run(3, 1).await?;
    claim(&stage.worker, "w", 1).await?;
    let started = stage.look("started_at", "campaign_runs", run).await?;
    assert_ne!(started, "null");
    claim(&stage.worker, "v", 2).await?;
    assert_eq!(stage.look("started_at", "campaign_runs", run).await?, started);
    let log = stage.log_of(run).await?;
    assert_eq!(log.iter().filter(|line| line.starts_with("run.running")).count(), 1, "{log:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_is_due_is_queued_and_claimed_with_one_attempt_more() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 1).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "in_doubt")]).await?;
    assert_eq!(complete(&stage.worker, "w", &job).await?, "failed");
    assert_eq!(claim(&stage.worker, "w", 1).await?.len(), 0, "it waits a minute");
    execute(&stage.admin, "update execution.job_queue set run_after = now()").await?;
    let again = claim(&stage.worker, "v", 1).await?;
    assert_eq!(again[0].attempts, 2);
    assert_eq!(
        stage.log_of(job.job_id).await?,
        ["job.locked by w", "job.failed by w", "job.queued by v", "job.locked by v"]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_claimers_at_once_take_each_job_once() -> anyhow::Result<()> {
    const CLAIMERS: usize = 32;
    let stage = Stage::new().await?;
    // Several runs, so that claims start runs at the same time in any order.
    for _ in 0..4 {
        stage.run(150, 1).await?;
    }
    let start = Arc::new(Barrier::new(CLAIMERS));
    let claimers: Vec<_> = (0..CLAIMERS)
        .map(|number| {
            let (worker, start) = (stage.worker.clone(), Arc::clone(&start));
            tokio::spawn(async move {
                let mut client = worker.acquire().await?;
                let (name, limit) = (format!("claimer {number}"), 1 + i32::try_from(number)? % 7);
                let mut mine = Vec::new();
                start.wait().await;
                loop {
                    let jobs = claim_on(&mut client, &name, limit).await?;
                    if jobs.is_empty() {
                        return anyhow::Ok(mine);
                    }
                    anyhow::ensure!(jobs.iter().all(|job| job.attempts == 1), "claimed twice: {jobs:?}");
                    mine.extend(jobs.into_iter().map(|job| job.job_id));
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for claimer in claimers {
        all.extend(claimer.await??);
    }
    assert_eq!(all.len(), 600, "a job was claimed twice, or never");
    assert_eq!(BTreeSet::from_iter(all).len(), 600);
    Ok(())
}

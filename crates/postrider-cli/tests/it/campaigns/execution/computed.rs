//! Computed statuses: every combination of how items can end, of how jobs can end, and of what a phase tolerates.

use serde_json::json;
use uuid::Uuid;

use super::{Job, Stage, Windows, claim, complete, finalize, reserve_all};
use crate::sql::{execute, texts};

/// How an item stands when its job is completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    Succeeded,
    Failed,
    Skipped,
    InDoubt,
    Unanswered,
    Missing,
}

const ALL: [Item; 6] =
    [Item::Succeeded, Item::Failed, Item::Skipped, Item::InDoubt, Item::Unanswered, Item::Missing];

/// Brings a job's items into these states and completes it. Another attempt is far away, so that no claim meets it.
async fn end(stage: &Stage, job: &Job, items: &[Item]) -> anyhow::Result<String> {
    assert_eq!(job.item_ids.len(), items.len());
    // A missing item comes last in the send job.
    let mut items = items.to_vec();
    items.sort_by_key(|item| *item == Item::Missing);
    let reserved = items.iter().filter(|item| **item != Item::Missing).count();
    let mut windows = Windows::of(job, 1, i32::try_from(reserved)?);
    for (at, item) in items.iter().enumerate() {
        if *item == Item::Skipped {
            windows = windows.verdict(at, "skipped", "why");
        }
    }
    windows.begin(&stage.worker, "w").await?;
    let word = |item: &Item| match item {
        Item::Succeeded => Some("sent"),
        Item::Failed => Some("failed"),
        Item::InDoubt => Some("in_doubt"),
        _ => None,
    };
    let settled: Vec<(Uuid, &str)> =
        windows.ids.iter().zip(&items).filter_map(|(id, item)| Some((*id, word(item)?))).collect();
    finalize(&stage.worker, stage.own.id, "w", &settled).await?;
    let complete = "select execution.complete_job($1, $2, 'w', $3, interval '1 year')";
    let complete = sqlx::query_scalar(complete).bind(job.tenant_id).bind(job.job_id).bind(job.attempts);
    Ok(complete.fetch_one(&stage.worker).await?)
}

/// The rule of docs/contract.md: the status, the outcome, and the status of a run that has this send job alone.
fn expected(items: &[Item], attempts_left: bool) -> [&'static str; 3] {
    let any = |state: Item| items.contains(&state);
    let open = any(Item::InDoubt) || any(Item::Unanswered) || any(Item::Missing);
    match (open, attempts_left) {
        (false, _) if !any(Item::Failed) => ["completed", "completed", "completed"],
        (false, _) if items.iter().all(|item| *item == Item::Failed) => ["dead", "failed", "failed"],
        (false, _) => ["completed", "partial", "partial"],
        (true, true) => ["failed", "null", "running"],
        (true, false) if any(Item::Succeeded) => ["dead", "partial", "partial"],
        (true, false) => ["dead", "failed", "failed"],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_becomes_what_its_items_make_of_it() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for set in 1..1_u32 << ALL.len() {
        let items: Vec<Item> = ALL
            .into_iter()
            .enumerate()
            .filter(|(at, _)| set & (1 << at) != 0)
            .map(|(_, item)| item)
            .collect();
        for attempts_left in [true, false] {
            let mut job = stage.job("w", items.len()).await?;
            if !attempts_left {
                let last = format!(
                    "update execution.job_queue set attempts = max_attempts where id = '{}'",
                    job.job_id
                );
                execute(&stage.admin, last).await?;
                job.attempts = 5;
            }
            let answered = end(&stage, &job, &items).await?;

            let at = format!("{items:?}, attempts left: {attempts_left}");
            let reached = [
                stage.look("status", "job_queue", job.job_id).await?,
                stage.look("outcome", "job_queue", job.job_id).await?,
                stage.look("status", "campaign_runs", job.run_id).await?,
            ];
            let expected = expected(&items, attempts_left);
            assert_eq!(reached, expected, "{at}");
            assert_eq!(answered, expected[0], "{at}");
            let count = |state: Item| items.iter().filter(|item| **item == state).count();
            let counted =
                stage.look("concat_ws(' ', succeeded, failed, skipped)", "job_queue", job.job_id).await?;
            if expected[0] == "failed" {
                assert_eq!(counted, "", "{at}");
            } else {
                // An item that was never tried counts as failed when the send job gives up; an item in doubt does not.
                let failed = count(Item::Failed) + count(Item::Missing);
                let counts = [count(Item::Succeeded), failed, count(Item::Skipped)];
                assert_eq!(counted, counts.map(|number| number.to_string()).join(" "), "{at}");
            }
            // A reserved item without an answer is in doubt from now on.
            let doubts = format!(
                "select count(*)::text from execution.channel_outbox where job_id = '{}' and in_doubt_since is not null",
                job.job_id
            );
            let doubtful = count(Item::InDoubt) + count(Item::Unanswered);
            assert_eq!(texts(&stage.admin, doubts).await?, [doubtful.to_string()], "{at}");
            // And whatever was intended has a row when the job has ended.
            let rows = format!(
                "select count(*)::text from execution.channel_outbox where job_id = '{}'",
                job.job_id
            );
            let missing = if expected[0] == "failed" { count(Item::Missing) } else { 0 };
            assert_eq!(texts(&stage.admin, rows).await?, [(items.len() - missing).to_string()], "{at}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_becomes_what_its_jobs_make_of_it() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let outcomes = [
        ("completed", [Item::Succeeded, Item::Skipped]),
        ("partial", [Item::Succeeded, Item::Failed]),
        ("failed", [Item::Failed, Item::Failed]),
    ];
    for number in 0..27 {
        let ends = [number % 3, number / 3 % 3, number / 9].map(|at| outcomes[at]);
        let run = stage.run(6, 2).await?;
        let jobs = claim(&stage.worker, "w", 3).await?;
        for (at, (job, (_, items))) in jobs.iter().zip(&ends).enumerate() {
            assert_eq!(stage.look("status", "campaign_runs", run).await?, "running", "after {at} of 3 jobs");
            end(&stage, job, items).await?;
        }
        let names = ends.map(|(name, _)| name);
        let expected = match names {
            _ if names.iter().all(|name| *name == "completed") => "completed",
            _ if names.iter().all(|name| *name == "failed") => "failed",
            _ => "partial",
        };
        assert_eq!(stage.look("status", "campaign_runs", run).await?, expected, "{names:?}");
        assert_eq!(stage.look("finished_at is not null", "campaign_runs", run).await?, "true");
    }
    Ok(())
}

/// The status of the run's phase.
async fn phase_of(stage: &Stage, run: Uuid) -> Result<String, sqlx::Error> {
    let phase = "(select status from execution.campaign_phases as phase where phase.id = phase_id)";
    stage.look(phase, "campaign_runs", run).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phase_completes_when_no_more_failed_than_it_tolerates() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for (tolerance, failed, expected) in [
        (json!(null), 0, "completed"),
        (json!(null), 1, "completed"),
        (json!(null), 2, "failed"),
        (json!(0), 0, "completed"),
        (json!(0), 1, "failed"),
        (json!(0.5), 10, "completed"),
        (json!(0.5), 11, "failed"),
        (json!(1), 19, "completed"),
        // A run of which nothing succeeded is not tolerated.
        (json!(1), 20, "failed"),
    ] {
        let run = stage.run_of(stage.own, 20, 20, &json!({ "failure_tolerance": tolerance })).await?;
        let job = claim(&stage.worker, "w", 1).await?.remove(0);
        let mut items = vec![Item::Failed; failed];
        items.resize(20, Item::Succeeded);
        assert_eq!(phase_of(&stage, run).await?, "in_progress");
        end(&stage, &job, &items).await?;
        assert_eq!(phase_of(&stage, run).await?, expected, "{failed} of 20 failed, {tolerance} is tolerated");
        let log = stage.log_of(run).await?;
        assert_eq!(log.last(), Some(&format!("phase.{expected} by w")));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn untried_items_and_items_in_doubt_are_tolerated_no_more_than_failed_ones() -> anyhow::Result<()> {
    for state in [Item::Missing, Item::InDoubt, Item::Unanswered] {
        for (count, expected) in [(1, "completed"), (19, "failed")] {
            let stage = Stage::new().await?;
            let mut job = stage.job("w", 20).await?;
            execute(&stage.admin, "update execution.job_queue set attempts = max_attempts").await?;
            job.attempts = 5;
            let mut items = vec![state; count];
            items.resize(20, Item::Succeeded);
            assert_eq!(end(&stage, &job, &items).await?, "dead");
            assert_eq!(phase_of(&stage, job.run_id).await?, expected, "{count} of 20 {state:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn skipped_items_are_no_failures_and_a_paused_phase_stays_paused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 3).await?;
    end(&stage, &job, &[Item::Skipped; 3]).await?;
    assert_eq!(phase_of(&stage, job.run_id).await?, "completed");

    let job = stage.job("w", 1).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    execute(
        &stage.admin,
        "update execution.campaign_phases set status = 'paused' where status = 'in_progress'",
    )
    .await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent")]).await?;
    complete(&stage.worker, "w", &job).await?;
    assert_eq!(stage.look("status", "campaign_runs", job.run_id).await?, "completed");
    assert_eq!(phase_of(&stage, job.run_id).await?, "paused");
    Ok(())
}

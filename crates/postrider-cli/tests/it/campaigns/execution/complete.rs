//! complete_job, fail_job, release_job and heartbeat_jobs: who may end a job, and what it costs.

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{Job, NOTHING, Stage, claim, complete, finalize, reserve_all};
use crate::{
    sql::{execute, number, refusal, someone_waits, texts},
    world::eventually,
};

fn calls(tenant: Uuid, job: Uuid, worker: &str, attempt: &str) -> [String; 3] {
    [
        format!("select execution.complete_job('{tenant}', '{job}', {worker}, {attempt})"),
        format!("select execution.fail_job('{tenant}', '{job}', {worker}, {attempt}, 'why')"),
        format!("select execution.release_job('{tenant}', '{job}', {worker}, {attempt})"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_under_this_attempt_ends_a_send_job() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 1).await?;
    let waiting = stage.run(1, 1).await?;
    let waiting = format!("select id::text from execution.job_queue where run_id = '{waiting}'");
    let waiting: Uuid = texts(&stage.admin, waiting).await?[0].parse()?;
    let before = stage.log_of(job.job_id).await?;
    for (id, worker, attempt) in [
        (job.job_id, "'v'", "1"),
        (job.job_id, "'w'", "2"),
        (job.job_id, "'w'", "0"),
        (job.job_id, "null", "1"),
        (job.job_id, "'w'", "null"),
        (Uuid::now_v7(), "'w'", "1"),
        (waiting, "'w'", "0"),
        (waiting, "null", "0"),
    ] {
        for call in calls(stage.own.id, id, worker, attempt) {
            let refused = refusal(execute(&stage.worker, &call).await)?;
            assert_eq!(refused.code, "PR001", "{call}: {refused:?}");
            assert!(refused.message.contains("is not held by"), "{refused:?}");
        }
    }
    assert_eq!(stage.log_of(job.job_id).await?, before);
    assert_eq!(stage.look("status || attempts", "job_queue", job.job_id).await?, "locked1");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_job_was_taken_over_cannot_end_it_and_ending_twice_is_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("slow", 1).await?;
    let heir = stage.take_over(&job, "heir").await?;
    for call in calls(stage.own.id, job.job_id, "'slow'", "1") {
        assert_eq!(refusal(execute(&stage.worker, call).await)?.code, "PR001");
    }
    let ids = reserve_all(&stage.worker, "heir", &heir).await?;
    finalize(&stage.worker, stage.own.id, "heir", &[(ids[0], "sent")]).await?;
    assert_eq!(complete(&stage.worker, "heir", &heir).await?, "completed");
    for call in calls(stage.own.id, job.job_id, "'heir'", "2") {
        assert_eq!(refusal(execute(&stage.worker, call).await)?.code, "PR001");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_handed_back_burns_no_attempt_and_leaves_no_call_unaccounted() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 2).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent")]).await?;
    for _ in 0..7 {
        sqlx::query("select execution.release_job($1, $2, 'w', 1)")
            .bind(job.tenant_id)
            .bind(job.job_id)
            .execute(&stage.worker)
            .await?;
        let state = "concat_ws(' ', status, attempts, locked_by is null, locked_at is null)";
        assert_eq!(stage.look(state, "job_queue", job.job_id).await?, "queued 0 t t");
        let again = claim(&stage.worker, "w", 1).await?;
        assert_eq!((again.len(), again[0].attempts), (1, 1));
    }
    assert_eq!(stage.look("in_doubt_since is not null", "channel_outbox", ids[1]).await?, "true");
    assert_eq!(stage.log_of(ids[1]).await?, ["item.in_doubt by w"]);
    assert_eq!(stage.log_of(job.job_id).await?[..2], ["job.locked by w", "job.released by w"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_handed_back_for_later_waits() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 1).await?;
    let release = "select execution.release_job($1, $2, 'w', 1, interval '1 hour')";
    sqlx::query(release).bind(job.tenant_id).bind(job.job_id).execute(&stage.worker).await?;
    assert_eq!(claim(&stage.worker, "v", 1).await?.len(), 0);
    let waits = "concat_ws(' ', status, attempts, run_after > now() + interval '50 minutes')";
    assert_eq!(stage.look(waits, "job_queue", job.job_id).await?, "queued 0 t");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_failed_comes_again_later_with_its_reason() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 1).await?;
    let fail = "select execution.fail_job($1, $2, 'w', 1, 'no route', interval '7 minutes')";
    let status: String =
        sqlx::query_scalar(fail).bind(job.tenant_id).bind(job.job_id).fetch_one(&stage.worker).await?;
    assert_eq!(status, "failed");
    let state = "concat_ws(' ', status, attempts, last_error, run_after > now() + interval '5 minutes', \
                 run_after <= now() + interval '7 minutes', locked_by is null, outcome is null)";
    assert_eq!(stage.look(state, "job_queue", job.job_id).await?, "failed 1 no route t t t t");
    assert_eq!(claim(&stage.worker, "v", 1).await?.len(), 0);
    execute(&stage.admin, "update execution.job_queue set run_after = now(), attempts = 4").await?;
    let last = claim(&stage.worker, "v", 1).await?.remove(0);
    assert_eq!(last.attempts, 5);
    let fail = "select execution.fail_job($1, $2, 'v', 5, '')";
    let status: String =
        sqlx::query_scalar(fail).bind(job.tenant_id).bind(job.job_id).fetch_one(&stage.worker).await?;
    assert_eq!(status, "dead", "no attempt is left");
    assert_eq!(stage.look("status", "campaign_runs", job.run_id).await?, "failed");
    Ok(())
}

async fn heartbeat(stage: &Stage, worker: &str, held: &[(&Job, i32)]) -> Result<Vec<Uuid>, sqlx::Error> {
    let (jobs, attempts): (Vec<Uuid>, Vec<i32>) =
        held.iter().map(|(job, attempt)| (job.job_id, *attempt)).unzip();
    sqlx::query_scalar("select id from execution.heartbeat_jobs($1, $2, $3, $4)")
        .bind(held.iter().map(|(job, _)| job.tenant_id).collect::<Vec<_>>())
        .bind(worker)
        .bind(jobs)
        .bind(attempts)
        .fetch_all(&stage.worker)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_lock_jobs_in_the_order_of_reservations() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    // So many that they are not read one after the other, by chance in their order.
    stage.run(2_000, 1).await?;
    execute(&stage.admin, "analyze execution.job_queue").await?;
    let mut ids: Vec<Uuid> = claim(&stage.worker, "w", 16).await?.iter().map(|job| job.job_id).collect();
    ids.sort_unstable();
    let lock = |id: &Uuid, how: &str| format!("select from execution.job_queue where id = '{id}' for {how}");
    let mut reservation = stage.admin.begin().await?;
    execute(&mut *reservation, lock(&ids[0], "share")).await?;

    let (worker, tenant) = (stage.worker.clone(), stage.own.id);
    let backwards: Vec<Uuid> = ids.iter().rev().copied().collect();
    let heartbeat = tokio::spawn(async move {
        let sql =
            "select id from execution.heartbeat_jobs(array_fill($1, '{16}'), 'w', $2, array_fill(1, '{16}'))";
        sqlx::query_scalar::<_, Uuid>(sql).bind(tenant).bind(backwards).fetch_all(&worker).await
    });
    someone_waits(&stage.admin).await?;
    // It waits for the first, and holds none of the others meanwhile.
    for id in &ids[1..] {
        execute(&mut *reservation, lock(id, "share nowait")).await?;
    }
    reservation.commit().await?;
    let mut kept = heartbeat.await??;
    kept.sort_unstable();
    assert_eq!(kept, ids);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_keeps_a_lock_and_answers_with_what_is_held() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.run(5, 1).await?;
    let jobs = claim(&stage.worker, "w", 5).await?;
    for job in &jobs {
        stage.age_lock(job, "6 minutes").await?;
    }
    execute(
        &stage.admin,
        format!("update execution.job_queue set locked_by = 'v' where id = '{}'", jobs[2].job_id),
    )
    .await?;
    sqlx::query("select execution.release_job($1, $2, 'w', 1)")
        .bind(stage.own.id)
        .bind(jobs[3].job_id)
        .execute(&stage.worker)
        .await?;

    // A stale lock that nobody took is still its holder's.
    let all = [(&jobs[0], 1), (&jobs[1], 2), (&jobs[2], 1), (&jobs[3], 1), (&jobs[3], 0)];
    assert_eq!(heartbeat(&stage, "w", &all).await?, [jobs[0].job_id]);
    assert_eq!(heartbeat(&stage, "w", &[]).await?, NOTHING);

    let taken = claim(&stage.worker, "heir", 10).await?;
    let mut taken: Vec<Uuid> = taken.iter().map(|job| job.job_id).collect();
    let mut expected: Vec<Uuid> = jobs[1..].iter().map(|job| job.job_id).collect();
    taken.sort_unstable();
    expected.sort_unstable();
    assert_eq!(taken, expected, "all but the one with the heartbeat");
    assert_eq!(heartbeat(&stage, "w", &[(&jobs[1], 1)]).await?, NOTHING);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_jobs_that_end_at_the_same_moment_end_their_run() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let run = stage.run(2, 1).await?;
    let jobs = claim(&stage.worker, "w", 2).await?;
    for job in &jobs {
        let ids = reserve_all(&stage.worker, "w", job).await?;
        finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent")]).await?;
    }
    let mut first = stage.worker.begin().await?;
    assert_eq!(complete(&mut *first, "w", &jobs[0]).await?, "completed");

    let mut second = stage.worker.begin().await?;
    let waiter = number(&mut *second, "select pg_backend_pid()::bigint").await?;
    let job = jobs[1].clone();
    let waiting = tokio::spawn(async move {
        let status = complete(&mut *second, "w", &job).await?;
        second.commit().await.map(|()| status)
    });
    let blocked = format!("select cardinality(pg_blocking_pids({waiter}))::bigint");
    eventually("the second waits for the first", async || {
        Ok(sqlx::query_scalar::<_, i64>(AssertSqlSafe(blocked.clone())).fetch_one(&stage.admin).await? > 0)
    })
    .await?;
    first.commit().await?;

    assert_eq!(waiting.await??, "completed");
    assert_eq!(stage.look("status", "campaign_runs", run).await?, "completed");
    let log = stage.log_of(run).await?;
    assert_eq!(log.iter().filter(|line| line.starts_with("run.completed")).count(), 1, "{log:?}");
    Ok(())
}

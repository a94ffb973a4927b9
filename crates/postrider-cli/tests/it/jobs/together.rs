//! Many at once: a key goes to one of them, and so does each run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use sqlx::PgPool;
use tokio::{sync::Barrier, task::JoinSet};
use uuid::Uuid;

use super::stage::{Capacity, End, Stage, acquire, acting_for, claim, ends};
use crate::sql::{execute, number, texts};

/// The answer to one of many callers, and whether it committed.
struct Told {
    outcome: String,
    run: Option<Uuid>,
    committed: bool,
}

/// So many invoke `f` at the same moment, each on a connection of its own. `commits` says who of them commits.
async fn invoke_at_once(
    pool: &PgPool,
    tenant: Uuid,
    callers: usize,
    force: bool,
    commits: fn(usize) -> bool,
) -> anyhow::Result<Vec<Told>> {
    let start = Arc::new(Barrier::new(callers));
    let mut crowd = JoinSet::new();
    for at in 0..callers {
        let (pool, start) = (pool.clone(), start.clone());
        crowd.spawn(async move {
            let mut transaction = acting_for(&pool, tenant).await?;
            start.wait().await;
            let (outcome, run) = acquire(&mut *transaction, "f", None, force).await?;
            let committed = commits(at);
            if committed {
                transaction.commit().await?;
            } else {
                transaction.rollback().await?;
            }
            anyhow::Ok(Told { outcome, run, committed })
        });
    }
    let mut told = Vec::new();
    while let Some(one) = crowd.join_next().await {
        told.push(one??);
    }
    Ok(told)
}

fn counted(told: &[Told]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for one in told {
        *counts.entry(one.outcome.as_str()).or_default() += 1;
    }
    counts
}

/// Keys that have more than one run that is active or, without having been forced, completed.
const TWICE: &str = "select count(*) from (select lock_key from jobs.job_runs
                      where status = 'running' or retry_at is not null or (status = 'completed' and not is_forced)
                      group by tenant_id, lock_key having count(*) > 1) as twice";

#[tokio::test(flavor = "multi_thread")]
async fn of_64_who_invoke_at_once_one_acquires_and_the_others_are_told_its_run() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let pool = stage.clients("postrider_app", 64).await?;
    let one_of = |word| BTreeMap::from([("acquired", 1), (word, 63)]);
    let told = invoke_at_once(&pool, stage.own, 64, false, |_| true).await?;
    assert_eq!(counted(&told), one_of("running"));
    let runs: BTreeSet<Option<Uuid>> = told.iter().map(|one| one.run).collect();
    assert_eq!(runs.len(), 1);
    let run = texts(&stage.admin, "select id::text from jobs.job_runs").await?;
    assert_eq!(run, [runs.first().unwrap().unwrap().to_string()]);

    // Completed, it is forced by one of them, and not by two.
    let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
    ends(&stage.worker, "w", &[(&held, End::Done)]).await?;
    let told = invoke_at_once(&pool, stage.own, 64, false, |_| true).await?;
    assert_eq!(counted(&told), BTreeMap::from([("completed", 64)]));
    let told = invoke_at_once(&pool, stage.own, 64, true, |_| true).await?;
    assert_eq!(counted(&told), one_of("running"));
    assert_eq!(number(&stage.admin, "select count(*) from jobs.job_runs").await?, 2);
    pool.close().await;
    Ok(())
}

/// A caller that waits for a winner that rolls back tries again: the key is taken if and only if a caller committed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_taken_if_and_only_if_its_winner_committed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let pool = stage.clients("postrider_app", 24).await?;
    let commits: [fn(usize) -> bool; 3] = [|_| false, |at| at % 2 == 0, |at| at == 23];
    for round in 0..24 {
        let told = invoke_at_once(&pool, stage.own, 24, false, commits[round % 3]).await?;
        let winners: Vec<Option<Uuid>> =
            told.iter().filter(|one| one.committed && one.outcome == "acquired").map(|one| one.run).collect();
        let active: Vec<Option<Uuid>> =
            sqlx::query_scalar("select id from jobs.job_runs where status = 'running'")
                .fetch_all(&stage.admin)
                .await?;
        assert_eq!(active, winners, "round {round}");
        assert!(winners.len() <= 1, "round {round}");
        // Every job run that a caller got was committed.
        assert!(
            told.iter().filter(|one| one.outcome == "running").all(|one| winners.contains(&one.run)),
            "round {round}"
        );
        execute(
            &stage.admin,
            "update jobs.job_runs set status = 'cancelled', completed_at = now() where status = 'running'",
        )
        .await?;
    }
    pool.close().await;
    Ok(())
}

/// Runs complete while others invoke the same key: there is no moment between the two states in which it is free.
/// Says how many keys ran twice.
async fn race_completion(stage: &Stage, rounds: usize) -> anyhow::Result<i64> {
    const INVOKERS: usize = 6;
    let pool = stage.clients("postrider_app", 8).await?;
    for _ in 0..rounds {
        // A key of its own for each round.
        let hash = Uuid::now_v7().simple().to_string();
        let mut transaction = acting_for(&pool, stage.own).await?;
        let first = acquire(&mut *transaction, "f", Some(&hash), false).await?;
        transaction.commit().await?;
        anyhow::ensure!(first.0 == "acquired");
        let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
        let start = Arc::new(Barrier::new(INVOKERS + 1));
        let mut crowd = JoinSet::new();
        for _ in 0..INVOKERS {
            let (pool, start, hash, own) = (pool.clone(), start.clone(), hash.clone(), stage.own);
            crowd.spawn(async move {
                start.wait().await;
                for _ in 0..4 {
                    let mut transaction = acting_for(&pool, own).await?;
                    acquire(&mut *transaction, "f", Some(&hash), false).await?;
                    transaction.commit().await?;
                }
                anyhow::Ok(())
            });
        }
        start.wait().await;
        ends(&stage.worker, "w", &[(&held, End::Done)]).await?;
        while let Some(done) = crowd.join_next().await {
            done??;
        }
        // The job runs of this round stay claimed, so that the next round claims its own.
        execute(
            &stage.admin,
            "update jobs.job_runs set locked_by = 'v', heartbeat_at = now() where status = 'running'",
        )
        .await?;
    }
    pool.close().await;
    Ok(number(&stage.admin, TWICE).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_caller_runs_a_key_a_second_time_while_it_completes() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    assert_eq!(race_completion(&stage, 60).await?, 0);
    Ok(())
}

/// The first of these tests would notice if the database did not decide.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_unique_indexes_keys_run_twice() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    execute(&stage.admin, "drop index jobs.job_runs_once_per_grain, jobs.idx_job_runs_lock_active").await?;
    let pool = stage.clients("postrider_app", 16).await?;
    let told = invoke_at_once(&pool, stage.own, 16, false, |_| true).await?;
    assert!(counted(&told)["acquired"] > 1);
    assert_eq!(number(&stage.admin, TWICE).await?, 1);
    pool.close().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_runners_take_each_of_two_thousand_runs_once() -> anyhow::Result<()> {
    const RUNS: usize = 2_000;
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    stage.fill_due(stage.own, RUNS - 300).await?;
    stage.fill_due(other, 300).await?;
    let pool = stage.clients("postrider_worker", 16).await?;
    let start = Arc::new(Barrier::new(16));
    let mut runners = JoinSet::new();
    for at in 0..16 {
        let (pool, admin, start) = (pool.clone(), stage.admin.clone(), start.clone());
        runners.spawn(async move {
            let mut client = pool.acquire().await?;
            start.wait().await;
            let (mut taken, mut after) = (Vec::new(), None);
            loop {
                let capacity = Capacity { per_tenant: 20, after, ..Capacity::of(25) };
                let claimed = claim(&mut *client, &format!("runner {at}"), &capacity).await?;
                after = claimed.last().map(|run| run.tenant_id);
                taken.extend(claimed.iter().map(|run| run.id));
                let left = "select count(*) from jobs.job_runs where locked_by is null";
                // Nothing for us may mean that others hold all there is, and have not committed.
                if claimed.is_empty() && number(&admin, left).await? == 0 {
                    return anyhow::Ok(taken);
                }
            }
        });
    }
    let (mut all, mut unique) = (0, BTreeSet::new());
    while let Some(taken) = runners.join_next().await {
        let taken = taken??;
        all += taken.len();
        unique.extend(taken);
    }
    assert_eq!((all, unique.len()), (RUNS, RUNS));
    let once = "select count(*) from jobs.job_runs where status = 'running' and claims = 1";
    assert_eq!(number(&stage.admin, once).await?, i64::try_from(RUNS)?);
    Ok(())
}

/// Runs are taken away at once here, while ends come in: each attempt is ended by one of its holders, and `retry_count` is true.
#[tokio::test(flavor = "multi_thread")]
async fn each_attempt_is_ended_once_although_others_take_it_away() -> anyhow::Result<()> {
    const RUNS: usize = 60;
    let stage = Stage::new().await?;
    execute(&stage.admin, "update jobs.functions set max_retries = 100, initial_delay_ms = 0").await?;
    stage.fill_due(stage.own, RUNS).await?;
    let left = "select count(*) from jobs.job_runs where status <> 'completed'";
    let mut runners = JoinSet::new();
    for at in 0..6 {
        let (worker, admin) = (stage.worker.clone(), stage.admin.clone());
        runners.spawn(async move {
            let mut completed = Vec::new();
            while number(&admin, left).await? > 0 {
                let name = format!("runner {}", at % 3);
                let held = claim(&worker, &name, &Capacity::of(10)).await?;
                if at % 2 == 0 {
                    execute(&worker, "select jobs.recover_runs(tenant_id, '0 seconds', 3) from jobs.tenants_with_stale_runs('0 seconds')").await?;
                }
                for run in &held {
                    if ends(&worker, &name, &[(run, End::Done)]).await? == ["completed"] {
                        completed.push(run.id);
                    }
                }
            }
            anyhow::Ok(completed)
        });
    }
    let mut completed: BTreeMap<Uuid, usize> = BTreeMap::new();
    while let Some(of_one) = runners.join_next().await {
        for id in of_one?? {
            *completed.entry(id).or_default() += 1;
        }
    }
    assert_eq!(completed.len(), RUNS);
    assert!(completed.values().all(|times| *times == 1), "a run was completed twice");
    let untrue = "select count(*) from jobs.job_runs where claims <> retry_count + 1";
    assert_eq!(number(&stage.admin, untrue).await?, 0);
    Ok(())
}

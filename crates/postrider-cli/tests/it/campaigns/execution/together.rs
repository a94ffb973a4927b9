//! Concurrency: takeovers, reservations and settlements never interleave.

use std::sync::Arc;

use tokio::sync::Barrier;
use uuid::Uuid;

use super::{Stage, Windows, claim, complete, finalize, reserve_all};
use crate::{
    sql::{execute, number, texts},
    world::eventually,
};

/// Waits until the server process with this id waits for a lock.
async fn until_blocked(stage: &Stage, pid: i64) -> anyhow::Result<()> {
    let blocked = format!("select cardinality(pg_blocking_pids({pid}::integer))::bigint");
    eventually("it waits for a lock", async || Ok(number(&stage.admin, blocked.clone()).await? > 0)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_not_taken_away_while_its_reservations_are_being_written() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("slow", 2).await?;
    stage.age_lock(&job, "6 minutes").await?;
    let mut reserving = stage.worker.begin().await?;
    let windows = Windows::of(&job, 1, 2);
    assert_eq!(windows.begin(&mut *reserving, "slow").await?[0].verdict, "reserved");

    let mut heir = stage.worker.acquire().await?;
    execute(&mut *heir, "set lock_timeout = '30s'").await?; // a claim that waits would wait for ever
    assert_eq!(claim(&mut *heir, "heir", 10).await?.len(), 0, "it steps around");
    reserving.commit().await?;

    let taken = claim(&mut *heir, "heir", 10).await?;
    assert_eq!(taken.len(), 1);
    let doubts = "select count(*) from execution.channel_outbox where in_doubt_since is not null";
    assert_eq!(number(&stage.admin, doubts).await?, 2, "what was reserved before is seen by the takeover");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_waits_for_a_takeover_under_way_and_has_lost() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("slow", 2).await?;
    stage.age_lock(&job, "6 minutes").await?;
    let mut taking = stage.worker.begin().await?;
    assert_eq!(claim(&mut *taking, "heir", 10).await?.len(), 1);

    let mut slow = stage.worker.begin().await?;
    let pid = number(&mut *slow, "select pg_backend_pid()::bigint").await?;
    let windows = Windows::of(&job, 1, 2);
    let reserving = tokio::spawn(async move {
        let begun = windows.begin(&mut *slow, "slow").await?;
        slow.commit().await.map(|()| begun)
    });
    until_blocked(&stage, pid).await?;
    taking.commit().await?;

    let begun = reserving.await??;
    assert_eq!(begun.iter().map(|item| item.verdict.as_str()).collect::<Vec<_>>(), ["lost"]);
    assert_eq!(number(&stage.admin, "select count(*) from execution.channel_outbox").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_that_was_rolled_back_took_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("slow", 1).await?;
    stage.age_lock(&job, "6 minutes").await?;
    let mut taking = stage.worker.begin().await?;
    assert_eq!(claim(&mut *taking, "heir", 10).await?.len(), 1);
    taking.rollback().await?;
    let ids = reserve_all(&stage.worker, "slow", &job).await?;
    finalize(&stage.worker, stage.own.id, "slow", &[(ids[0], "sent")]).await?;
    assert_eq!(complete(&stage.worker, "slow", &job).await?, "completed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_steps_around_a_job_whose_items_are_being_settled() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("slow", 2).await?;
    let ids = reserve_all(&stage.worker, "slow", &job).await?;
    stage.age_lock(&job, "6 minutes").await?;
    let other = stage.run(1, 1).await?;
    let mut settling = stage.worker.begin().await?;
    finalize(&mut *settling, stage.own.id, "slow", &[(ids[1], "sent")]).await?;

    let mut heir = stage.worker.acquire().await?;
    execute(&mut *heir, "set lock_timeout = '30s'").await?; // a claim that waits would wait for ever
    let taken = claim(&mut *heir, "heir", 10).await?;
    assert_eq!(taken.iter().map(|job| job.run_id).collect::<Vec<_>>(), [other], "others go on");
    settling.commit().await?;

    let taken = claim(&mut *heir, "heir", 10).await?;
    assert_eq!(taken.iter().map(|job| job.job_id).collect::<Vec<_>>(), [job.job_id]);
    let doubts = "select id::text from execution.channel_outbox where in_doubt_since is not null";
    assert_eq!(texts(&stage.admin, doubts).await?, [ids[0].to_string()], "the answer that came counts");
    Ok(())
}

/// A batch of settlements locks rows in the order of ids. The rows lie in the opposite order in the table.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_attempt_and_a_batch_of_settlements_never_wait_for_each_other_in_a_circle()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 2).await?;
    let mut windows = Windows::of(&job, 1, 2);
    windows.ids.reverse();
    windows.begin(&stage.worker, "w").await?;
    windows.ids.sort_unstable();

    let mut settling = stage.worker.begin().await?;
    finalize(&mut *settling, stage.own.id, "w", &[(windows.ids[0], "sent")]).await?;
    let mut ending = stage.worker.begin().await?;
    let pid = number(&mut *ending, "select pg_backend_pid()::bigint").await?;
    let ended = tokio::spawn(async move {
        let status = complete(&mut *ending, "w", &job).await?;
        ending.commit().await.map(|()| status)
    });
    until_blocked(&stage, pid).await?;
    finalize(&mut *settling, stage.own.id, "w", &[(windows.ids[1], "sent")]).await?;
    settling.commit().await?;

    assert_eq!(ended.await??, "completed");
    let rows = "select status || ' ' || (in_doubt_since is null) from execution.channel_outbox";
    assert_eq!(texts(&stage.admin, rows).await?, ["sent true", "sent true"], "both were answered in time");
    Ok(())
}

/// Every worker believes that it holds the job, all reserve all items, and each item is reserved by one of them.
#[tokio::test(flavor = "multi_thread")]
async fn many_holders_at_once_reserve_each_item_once() -> anyhow::Result<()> {
    const HOLDERS: usize = 16;
    const ITEMS: usize = 200;
    let stage = Stage::new().await?;
    // Even without the fence, the key is the wall: all of them act under one name.
    let job = stage.job("w", ITEMS).await?;
    let start = Arc::new(Barrier::new(HOLDERS));
    let holders: Vec<_> = (0..HOLDERS)
        .map(|_| {
            let (worker, start, job) = (stage.worker.clone(), Arc::clone(&start), job.clone());
            tokio::spawn(async move {
                let mut client = worker.acquire().await?;
                start.wait().await;
                let mut mine: Vec<Uuid> = Vec::new();
                for first in (1..=i32::try_from(ITEMS)?).step_by(20) {
                    let begun = Windows::of(&job, first, 20).begin(&mut *client, "w").await?;
                    anyhow::ensure!(begun.len() == 20, "an item without an answer: {begun:?}");
                    mine.extend(
                        begun
                            .iter()
                            .filter(|item| item.verdict == "reserved")
                            .filter_map(|item| item.item_id),
                    );
                }
                anyhow::Ok(mine)
            })
        })
        .collect();
    let mut reserved = Vec::new();
    for holder in holders {
        reserved.extend(holder.await??);
    }
    reserved.sort_unstable();
    let mut items = job.item_ids.clone();
    items.sort_unstable();
    assert_eq!(reserved, items);
    assert_eq!(number(&stage.admin, "select count(*) from execution.channel_outbox").await?, 200);
    Ok(())
}

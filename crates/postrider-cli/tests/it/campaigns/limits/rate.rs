//! So many calls per second, whoever makes them.

use std::time::Duration;

use serde_json::json;

use super::{
    account, deploy,
    provider::{Answer, Call, Provider},
    worker,
};
use crate::{
    campaigns::stage::Stage,
    sql::number,
    world::{World, eventually},
};

/// The first second is left out: a bucket is full at first, and processes start one after the other.
const LEFT_OUT: Duration = Duration::from_secs(1);
const WATCHED: Duration = Duration::from_secs(20);
/// Calls that a busy machine delays are missing in one window and too many in the next, so one window of these must be exact. In none
/// may there be more calls than the rate allows and a delay of a second adds.
const WINDOWS: u32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn four_processes_on_one_account_stay_within_its_rate() -> anyhow::Result<()> {
    const RATE: usize = 50;
    let (world, provider) = (World::new().await?, Provider::start(Answer::Accepts)?);
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 3500).await?;
    account(&world, &stage, "mail", &provider, &json!({ "rate_per_second": RATE })).await?;
    let workers = (0..4).map(|_| worker(&world, "")).collect::<Result<Vec<_>, _>>()?;
    deploy(&stage, "mail", None, 100).await?;
    eventually("the first call", || async { Ok(!provider.calls().is_empty()) }).await?;
    let first = provider.calls()[0].at + LEFT_OUT;
    let mut windows = Vec::new();
    for n in 0..WINDOWS {
        let (begun, ended) = (first + WATCHED * n, first + WATCHED * (n + 1));
        // One call after the end of the time is the proof that all calls before are counted.
        let long = tokio::time::timeout(WATCHED * 2, async {
            while provider.calls().last().is_none_or(|call| call.at <= ended) {
                tokio::time::sleep(Duration::from_millis(50)).await; // between two looks
            }
        });
        anyhow::ensure!(long.await.is_ok(), "the calls stopped after {}", provider.calls().len());
        let calls: Vec<_> =
            provider.calls().into_iter().filter(|call| (begun..ended).contains(&call.at)).collect();
        let expected = RATE * WATCHED.as_secs() as usize;
        let deviation = calls.len() as f64 / expected as f64 - 1.0;
        assert!(calls.len() <= expected + RATE, "{} calls instead of {expected}", calls.len());
        let within = |call: &Call| {
            let second = call.at..call.at + Duration::from_secs(1);
            calls.iter().filter(|other| second.contains(&other.at)).count()
        };
        let most = calls.iter().map(within).max().unwrap_or_default();
        windows.push(format!("{:+.1} % of {RATE}/s, {most} within one second", deviation * 100.0));
        // Nor in any second of it: a bucket of a fifth of a second, and call tokens that come in handfuls.
        if deviation.abs() <= 0.05 && most <= RATE * 3 / 2 {
            break;
        }
        anyhow::ensure!(n + 1 < WINDOWS, "no window is exact: {windows:?}");
    }
    println!("{windows:?}");
    let workers_that_called = "select count(distinct reserved_by) from execution.channel_outbox";
    assert_eq!(number(&stage.admin, workers_that_called).await?, 4, "one process has it all");
    let holders =
        "select coalesce(max(jobs), 0)::bigint from (select count(*) as jobs from execution.job_queue
                    where status = 'locked' group by locked_by) as held";
    assert!(number(&stage.admin, holders).await? <= 2, "a slow account holds the slots of others");
    let burnt = "select max(attempts)::bigint from execution.job_queue";
    assert_eq!(number(&stage.admin, burnt).await?, 1, "waiting has burnt attempts");
    drop(workers);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_account_does_not_slow_another_one() -> anyhow::Result<()> {
    let (slow, fast) = (Provider::start(Answer::Accepts)?, Provider::start(Answer::Accepts)?);
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 400).await?;
    account(&world, &stage, "slow", &slow, &json!({ "rate_per_second": 2 })).await?;
    account(&world, &stage, "fast", &fast, &json!({})).await?;
    // More jobs of the slow one than there are slots, and they are there first.
    let waits = deploy(&stage, "slow", None, 10).await?;
    let _worker = worker(&world, "jobs_max = 4\njobs_per_tenant_max = 4")?;
    eventually("the slow one is at work", || async { Ok(slow.calls().len() >= 2) }).await?;
    let run = deploy(&stage, "fast", None, 10).await?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!(fast.acted().len(), 400);
    assert_eq!(stage.run_status(waits).await?, "running");
    assert!(slow.calls().len() < 200, "void: the slow one is not slow");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_slow_accounts_together_leave_room_for_one_that_is_not() -> anyhow::Result<()> {
    const SLOW: usize = 5;
    let (world, fast) = (World::new().await?, Provider::start(Answer::Accepts)?);
    let slow = (0..SLOW).map(|_| Provider::start(Answer::Accepts)).collect::<Result<Vec<_>, _>>()?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 200).await?;
    let mut waiting = Vec::new();
    for (number, provider) in slow.iter().enumerate() {
        let name = format!("slow {number}");
        account(&world, &stage, &name, provider, &json!({ "rate_per_second": 0.5 })).await?;
        waiting.push(deploy(&stage, &name, None, 10).await?);
    }
    account(&world, &stage, "fast", &fast, &json!({})).await?;
    // Each of them could have two places, and there are not even enough for one each.
    let _worker = worker(&world, "jobs_max = 4\njobs_per_tenant_max = 4")?;
    eventually("every slow one was at work", || async {
        Ok(slow.iter().all(|provider| !provider.calls().is_empty()))
    })
    .await?;
    let before: usize = slow.iter().map(|provider| provider.calls().len()).sum();
    let run = deploy(&stage, "fast", None, 10).await?;
    assert_eq!(stage.ended(run).await?, "completed");
    let last = fast.calls().iter().map(|call| call.at).max();
    let meanwhile = slow.iter().flat_map(Provider::calls).filter(|call| Some(call.at) < last).count();
    assert_eq!(fast.acted().len(), 200);
    assert!(meanwhile - before < 100, "{meanwhile} calls of slow accounts came before the last of 200");
    for run in waiting {
        assert_eq!(stage.run_status(run).await?, "running");
    }
    let burnt = "select max(attempts)::bigint from execution.job_queue";
    assert_eq!(number(&stage.admin, burnt).await?, 1, "waiting has burnt attempts");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_has_no_more_calls_at_a_time_than_it_may() -> anyhow::Result<()> {
    let (world, provider) = (World::new().await?, Provider::start(Answer::Keeps)?);
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 30).await?;
    account(&world, &stage, "mail", &provider, &json!({ "concurrency": 3 })).await?;
    let _worker = worker(&world, "")?;
    let run = deploy(&stage, "mail", None, 5).await?;
    eventually("three are under way", || async { Ok(provider.calls().len() == 3) }).await?;
    provider.set(Answer::Accepts);
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!((provider.acted().len(), provider.most_under_way() <= 3), (30, true));
    Ok(())
}

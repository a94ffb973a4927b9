//! Stopping on purpose: calls under way are finished and written down, the rest is handed back, nothing is in doubt.

use super::{life::worker, recovery::acted, scripted::Provider, stage::Stage};
use crate::{
    sql::number,
    world::{Server, Sim, World, eventually},
};

/// The provider takes a moment, so that there is always something under way.
const SLOWLY: &[&str] = &["--fault", "latency=1", "--latency-ms", "100"];
const NARROW: &str = "window = 8\njobs_max = 4\njobs_per_tenant_max = 4\npoll_interval_ms = 20";

fn stop(mut server: Server) -> anyhow::Result<()> {
    server.process.signal("TERM")?;
    let status = tokio::task::block_in_place(|| server.process.wait())?;
    anyhow::ensure!(status.success(), "{status}: {}", server.process.lines().join("\n"));
    Ok(())
}

/// Rows without an end, whether or not they are called in doubt.
async fn unsettled(stage: &Stage) -> anyhow::Result<i64> {
    Ok(number(&stage.admin, "select count(*) from execution.channel_outbox where status = 'queued'").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_told_to_stop_leaves_nothing_in_doubt_and_burns_no_attempt() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(SLOWLY)?);
    let stage = Stage::with_sim(&world, &sim, 1000).await?;
    let run = stage.deploy_one("interrupted", "email").await?;
    let first = worker(&world, NARROW)?;
    eventually("calls are under way", || async { Ok(acted(&sim)? >= 30) }).await?;
    stop(first)?;
    let called = acted(&sim)?;
    assert!(called < 1000, "void: nothing was left to hand back");
    assert_eq!(unsettled(&stage).await?, 0);
    assert_eq!(stage.items(run).await?, [("sent".to_owned(), called)].into());
    let jobs = "select count(*) from execution.job_queue where status = 'queued' and attempts = 0";
    assert_eq!(number(&stage.admin, jobs).await?, 2, "both jobs wait, as if nobody had tried");

    let second = worker(&world, NARROW)?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!((acted(&sim)?, stage.items(run).await?), (1000, [("sent".to_owned(), 1000)].into()));
    let attempts = "select max(attempts)::bigint from execution.job_queue";
    assert_eq!(number(&stage.admin, attempts).await?, 1);
    stop(second)
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restarts_put_nothing_in_doubt() -> anyhow::Result<()> {
    const ROUNDS: usize = 10;
    let (world, sim) = (World::new().await?, Sim::start(SLOWLY)?);
    let stage = Stage::with_sim(&world, &sim, 1500).await?;
    let run = stage.deploy_one("rolling", "voice").await?;
    let mut workers = vec![worker(&world, NARROW)?, worker(&world, NARROW)?];
    for round in 0..ROUNDS {
        let before = acted(&sim)?;
        assert!(before < 1400, "void: everything was done before round {round}");
        eventually("calls go on", || async { Ok(acted(&sim)? > before + 40) }).await?;
        stop(workers.remove(0))?;
        workers.push(worker(&world, NARROW)?);
    }
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!((acted(&sim)?, stage.items(run).await?), (1500, [("called".to_owned(), 1500)].into()));
    let log = "select count(*) from execution.campaign_audit_log where action = 'item.in_doubt'";
    assert_eq!((number(&stage.admin, log).await?, unsettled(&stage).await?), (0, 0));
    assert_eq!(number(&stage.admin, "select max(attempts)::bigint from execution.job_queue").await?, 1);
    workers.into_iter().try_for_each(stop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_its_worker_is_dead_after_five_attempts_and_others_go_on() -> anyhow::Result<()> {
    let (world, sim, deadly) = (World::new().await?, Sim::start(&[])?, Provider::deadly()?);
    let stage = Stage::with_sim(&world, &sim, 20).await?;
    let url = serde_json::json!({ "url": deadly.url() });
    stage.account(&world, "poison", "sim", &url, "").await?;
    let campaign = stage.campaign("poison", &[("only", "email", Some("all"), "poison")]).await?;
    let poison = stage.deploy(campaign, "only").await?;
    for attempt in 1..=5 {
        // One call at a time for each account, so that one death is one item.
        let mut victim = worker(&world, "account_concurrency = 1\npoll_interval_ms = 20")?;
        deadly.kill_when_it_comes(victim.process.child.id());
        let status = tokio::task::block_in_place(|| victim.process.wait())?;
        assert!(!status.success(), "attempt {attempt}");
        stage.age_locks("6 minutes").await?;
    }
    let _alive = worker(&world, "poll_interval_ms = 20")?;
    let healthy = stage.deploy_one("healthy", "email").await?;
    assert_eq!(stage.ended(healthy).await?, "completed");
    assert_eq!(stage.ended(poison).await?, "failed");
    let job = format!(
        "select status || ' ' || outcome || ' ' || attempts from execution.job_queue where run_id = '{poison}'"
    );
    assert_eq!(stage.ask(&job).await?, "dead failed 5");
    // Each death left one item in doubt; what nobody came to has failed.
    assert_eq!(stage.items(poison).await?, [("failed".to_owned(), 15), ("in doubt".to_owned(), 5)].into());
    let launch = format!(
        "select in_doubt || ' ' || missing || ' ' || launched from execution.verify_launch(tenancy.current_tenant_id(), '{poison}')"
    );
    assert_eq!((stage.ask(&launch).await?.as_str(), acted(&sim)?), ("5 0 false", 20));
    Ok(())
}

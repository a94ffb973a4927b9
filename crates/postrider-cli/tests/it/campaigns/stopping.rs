//! Stopping on purpose: calls under way are finished and written down, the rest is handed back, nothing is in doubt.

use super::{life::worker, recovery::acted, scripted::Provider, stage::Stage};
use crate::{
    sql::number,
    world::{Server, Sim, World, eventually},
};

const NARROW: &str = "window = 8\njobs_max = 4\njobs_per_tenant_max = 4\npoll_interval_ms = 20";

fn stop(server: Server) -> anyhow::Result<()> {
    stop_before(server, || Ok(()))
}

/// Stops a worker whose calls are answered once it drains.
fn stop_before(mut server: Server, answer: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    server.process.signal("TERM")?;
    server.process.wait_for_line("the campaign worker finishes its calls")?;
    answer()?;
    let status = tokio::task::block_in_place(|| server.process.wait())?;
    anyhow::ensure!(status.success(), "{status}: {}", server.process.lines().join("\n"));
    Ok(())
}

/// Rows without an end, whether or not they are called in doubt.
async fn unsettled(stage: &Stage) -> anyhow::Result<i64> {
    Ok(number(&stage.admin, "select count(*) from execution.channel_outbox where status = 'queued'").await?)
}

/// The windows of three jobs.
const HELD: i64 = 3 * 8;

/// Waits until so many outcomes are recorded, and the window of every job is being called: no worker can begin a call before the provider
/// answers. Returns the number of calls.
async fn all_are_held(stage: &Stage, sim: &Sim, answered: usize) -> anyhow::Result<usize> {
    let rows = "select count(*) from execution.channel_outbox";
    eventually("every call is held", || async {
        let unsettled = unsettled(stage).await?;
        let rows = number(&stage.admin, rows).await?;
        Ok(unsettled == HELD && rows - unsettled == answered as i64 && acted(sim)? as i64 == rows)
    })
    .await?;
    acted(sim)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_told_to_stop_leaves_nothing_in_doubt_and_burns_no_attempt() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    sim.hold_after(30)?;
    let stage = Stage::with_sim(&world, &sim, 1000).await?;
    let run = stage.deploy_one("interrupted", "email").await?;
    let first = worker(&world, NARROW)?;
    // The windows of both jobs are full.
    let called = 30 + 2 * 8;
    eventually("calls are under way", || async { Ok(acted(&sim)? == called) }).await?;
    stop_before(first, || sim.release())?;
    assert_eq!(acted(&sim)?, called, "a call began during the drain");
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
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    sim.hold_after(0)?;
    let stage = Stage::with_sim(&world, &sim, 1500).await?;
    let run = stage.deploy_one("rolling", "voice").await?;
    let mut workers = vec![worker(&world, NARROW)?, worker(&world, NARROW)?];
    let mut answered = 0;
    for round in 0..ROUNDS {
        let before = all_are_held(&stage, &sim, answered).await?;
        assert!(before < 1400, "void: everything was done before round {round}");
        // The calls that were held are answered, and forty more.
        sim.hold_after(40)?;
        let called = all_are_held(&stage, &sim, before + 40).await?;
        // The calls that were held are answered; later ones of other workers are not.
        stop_before(workers.remove(0), || sim.hold_after(0))?;
        answered = called;
        workers.push(worker(&world, NARROW)?);
    }
    all_are_held(&stage, &sim, answered).await?;
    sim.release()?;
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

//! The three recoveries of campaign execution (docs/contract.md), with the provider's receipts, and the operator's decisions; workers that
//! are stopped and go on; connections that are lost in the middle.

use std::collections::BTreeSet;

use serde_json::json;

use super::{life::worker, scripted::Patient, stage::Stage};
use crate::{
    sql::{execute, number},
    world::{Sim, World, eventually},
};

/// The number of calls on which the provider acted, by its own receipts.
pub fn acted(sim: &Sim) -> anyhow::Result<usize> {
    Ok(sim.receipts()?.iter().filter(|receipt| receipt["acted"] == true).count())
}

/// A tenant with so many leads and a provider that answers when the test says so.
async fn with_patience(world: &World, provider: &Patient, leads: usize) -> anyhow::Result<Stage> {
    let stage = Stage::new(world, "acme").await?;
    stage.account(world, "sim", "sim", &json!({ "url": provider.url() }), "").await?;
    stage.leads("all", leads).await?;
    Ok(stage)
}

#[cfg(debug_assertions)]
mod scenarios {
    use std::os::unix::process::ExitStatusExt;

    use uuid::Uuid;

    use super::*;
    use crate::world::{Process, postrider};

    /// A worker that dies at this point, and another one that finds what it left: one item in doubt.
    async fn crashed(
        world: &World,
        stage: &Stage,
        run: Uuid,
        point: &str,
    ) -> anyhow::Result<crate::world::Server> {
        let config = world.config("[outbound]\nallow_private = true\n")?;
        let mut command = postrider();
        command.env("CRASH_AT", point).arg("--config").arg(config.path()).args([
            "serve",
            "--roles",
            "campaigns",
        ]);
        let mut victim = Process::start(&mut command)?;
        assert_eq!(victim.wait()?.signal(), Some(9));
        assert_eq!(stage.items(run).await?, [("queued".to_owned(), 1)].into());

        stage.age_locks("6 minutes").await?;
        let alive = worker(world, "poll_interval_ms = 20")?;
        eventually("the next worker has passed over the item", || async {
            let sql = format!("select status || attempts from execution.job_queue where run_id = '{run}'");
            Ok(stage.ask(&sql).await? == "failed2")
        })
        .await?;
        assert_eq!(stage.items(run).await?, [("in doubt".to_owned(), 1)].into());
        let launch = format!(
            "select in_doubt || ' ' || launched from execution.verify_launch(tenancy.current_tenant_id(), '{run}')"
        );
        assert_eq!(stage.ask(&launch).await?, "1 false");
        Ok(alive)
    }

    /// The decision of an operator after a look at the provider's own log.
    async fn resolve(stage: &Stage, run: Uuid, as_what: &str, message_id: &str) -> anyhow::Result<()> {
        let sql = format!(
            "select execution.resolve_in_doubt(tenancy.current_tenant_id(), id, '{as_what}', nullif('{message_id}', ''), 'the provider''s log says so', 'an operator')
               from execution.channel_outbox where run_id = '{run}'"
        );
        // That it was not sent counts after the quiet time, which is two seconds here.
        eventually("the resolution counts", || async {
            match stage.ask(&sql).await {
                Ok(_) => Ok(true),
                Err(error) if format!("{error:?}").contains("may still arrive") => Ok(false),
                Err(error) => Err(error),
            }
        })
        .await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_crash_between_reservation_and_call_is_settled_by_the_providers_log() -> anyhow::Result<()> {
        let (world, sim) = (World::new().await?, Sim::start(&[])?);
        let stage = Stage::with_sim(&world, &sim, 1).await?;
        let run = stage.deploy_one("before the call", "email").await?;
        let _alive = crashed(&world, &stage, run, "call.before@1").await?;
        assert_eq!(acted(&sim)?, 0);

        resolve(&stage, run, "failed", "").await?;
        assert_eq!(stage.ended(run).await?, "failed");
        assert_eq!(stage.items(run).await?, [("failed".to_owned(), 1)].into());
        assert_eq!(acted(&sim)?, 0, "it was called after all");
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_crash_between_call_and_record_is_settled_by_the_providers_log() -> anyhow::Result<()> {
        let (world, sim) = (World::new().await?, Sim::start(&[])?);
        let stage = Stage::with_sim(&world, &sim, 1).await?;
        let run = stage.deploy_one("after the call", "email").await?;
        let _alive = crashed(&world, &stage, run, "call.after@1").await?;
        let receipts = sim.receipts()?;
        assert_eq!(receipts.len(), 1);

        resolve(&stage, run, "sent", receipts[0]["message_id"].as_str().unwrap()).await?;
        assert_eq!(stage.ended(run).await?, "completed");
        let launched = stage
            .ask(&format!(
                "select launched::text from execution.verify_launch(tenancy.current_tenant_id(), '{run}')"
            ))
            .await?;
        assert_eq!((launched.as_str(), sim.receipts()?.len()), ("true", 1));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_lock_goes_to_the_next_worker_and_no_item_is_called_twice() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&["--fault", "latency=1", "--latency-ms", "20"])?);
    let stage = Stage::with_sim(&world, &sim, 100).await?;
    let run = stage.deploy_one("stale", "email").await?;
    let dead = worker(&world, "window = 4")?;
    eventually("it is in the middle", || async { Ok(acted(&sim)? >= 20) }).await?;
    dead.process.signal("KILL")?;
    drop(dead);

    // Before five minutes are over the next worker does whatever else there is, and leaves this job alone.
    let _next = worker(&world, "window = 4\npoll_interval_ms = 20")?;
    let before = emails(&sim)?.len();
    let meanwhile = stage.deploy_one("meanwhile", "voice").await?;
    assert_eq!(stage.ended(meanwhile).await?, "completed");
    let lock = stage
        .ask(&format!("select attempts || status from execution.job_queue where run_id = '{run}'"))
        .await?;
    assert_eq!((lock.as_str(), emails(&sim)?.len()), ("1locked", before));

    stage.age_locks("6 minutes").await?;
    eventually("every item has a row", || async {
        let sql = format!("select attempts || status from execution.job_queue where run_id = '{run}'");
        Ok(stage.ask(&sql).await? == "2failed")
    })
    .await?;
    let log = format!(
        "select count(*) from execution.campaign_audit_log where run_id = '{run}' and action = 'job.requeued'"
    );
    assert_eq!(number(&stage.admin, log).await?, 1);
    let items = stage.items(run).await?;
    let in_doubt = items.get("in doubt").copied().unwrap_or_default();
    assert!(in_doubt <= 4 && items["sent"] + in_doubt == 100, "{items:?}");
    let called = emails(&sim)?;
    let keys: BTreeSet<String> = called.iter().cloned().collect();
    assert_eq!(keys.len(), called.len(), "a key was called twice");
    Ok(())
}

/// The keys of all e-mails that the provider was asked to send.
fn emails(sim: &Sim) -> anyhow::Result<Vec<String>> {
    let receipts = sim.receipts()?.into_iter().filter(|receipt| receipt["channel"] == "email");
    Ok(receipts.map(|receipt| receipt["key"].to_string()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_a_stopped_worker_settles_its_row_and_no_worker_calls_again() -> anyhow::Result<()> {
    let (world, provider) = (World::new().await?, Patient::start()?);
    let stage = with_patience(&world, &provider, 1).await?;
    let run = stage.deploy_one("held up", "email").await?;
    let stopped = worker(&world, "heartbeat_interval_seconds = 1")?;
    let call = provider.receive().await?;
    stopped.process.signal("STOP")?;
    stage.age_locks("6 minutes").await?;

    let other = worker(&world, "poll_interval_ms = 20")?;
    eventually("another worker has taken the job and left the item alone", || async {
        let sql = format!("select status || attempts from execution.job_queue where run_id = '{run}'");
        Ok(stage.ask(&sql).await? == "failed2")
    })
    .await?;
    assert_eq!(stage.items(run).await?, [("in doubt".to_owned(), 1)].into());
    let key = stage
        .ask(&format!("select idempotency_key from execution.channel_outbox where run_id = '{run}'"))
        .await?;
    assert_eq!(call.key, key);

    // The answer arrives while the worker stands still, and is written down when it goes on.
    call.accept();
    stopped.process.signal("CONT")?;
    eventually("the late answer counts", || async {
        Ok(stage.items(run).await? == [("sent".to_owned(), 1)].into())
    })
    .await?;
    stage.make_due().await?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert!(!provider.is_being_called().await?, "somebody called again");
    drop(other);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_stopped_for_too_long_does_not_call_any_more() -> anyhow::Result<()> {
    let (world, provider) = (World::new().await?, Patient::start()?);
    let stage = with_patience(&world, &provider, 1).await?;
    let run = stage.deploy_one("overslept", "email").await?;
    let stopped = worker(&world, "call_within_seconds = 12")?;
    // It may call again in eight seconds, under the same reservation; but it is not awake then.
    provider.receive().await?.put_off(8);
    stopped.process.signal("STOP")?;
    eventually("the reservation is too old to be used", || async {
        let sql = format!(
            "select count(*) from execution.channel_outbox where run_id = '{run}' and created_at < now() - interval '13 seconds'"
        );
        Ok(number(&stage.admin, sql).await? == 1)
    })
    .await?;
    stopped.process.signal("CONT")?;
    assert_eq!(stage.ended(run).await?, "failed");
    let error =
        stage.ask(&format!("select error from execution.channel_outbox where run_id = '{run}'")).await?;
    assert_eq!(error, "the worker was delayed before the call");
    assert!(!provider.is_being_called().await?, "it called all the same");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_ended_in_the_middle_of_calls_cost_nothing() -> anyhow::Result<()> {
    let (world, provider) = (World::new().await?, Patient::start()?);
    let stage = with_patience(&world, &provider, 8).await?;
    let run = stage.deploy_one("cut off", "email").await?;
    let _worker = worker(&world, "")?;
    let mut calls = Vec::new();
    for _ in 0..8 {
        calls.push(provider.receive().await?);
    }
    // Their outcomes are on the way into the database when every connection ends.
    let mut in_the_way = stage.admin.begin().await?;
    execute(&mut *in_the_way, "select from execution.channel_outbox for update").await?;
    for call in calls {
        call.accept();
    }
    let workers = "from pg_stat_activity where datname = current_database() and usename = 'postrider_worker'";
    eventually("an outcome is being written", || async {
        let waiting = format!("select count(*) {workers} and wait_event_type = 'Lock'");
        Ok(number(&stage.admin, waiting).await? > 0)
    })
    .await?;
    let cut = format!("select count(*) from (select pg_terminate_backend(pid) {workers}) as cut");
    assert!(number(&stage.admin, cut).await? > 0);
    in_the_way.rollback().await?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!(stage.items(run).await?, [("sent".to_owned(), 8)].into());
    assert!(!provider.is_being_called().await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_in_a_transaction_blocks_no_other_send_job() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let stage = Stage::with_sim(&world, &sim, 2).await?;
    let stuck = stage.deploy_one("stuck", "email").await?;
    // The work of a worker that is stopped after it settled an item and before it committed.
    execute(
        &stage.admin,
        "select from execution.tenants_with_due_jobs(10) as due,
                     execution.claim_queued_jobs(due.tenant_id, 'stopped', due.jobs);
         select from execution.job_queue as job,
                     execution.begin_outbox_items(array[job.tenant_id], 'stopped', array[job.id], array[1], array[1], array[1],
                         array[gen_random_uuid()], array[null::text], array[null::bytea], array[null::text], array[null::text])",
    )
    .await?;
    let mut transaction = stage.admin.begin().await?;
    let settle = "select from execution.channel_outbox as item,
                         execution.finalize_outbox_items(array[item.tenant_id], 'stopped', array[item.id], array['sent'], array['m'],
                                                         array[null::text])";
    execute(&mut *transaction, settle).await?;
    stage.age_locks("6 minutes").await?;

    let other = stage.deploy_one("other", "email").await?;
    let _worker = worker(&world, "poll_interval_ms = 20")?;
    assert_eq!(stage.ended(other).await?, "completed");

    // When it goes on, its answer counts, and the rest of its job is done by somebody else.
    transaction.commit().await?;
    assert_eq!(stage.ended(stuck).await?, "completed");
    assert_eq!(stage.items(stuck).await?, [("sent".to_owned(), 2)].into());
    assert_eq!(acted(&sim)?, 3);
    Ok(())
}

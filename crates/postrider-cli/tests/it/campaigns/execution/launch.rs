//! verify_launch: the three conditions of a launch, with the counts that show them.

use serde_json::Value;
use uuid::Uuid;

use super::{Stage, Tenant, Windows, claim, complete, finalize};
use crate::sql::{execute, refusal, texts};

/// The certificate of a run, in a few words.
async fn certificate(stage: &Stage, run: Uuid) -> anyhow::Result<String> {
    let sql = format!(
        "select to_jsonb(c)::text from execution.verify_launch(tenancy.current_tenant_id(), '{run}') as c"
    );
    let c: Value = serde_json::from_str(&stage.ask::<String>(stage.own, sql).await?)?;
    assert_eq!(c["run_id"].as_str(), Some(run.to_string().as_str()));
    let numbers: Vec<String> =
        ["intended", "sent", "called", "posted", "failed", "skipped", "in_doubt", "missing"]
            .iter()
            .map(|name| format!("{}", c[name]))
            .collect();
    let holds = |name: &str| if c[name] == true { "yes" } else { "no" };
    Ok(format!(
        "{} {} run {} items {} once {} launched {}",
        c["run_status"].as_str().unwrap_or_default(),
        numbers.join("/"),
        holds("run_is_terminal"),
        holds("every_item_is_terminal"),
        holds("duplicates_are_impossible"),
        holds("launched")
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_counts_what_there_is_in_every_situation() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let run = stage.run(5, 5).await?;
    let certificate = async || certificate(&stage, run).await;
    assert_eq!(certificate().await?, "queued 5/0/0/0/0/0/0/5 run no items no once yes launched no");
    let mut job = claim(&stage.worker, "w", 1).await?.remove(0);
    assert_eq!(certificate().await?, "running 5/0/0/0/0/0/0/5 run no items no once yes launched no");
    let windows = Windows::of(&job, 1, 4).verdict(0, "skipped", "why");
    windows.begin(&stage.worker, "w").await?;
    assert_eq!(certificate().await?, "running 5/0/0/0/0/1/3/1 run no items no once yes launched no");
    let ids = &windows.ids;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[1], "sent"), (ids[2], "failed"), (ids[3], "in_doubt")])
        .await?;
    assert_eq!(certificate().await?, "running 5/1/0/0/1/1/1/1 run no items no once yes launched no");
    // The last attempt ends with one item in doubt and one that nobody tried, which has failed with it.
    execute(&stage.admin, "update execution.job_queue set attempts = max_attempts").await?;
    job.attempts = 5;
    assert_eq!(complete(&stage.worker, "w", &job).await?, "dead");
    assert_eq!(certificate().await?, "partial 5/1/0/0/2/1/1/0 run yes items no once yes launched no");
    let resolve = format!(
        "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{}', 'sent', null, 'how', 'ann')",
        ids[3]
    );
    stage.ask::<String>(stage.own, resolve).await?;
    assert_eq!(certificate().await?, "partial 5/2/0/0/2/1/0/0 run yes items yes once yes launched yes");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_launched_when_it_has_ended_and_every_item_has() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 2).await?;
    let windows = Windows::of(&job, 1, 2);
    windows.begin(&stage.worker, "w").await?;
    let ids = &windows.ids;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent"), (ids[1], "failed")]).await?;
    let waiting = "running 2/1/0/0/1/0/0/0 run no items yes once yes launched no";
    assert_eq!(certificate(&stage, job.run_id).await?, waiting);
    complete(&stage.worker, "w", &job).await?;
    let launched = "partial 2/1/0/0/1/0/0/0 run yes items yes once yes launched yes";
    assert_eq!(certificate(&stage, job.run_id).await?, launched);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_wall_against_duplicates_nothing_is_launched() -> anyhow::Result<()> {
    for breach in [
        "alter table execution.channel_outbox drop constraint channel_outbox_one_row_per_key",
        "alter table execution.channel_outbox drop constraint channel_outbox_one_row_per_key;
         alter table execution.channel_outbox add constraint channel_outbox_one_row_per_key unique (id, idempotency_key)",
        "drop trigger channel_outbox_ends_are_final on execution.channel_outbox",
        "drop trigger channel_outbox_reservations_are_facts on execution.channel_outbox",
        "drop trigger channel_outbox_is_never_removed_from on execution.channel_outbox",
        "drop trigger channel_outbox_is_never_emptied on execution.channel_outbox",
        "drop trigger channel_outbox_waits_for_adoption on execution.channel_outbox",
        "alter table execution.channel_outbox disable trigger channel_outbox_ends_are_final",
        "alter table execution.channel_outbox disable trigger user",
        "drop trigger job_queue_has_none_of_archived_runs on execution.job_queue",
    ] {
        let stage = Stage::new().await?;
        let job = stage.job("w", 1).await?;
        let windows = Windows::of(&job, 1, 1);
        windows.begin(&stage.worker, "w").await?;
        finalize(&stage.worker, stage.own.id, "w", &[(windows.ids[0], "sent")]).await?;
        complete(&stage.worker, "w", &job).await?;
        let before = "completed 1/1/0/0/0/0/0/0 run yes items yes once yes launched yes";
        assert_eq!(certificate(&stage, job.run_id).await?, before);
        execute(&stage.admin, breach).await?;
        let after = "completed 1/1/0/0/0/0/0/0 run yes items yes once no launched no";
        assert_eq!(certificate(&stage, job.run_id).await?, after, "{breach}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_run_has_no_certificate_here() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = Tenant::create(&stage.admin, "other").await?;
    let run = stage.run(1, 1).await?;
    let mut said = Vec::new();
    for id in [run, Uuid::now_v7()] {
        let sql = format!("select run_status from execution.verify_launch('{}', '{id}')", other.id);
        let mut refused = refusal(stage.ask::<String>(other, &sql).await)?;
        refused.message = refused.message.replace(&id.to_string(), "X");
        said.push(refused);
        // A worker may name any tenant; the others need a transaction that acts for it.
        for (role, code) in
            [("postrider_app", "42501"), ("postrider_worker", "P0002"), ("postrider_read", "42501")]
        {
            let without = refusal(texts(&stage.world.client(role).await?, &sql).await)?;
            assert_eq!(without.code, code, "{role} without a tenant");
        }
    }
    assert_eq!(said[0], said[1]);
    assert_eq!(said[0].code, "P0002");
    Ok(())
}

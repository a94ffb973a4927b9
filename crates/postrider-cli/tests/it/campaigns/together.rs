//! Many tenants at once: whoever has little to send does not wait for whoever has much.

use postrider_model::Message;
use serde_json::json;
use uuid::Uuid;

use super::{life::worker, recovery::acted, stage::Stage};
use crate::{
    sql::{execute, number},
    world::{Sim, World, eventually},
};

const BIG: i64 = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn ten_items_do_not_wait_for_a_million() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let big = Stage::with_sim(&world, &sim, 1).await?;
    let run = big.deploy_one("big", "social").await?;
    // 2,000 jobs of 500 posts, as a deployment would have made them.
    let sql = format!(
        "insert into execution.job_queue (id, tenant_id, workspace_id, run_id, position, job_type, item_ids)
         select gen_random_uuid(), tenant_id, workspace_id, run_id, n + 1, job_type,
                array(select gen_random_uuid() from generate_series(1, 500) where n > 0)
           from execution.job_queue, generate_series(1, {BIG} / 500) as n
          where run_id = '{run}'"
    );
    execute(&big.admin, sql).await?;
    let _workers = [worker(&world, "")?, worker(&world, "")?];
    eventually("the big one keeps everybody busy", || async { Ok(acted(&sim)? >= 500) }).await?;

    let small = Stage::with_sim(&world, &sim, 10).await?;
    let before = acted(&sim)?;
    let ten = small.deploy_one("small", "email").await?;
    assert_eq!(small.ended(ten).await?, "completed");
    let receipts = sim.receipts()?;
    let last = receipts.iter().rposition(|receipt| receipt["channel"] == "email").unwrap();
    let of_the_small: usize = receipts.iter().filter(|receipt| receipt["channel"] == "email").count();
    assert_eq!(of_the_small, 10);
    // By order, not by seconds: few of the million came before the last of the ten.
    let meanwhile = last - before;
    assert!(meanwhile < BIG as usize / 20, "{meanwhile} posts came before the last of ten e-mails");
    let left = number(&big.admin, "select count(*) from execution.job_queue where status = 'queued'").await?;
    assert!(left * 500 > BIG / 2, "void: the big one is almost done");
    assert_eq!(big.run_status(run).await?, "running");
    Ok(())
}

/// Posts this text as an asset of this id, and answers with the fingerprint of what was rendered.
async fn post(stage: &Stage, asset: Uuid, text: &str) -> anyhow::Result<String> {
    let workspace = stage.workspace;
    let content = json!({ "text": text });
    stage
        .ask(&format!(
            "select id::text from execution.create_asset(tenancy.current_tenant_id(), '{asset}', '{workspace}', 'post', 'social', '{content}', 'me')"
        ))
        .await?;
    let (campaign, phase) = (Uuid::now_v7(), Uuid::now_v7());
    let phases = json!([{ "id": phase, "phase": "only", "channel": "social", "asset_id": asset, "provider_account": "sim" }]);
    stage
        .ask(&format!(
            "select execution.create_campaign(tenancy.current_tenant_id(), '{campaign}', '{workspace}', 'posts', true, '{phases}', 'me')::text"
        ))
        .await?;
    let run = stage.deploy(campaign, "only").await?;
    assert_eq!(stage.ended(run).await?, "completed");
    stage
        .ask(&format!(
            "select encode(message_hash, 'hex') from execution.channel_outbox where run_id = '{run}'"
        ))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_whose_assets_have_the_same_id_each_send_their_own() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let stages = [Stage::with_sim(&world, &sim, 1).await?, Stage::with_sim(&world, &sim, 1).await?];
    let _worker = worker(&world, "")?;
    let asset = Uuid::now_v7();
    for (stage, text) in stages.iter().zip(["of the first", "of the second"]) {
        let expected = hex::encode(Message::Social { text: text.to_owned() }.hash());
        assert_eq!(post(stage, asset, text).await?, expected, "{text}");
    }
    Ok(())
}

//! Many tenants at once: whoever has little to send does not wait for whoever has much.

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

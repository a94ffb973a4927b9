//! Tenants take turns: whoever waited longest is next, and a claim is shared equally.

use std::collections::BTreeMap;

use serde_json::json;
use uuid::Uuid;

use super::{Stage, Tenant, claim};
use crate::sql::{execute, texts};

/// How many jobs each tenant has among these.
async fn shares(stage: &Stage, limit: i32) -> anyhow::Result<BTreeMap<Uuid, usize>> {
    let mut shares = BTreeMap::new();
    for job in claim(&stage.worker, "w", limit).await? {
        *shares.entry(job.tenant_id).or_insert(0) += 1;
    }
    Ok(shares)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_one_job_does_not_wait_behind_two_thousand_of_another() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.run(2_000, 1).await?;
    for _ in 0..3 {
        assert_eq!(shares(&stage, 1).await?, BTreeMap::from([(stage.own.id, 1)]));
    }
    let small = Tenant::create(&stage.admin, "small").await?;
    stage.run_of(small, 1, 1, &json!({})).await?;
    assert_eq!(shares(&stage, 1).await?, BTreeMap::from([(small.id, 1)]), "who never had a turn is next");
    assert_eq!(shares(&stage, 1).await?, BTreeMap::from([(stage.own.id, 1)]));

    // It comes again: its last turn was before the other's.
    stage.run_of(small, 2, 1, &json!({})).await?;
    for expected in [small.id, stage.own.id, small.id, stage.own.id, stage.own.id] {
        assert_eq!(shares(&stage, 1).await?, BTreeMap::from([(expected, 1)]));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_shared_equally_and_what_one_cannot_use_goes_to_the_others() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (second, third) =
        (Tenant::create(&stage.admin, "second").await?, Tenant::create(&stage.admin, "third").await?);
    stage.run(100, 1).await?;
    stage.run_of(second, 10, 1, &json!({})).await?;
    assert_eq!(shares(&stage, 10).await?, BTreeMap::from([(stage.own.id, 5), (second.id, 5)]));

    // Whose jobs are all for later does not take a share.
    stage.run_of(third, 50, 1, &json!({ "scheduled_for": "2999-01-01T00:00:00Z" })).await?;
    assert_eq!(shares(&stage, 6).await?, BTreeMap::from([(stage.own.id, 3), (second.id, 3)]));
    assert_eq!(shares(&stage, 10).await?, BTreeMap::from([(stage.own.id, 8), (second.id, 2)]));
    assert_eq!(shares(&stage, 10).await?, BTreeMap::from([(stage.own.id, 10)]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn more_tenants_than_a_claim_takes_jobs_are_served_one_after_the_other() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let mut tenants = vec![stage.own];
    for at in 1..5 {
        tenants.push(Tenant::create(&stage.admin, &format!("tenant {at}")).await?);
    }
    for tenant in &tenants {
        stage.run_of(*tenant, 20, 1, &json!({})).await?;
    }
    let mut served = BTreeMap::new();
    for _ in 0..10 {
        for (tenant, jobs) in shares(&stage, 2).await? {
            assert_eq!(jobs, 1, "two jobs of one tenant while others wait");
            *served.entry(tenant).or_insert(0) += jobs;
        }
    }
    assert_eq!(served, tenants.iter().map(|tenant| (tenant.id, 4)).collect());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_is_excepted_is_left_alone() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = Tenant::create(&stage.admin, "other").await?;
    stage.run(3, 1).await?;
    stage.run_of(other, 3, 1, &json!({})).await?;
    let claim = format!(
        "select claimed.tenant_id::text
           from execution.tenants_with_due_jobs(10, array['{}'::uuid]) as due,
                execution.claim_queued_jobs(due.tenant_id, 'w', due.jobs) as claimed",
        other.id
    );
    assert_eq!(texts(&stage.worker, &claim).await?, vec![stage.own.id.to_string(); 3]);
    assert_eq!(texts(&stage.worker, &claim).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_one_tenant_are_taken_in_the_order_in_which_they_became_ready() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.run(4, 1).await?;
    execute(
        &stage.admin,
        "update execution.job_queue set run_after = now() - position * interval '1 minute'",
    )
    .await?;
    for expected in ["4", "3", "2", "1"] {
        let job = claim(&stage.worker, "w", 1).await?.remove(0);
        assert_eq!(stage.look("position", "job_queue", job.job_id).await?, expected);
    }
    Ok(())
}

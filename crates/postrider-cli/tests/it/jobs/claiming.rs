//! Runners take what is due, tenant by tenant in turns.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::stage::{Capacity, Claimed, Stage, claim};
use crate::sql::{execute, number, refusal, texts};

/// How many of each tenant.
fn by_tenant(claimed: &[Claimed]) -> BTreeMap<Uuid, usize> {
    let mut counts = BTreeMap::new();
    for run in claimed {
        *counts.entry(run.tenant_id).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn due_job_runs_are_claimed_once_and_longest_due_first() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let own = stage.own;
    stage.fill_due(own, 3).await?;
    stage.fill(own, 1, "started_at", "now() + interval '1 minute'").await?;
    stage.fill(own, 1, "locked_by, heartbeat_at", "'v', now() - interval '1 day'").await?;
    let ended = |status: &str| format!("'{status}', now() - interval '1 minute'");
    for status in ["completed", "failed", "cancelled"] {
        stage.fill(own, 1, "status, completed_at", &ended(status)).await?;
    }
    // Retries: due for longest, and not yet.
    stage
        .fill(
            own,
            1,
            "status, completed_at, retry_at, retry_count",
            "'failed', now(), now() - interval '2 hours', 2",
        )
        .await?;
    stage
        .fill(own, 1, "status, completed_at, retry_at", "'failed', now(), now() + interval '1 minute'")
        .await?;

    let order = "select id::text from jobs.job_runs
                  where (status = 'running' and locked_by is null and started_at <= now()) or retry_at <= now()
                  order by coalesce(retry_at, started_at)";
    let order = texts(&stage.admin, order).await?;
    assert_eq!(order.len(), 4);
    let mut taken = Vec::new();
    for _ in 0..6 {
        taken.extend(claim(&stage.worker, "w", &Capacity::of(1)).await?);
    }
    assert_eq!(taken.iter().map(|run| run.id.to_string()).collect::<Vec<_>>(), order);
    assert_eq!(
        taken.iter().map(|run| (run.retry_count, run.claims)).collect::<Vec<_>>(),
        [(3, 1), (0, 1), (0, 1), (0, 1)]
    );
    let held = "concat_ws(' ', status, locked_by, heartbeat_at >= started_at, started_at > now() - interval '1 minute', retry_at is null,
                          completed_at is null)";
    for run in &taken {
        assert_eq!(stage.look_at_run(held, run.id).await?, "running w t t t t");
    }
    // A claim does not wait for another claim: it skips locked rows.
    stage.fill_due(own, 2).await?;
    let mut first = stage.worker.begin().await?;
    assert_eq!(claim(&mut *first, "w", &Capacity::of(1)).await?.len(), 1);
    let mut second = stage.worker.begin().await?;
    execute(&mut *second, "set local lock_timeout = '10s'").await?;
    assert_eq!(claim(&mut *second, "w", &Capacity::of(5)).await?.len(), 1);
    for nobody in ["''", "' '", "null"] {
        let call = format!("select id from jobs.claim_runs('{own}', {nobody}, 1, '{{sql}}', '{{}}')");
        assert_eq!(refusal(execute(&stage.worker, call).await)?.code, "22023");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_ten_thousand_waiting_does_not_starve_one_with_three() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let mut tenants = [stage.own, stage.another("second").await?, stage.another("third").await?];
    tenants.sort_unstable();
    let [first, second, third] = tenants;
    stage.fill_due(first, 10_000).await?;
    stage.fill_due(second, 3).await?;
    stage.fill_due(third, 3).await?;

    // Begins behind whom it was at, goes once around, and takes of none more than there is capacity for.
    let capacity = |limit, per_tenant, after| Capacity { per_tenant, after, ..Capacity::of(limit) };
    let claimed = claim(&stage.worker, "w", &capacity(6, 4, Some(first))).await?;
    assert_eq!(by_tenant(&claimed), BTreeMap::from([(second, 3), (third, 3)]));
    let claimed = claim(&stage.worker, "w", &capacity(10, 4, Some(second))).await?;
    assert_eq!(by_tenant(&claimed), BTreeMap::from([(first, 4)]));
    stage.fill_due(second, 3).await?;
    stage.fill_due(third, 3).await?;
    let claimed = claim(&stage.worker, "w", &capacity(7, 4, None)).await?;
    assert_eq!(by_tenant(&claimed), BTreeMap::from([(first, 4), (second, 3)]));
    let claimed = claim(&stage.worker, "w", &capacity(7, 4, Some(second))).await?;
    assert_eq!(by_tenant(&claimed), BTreeMap::from([(third, 3), (first, 4)]));
    // The last tenant of all comes around to the first, and to itself.
    stage.fill_due(third, 3).await?;
    let claimed = claim(&stage.worker, "w", &capacity(5, 4, Some(third))).await?;
    assert_eq!(by_tenant(&claimed), BTreeMap::from([(first, 4), (third, 1)]));

    // Once around and no further: nobody gets their capacity twice.
    stage.fill_due(third, 10).await?;
    let claimed = claim(&stage.worker, "w", &capacity(50, 4, Some(second))).await?;
    assert_eq!(by_tenant(&claimed), BTreeMap::from([(first, 4), (third, 4)]));

    // Rooms of single tenants.
    let capacities = Capacity { tenants: vec![(first, 0), (third, 1)], ..Capacity::of(10) };
    assert_eq!(by_tenant(&claim(&stage.worker, "w", &capacities).await?), BTreeMap::from([(third, 1)]));
    let capacities = Capacity { tenants: vec![(first, 5)], per_tenant: 0, ..Capacity::of(10) };
    assert_eq!(by_tenant(&claim(&stage.worker, "w", &capacities).await?), BTreeMap::from([(first, 5)]));
    assert_eq!(claim(&stage.worker, "w", &Capacity::of(0)).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_claims_job_runs_of_functions_that_it_can_run_or_that_are_gone() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let own = stage.own;
    execute(
        &stage.admin,
        format!(
            "insert into jobs.functions (id, tenant_id, name, kind, target, sealed_secret)
             values (gen_random_uuid(), '{own}', 'web', 'http', 'https://example.com', 's'),
                    (gen_random_uuid(), '{own}', 'mine', 'builtin', 'noop', null),
                    (gen_random_uuid(), '{own}', 'newer', 'builtin', 'of-a-later-version', null),
                    (gen_random_uuid(), '{own}', 'gone', 'sql', 'public.f', null)"
        ),
    )
    .await?;
    for name in ["f", "web", "mine", "newer", "gone"] {
        stage.run(own, name).await?;
    }
    assert!(
        stage
            .ask::<bool>(own, "select jobs.remove_function(tenancy.current_tenant_id(), 'gone', 'me')")
            .await?
    );

    let names = async |kinds: &'static [&'static str]| -> anyhow::Result<Vec<String>> {
        let mut transaction = stage.worker.begin().await?;
        let claimed = claim(&mut *transaction, "w", &Capacity { kinds, ..Capacity::of(10) }).await?;
        transaction.rollback().await?;
        let mut names: Vec<String> = claimed
            .iter()
            .map(|run| format!("{} {}", run.function_name, run.kind.as_deref().unwrap_or("-")))
            .collect();
        names.sort_unstable();
        Ok(names)
    };
    assert_eq!(names(&[]).await?, ["gone -"]);
    assert_eq!(names(&["sql"]).await?, ["f sql", "gone -"]);
    assert_eq!(names(&["http"]).await?, ["gone -", "web http"]);
    assert_eq!(names(&["builtin"]).await?, ["gone -", "mine builtin"]);
    assert_eq!(names(&["http", "sql", "builtin"]).await?, ["f sql", "gone -", "mine builtin", "web http"]);
    let secret = format!(
        "select count(*) from jobs.claim_runs('{own}', 'w', 10, '{{http}}', '{{}}')
          where sealed_secret = 's' and target = 'https://example.com' and timeout_seconds = 60"
    );
    assert_eq!(number(&stage.worker, secret).await?, 1);
    Ok(())
}

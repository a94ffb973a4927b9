//! One run under a lock key: who gets it, and what the others are told.

use uuid::Uuid;

use super::stage::{Capacity, End, Stage, acquire, acting_for, claim, ends};
use crate::sql::{execute, number, refusal, texts};

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_a_key_is_named_until_its_job_run_fails() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (word, first) = stage.acquire(stage.own, "f", false).await?;
    assert_eq!(word, "acquired");
    let said = async |word: &str| -> anyhow::Result<()> {
        assert_eq!(stage.acquire(stage.own, "f", false).await?, (word.to_owned(), first));
        Ok(())
    };
    let first_id = first.unwrap();
    assert_eq!(
        stage
            .look_at_run(
                "concat_ws(' ', status, locked_by is null, retry_count, grain, grain_start = jobs.grain_start('day', now()), is_forced,
                           input_params, schedule_id is null and scheduled_for is null, lock_key = jobs.lock_key('f', tenant_id, 'day', now()))",
                first_id
            )
            .await?,
        "running t 0 day t f {\"a\": 1} t t"
    );
    said("running").await?;
    let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
    said("running").await?;
    assert_eq!(ends(&stage.worker, "w", &[(&held, End::Failed)]).await?, ["failed again"]);
    said("retry_pending").await?;
    execute(&stage.admin, "update jobs.job_runs set retry_at = now()").await?;
    let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
    said("running").await?;
    assert_eq!(ends(&stage.worker, "w", &[(&held, End::Done)]).await?, ["completed"]);
    said("completed").await?;
    said("completed").await?;
    assert_eq!(number(&stage.admin, "select count(*) from jobs.job_runs").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_failed_for_good_or_was_cancelled_leaves_the_key_free() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let mut dead = Vec::new();
    dead.push(stage.ended(stage.own, "f", End::Refused).await?);
    dead.push(stage.run(stage.own, "f").await?);
    let cancel = format!("select jobs.cancel_run(tenancy.current_tenant_id(), '{}', null, 'me')", dead[1]);
    assert_eq!(stage.ask::<String>(stage.own, cancel).await?, "cancelled");
    let new = stage.run(stage.own, "f").await?;
    assert!(!dead.contains(&new));
    let keys = "select count(*) from (select distinct lock_key from jobs.job_runs) as keys";
    assert_eq!(number(&stage.admin, keys).await?, 1);
    assert_eq!(stage.acquire(stage.own, "f", false).await?, ("running".to_owned(), Some(new)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn force_counts_over_a_completed_run_only_and_is_audited() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let own = stage.own;
    // Where nobody has the key there is nothing to force.
    let (word, plain) = stage.acquire(own, "f", true).await?;
    assert_eq!(word, "acquired");
    let plain = plain.unwrap();
    assert_eq!(stage.look_at_run("is_forced", plain).await?, "false");
    assert_eq!(stage.acquire(own, "f", true).await?, ("running".to_owned(), Some(plain)));
    let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
    ends(&stage.worker, "w", &[(&held, End::Failed)]).await?;
    assert_eq!(stage.acquire(own, "f", true).await?, ("retry_pending".to_owned(), Some(plain)));
    execute(&stage.admin, "update jobs.job_runs set retry_at = now()").await?;
    let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
    ends(&stage.worker, "w", &[(&held, End::Done)]).await?;

    let (word, forced) = stage.acquire(own, "f", true).await?;
    assert_eq!(word, "acquired");
    let forced = forced.unwrap();
    assert_eq!(stage.look_at_run("is_forced", forced).await?, "true");
    let key = stage.look_at_run("lock_key", forced).await?;
    assert_eq!(stage.log_of(format!("job_run:{forced}")).await?, [format!("run.forced by me {key}")]);
    // While it is active it has the key, whether others force or not; of the two, who is active is named.
    for force in [false, true] {
        assert_eq!(stage.acquire(own, "f", force).await?, ("running".to_owned(), Some(forced)));
    }
    let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
    ends(&stage.worker, "w", &[(&held, End::Failed)]).await?;
    for force in [false, true] {
        assert_eq!(stage.acquire(own, "f", force).await?, ("retry_pending".to_owned(), Some(forced)));
    }
    stage
        .ask::<String>(
            own,
            format!("select jobs.cancel_run(tenancy.current_tenant_id(), '{forced}', null, 'me')"),
        )
        .await?;
    assert_eq!(stage.acquire(own, "f", false).await?, ("completed".to_owned(), Some(plain)));
    assert_eq!(stage.acquire(own, "f", true).await?.0, "acquired");
    let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
    ends(&stage.worker, "w", &[(&held, End::Done)]).await?;
    assert_eq!(stage.acquire(own, "f", false).await?, ("completed".to_owned(), Some(plain)));
    assert_eq!(stage.acquire(own, "f", true).await?.0, "acquired");
    let forced = "select count(*) from tenancy.audit_log where action = 'run.forced'";
    assert_eq!(number(&stage.admin, forced).await?, 4, "those that were refused are none");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn entities_functions_tenants_and_grains_have_keys_of_their_own() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, other) = (stage.own, stage.another("other").await?);
    stage.function(own, "g").await?;
    stage.function_with(own, "hourly", "grain", "'hour'").await?;
    stage.function_with(own, "often", "grain", "'5min'").await?;
    let mut transaction = acting_for(&stage.app, own).await?;
    for (function, hash) in [
        ("f", None),
        ("f", Some("000000000000")),
        ("f", Some("000000000001")),
        ("g", None),
        ("hourly", None),
        ("often", None),
    ] {
        // In one transaction, and so at one moment.
        let first = acquire(&mut *transaction, function, hash, false).await?;
        assert_eq!(first.0, "acquired", "{function} {hash:?}");
        let again = acquire(&mut *transaction, function, hash, false).await?;
        assert_eq!(again, ("running".to_owned(), first.1), "{function} {hash:?}");
    }
    transaction.commit().await?;
    stage.run(other, "f").await?;
    let wrong = "select count(*) from jobs.job_runs as run join jobs.functions as function
                     on function.tenant_id = run.tenant_id and function.name = run.function_name
                  where run.grain <> function.grain or run.grain_start <> jobs.grain_start(run.grain, run.created_at)";
    assert_eq!(number(&stage.admin, wrong).await?, 0);
    Ok(())
}

/// Opens a run at a moment, as schedules do.
async fn open(stage: &Stage, grain: &str, at: &str) -> anyhow::Result<String> {
    let sql = format!(
        "select outcome from jobs.open_run('{}', gen_random_uuid(), 'f', '{grain}', '{at}', null, null, null, false)",
        stage.own
    );
    Ok(texts(&stage.admin, sql).await?.join(""))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grain_begins_with_its_first_moment_and_ends_before_the_next() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for (grain, at, outcome) in [
        ("day", "2026-02-06 00:00+00", "acquired"),
        ("day", "2026-02-06 23:59:59.999999+00", "running"),
        ("day", "2026-02-05 23:59:59.999999+00", "acquired"),
        // The day is that of UTC, wherever the moment is written.
        ("day", "2026-02-07 01:00+02", "running"),
        ("day", "2026-02-07 02:00+02", "acquired"),
        ("hour", "2026-02-06 00:00+00", "acquired"),
        ("hour", "2026-02-06 00:59:59.999999+00", "running"),
        ("hour", "2026-02-06 01:00+00", "acquired"),
        ("5min", "2026-02-06 00:00+00", "acquired"),
        ("5min", "2026-02-06 00:04:59.999999+00", "running"),
        ("5min", "2026-02-06 00:05+00", "acquired"),
    ] {
        assert_eq!(open(&stage, grain, at).await?, outcome, "{grain} {at}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_the_tenant_does_not_have_is_unknown() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    stage.function(other, "theirs").await?;
    for function in ["theirs", "nobodys", "F", ""] {
        assert_eq!(
            stage.acquire(stage.own, function, true).await?,
            ("unknown_function".to_owned(), None),
            "{function}"
        );
    }
    assert_eq!(number(&stage.admin, "select count(*) from jobs.job_runs").await?, 0);
    let call = |tenant: Uuid, id: Uuid, function: &str| {
        format!(
            "select outcome from jobs.acquire_run('{tenant}', '{id}', '{function}', null, null, false, 'me')"
        )
    };
    let refused = refusal(execute(&stage.app, call(stage.own, Uuid::now_v7(), "f")).await)?;
    assert_eq!(refused.code, "42501", "no tenant is set: {refused:?}");
    // An id that the tenant has used makes no second run, and does not take the key.
    let id = stage.run(stage.own, "f").await?;
    stage.function(stage.own, "g").await?;
    let refused = refusal(stage.ask::<String>(stage.own, call(stage.own, id, "g")).await)?;
    assert_eq!(refused.code, "55P03", "{refused:?}");
    // An id is unique within its tenant: another tenant neither meets nor changes the run.
    let row = "to_jsonb(job_runs)";
    let before = stage.look_at_run(row, id).await?;
    let refused = refusal(stage.ask::<String>(other, call(stage.own, id, "f")).await)?;
    assert_eq!(refused.code, "42501", "{refused:?}");
    assert_eq!(stage.look_at_run(row, id).await?, before);
    assert_eq!(stage.ask::<String>(other, call(other, id, "f")).await?, "acquired");
    let runs = "select concat_ws(' ', tenant_id, id, function_name) from jobs.job_runs order by created_at";
    assert_eq!(
        texts(&stage.admin, runs).await?,
        [format!("{} {id} f", stage.own), format!("{other} {id} f")]
    );
    Ok(())
}
